/* The figures of the report. */

/* Two plots side by side, stacked where there is no room. */
function stacked(figure) {
  const { xaxis, xaxis2, yaxis, yaxis2 } = figure.layout;
  Object.assign(xaxis, { domain: [0, 1] });
  Object.assign(xaxis2, { domain: [0.16, 1] });
  Object.assign(yaxis, { domain: [0.46, 1] });
  Object.assign(yaxis2, { domain: [0, 0.27] });
  figure.layout.height += 180;
  return figure;
}

/* Where there is no room cells show the star alone; the numbers are in the table. */
function starsOnly(figure) {
  figure.data[0].text = figure.data[0].text.map((row) => row.map((text) => (text.endsWith("*") ? "*" : "")));
  return figure;
}

/* The chosen model strong, the others light, references grey; in panels its own is tinted. */
function compareSpec(figure, width) {
  const { data, layout } = inColours(figure), look = inColours(DATA.look), narrow = width < 520 && !printing;
  if (layout.meta.kind === "panels") {
    const panel = data.find((trace) => trace.meta?.place === state.model);
    const mark = { type: "rect", x0: 0, x1: 1, y0: 0, y1: 1, line: { width: 0 }, fillcolor: inColours(DATA.tint), layer: "below" };
    layout.shapes = panel ? [{ ...mark, xref: `${panel.xaxis ?? "x"} domain`, yref: `${panel.yaxis ?? "y"} domain` }] : [];
    if (narrow) {
      const { height, ...axes } = layout.meta.narrow;
      for (const [axis, place] of Object.entries(axes)) Object.assign(layout[axis], place);
      layout.height = height;
    }
  } else {
    for (const trace of data) {
      const { place, reference } = trace.meta, strong = place === state.model;
      const colour = strong ? look.erased : reference ? look.faint : look.other;
      Object.assign(trace.line, { color: colour, width: strong ? 3.25 : 1.75 });
      trace.marker = { color: colour, size: strong ? 6 : 4 };
      trace.zorder = Number(strong);
      const label = layout.annotations.find(({ name }) => name === String(place));
      if (label) Object.assign(label, { arrowcolor: colour, font: { ...label.font, color: strong || reference ? colour : look.text, weight: strong ? 700 : 400 } });
    }
  }
  for (const label of layout.annotations ?? []) {
    const model = label.name === undefined ? null : DATA.models[Number(label.name)];
    if (!model) continue;
    if (layout.meta.kind === "panels") label.font = { ...label.font, weight: model === DATA.models[state.model] ? 700 : 400 };
    if (narrow) label.text = plotText(model.name, 99, layout.meta.kind === "panels" ? 20 : 11);
  }
  return { data, layout };
}

/* Depth against utility: as above; where there is no room only the chosen model and the references are named. */
function utilitySpec(figure, width) {
  const { data, layout } = inColours(figure), look = inColours(DATA.look);
  for (const trace of data.filter((one) => one.meta)) {
    const { place, reference } = trace.meta, strong = place === state.model;
    const colour = strong ? look.erased : reference ? look.faint : DATA.models.length > 1 ? look.other : look.erased;
    trace.marker = { ...trace.marker, color: colour, size: strong ? 13 : reference ? 12 : 9 };
    trace.error_y = { ...trace.error_y, color: colour, visible: strong };
    trace.textfont = { ...trace.textfont, color: strong ? look.ink : reference ? look.faint : look.text, weight: strong ? 700 : 400 };
    trace.zorder = Number(strong);
    if (width >= 520 || printing) continue;
    if (!strong && !reference) trace.mode = "markers";
    const [low, high] = layout.xaxis.range;
    trace.textposition = trace.x[0] > (low + high) / 2 ? "middle left" : "middle right";
  }
  return { data, layout };
}

/* Names of references in the matrix are grey. */
function greyReferences(figure) {
  const { faint } = inColours(DATA.look), grey = new Set(figure.layout.meta.references);
  for (const axis of [figure.layout.xaxis, figure.layout.yaxis]) {
    axis.ticktext = axis.ticktext.map((text, place) => (grey.has(place) ? `<span style="color:${faint}">${text}</span>` : text));
  }
  return figure;
}

function spec(name, width) {
  const model = DATA.models[state.model];
  if (name === "heatmap") return heatmapSpec(model);
  const found = DATA.figures[name] ?? model.figures[name];
  if (!found) return null;
  if (name === "compare") return compareSpec(found, width);
  if (name === "utility") return utilitySpec(found, width);
  if (name === "differences") return greyReferences(width < 520 && !printing ? starsOnly(inColours(found)) : inColours(found));
  return name.startsWith("components") && width < 520 && !printing ? stacked(inColours(found)) : inColours(found);
}

function rowOrder(model) {
  if (state.order === "cluster") return model.cluster;
  const order = examples(model).map((example) => example.index);
  if (state.order === "input") return order;
  const key = (index) => (Number.isNaN(scoreOf(model, index)) ? 2 : scoreOf(model, index));
  return order.sort((a, b) => key(a) - key(b) || a - b);
}

/* Rows of the map: of very many, an even sample. */
const MAP_ROWS = 2000;
function mapRows(model) {
  const order = rowOrder(model), step = Math.ceil(order.length / MAP_ROWS);
  return step > 1 ? order.filter((_, place) => place % step === 0) : order;
}

function heatmapSpec(model) {
  const order = mapRows(model), known = examples(model);
  const { data, layout } = inColours(DATA.figures.heatmap);
  if (!order.length) return { data: [], layout: { height: 160, xaxis: { visible: false }, yaxis: { visible: false } } };
  const rows = order.map((index) => layers(model, index));
  Object.assign(data[0], {
    x: rows[0].map((part) => part.layer),
    z: rows.map((row) => row.map((part) => (part.ke ? part.ler : null))),
    text: rows.map((row) => row.map((part) => (part.ke ? `LER ${shown(part.ler)}` : "no knowledge, LER undefined"))),
    customdata: rows.map((row) => row.map((part) => [part.s1, part.s2])),
    ygap: order.length <= 120 ? 1 : 0,
  });
  layout.showlegend = data[0].z.some((row) => row.includes(null)); // what is grey
  const step = Math.ceil(model.layers / 16);
  const few = order.length <= 50, names = few && (printing || document.documentElement.clientWidth > 620);
  const range = [order.length - 0.5, -0.5], ticks = order.map((_, place) => place);
  const hover = order.map((index) => `<b>${plotText(known[index].entity, 99, 60)}</b><br>${plotText(known[index].question)}`
    + `<br>UDS ${Number.isNaN(scoreOf(model, index)) ? "not measurable" : shown(scoreOf(model, index))}`);
  layout.height = Math.max(280, few ? 150 + 18 * order.length : 860);
  Object.assign(layout.xaxis, { dtick: step, tick0: 0, range: [-0.5, model.layers - 0.5] });
  Object.assign(layout.yaxis, { range, tickvals: ticks, ticktext: hover });
  Object.assign(layout.yaxis2, {
    range, showticklabels: names, tickvals: names ? ticks : [],
    ticktext: names ? order.map((index) => plotText(about(known[index]), 99, 40)) : [],
    title: { text: names ? "" : order.length < known.length ? `${order.length} of ${known.length} examples` : `${order.length} examples` },
  });
  return { data, layout };
}

/* What an example is about: its subject and entity, or its question. */
const about = (example) => (example.subject ? `${example.subject}: ${example.entity}` : example.question);

/* A cell of the map opens its example; a curve of the comparison chooses its model. */
function drawn(target) {
  if (["compare", "utility"].includes(target.dataset.figure) && !target.dataset.listening) {
    target.dataset.listening = "yes";
    target.on("plotly_click", ({ points }) => {
      const place = points[0].data.meta?.place;
      if (place >= 0) chooseModel(place);
    });
  }
  if (target.dataset.figure !== "heatmap" || target.dataset.listening) return;
  target.dataset.listening = "yes";
  target.on("plotly_click", ({ points }) => {
    const place = Array.isArray(points[0].pointIndex) ? points[0].pointIndex[0] : points[0].pointNumber[0];
    openExample(mapRows(DATA.models[state.model])[place]);
  });
}

darkness.addEventListener("change", () => { redraw(); renderTable(); });

/* On paper nothing can be scrolled, opened or chosen: all rows, all figures in the width of the page, all of the skipped rows. */
const closed = [];
function forPaper(wanted) {
  printing = wanted;
  if (wanted) closed.push(...document.querySelectorAll("details:not([open])"));
  for (const part of closed) part.open = wanted;
  if (!wanted) closed.length = 0;
  renderTable();
  for (const target of document.querySelectorAll(".plot[data-figure]")) draw(target);
}
addEventListener("beforeprint", () => forPaper(true));
addEventListener("afterprint", () => forPaper(false));
