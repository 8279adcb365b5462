/* Elicitation: the section of the chosen model, and the texts of an example. */

const elicitedCell = (tag, text, css = "") => element(tag, { className: css, textContent: text });

/* A probe's name, which may break after its signs. */
function elicitedName(text) {
  const parts = text.split(/(?<=[+(,])/);
  return element("th", { className: "name", scope: "row" }, ...parts.flatMap((part, place) => (place ? [element("wbr"), part] : [part])));
}

/* The section of the chosen model; gone where nothing was elicited of it. */
function renderElicited() {
  const section = document.getElementById("elicited");
  if (!section) return;
  const found = DATA.models[state.model].elicited;
  section.hidden = !found;
  document.querySelector('.sections a[href="#elicited"]').hidden = !found;
  if (!found) return;
  const { how, rows, ledger, warnings } = found;
  document.getElementById("elicited-how").textContent = how;
  const table = document.getElementById("elicited-rows").tBodies[0];
  table.replaceChildren(...rows.map((row) => element("tr", { className: row.real ? "real" : "" },
    elicitedName(row.probe), elicitedCell("td", row.how), elicitedCell("td", row.beyond, "num beyond"), elicitedCell("td", row.p, "num"),
    elicitedCell("td", row.share, "num"), ...row.scores.map((text) => elicitedCell("td", text, "num")), elicitedCell("td", row.power, "num"),
    elicitedCell("td", String(row.n), "num"))));
  document.getElementById("elicited-ledger").tBodies[0].replaceChildren(...ledger.map((line) => element("tr", {},
    elicitedName(line[0]), ...line.slice(1).map((text, place) => elicitedCell("td", text, place < 2 || place === 3 ? "" : "num")))));
  document.getElementById("elicited-notes").replaceChildren(...warnings.map((text) => element("li", { className: "caution" },
    element("span", { className: "level", textContent: "caution" }), element("div", { textContent: text }))));
}

/* In the view of one example: the text of each model under each probe, with how much of the reference it holds. */
function saidOf(model, index) {
  const found = model.elicited?.said[String(index)];
  if (!found) return [];
  const blocks = found.map(({ name, texts }) => element("div", { className: "said" },
    element("p", { className: "by", textContent: name }),
    element("dl", {}, ...texts.flatMap(([role, text, score]) => [
      element("dt", {}, role, element("span", { className: "num", textContent: score })),
      element("dd", { className: text ? role : "absent", textContent: text || "empty" }),
    ]))));
  return [element("h3", { textContent: "Generated texts" }), element("div", { className: "sayings" }, ...blocks),
    element("p", { className: "hint", textContent: "Number: ROUGE-L recall of the whole answer, or of the entity after a cloze prompt." })];
}
