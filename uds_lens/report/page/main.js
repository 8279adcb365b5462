/* Wires the controls, draws what is in sight. */

function chooseModel(index) {
  state.model = index;
  state.open.clear();
  for (const span of document.querySelectorAll(".current")) span.textContent = DATA.models[index].name;
  for (const cell of document.querySelectorAll(".metrics [data-model]")) {
    cell.classList.toggle("chosen", DATA.models.length > 1 && Number(cell.dataset.model) === index);
  }
  for (const line of document.querySelectorAll(".models tr[data-model]")) {
    line.setAttribute("aria-current", String(Number(line.dataset.model) === index));
  }
  const select = document.getElementById("model");
  if (select) select.value = String(index);
  redraw(["compare", "utility", "layers", "heatmap", "examples", "types", "length", "clip", "tau", "control", "elicited", "depth_elicited"]);
  renderElicited();
  renderTable();
}

function listen(id, event, key, read = (control) => control.value) {
  document.getElementById(id)?.addEventListener(event, ({ target }) => {
    state[key] = read(target);
    state.all = key === "all" ? true : state.all;
    if (key === "order") redraw(["heatmap"]);
    else renderTable();
  });
}

listen("search", "input", "search");
listen("status", "change", "status");
listen("order", "change", "order");
listen("more", "click", "all", () => true);
document.getElementById("model")?.addEventListener("change", ({ target }) => chooseModel(Number(target.value)));
for (const button of document.querySelectorAll(".pick")) {
  button.addEventListener("click", () => chooseModel(Number(button.dataset.model)));
}

/* The section that is being read, among the links; phones have a menu in their place. */
const jump = document.getElementById("jump");
jump.addEventListener("change", () => { location.hash = ""; location.hash = jump.value; });
const links = new Map([...document.querySelectorAll(".sections a")].map((link) => [document.getElementById(link.hash.slice(1)), link]));
function follow() {
  const edge = document.querySelector(".sections").offsetHeight + 24;
  document.documentElement.style.scrollPaddingTop = `${edge - 10}px`;
  const read = [...links.keys()].filter((section) => !section.hidden && section.getBoundingClientRect().top <= edge).pop();
  for (const [section, link] of links) link.setAttribute("aria-current", String(section === read));
  jump.value = read?.id ?? "score";
}
addEventListener("scroll", follow, { passive: true });
addEventListener("resize", follow);

/* Long texts are cut after a few lines; those that are open on a click. */
function clampLong() {
  for (const text of document.querySelectorAll(".clamp:not(.open)")) {
    const long = text.scrollHeight > text.clientHeight + 2;
    text.classList.toggle("long", long);
    if (long) Object.assign(text, { tabIndex: 0, title: "Show all of it" }).setAttribute("role", "button");
  }
}
function unfold(event) {
  const text = event.target.closest?.(".clamp.long");
  if (!text || String(getSelection()) || (event.type === "keydown" && !["Enter", " "].includes(event.key))) return;
  if (event.type === "keydown") event.preventDefault();
  text.setAttribute("aria-expanded", String(text.classList.toggle("open")));
}
addEventListener("click", unfold);
addEventListener("keydown", unfold);
addEventListener("resize", clampLong);
document.addEventListener("toggle", clampLong, true);

const first = document.querySelector(".models tbody tr:not(.reference)") ?? document.querySelector(".models tbody tr");
chooseModel(first ? Number(first.dataset.model) : 0);
for (const target of document.querySelectorAll(".plot[data-figure]")) watcher.observe(target);
clampLong();
follow();
document.documentElement.dataset.ready = "yes";
