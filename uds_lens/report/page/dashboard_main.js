/* Wires the switches, says what each figure shows, draws what is in sight. */

const NOTHING = { data: [], layout: { height: 150, xaxis: { visible: false }, yaxis: { visible: false }, annotations: [{ text: "no values", x: 0.5, y: 0.5, xref: "paper", yref: "paper", showarrow: false }] } };

/* Where there is no room: cells show the star alone, an axis its letter. The rest is said when pointed at. */
const NARROW = {
  pairs: (found) => {
    if (found) found.data[0].text = found.data[0].text.map((row) => row.map((text) => (text.endsWith("*") ? "*" : "")));
    return found;
  },
  forest: (found) => {
    if (found) found.layout.xaxis.title.text = "F (faithfulness)";
    return found;
  },
};

function spec(name, width) {
  if (name === "heatmap") return inColours(DATA.figures[`heatmap ${state.setting}`] ?? null);
  if (name.startsWith("ranks ")) return inColours(DATA.figures[`ranks ${state.by} ${state.view} ${name.slice(6)}`] ?? null);
  if (name === "pools" || /^(quantised|relearned) /.test(name)) return inColours(DATA.figures[`${name} ${state.metric}`] ?? NOTHING);
  if (name === "frontier") return frontierSpec();
  if (name in NARROW && width < 520 && !printing) return NARROW[name](inColours(DATA.figures[name] ?? null));
  return inColours(DATA.figures[name] ?? null);
}

/* The frontier over the models that are switched on; a method's marks are its models in the order of the table. */
function frontierSpec() {
  const found = inColours(DATA.figures.frontier ?? null);
  if (!found) return null;
  const on = new Set(listed()), kept = [];
  const marked = (method) => MODELS.filter((model) => model.method === method && known(model.depth) && known(model.utility_rel));
  DATA.methods.filter((method) => marked(method).length).forEach((method, at) => { // a method without values has no marks
    const trace = found.data[at + 1], own = marked(method);
    const places = own.map((model, place) => (on.has(model) ? place : -1)).filter((place) => place >= 0);
    for (const key of ["x", "y", "customdata"]) trace[key] = places.map((place) => trace[key][place]);
    trace.x.forEach((x, place) => kept.push({ x, y: trace.y[place] }));
    trace.visible = places.length > 0;
  });
  const line = frontierOf(kept);
  Object.assign(found.data[0], { x: line.map((point) => point.x), y: line.map((point) => point.y), customdata: [] });
  if (state.minUtility !== null) {
    found.layout.shapes = [{ type: "line", x0: state.minUtility, x1: state.minUtility, yref: "paper", y0: 0, y1: 1, line: { width: 1, dash: "dot", color: found.layout.font?.color } }];
  }
  return found;
}

function drawn() {}

function methodsChanged() {
  renderMethods();
  renderModels();
  redraw(["ranks configurations", "ranks examples", "frontier"]);
}

function choices(id, values, chosen, counts, label) {
  const field = document.getElementById(id);
  if (!field) return;
  field.hidden = !values.length;
  const boxes = values.map((value) => {
    const box = element("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => { chosen[box.checked ? "add" : "delete"](value); methodsChanged(); });
    return [box, element("label", {}, box, label(value), element("span", { className: "n" }, `${counts(value)}`))];
  });
  const all = (wanted) => {
    for (const [box] of boxes) box.checked = wanted;
    chosen.clear();
    if (wanted) values.forEach((value) => chosen.add(value));
    methodsChanged();
  };
  const row = field.querySelector(".row");
  row.append(...boxes.map(([, made]) => made));
  if (values.length > 2) {
    for (const [words, wanted] of [["all", true], ["none", false]]) {
      const button = element("button", { type: "button", dataset: { all: words } }, words);
      button.addEventListener("click", () => all(wanted));
      row.append(button);
    }
  }
}

function on(id, event, work) {
  document.getElementById(id)?.addEventListener(event, ({ target }) => work(target));
}

on("setting", "change", (target) => { state.setting = target.value; renderMetrics(); redraw(["heatmap"]); });
for (const select of document.querySelectorAll(".metric-choice")) {
  select.append(...METRICS.map((metric) => element("option", { value: metric.metric }, metric.label)));
  select.value = state.metric;
  select.addEventListener("change", () => {
    state.metric = select.value;
    for (const other of document.querySelectorAll(".metric-choice")) other.value = state.metric;
    redraw(["pools", "quantised both", "quantised utility", "relearned both", "relearned utility"]);
  });
}
for (const name of ["view", "by"]) {
  for (const radio of document.querySelectorAll(`input[name="${name}"]`)) {
    radio.checked = radio.value === state[name];
    radio.addEventListener("change", () => { state[name] = radio.value; methodsChanged(); });
  }
}
function showUtility() {
  const output = document.getElementById("utility-value");
  if (!output) return;
  output.textContent = state.minUtility === null ? "none" : state.minUtility.toFixed(2);
  document.getElementById("utility").value = state.minUtility ?? 0;
}
on("utility", "input", (target) => { state.minUtility = Number(target.value) > 0 ? Number(target.value) : null; showUtility(); methodsChanged(); });
on("show", "change", (target) => { state.show = target.value; showCriterion(); renderModels(); });
on("criterion", "change", (target) => { state.criterion = target.value; renderModels(); });
on("search", "input", (target) => { state.search = target.value.trim().toLowerCase(); renderModels(); });
on("more", "click", () => { state.all = true; renderModels(); });
function showCriterion() {
  const label = document.querySelector(".criterion");
  if (label) label.hidden = state.show !== "best";
}
document.getElementById("criterion")?.append(...[...Object.entries(CRITERION_WORDS), ...OTHERS.slice(0, 1).map((name) => [name, DATA.groups.Privacy.find((part) => part.name === name).label])]
  .map(([value, words]) => element("option", { value }, words)));

choices("epochs", DATA.epochs, state.epochs, (value) => MODELS.filter((model) => model.epochs === value).length, String);
choices("method-filter", DATA.methods, state.methods, (value) => MODELS.filter((model) => model.method === value).length, called);
showUtility();
showCriterion();
renderBeside();
renderMetrics();
renderMethods();
renderModels();
darkness.addEventListener("change", () => redraw());

/* On paper nothing can be opened or chosen: everything is open, all models are there. */
const closed = [];
function forPaper(wanted) {
  printing = wanted;
  if (wanted) closed.push(...document.querySelectorAll("details:not([open])"));
  for (const part of closed) part.open = wanted;
  if (!wanted) closed.length = 0;
  renderModels();
  for (const target of document.querySelectorAll(".plot[data-figure]")) draw(target);
}
addEventListener("beforeprint", () => forPaper(true));
addEventListener("afterprint", () => forPaper(false));

for (const target of document.querySelectorAll(".plot[data-figure]")) watcher.observe(target);
document.documentElement.dataset.ready = "yes";
