/* Wires the controls, draws what is in sight. */

function chooseModel(index) {
  state.model = index;
  state.open.clear();
  for (const span of document.querySelectorAll(".current")) span.textContent = DATA.models[index].name;
  for (const line of document.querySelectorAll(".models tr[data-model]")) {
    line.setAttribute("aria-current", String(Number(line.dataset.model) === index));
  }
  const select = document.getElementById("model");
  if (select) select.value = String(index);
  redraw(["layers", "heatmap", "examples", "types", "length", "clip", "tau"]);
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

const first = document.querySelector(".models tbody tr[data-model]");
chooseModel(first ? Number(first.dataset.model) : 0);
for (const target of document.querySelectorAll(".plot[data-figure]")) watcher.observe(target);
document.documentElement.dataset.ready = "yes";
