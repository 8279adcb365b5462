/* The table of models. */

const PAGE = 40;
const hasScores = "score_with" in (MODELS[0] ?? {});
const COLUMNS = hasScores
  ? [["score_without", "without"], ["score_with", "with depth"], ["memorization", "Mem"], ["privacy", "Privacy"], ["utility_rel", "utility"], ["depth", "depth"],
    ...["output_depth", "host_depth", "hidden"].filter((name) => name in MODELS[0]).map((name) => [name, name.replace("_depth", "")]),
    ...OTHERS.slice(0, 1).map((name) => [name, DATA.groups.Privacy.find((part) => part.name === name).label])]
  : Object.values(DATA.groups).flat().slice(0, 8).map((part) => [part.name, part.label]);
const CRITERION_WORDS = { score_without: "score without depth", score_with: "score with depth", memorization: "memorization", privacy: "privacy", utility_rel: "utility", depth: "depth" };

function shownModels() {
  let rows = listed();
  if (state.search) rows = rows.filter((model) => model.model.toLowerCase().includes(state.search));
  if (state.show === "best") {
    const best = new Map();
    for (const model of rows) {
      const now = best.get(model.method), value = model[state.criterion];
      if (known(value) && (!now || value > now[state.criterion])) best.set(model.method, model);
    }
    rows = [...best.values()];
  }
  const { key, descending } = state.modelSort;
  return sorted(rows, (model) => (key === "model" ? model.model.toLowerCase() : model[key]), descending);
}

function partsOf(model) {
  return element("div", { className: "parts" }, ...Object.entries(DATA.groups).filter(([, items]) => items.length).map(([title, items]) => {
    const total = { Memorization: model.memorization, Privacy: model.privacy, Utility: model.utility_rel }[title];
    return element("div", {}, element("h4", {}, title, element("span", {}, known(total) ? number(total) : "")),
      element("dl", { className: "facts" }, ...items.map((item) => {
        const value = model[item.name], share = known(value) && item.known ? 1 - value : value;
        return element("div", {}, element("dt", {}, item.known ? `1 \u2212 ${item.label}` : item.label), known(share) ? meter(share) : element("span"), element("dd", {}, number(share)));
      })));
  }));
}

function modelLines(model, pinned) {
  const key = `${pinned ? "reference" : "model"} ${model.model}`;
  const name = element("th", { scope: "row" }, opener(model.model, key, state.openModels, renderModels));
  const line = element("tr", { className: pinned ? "pinned" : "", dataset: { model: model.model } }, name,
    ...COLUMNS.map(([column]) => cell(number(model[column]), column === state.modelSort.key ? "num strong" : "num")));
  if (!state.openModels.has(key)) return [line];
  return [line, inside(COLUMNS.length + 1, ...(model.reason ? [element("p", { className: "said soft" }, model.reason)] : []), partsOf(model))];
}

function renderModels() {
  const table = document.getElementById("model-table");
  if (!table) return;
  head(table, [{ key: "model", label: "model", kind: "", text: true }, ...COLUMNS.map(([key, label]) => ({ key, label }))], state.modelSort, renderModels);
  const rows = shownModels(), some = state.all || printing ? rows : rows.slice(0, PAGE);
  table.tBodies[0].replaceChildren(...REFERENCES.flatMap((model) => modelLines(model, true)), ...some.flatMap((model) => modelLines(model, false)));
  const methods = new Set(rows.map((model) => model.method)).size;
  document.getElementById("count").textContent = `${rows.length} of ${MODELS.length} models${hasScores ? `, ${methods} ${methods === 1 ? "method" : "methods"}` : ""}`
    + `${REFERENCES.length ? `; ${REFERENCES.map((model) => model.model).join(" and ")} stay on top` : ""}.`;
  const more = document.getElementById("more");
  more.hidden = some.length === rows.length;
  more.textContent = `Show all ${rows.length}`;
}
