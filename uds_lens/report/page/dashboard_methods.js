/* The ranking of methods. */

function methodCells(row, moved) {
  const model = row.model, places = (view) => cell(element("span", {}, number(row[`score_${view}`]), element("span", { className: moved ? "place moved" : "place" }, known(row[`rank_${view}`]) ? `${row[`rank_${view}`]}` : "")));
  if (!model) return [cell(""), places("without"), places("with"), ...Array.from({ length: 4 }, () => cell("\u2013")), cell("no complete configuration has enough utility", "wide soft")];
  const bar = cell(scale({ span: [row.score_without, row.score_with].sort((a, b) => a - b), ring: row.score_without, dot: row.score_with }, `without ${number(row.score_without)}, with ${number(row.score_with)}`), "bar");
  const config = element("td", { className: "wide" }, model.config ?? model.model);
  if (row.choice.tied.length > 1) {
    config.append(element("span", { className: "chip", title: row.choice.tied.map((other) => other.config ?? other.model).join(", ") }, `${row.choice.tied.length}-way tie`));
  }
  return [bar, places("without"), places("with"), cell(number(model.memorization)), cell(number(model.mia)), cell(number(model.depth)), cell(number(model.utility_rel)), config];
}

function renderMethods() {
  const table = document.getElementById("rank-table");
  if (!table) return;
  head(table, [
    { label: "", kind: "num" }, { label: "method", kind: "" }, { label: [element("span", {}, "0"), element("span", {}, "1")], kind: "bar" },
    { label: "without" }, { label: "with depth" }, { label: "Mem" }, { label: "MIA" }, { label: "depth" }, { label: "utility" }, { label: "configuration", kind: "" },
  ], {}, renderMethods);
  const rows = rankMethods();
  const tiedPlaces = rows.map((row) => row[`rank_${state.view}`]);
  table.tBodies[0].replaceChildren(...rows.map((row) => {
    const place = row[`rank_${state.view}`], shared = known(place) && tiedPlaces.filter((other) => other === place).length > 1;
    const moved = known(row.rank_with) && row.rank_with !== row.rank_without;
    return element("tr", { dataset: { method: row.method } }, cell(known(place) ? `${shared ? "=" : ""}${place}` : "\u2013", "num strong"),
      element("th", { scope: "row" }, called(row.method)), ...methodCells(row, moved));
  }));
  const shifts = shiftsOf(rows), other = state.by === "with" ? "without depth" : "with depth";
  document.getElementById("shifts").textContent = !rows.length ? "No method is selected."
    : shifts.length ? `If configurations were chosen by the score ${other} instead, ${shifts.map((shift) => `${called(shift.method)} would be ${shift.to.config ?? shift.to.model} (depth ${shift.change >= 0 ? "+" : "\u2212"}${Math.abs(shift.change).toFixed(3)})`).join("; ")}. The other methods would keep their configurations.`
      : `If configurations were chosen by the score ${other} instead, every method would keep its configuration.`;
}
