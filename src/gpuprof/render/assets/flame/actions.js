// What changes the state of the flame graph, and its part of the address. Who shows the state is not known here: it
// listens to the announcements "window", "selection", "search", "direction", "order", "color" and "tree".

import { flipRow, ROW_HEIGHT } from "./cells.js";
import { colorModes } from "./colors.js";
import { placeNodes } from "./layout.js";
import { searchTree } from "./nodes.js";
import { cellOfNode, foldMarks, foldTree, fullTree, nodeOfCell } from "./folding.js";
import { applyView } from "./tree.js";

function setWindow(app, low, high, focus, save = app.address.save) {
  const { whole } = app.tree;
  const size = Math.min(Math.max(high - low, 1), whole);
  const start = Math.min(Math.max(low, 0), whole - size);
  app.view = { low: start, high: start + size, focus };
  app.changes.announce("window");
  save();
  app.redraw();
}

// -1 zooms out to everything. A node without width cannot fill the window and is only selected.
export function zoomTo(app, node) {
  const { tree, place } = app;
  if (node < 0) setWindow(app, 0, tree.whole, -1);
  else if (tree.width[node] > 0) setWindow(app, place.x[node], place.x[node] + tree.width[node], node);
  if (node < 0) return;
  select(app, node);
  makeRoomBeneath(app, node);
}

// In a tree too deep for the stage: a zoomed node is brought near the root's edge, with three callers
// in sight, since what one zoomed for is beneath. One that has room is left where the pointer is.
function makeRoomBeneath(app, node) {
  const { stage, flame } = app;
  const top = flipRow(app, app.tree.depth[node]) * ROW_HEIGHT;
  const fromEdge = flame ? stage.scrollTop + stage.clientHeight - top - ROW_HEIGHT : top - stage.scrollTop;
  if (fromEdge >= 3 * ROW_HEIGHT && fromEdge < stage.clientHeight / 2) return;
  stage.scrollTop = flame ? top + 4 * ROW_HEIGHT - stage.clientHeight : top - 3 * ROW_HEIGHT;
}

// Shows what a gray cell hides. Where it fills the window already, a tenth around the pointer.
export function openHidden(app, cell, at) {
  const { view } = app;
  const focus = app.tree.parent[cell.node];
  if (cell.to - cell.from < 0.6 * (view.high - view.low)) setWindow(app, cell.from, cell.to, focus);
  else zoomAround(app, at, 0.1, focus);
}

export function zoomAround(app, at, factor, focus = app.view.focus) {
  const { low, high } = app.view;
  const ns = low + at * (high - low);
  const size = (high - low) * factor;
  const start = ns - at * size;
  // The zoomed node may leave the window; the nearest ancestor that fills it is the new focus.
  let node = focus;
  while (node >= 0 && !contains(app, node, start, start + size)) node = app.tree.parent[node];
  setWindow(app, start, start + size, node, app.address.saveSoon);
}

function contains(app, node, low, high) {
  const from = app.place.x[node];
  return from <= low && from + app.tree.width[node] >= high;
}

export function select(app, node) {
  app.selected = node;
  if (node >= 0) reveal(app, node);
  app.changes.announce("selection", node);
  app.address.saveSoon();
  app.redraw();
}

// Moves the window and the scroll position so that the node is in sight.
function reveal(app, node) {
  const { tree, place, view, stage } = app;
  const from = place.x[node];
  if (from >= view.high || from + tree.width[node] <= view.low) {
    const up = tree.parent[node];
    if (up < 0) setWindow(app, 0, tree.whole, -1);
    else setWindow(app, place.x[up], place.x[up] + tree.width[up], up);
  }
  const top = flipRow(app, tree.depth[node]) * ROW_HEIGHT;
  if (top < stage.scrollTop) stage.scrollTop = top;
  else if (top + ROW_HEIGHT > stage.scrollTop + stage.clientHeight) {
    stage.scrollTop = top + ROW_HEIGHT - stage.clientHeight;
  }
}

// Names are those of the run's tree: a folded cell has several.
function findCells({ tree }, text) {
  const found = searchTree(tree.full ?? tree, text);
  return tree.full && found.marks ? { ...found, ...foldMarks(tree, found.marks) } : found;
}

export function search(app, text) {
  app.found = findCells(app, text);
  app.changes.announce("search");
  app.address.save();
  app.redraw();
  const { count, calls, share } = app.found;
  return { count, calls, share };
}

// A leaf alone would be one full-width bar: its parent shows its siblings.
export function showInPicture(app, node) {
  const up = app.tree.parent[node];
  zoomTo(app, up >= 0 ? up : node);
  select(app, node);
  app.stage.scrollIntoView({ block: "center" });
  app.canvas.focus({ preventScroll: true });
}

export function setFlame(app, flame) {
  if (app.flame !== flame) {
    app.flame = flame;
    const { stage } = app;
    stage.scrollTop = stage.scrollHeight - stage.clientHeight - stage.scrollTop; // the same rows in sight
  }
  app.changes.announce("direction");
  app.address.save();
  app.redraw();
}

export function setOrder(app, order) {
  if (app.order === order) return;
  app.order = order;
  app.changes.announce("order");
  app.place = placeNodes(app.tree, order === "largest");
  zoomTo(app, app.view.focus);
}

export function setColor(app, key) {
  const modes = colorModes(app.tree);
  app.color = modes.some((mode) => mode.key === key) ? key : modes[0].key;
  app.explained = null;
  app.changes.announce("color");
  app.redraw();
}

// The view with the key, or the page's first.
export function chooseView(app, key) {
  const { tree } = app;
  const known = tree.views.findIndex((view) => view.key === key);
  const index = known < 0 ? tree.first : known;
  if (index === tree.view) return;
  if (tree.full) applyView(tree.full, index);
  applyView(tree, index);
  treeChanged(app, app.view.focus);
}

// The tree's cells or their widths changed.
function treeChanged(app, focus) {
  const { tree } = app;
  app.place = placeNodes(tree, app.order === "largest");
  app.view = { low: 0, high: tree.whole, focus: -1 };
  app.found = findCells(app, app.found.text);
  app.changes.announce("tree");
  zoomTo(app, focus >= 0 && tree.width[focus] > 0 ? focus : -1);
}

// `change` has some of {recursion, layers, open}, see foldTree.
export function setFolding(app, change) {
  const { canFold, tree, selected } = app;
  const wanted = { ...app.folding, ...change };
  const folding = {
    ...wanted,
    recursion: wanted.recursion && canFold.recursion,
    layers: wanted.layers && canFold.layers,
  };
  if (foldingText(folding) === foldingText(app.folding)) return;
  const full = fullTree(app);
  const [focus, node] = [app.view.focus, selected].map((cell) => nodeOfCell(app, cell));
  app.folding = folding;
  app.tree = folding.recursion || folding.layers ? foldTree(full, folding) : full;
  app.selected = cellOfNode(app, node);
  if (app.tree !== full) applyView(app.tree, tree.view);
  treeChanged(app, cellOfNode(app, focus));
  if (node >= 0) select(app, cellOfNode(app, node));
  app.address.save();
}

function foldingText({ recursion, layers, open }) {
  return [recursion, layers, ...open].join();
}

// Shows the layers of a cell one by one.
export function openLayers(app, cell) {
  setFolding(app, { open: new Set([...app.folding.open, nodeOfCell(app, cell)]) });
}

// ---- the address ----

export function writeFlame(app, state) {
  const { tree } = app;
  if (app.view.focus >= 0) state.set("zoom", app.view.focus);
  if (!isFilled(app)) state.set("window", windowText(app));
  if (app.found.text) state.set("search", app.found.text);
  if (app.flame) state.set("flame", "1");
  if (app.order !== "recorded") state.set("order", app.order);
  writeFolding(app, state);
  if (tree.view !== tree.first) state.set("weight", tree.views[tree.view].key);
  if (app.color !== colorModes(tree)[0].key) state.set("color", app.color);
  if (app.selected >= 0 && app.selected !== app.view.focus) state.set("cell", app.selected);
}

function writeFolding({ canFold, folding, tree }, state) {
  if (folding.recursion) state.set("fold", "1");
  if (canFold.layers && folding.layers === tree.isFlat) state.set("layers", folding.layers ? "folded" : "flat");
  if (folding.open.size) state.set("open", [...folding.open].join("_"));
}

function readFolding({ tree }, state) {
  const layers = state.get("layers");
  const open = (state.get("open") ?? "").split("_").filter((text) => /^\d+$/.test(text));
  return {
    recursion: state.get("fold") === "1",
    layers: layers === "folded" || (layers !== "flat" && !tree.isFlat),
    open: new Set(open.map(Number)),
  };
}

export function readFlame(app, state) {
  setFolding(app, readFolding(app, state));
  chooseView(app, state.get("weight"));
  setColor(app, state.get("color"));
  setFlame(app, state.get("flame") === "1");
  setOrder(app, state.get("order") === "largest" ? "largest" : "recorded");
  search(app, state.get("search") ?? "");
  const nodeIn = (key) => {
    const node = Number(state.get(key) ?? -1);
    return Number.isInteger(node) && node >= 0 && node < app.tree.count ? node : -1;
  };
  zoomTo(app, nodeIn("zoom"));
  select(app, nodeIn("cell") >= 0 ? nodeIn("cell") : nodeIn("zoom"));
  restoreWindow(app, state.get("window"), nodeIn("zoom"));
}

// Whether the window is just that of the zoomed node, or of everything.
function isFilled({ tree, place, view }) {
  const low = view.focus < 0 ? 0 : place.x[view.focus];
  const high = view.focus < 0 ? tree.whole : low + tree.width[view.focus];
  return Math.max(Math.abs(view.low - low), Math.abs(view.high - high)) <= 1e-4 * (view.high - view.low);
}

// In parts of the whole, which has another size where the widths are bytes or launches.
function windowText({ tree, view }) {
  return [view.low, view.high].map((at) => at / tree.whole).join("_");
}

// The selected cell may be outside of it, and of the zoomed one.
function restoreWindow(app, text, focus) {
  const [low, high] = (text ?? "").split("_").map((part) => Number(part) * app.tree.whole);
  if (low >= 0 && low < high && high <= app.tree.whole) setWindow(app, low, high, focus);
}
