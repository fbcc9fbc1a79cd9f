// The rows as a table, linked to the points: a selection in one highlights the other.

import { formatCount, formatDuration, formatPercent } from "../kit/format.js";
import { byId, factList, hideTooltip, newElement, showTooltip } from "../kit/page.js";
import { newTable, rowHead, sortItems } from "../kit/table.js";
import { boundText, rowFacts, swatch } from "./rows.js";

// ---- selection ----

function rowAt(app, index) {
  return index >= 0 ? app.rows[index] : null;
}

export function highlight(app) {
  const lit = app.hovered >= 0 ? app.hovered : app.selected;
  const row = rowAt(app, lit);
  for (const element of app.svg.querySelectorAll("[data-row]")) {
    element.classList.toggle("lit", Number(element.dataset.row) === lit);
  }
  for (const element of app.svg.querySelectorAll("[data-ceiling]")) {
    element.classList.toggle("lit", row !== null && element.dataset.ceiling === row.roof);
  }
  for (const element of app.elements) {
    element.classList.toggle("lit", Number(element.dataset.row) === app.selected);
    if (Number(element.dataset.row) === app.selected) element.setAttribute("aria-current", "true");
    else element.removeAttribute("aria-current");
  }
}

export function select(app, index, { scroll = false } = {}) {
  app.selected = index;
  markFocusable(app);
  highlight(app);
  showDetails(app);
  if (scroll && index >= 0) app.elements[index].scrollIntoView({ block: "nearest" });
}

export function showDetails(app) {
  const details = byId("details");
  const row = rowAt(app, app.selected);
  if (row === null) {
    details.replaceChildren(
      newElement("b", "Nothing selected"),
      newElement("span", "Click a circle or a row for details. Arrow keys select the next row."),
    );
    return;
  }
  const used = row.roof_share === null ? "" : `, ${formatPercent(row.roof_share)} of the ceiling`;
  details.replaceChildren(
    newElement("b", `${row.name}: ${boundText(row)}${used}, confidence ${row.confidence.toFixed(2)}`),
    newElement("span", row.advice ? `${row.evidence}. ${row.advice}` : row.evidence),
  );
}

export function showRowTooltip(app, index, x, y) {
  const row = rowAt(app, index);
  if (row === null) return hideTooltip();
  const texts = [newElement("b", row.name), newElement("p", boundText(row)), newElement("p", row.evidence, "why")];
  return showTooltip(x, y, [...texts, factList(rowFacts(row))]);
}

// One row is reached with Tab: the selected one, or the first.
function markFocusable(app) {
  const elements = [...byId("rows").children];
  const selected = elements.find((element) => Number(element.dataset.row) === app.selected);
  for (const element of elements) element.tabIndex = -1;
  if (elements.length) (selected ?? elements[0]).tabIndex = 0;
}

// ---- table ----

const BY_TIME = 1;
const COLUMNS = [
  { title: "Name", words: true, key: (row) => row.name },
  { title: "Time", key: (row) => row.time_share ?? -1 },
  { title: "Call", key: (row) => row.time_ns },
  { title: "Bound", words: true, key: boundText },
  { title: "Ceiling", key: (row) => row.roof_share ?? -1 },
  { title: "Confidence", key: (row) => row.confidence },
  { title: "Evidence", words: true, key: (row) => row.evidence },
];

export function buildTable(app) {
  app.table = newTable(COLUMNS, BY_TIME, () => showRows(app));
  app.elements = app.rows.map((row) => tableRow(app, row));
  showRows(app);
  const all = app.device.counts[app.by];
  const pointless = app.rows.filter((row) => !row.at).length;
  const rows = `${formatCount(app.rows.length)} of ${formatCount(all)} ${app.by}s, those that take the most time.`;
  const rest = `${formatCount(pointless)} of them have no point in the plot: no FLOPs, or an unknown number.`;
  byId("caption").textContent = pointless ? `${rows} ${rest}` : rows;
}

function tableRow(app, row) {
  const element = newElement("tr");
  element.tabIndex = -1;
  element.dataset.row = row.index;
  const bound = newElement("td", undefined, "words");
  bound.append(swatch(row.bound), boundText(row));
  const evidence = newElement("td", row.evidence, "words");
  evidence.title = row.evidence;
  element.append(
    rowHead(row.phase === "backward" ? `← ${row.name}` : row.name, row.name),
    newElement("td", formatPercent(row.time_share)),
    newElement("td", formatDuration(row.time_ns)),
    bound,
    newElement("td", formatPercent(row.roof_share)),
    newElement("td", row.confidence.toFixed(2)),
    evidence,
  );
  element.addEventListener("click", () => select(app, row.index));
  return element;
}

// Rows of hidden bounds are left out; `app.order` keeps them.
export function showRows(app) {
  app.order = sortItems(app.table, app.rows);
  const shown = app.order.filter((row) => !app.hidden.has(row.bound));
  byId("rows").replaceChildren(...shown.map((row) => app.elements[row.index]));
  markFocusable(app);
}
