/* Draws the one figure of a comparison. */

const DATA = JSON.parse(document.getElementById("data").textContent);
const spec = (name) => inColours(DATA.figures[name] ?? null);
function drawn() {}

darkness.addEventListener("change", () => redraw());
for (const target of document.querySelectorAll(".plot[data-figure]")) watcher.observe(target);
document.documentElement.dataset.ready = "yes";
