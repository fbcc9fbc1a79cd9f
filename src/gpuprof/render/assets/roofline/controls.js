// Pointer, keys and buttons of the roofline.

import { byId, newButton, newElement } from "../kit/elements.js";
import { formatPercent } from "../kit/format.js";
import { bindPageKeys } from "../kit/keyboard.js";
import { hideTooltip } from "../kit/tooltip.js";
import { drawPlot } from "./plot.js";
import { swatch } from "./rows.js";
import { highlight, select, showRowTooltip } from "./selection.js";
import { showRows } from "./table.js";

function indexOf(event) {
  const element = event.target.closest("[data-row]");
  return element ? Number(element.dataset.row) : -1;
}

export function bindPlot(app) {
  app.svg.addEventListener("pointermove", (event) => {
    const index = indexOf(event);
    if (event.pointerType !== "touch") showRowTooltip(app, index, event.clientX, event.clientY);
    if (index === app.hovered) return;
    app.hovered = index;
    highlight(app);
  });
  app.svg.addEventListener("pointerleave", () => {
    app.hovered = -1;
    hideTooltip();
    highlight(app);
  });
  app.svg.addEventListener("click", (event) => select(app, indexOf(event), { scroll: true }));
  app.svg.addEventListener("keydown", (event) => step(app, event));
  byId("rows").addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      select(app, indexOf(event));
    } else if (step(app, event)) app.elements[app.selected].focus();
  });
  bindPageKeys(() => select(app, -1));
}

// Down and right: the next row of the table as it is sorted.
function step(app, event) {
  const way = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  const shown = app.order.filter((row) => !app.hidden.has(row.bound));
  if (way === undefined || shown.length === 0) return false;
  event.preventDefault();
  const now = shown.findIndex((row) => row.index === app.selected);
  const next = now < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, now + way));
  select(app, shown[next].index);
  return true;
}

// What binds, with the fraction of the time: a click shows or hides its rows.
export function buildLegend(app) {
  const fractions = new Map();
  for (const { bound, time_share: fraction } of app.rows)
    fractions.set(bound, (fractions.get(bound) ?? 0) + (fraction ?? 0));
  const items = [...fractions]
    .sort((a, b) => b[1] - a[1])
    .map(([bound, fraction]) => {
      const item = newElement("li");
      const button = newButton(undefined, () => {
        if (!app.hidden.delete(bound)) app.hidden.add(bound);
        button.setAttribute("aria-pressed", String(!app.hidden.has(bound)));
        showRows(app);
        drawPlot(app);
      });
      button.setAttribute("aria-pressed", "true");
      button.append(swatch(bound), `${bound} `, newElement("small", formatPercent(fraction)));
      item.append(button);
      return item;
    });
  byId("legend").replaceChildren(...items);
}
