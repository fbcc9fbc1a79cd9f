// The rows as a table, tied to the points: whichever is selected highlights the other.

import { byId, newElement } from "../kit/elements.js";
import { formatCount, formatDuration, formatPercent } from "../kit/format.js";
import { newTable, rowHead, sortItems } from "../kit/table.js";
import { boundText, swatch } from "./rows.js";
import { markFocusable, select } from "./selection.js";

const BY_TIME = 1;
const COLUMNS = [
  { title: "Name", words: true, key: (row) => row.name },
  { title: "Time", key: (row) => row.time_share ?? -1 },
  { title: "Call", key: (row) => row.time_ns },
  { title: "Bound", words: true, key: boundText },
  { title: "Roof", key: (row) => row.roof_share ?? -1 },
  { title: "Sure", key: (row) => row.confidence },
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
