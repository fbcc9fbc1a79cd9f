// The page of the roofline: a plot and a table of the rows of one device.

import { formatPercent } from "./kit/format.js";
import {
  bindPageKeys,
  byId,
  exposed,
  fillOptions,
  hideTooltip,
  listen,
  newButton,
  newElement,
  press,
  readJson,
  showSentence,
  startPage,
} from "./kit/page.js";
import { bindTheme } from "./kit/theme.js";
import { drawPlot } from "./roofline/plot.js";
import { boundText, place, swatch } from "./roofline/rows.js";
import { buildTable, highlight, select, showDetails, showRows, showRowTooltip } from "./roofline/table.js";

const KINDS = ["operator", "layer", "kernel"];

function start() {
  const { devices } = readJson("data");
  if (devices.every(({ rows }) => rows.operator.length + rows.kernel.length === 0)) {
    showSentence("No operator of this run was both counted and timed, so there is nothing to draw.");
    return {};
  }
  const app = { devices, svg: byId("plot"), elements: [] };
  byId("main").hidden = false;
  listDevices(app);
  showDevice(app, 0);
  bindPlot(app);
  bindTheme(() => {}); // the style sheet has all colors
  for (const by of KINDS) listen(`by-${by}`, "click", () => showRowsBy(app, by));
  new ResizeObserver(() => drawPlot(app)).observe(app.svg);
  return exposed({
    selected: () => app.selected,
    device: () => app.device.device,
    rows: () => app.rows.map(({ name, bound, at }) => ({ name, bound, at })),
  });
}

function listDevices(app) {
  const { devices } = app;
  fillOptions(
    "device",
    devices.map(({ title }, index) => [String(index), title]),
  );
  byId("device").hidden = devices.length < 2 && !devices[0].device.startsWith("cuda");
  listen("device", "change", (event) => showDevice(app, Number(event.target.value)));
}

// The rows of a device have its own ceilings.
function showDevice(app, index) {
  const device = app.devices[index];
  app.device = device;
  byId("base").title = device.base_title;
  byId("base-name").textContent = device.base;
  byId("total").textContent = device.total;
  byId("matched").textContent = device.matched;
  showRowsBy(app, device.rows[app.by ?? "operator"].length ? (app.by ?? "operator") : "operator");
}

function showRowsBy(app, by) {
  const rows = app.device.rows[by].map((row, index) => ({ ...row, index, at: place(row) }));
  Object.assign(app, { by, rows, selected: -1, hovered: -1, hidden: new Set() });
  for (const each of KINDS) {
    press(`by-${each}`, each === by);
    byId(`by-${each}`).hidden = each === "kernel" && app.device.rows.kernel.length === 0;
  }
  buildTable(app);
  buildLegend(app);
  drawPlot(app);
  showDetails(app);
  describe(app);
}

function describe({ device, by, rows }) {
  const first = rows.slice(0, 3).map((row) => `${row.name}: ${boundText(row)}, ${row.evidence}`);
  byId("summary").textContent =
    `${device.title}. ${rows.length} ${by}s. The longest: ${first.join(". ")}. ` +
    "Arrow keys select, Escape clears the selection. A table follows.";
}

// ---- pointer, keys and legend ----

function indexOf(event) {
  const element = event.target.closest("[data-row]");
  return element ? Number(element.dataset.row) : -1;
}

function bindPlot(app) {
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

// The bottlenecks, with the fraction of the time: a click shows or hides the rows of one.
function buildLegend(app) {
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

startPage(start);
