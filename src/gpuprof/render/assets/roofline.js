// The page of the roofline: a plot and a table of the rows of one device.

import { readJson } from "./kit/columns.js";
import { byId, fillOptions, listen, press, showSentence } from "./kit/elements.js";
import { exposed, startPage } from "./kit/startup.js";
import { bindTheme } from "./kit/theme.js";
import { bindPlot, buildLegend } from "./roofline/controls.js";
import { drawPlot } from "./roofline/plot.js";
import { boundText } from "./roofline/rows.js";
import { place } from "./roofline/scale.js";
import { showDetails } from "./roofline/selection.js";
import { buildTable } from "./roofline/table.js";

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
  bindTheme(() => {}); // the style sheet has all colours
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

// The rows of a device have its own roofs.
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

startPage(start);
