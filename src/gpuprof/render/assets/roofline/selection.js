// The hovered and the selected row, in the plot and in the table, and the text about them.

import { byId, factList, newElement } from "../kit/elements.js";
import { formatPercent } from "../kit/format.js";
import { hideTooltip, showTooltip } from "../kit/tooltip.js";
import { boundText, rowFacts } from "./rows.js";

function rowAt(app, index) {
  return index >= 0 ? app.rows[index] : null;
}

export function highlight(app) {
  const lit = app.hovered >= 0 ? app.hovered : app.selected;
  const row = rowAt(app, lit);
  for (const element of app.svg.querySelectorAll("[data-row]")) {
    element.classList.toggle("lit", Number(element.dataset.row) === lit);
  }
  for (const element of app.svg.querySelectorAll("[data-roof]")) {
    element.classList.toggle("lit", row !== null && element.dataset.roof === row.roof);
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
      newElement("b", "Nothing chosen"),
      newElement("span", "Point at a circle, press one, or a row. Arrow keys go from the longest to the shortest."),
    );
    return;
  }
  const roof = row.roof_share === null ? "" : `, ${formatPercent(row.roof_share)} of the roof`;
  details.replaceChildren(
    newElement("b", `${row.name}: ${boundText(row)}${roof}, sure ${row.confidence.toFixed(2)}`),
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
export function markFocusable(app) {
  const elements = [...byId("rows").children];
  const selected = elements.find((element) => Number(element.dataset.row) === app.selected);
  for (const element of elements) element.tabIndex = -1;
  if (elements.length) (selected ?? elements[0]).tabIndex = 0;
}
