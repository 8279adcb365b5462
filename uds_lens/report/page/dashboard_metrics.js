/* The table of metrics, and the small tables beside it. */

const CRITERIA = ["overall", "auc", "rob", "q", "r"];
const isMain = (metric) => metric.metric === metric.family;

/* A metric with its Q, R and the rest at the chosen filter setting. */
function merged(metric) {
  const robust = DATA.robust[state.setting]?.[metric.metric] ?? {};
  return { ...metric, ...robust, whyNot: metric.reason };
}

/* Marks of the two best and the two worst values of a column, of metrics that stand for a family. */
function marks(rows, key) {
  const values = [...new Set(rows.filter(isMain).map((row) => row[key]).filter(known))].sort((one, other) => other - one);
  const found = new Map();
  if (values.length >= 4) { found.set(values.at(-2), "poor"); found.set(values.at(-1), "worst"); }
  if (values.length >= 2) { found.set(values[1], "good"); found.set(values[0], "best"); }
  return found;
}

function metricCells(row, ranked) {
  const cells = CRITERIA.map((key) => {
    const mark = isMain(row) && known(row[key]) ? ranked[key].get(row[key]) : null;
    return cell(mark ? element("span", { className: `rank ${mark}` }, number(row[key])) : number(row[key]));
  });
  const interval = cell(scale({ span: [row.low, row.high], dot: row.auc }, `F ${number(row.auc)}`), "bar");
  interval.title = known(row.low) ? `95% interval ${range(row.low, row.high)}, for these variants only` : "no interval";
  const ends = cell(known(row.low) ? `${number(row.low, 2)} to ${number(row.high, 2)}` : "\u2013", "num soft");
  cells.splice(2, 0, interval, ends);
  const small = known(row.n) && row.n < 20;
  return [...cells, cell(number(row.n, 0), small ? "num moved" : "num"), cell(number(row.threshold, 2), "num soft")];
}

function metricFacts(row) {
  const kinds = { delong: "DeLong, models independent", wilson: "Wilson", "hanley-mcneil": "Hanley and McNeil, from the pool sizes" };
  const drawn = row.clusters === "model" || !row.clusters ? "models independent" : `${row.clusters}s as clusters`, twoLevels = row.clusters === "method";
  const share = (value) => (known(value) ? `${(100 * value).toFixed(0)}%` : null);
  const said = [row.words && element("p", { className: "said" }, row.words), row.formula && element("p", { className: "said" }, element("code", {}, row.formula))];
  for (const why of [row.whyNot, row.cluster_reason && `no clusters: ${row.cluster_reason}`, row.q_reason && `Q: ${row.q_reason}`, row.r_reason && `R: ${row.r_reason}`, row.interval_reason && `no interval of Q and R: ${row.interval_reason}`, row.caution]) {
    if (why) said.push(element("p", { className: "said soft" }, why));
  }
  return [...said.filter(Boolean), facts([
    ["a high value means", row.direction], ["interval of F, these variants only", range(row.low, row.high)], ["method of the interval", kinds[row.interval]],
    ["runs as clusters", range(row.cluster_low, row.cluster_high)], ["one variant left out", range(row.variants_low, row.variants_high)],
    ["new variants: variants as clusters", range(row.new_variants_low, row.new_variants_high)],
    ["mean of P, of N", known(row.mean_p) ? `${number(row.mean_p)}, ${number(row.mean_n)}` : null],
    ["models in P, in N", known(row.n_p) ? `${row.n_p}, ${row.n_n}` : null],
    ["tied pairs", share(row.tied_share)], ["at 0, at 1", known(row.share_at_0) ? `${share(row.share_at_0)}, ${share(row.share_at_1)}` : null],
    [`interval of Q, ${drawn}`, range(row.q_low, row.q_high)], [`interval of R, ${drawn}`, range(row.r_low, row.r_high)],
    ["interval of Q, runs as clusters", twoLevels ? range(row.q_runs_low, row.q_runs_high) : null],
    ["interval of R, runs as clusters", twoLevels ? range(row.r_runs_low, row.r_runs_high) : null],
    ["range of R over the interval of retain's shift", range(row.r_shift_low, row.r_shift_high)],
    ["shift of retain", known(row.shift) ? `${number(row.shift)}${known(row.shift_low) ? ` (${range(row.shift_low, row.shift_high)})` : ""}` : null],
    ["models whose value does not change (Q, R)", known(row.unmoved_q) ? `${row.unmoved_q}, ${number(row.unmoved_r, 0)}` : null],
  ])];
}

function renderMetrics() {
  const table = document.getElementById("metric-table");
  if (!table) return;
  head(table, [
    { key: "label", label: "metric", kind: "", text: true }, { key: "overall", label: "Overall" }, { key: "auc", label: "F", title: "faithfulness: probability that a model that knows ranks above one that does not" },
    { label: [element("span", {}, "0"), element("span", {}, "1")], kind: "bar" }, { label: "95% CI", title: "for more models of these variants only; open a row for the interval for new variants" }, { key: "rob", label: "Rob" },
    { key: "q", label: "Q", title: "robustness to quantisation, 1 = unaffected" }, { key: "r", label: "R", title: "robustness to relearning, 1 = same change as in retain" }, { key: "n", label: "models" }, { key: "threshold", label: "threshold" },
  ], state.metricSort, renderMetrics);
  const rows = METRICS.map(merged), ranked = Object.fromEntries(CRITERIA.map((key) => [key, marks(rows, key)]));
  const { key, descending } = state.metricSort;
  const lines = [];
  for (const row of sorted(rows.filter(isMain), (each) => (key === "label" ? each.label.toLowerCase() : each[key]), descending)) {
    const family = rows.filter((other) => other.family === row.metric && other !== row);
    lines.push(...metricLines(row, ranked, family));
    if (state.openFamilies.has(row.metric)) for (const other of family) lines.push(...metricLines(other, ranked, []));
  }
  table.tBodies[0].replaceChildren(...lines);
}

function metricLines(row, ranked, family) {
  const name = element("th", { scope: "row" }, opener(row.label, row.metric, state.openMetrics, renderMetrics));
  if (family.length) {
    const open = state.openFamilies.has(row.metric);
    const button = element("button", { type: "button", className: "chip", title: "the same metric at other settings" }, open ? "fewer" : `+${family.length}`);
    button.setAttribute("aria-expanded", String(open));
    button.addEventListener("click", () => {
      state.openFamilies[open ? "delete" : "add"](row.metric);
      renderMetrics();
    });
    name.append(button);
  }
  for (const tag of row.tags) name.append(element("i", { className: `tag ${tag.toLowerCase()}` }, tag));
  const line = element("tr", { className: isMain(row) ? "" : "variant", dataset: { metric: row.metric } }, name, ...metricCells(row, ranked));
  return state.openMetrics.has(row.metric) ? [line, inside(10, ...metricFacts(row))] : [line];
}

/* What stays the same whatever is chosen. */
function renderBeside() {
  const definitions = document.getElementById("definitions");
  definitions?.replaceChildren(...METRICS.filter((metric) => metric.words).map((metric) => element("tr", {},
    element("th", { scope: "row" }, metric.label), element("td", {}, ...metric.tags.map((tag) => element("i", { className: `tag ${tag.toLowerCase()}` }, tag))),
    element("td", {}, element("code", {}, metric.formula)), element("td", {}, metric.words))));
  document.getElementById("pool-means")?.replaceChildren(...METRICS.filter((metric) => known(metric.mean_p)).map((metric) => {
    const cut = known(metric.threshold) ? (metric.direction === "erasure" ? 1 - metric.threshold : metric.threshold) : null;
    const bar = cell(scale({ span: [metric.mean_n, metric.mean_p].sort((a, b) => a - b), ring: metric.mean_n, dot: metric.mean_p, cut }, `N ${number(metric.mean_n)}, P ${number(metric.mean_p)}`), "bar");
    return element("tr", {}, element("th", { scope: "row" }, metric.label), bar, cell(number(metric.mean_n)), cell(number(metric.mean_p)));
  }));
  for (const body of document.querySelectorAll("[data-means]")) {
    body.replaceChildren(...METRICS.filter(isMain).map((metric) => element("tr", {}, element("th", { scope: "row" }, metric.label),
      ...Object.keys(DATA.settings).flatMap((setting) => {
        const found = DATA.robust[setting][metric.metric] ?? {};
        return [cell(number(found[body.dataset.means])), cell(number(found.n, 0), "num soft")];
      }))));
  }
}
