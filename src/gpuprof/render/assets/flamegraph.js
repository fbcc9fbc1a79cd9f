// The page of the flame graph and the timeline: decode, lay out, show.

import { readFlame, search, select, writeFlame, zoomTo } from "./flame/actions.js";
import { ROW_HEIGHT } from "./flame/cells.js";
import { buildLegend } from "./flame/colors.js";
import { bindControls, bindKeys, bindPointer } from "./flame/controls.js";
import { bindDetails } from "./flame/details.js";
import { stateOf } from "./flame/difference.js";
import { fullTree } from "./flame/folding.js";
import { buildOverview, groupByName } from "./flame/overview.js";
import { cellLabel, drawnText } from "./flame/paint.js";
import { createApp, repaint, screenSurface, sizeStage } from "./flame/state.js";
import { buildTable, showRows } from "./flame/table.js";
import { applyView, loadTree } from "./flame/tree.js";
import { bindFindings } from "./findings/cards.js";
import { byId, exposed, showSentence, startPage } from "./kit/page.js";
import { newAddress } from "./kit/state.js";
import { bindPrint, bindTheme } from "./kit/theme.js";
import { loadTimeline } from "./timeline/decode.js";
import { addTimeline, exposeTimeline, readTimeline, writeTimeline } from "./timeline/page.js";

const STEPS = ["zoom", "window", "view", "time", "range"]; // what the browser's back button goes back over

async function start() {
  const [tree, timeline] = await Promise.all([loadTree(), loadTimeline()]);
  applyView(tree, tree.first);
  if (tree.whole > 0) return show(createApp(tree), timeline);
  showSentence(
    tree.recorded === 0
      ? "This run contains no calls. Record a program that calls layers, operators or spans."
      : "The calls of this run took no measurable time, so there is no width to draw.",
  );
  return exposed({ nodes: () => tree.count });
}

function show(app, timeline) {
  app.address = newAddress({
    steps: STEPS,
    write: (state) => {
      writeFlame(app, state);
      if (app.timeline) writeTimeline(app, state);
    },
    read: (state) => {
      readFlame(app, state);
      if (app.timeline) readTimeline(app, state);
    },
  });
  app.changes.on("tree", () => buildParts(app));
  app.changes.on("search", () => showRows(app));
  app.changes.on("color", () => buildLegend(app));
  buildParts(app);
  byId("main").hidden = false; // only now: nothing moves after it is seen
  sizeStage(app);
  bindDetails(app);
  bindPointer(app);
  bindKeys(app);
  bindControls(app);
  bindTheme(() => repaint(app));
  bindPrint(() => repaint(app, true));
  addTimeline(app, timeline);
  bindFindings(app);
  app.address.restore();
  app.drawNow();
  return exposeFlame(app);
}

// What the page shows next to the picture; another weight builds it again.
function buildParts(app) {
  const groups = groupByName(fullTree(app));
  buildOverview(app, groups);
  buildTable(app, groups);
  buildLegend(app);
}

function flatCells(app) {
  if (app.pending) app.drawNow();
  const surface = screenSurface(app);
  return app.rows.flatMap(({ y, cells }) =>
    cells.map((cell) => ({
      node: cell.node,
      x: cell.left,
      y,
      width: cell.right - cell.left,
      height: ROW_HEIGHT,
      hidden: cell.hidden > 1 ? cell.hidden : 0,
      marked: cell.marked,
      label: cellLabel(app, cell),
      state: cell.hidden > 1 ? "" : stateOf(app, cell.node),
      text: drawnText(app, surface, cell),
    })),
  );
}

function exposeFlame(app) {
  const timeline = app.timeline ? exposeTimeline(app) : null;
  return exposed(
    {
      nodes: () => app.tree.count,
      selected: () => app.selected,
      zoomed: () => app.view.focus,
      palette: () => app.palette,
      visibleCells: () => flatCells(app),
      timeline: () => timeline,
    },
    {
      zoom: (node) => zoomTo(app, node),
      select: (node) => select(app, node),
      search: (text) => search(app, text),
      redraw: () => app.drawNow(),
    },
  );
}

startPage(start);
