/* The view of one example: its texts, its layers in the chosen model, and all models side by side. */

function detail(model, index) {
  const example = examples(model)[index], parts = layers(model, index);
  const cell = element("td", { className: "detail" });
  cell.append(element("p", { className: "answer q long-text", textContent: example.question }), answer(example));
  if (Number.isNaN(scoreOf(model, index))) {
    cell.append(element("p", { className: "why", textContent: `Not measurable: no layer where ${DATA.roles.full} encodes more than ${DATA.roles.retain} (S1 ≤ tau).` }));
  }
  const plot = element("div", { className: "plot" });
  cell.append(element("div", { className: "split" }, plot, element("div", { className: "card scroll" }, layerTable(parts))),
    element("p", { className: "hint", textContent: "S1 and S2: nats/token. Raw LER: S2 / S1. LER: the same, clipped to [0, 1]. –: S1 ≤ tau, nothing to erase." }));
  if (parts.some((part) => Number.isNaN(part.s2) && !Number.isNaN(part.s1))) {
    cell.append(element("p", { className: "hint", textContent: "S2 was measured only where S1 is above tau." }));
  }
  const lens = lensLayers(model, index), beside = element("div", { className: "plot lens" });
  if (lens) {
    cell.append(element("h3", { textContent: "Patching against Logit Lens" }), beside,
      element("p", { className: "hint", textContent: "Left: the layer's state passed through the rest of full (UDS). Right: the state decoded directly (Logit Lens). A gap in LER: nothing to erase." }));
  }
  cell.append(...saidOf(model, index));
  const others = DATA.models.filter((other) => other.set === model.set);
  if (others.length > 1) cell.append(element("h3", { textContent: "All models, layer by layer (LER)" }), strip(others, index));
  return { cell, plot: () => {
    drawExample(plot, parts, model);
    if (lens) drawLens(beside, [parts, lens], model);
  } };
}

function answer(example) {
  const line = element("p", { className: "answer long-text" });
  const start = example.prefix !== null && example.entity ? example.answer.indexOf(example.entity, example.prefix.length) : -1;
  if (start < 0) {
    line.append(example.answer);
  } else {
    const end = start + example.entity.length;
    line.append(example.answer.slice(0, start), element("mark", { textContent: example.entity }), example.answer.slice(end));
  }
  return line;
}

function drawExample(target, parts, model) {
  const { data, layout } = inColours(DATA.figures.example);
  fill(data, parts);
  fit(layout, model);
  drawSpec(target, { data, layout });
}

function drawLens(target, sides, model) {
  const { data, layout } = inColours(DATA.figures.lens);
  sides.forEach((parts, column) => {
    fill(data.slice(3 * column), parts);
    const score = scoreFrom(parts), words = layout.annotations[column];
    if (!Number.isNaN(score)) words.text = words.text.replace("undefined", shown(score));
  });
  fit(layout, model);
  if (target.clientWidth < 520) {
    [[0.81, 1], [0.6, 0.76], [0.24, 0.43], [0.03, 0.19]].forEach((domain, place) => {
      Object.assign(layout[`yaxis${place ? place + 1 : ""}`], { domain, showticklabels: true });
    });
    for (const axis of [layout.xaxis, layout.xaxis2]) axis.domain = [0, 1];
    layout.height = 820;
  }
  drawSpec(target, { data, layout });
}

/* S1, S2 and LER into the three curves of a pattern. */
function fill(curves, parts) {
  [(part) => part.s1, (part) => part.s2, (part) => (part.ke ? part.ler : null)].forEach((pick, place) => {
    Object.assign(curves[place], { x: parts.map((part) => part.layer), y: parts.map(pick) });
  });
}

/* The axes and the line at tau of a pattern, for a model. */
function fit(layout, model) {
  const range = [-0.5, model.layers - 0.5], dtick = Math.ceil(model.layers / 16);
  for (const axis of [layout.xaxis, layout.xaxis2].filter(Boolean)) Object.assign(axis, { range, dtick });
  for (const line of layout.shapes ?? []) Object.assign(line, { y0: model.tau, y1: model.tau });
}

function layerTable(parts) {
  const titles = ["layer", "S1", "S2", "LER", "raw LER"].map((name) => element("th", { className: "num", scope: "col", textContent: name }));
  const rows = parts.map((part) => {
    const values = [String(part.layer), shown(part.s1, 3), shown(part.s2, 3), part.ke ? shown(part.ler, 3) : "–", part.ke ? shown(part.raw, 3) : "–"];
    return element("tr", { className: part.ke ? "" : "absent" }, ...values.map((text) => element("td", { className: "num", textContent: text })));
  });
  return element("table", {}, element("thead", {}, element("tr", {}, ...titles)), element("tbody", {}, ...rows));
}

function strip(models, index) {
  const rows = models.map((model) => {
    const cells = layers(model, index).map((part) => {
      const cell = element("i", { title: `layer ${part.layer}: ${part.ke ? `LER ${shown(part.ler)}` : "no knowledge"}` });
      if (part.ke) cell.style.background = scaleColour(part.ler);
      return cell;
    });
    const score = scoreOf(model, index);
    return element("div", { className: model.reference ? "reference" : "" }, element("span", { className: "name", title: model.name, textContent: model.name }),
      element("span", { className: "num", textContent: Number.isNaN(score) ? "n/m" : shown(score) }), element("span", { className: "cells" }, ...cells));
  });
  return element("div", { className: "strip-of-models" }, element("div", { className: "scroll" }, element("div", { className: "strip" }, layerNumbers(models), ...rows)), colourKey());
}

/* The layers above their cells: all of them where there are few, else every fourth. */
function layerNumbers(models) {
  const count = Math.max(...models.map((model) => model.layers)), step = count <= 12 ? 1 : 4;
  const numbers = Array.from({ length: count }, (_, layer) => element("b", { textContent: layer % step ? "" : String(layer) }));
  return element("div", { className: "head" }, element("span", { textContent: "" }), element("span", { className: "num", textContent: "UDS" }),
    element("span", { className: "cells", ariaLabel: "layer" }, ...numbers));
}

function colourKey() {
  const bar = element("i", { className: "ramp" });
  bar.style.background = `linear-gradient(to right, ${inColours(DATA.scale).join(",")})`;
  return element("p", { className: "key" }, "LER: 0 intact", bar, "1 erased", element("i", { className: "none" }), "no knowledge at the layer");
}

function scaleColour(share) {
  const colours = inColours(DATA.scale), at = share * (colours.length - 1), low = Math.min(Math.floor(at), colours.length - 2);
  const channel = (colour, place) => parseInt(colour.slice(1 + 2 * place, 3 + 2 * place), 16);
  const mixed = [0, 1, 2].map((place) => {
    const start = channel(colours[low], place);
    return Math.round(start + (at - low) * (channel(colours[low + 1], place) - start));
  });
  return `rgb(${mixed.join(",")})`;
}
