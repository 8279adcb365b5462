/* The table of examples: search, sort, open. Undefined scores come last in either direction. */

const narrow = matchMedia("(max-width: 620px)");

const PAGE_ROWS = 50, MODEL_COLUMNS = 4;

function columns(model) {
  const others = DATA.models.filter((other) => other.set === model.set && (other === model || !other.reference));
  const several = others.length > 1 && others.length <= MODEL_COLUMNS;
  const scores = (several ? others : [model]).map((other) => ({
    key: `uds${DATA.models.indexOf(other)}`, title: several ? other.name : "UDS", numeric: true, score: other,
    css: other === model && !(several && printing) ? "meters" : "", meter: other === model && !(several && printing), secondary: several && other !== model, value: (example) => scoreOf(other, example.index),
  }));
  return [
    { key: "row", title: "row", css: "row-number", numeric: true, secondary: true, value: (example) => example.row },
    { key: "question", title: "question", css: "question", value: (example) => example.question },
    { key: "type", title: "type", css: "type", secondary: true, value: (example) => example.type ?? "" },
    { key: "tokens", title: "tokens", numeric: true, secondary: true, value: (example) => example.tokens },
    { key: "ke", title: "KE layers", numeric: true, secondary: true, value: (example) => keCount(model, example.index) },
    ...scores,
  ].filter((column) => printing || !(narrow.matches && column.secondary))
    .filter((column) => !(printing && several && ["type", "tokens"].includes(column.key)))
    .filter((column) => column.key !== "type" || examples(model).some((example) => example.type));
}

function chosen(model) {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = examples(model).filter((example) => {
    const absent = Number.isNaN(scoreOf(model, example.index));
    if (state.status === "measured" && absent) return false;
    if (state.status === "none" && !absent) return false;
    return words.every((word) => example.haystack.includes(word));
  });
  const column = columns(model).find(({ key }) => key === state.sort) ?? { numeric: true, value: (example) => example.index };
  const sign = state.descending ? -1 : 1;
  const compare = (a, b) => {
    if (column.numeric) {
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
      return sign * (a - b);
    }
    return sign * a.localeCompare(b, "en", { numeric: true });
  };
  return wanted.map((example) => [column.value(example), example]).sort((a, b) => compare(a[0], b[0]) || a[1].index - b[1].index).map(([, example]) => example);
}

narrow.addEventListener("change", () => renderTable());

function renderTable() {
  const model = DATA.models[state.model], shownColumns = columns(model), found = chosen(model);
  const table = document.getElementById("table"), body = table.tBodies[0];
  table.tHead.replaceChildren(element("tr", {}, ...shownColumns.map(heading)));
  body.replaceChildren();
  const visible = state.all || printing ? found : found.slice(0, PAGE_ROWS), plots = [];
  for (const example of visible) {
    const open = state.open.has(example.index);
    body.append(row(example, shownColumns, open));
    if (!open) continue;
    const { cell, plot } = detail(model, example.index);
    cell.colSpan = shownColumns.length;
    body.append(element("tr", { className: "detail-row" }, cell));
    plots.push(plot);
  }
  for (const plot of plots) plot();
  if (!found.length) body.append(element("tr", {}, element("td", { className: "absent", colSpan: shownColumns.length, textContent: "No example matches." })));
  document.getElementById("count").textContent = `${found.length} of ${examples(model).length} examples`;
  document.getElementById("printed").textContent = printedWords(model, found.length);
  const more = document.getElementById("more");
  more.hidden = visible.length === found.length;
  more.textContent = `Show all ${found.length}`;
}

/* What is on paper, and what is in the file only. */
function printedWords(model, count) {
  const all = examples(model).length, why = [];
  if (state.search) why.push(`match "${state.search}"`);
  if (state.status !== "all") why.push(state.status === "measured" ? "are measured" : "are not measurable");
  const rows = count === all ? `All ${all} examples.` : `${count} of ${all} examples: those that ${why.join(" and ")}. The others are not printed.`;
  return DATA.models.length > 1 ? `${rows} Layers and figures are those of ${model.name}; choose another model in the file to print its layers and figures.` : rows;
}

function heading(column) {
  const cell = element("th", { scope: "col", className: classes(column) });
  if (printing) { // the browser leaves buttons out of headings that it repeats on each page
    cell.textContent = column.title;
    return cell;
  }
  if (state.sort === column.key) cell.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
  const button = element("button", { type: "button", textContent: column.title, dataset: { sort: column.key } });
  button.addEventListener("click", () => {
    state.descending = state.sort === column.key && !state.descending;
    state.sort = column.key;
    renderTable();
    document.querySelector(`#table button[data-sort="${column.key}"]`)?.focus();
  });
  cell.append(button);
  return cell;
}

const classes = (column) => [column.numeric ? "num" : "", column.css ?? ""].filter(Boolean).join(" ");

function row(example, shownColumns, open) {
  const made = element("tr", { className: "row", dataset: { example: String(example.index) } });
  for (const column of shownColumns) {
    const cell = element("td", { className: classes(column) });
    if (column.key === "question") {
      const button = element(printing ? "span" : "button", { className: "open lines", textContent: example.question });
      if (!printing) Object.assign(button, { type: "button" }).setAttribute("aria-expanded", String(open));
      cell.append(button, element("span", { className: "entity lines", textContent: example.entity ?? "" }));
    } else if (column.score) {
      cell.append(...scoreCell(column.value(example), column.meter));
    } else {
      cell.append(element("span", { className: "lines", textContent: String(column.value(example)) }));
    }
    made.append(cell);
  }
  made.addEventListener("click", () => {
    if (!String(getSelection())) toggle(example.index);
  });
  return made;
}

function scoreCell(score, meter) {
  if (Number.isNaN(score)) return [element("span", { className: "absent", title: "not measurable", textContent: "n/m" })];
  if (!meter) return [shown(score)];
  const fill = element("i");
  fill.style.width = `${100 * score}%`;
  return [element("span", { className: "meter" }, fill), shown(score)];
}

function toggle(index) {
  if (!state.open.delete(index)) state.open.add(index);
  renderTable();
  document.querySelector(`#table tr[data-example="${index}"] .open`)?.focus({ preventScroll: true });
}

function openExample(index) {
  const model = DATA.models[state.model];
  if (!chosen(model).some((example) => example.index === index)) {
    Object.assign(state, { search: "", status: "all" });
    document.getElementById("search").value = "";
    document.getElementById("status").value = "all";
  }
  state.all ||= chosen(model).findIndex((example) => example.index === index) >= PAGE_ROWS;
  state.open = new Set([index]);
  renderTable();
  document.querySelector(`#table tr[data-example="${index}"]`)?.scrollIntoView({ block: "start" });
}
