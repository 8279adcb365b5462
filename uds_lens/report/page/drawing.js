/* Drawing with plotly: figures are drawn when they come near the window, and redrawn when something changes. A page says what
   a figure shows, `spec(name, width)`, and what to do with one that has been drawn, `drawn(target)`. */

const darkness = matchMedia("(prefers-color-scheme: dark)");
let printing = false;
const isDark = () => darkness.matches && !printing;

function inColours(value) {
  if (!isDark()) return structuredClone(value);
  const swap = (whole, colour) => (DATA.recolour[colour] ? `"${DATA.recolour[colour]}"` : whole);
  return JSON.parse(JSON.stringify(value).replace(/"(#[0-9a-f]{6}|rgba\([0-9.,]+\))"/g, swap));
}

/* About how tall the legend is in so many pixels of width; as legend_height of the figures. */
function legendHeight(data, width) {
  const entries = new Map(data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => [trace.name, trace.legendgroup]));
  const widths = [...entries.keys()].map((name) => 45 + 6 * name.length);
  if (widths.reduce((total, part) => total + part, 0) <= width) return 29;
  if (![...entries.values()].some(Boolean)) return 29 + 20 * (Math.ceil(widths.length / Math.max(1, Math.floor(width / Math.max(...widths)))) - 1);
  let rows = 1, used = 0;
  for (const part of widths) [rows, used] = used + part <= width ? [rows, used + part] : [rows + 1, part];
  return 29 * rows;
}

/* Pixels that fit on A4 and on Letter, upright, inside the margins of @page in the style sheet. */
const PRINT_WIDTH = 680, PRINT_HEIGHT = 820;

const CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtons: [["toImage"]],
  toImageButtonOptions: { format: "svg" },
};

function drawSpec(target, { data, layout }) {
  layout.template = inColours(DATA.figures.template);
  layout.autosize = !printing;
  layout.modebar = { bgcolor: "rgba(0,0,0,0)" }; // it overlaps what is drawn
  if (printing) Object.assign(layout, { width: PRINT_WIDTH - 2 * (target.closest("td") ? 32 : 20), height: Math.min(layout.height, PRINT_HEIGHT) });
  layout.dragmode = false;
  if (target.dataset.paper !== String(printing)) { // a figure of another width leaves its legend where it was
    Plotly.purge(target);
    target.dataset.paper = String(printing);
    delete target.dataset.listening;
  }
  if (!printing && target.clientWidth < 520) {
    layout.margin = { ...layout.margin, l: 48, r: Math.min(layout.margin?.r ?? 12, 80) };
    layout.legend = { ...layout.legend, font: { size: 11.5 } };
    if (layout.showlegend) layout.height += legendHeight(data, target.clientWidth - 60) - legendHeight(data, 758); // as it was drawn
    for (const axis of [layout.xaxis, layout.xaxis2]) {
      const span = axis?.range ? axis.range[1] - axis.range[0] : 0;
      if (axis?.dtick && span > 12) axis.dtick = Math.ceil(span / 8);
    }
  }
  return Plotly.react(target, data, layout, target.clientWidth < 520 ? { ...CONFIG, displayModeBar: false } : CONFIG);
}

function draw(target) {
  const found = spec(target.dataset.figure, target.closest(".figure").clientWidth);
  target.dataset.state = "drawn";
  target.closest(".figure").hidden = !found;
  if (!found) return;
  drawSpec(target, found);
  drawn(target);
}

const near = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    near[entry.isIntersecting ? "add" : "delete"](entry.target);
    if (entry.isIntersecting && entry.target.dataset.state !== "drawn") draw(entry.target);
  }
}, { rootMargin: "300px" });

function redraw(names) {
  for (const target of document.querySelectorAll(".plot[data-figure]")) {
    if (names && !names.includes(target.dataset.figure)) continue;
    target.dataset.state = "stale";
    if (near.has(target)) draw(target);
  }
}
