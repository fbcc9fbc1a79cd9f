// The state of the flame graph, in one object: everything that is seen follows from {tree, view, selected, found,
// flame, order, color}. Actions change it and announce what changed; a change asks for one redraw in the next frame.

import { boxSurface } from "../kit/canvas.js";
import { byId } from "../kit/page.js";
import { newChanges } from "../kit/state.js";
import { collectCells, ROW_HEIGHT } from "./cells.js";
import { buildLegend, colorModes, nameShades, readPalette, showSmallCells } from "./colors.js";
import { placeNodes } from "./layout.js";
import { NO_SEARCH } from "./nodes.js";
import { paintRows } from "./paint.js";
import { applyView } from "./tree.js";
import { foldTree, hasRecursion, hasRepeatedLayers } from "./folding.js";

export function createApp(full) {
  // The sides of a difference are judged node by node, so there the nodes stay as they are.
  const isPlain = !full.views.some((view) => view.scaling);
  const canFold = { recursion: isPlain && hasRecursion(full), layers: isPlain && hasRepeatedLayers(full) };
  const folding = { recursion: false, layers: canFold.layers && !full.isFlat, open: new Set() };
  const tree = folding.layers ? foldTree(full, folding) : full;
  if (tree !== full) applyView(tree, full.view);
  const app = {
    tree,
    place: placeNodes(tree, false),
    color: colorModes(tree)[0].key,
    order: "recorded",
    flame: false,
    canFold,
    folding,
    view: { low: 0, high: tree.whole, focus: -1 }, // ns in sight, and the node that was zoomed to
    selected: -1,
    hovered: null,
    explained: null, // the cell that the tooltip describes
    found: NO_SEARCH,
    rows: [],
    palette: readPalette(tree),
    shades: nameShades(tree.names),
    forms: new Map(), // of names, see nameForms
    stage: byId("stage"),
    canvas: byId("canvas"),
    pending: 0,
    changes: newChanges(),
  };
  app.redraw = () => {
    app.pending ||= requestAnimationFrame(() => {
      app.pending = 0; // here, since a page that shows the timeline alone does not draw this picture
      app.drawNow();
    });
  };
  app.drawNow = () => drawFlame(app);
  return app;
}

function drawFlame(app) {
  cancelAnimationFrame(app.pending);
  app.pending = 0;
  const surface = screenSurface(app);
  app.rows = collectCells(app, surface);
  app.hovered = null;
  paintRows(app, surface, app.rows);
  showSmallCells(app.rows);
}

// Fits the canvas to the visible part of the stage.
export function screenSurface({ canvas, stage }) {
  return boxSurface(canvas, stage);
}

// For another theme. Before a print there is no next frame to wait for.
export function repaint(app, isNow = false) {
  app.palette = readPalette(app.tree);
  buildLegend(app);
  if (isNow) app.drawNow();
  else app.redraw();
}

// The stage has the height of the whole tree (up to its limit) at every zoom, so nothing jumps.
export function sizeStage(app) {
  const height = app.place.levels.count * ROW_HEIGHT;
  byId("spacer").style.height = `${height}px`;
  app.stage.style.height = `${height + 2}px`;
}
