// The state of the view and what changes it. Everything that is seen follows from
// {view, selected, found, flame, order}; a change asks for one redraw in the next frame.

function createApp(tree) {
  const app = {
    tree,
    place: placeNodes(tree, false),
    colour: colourModes(tree)[0].key,
    order: "recorded",
    flame: false,
    view: { low: 0, high: tree.whole, focus: -1 },  // ns in sight, and the node that was zoomed to
    selected: -1,
    hovered: null,
    explained: null,  // the cell that the tooltip describes
    found: NO_SEARCH,
    rows: [],
    palette: readPalette(tree.kinds),
    shades: nameShades(tree.names),
    textWidths: new Map(),
    forms: new Map(),  // of names, see nameForms
    filterTable: () => {},
    selectionMoved: () => {},  // these two are for the timeline
    searched: () => {},
    stage: document.getElementById("stage"),
    canvas: document.getElementById("canvas"),
    tooltip: document.getElementById("tooltip"),
    pending: 0,
  };
  app.redraw = () => {
    app.pending ||= requestAnimationFrame(() => {
      app.pending = 0;  // here, since a page that shows the timeline alone does not draw this picture
      app.drawNow();
    });
  };
  app.drawNow = () => drawNow(app);
  app.isZoomed = () => app.view.low > 0 || app.view.high < app.tree.whole;
  app.zoomedDepth = () => (app.isZoomed() && app.view.focus >= 0 ? app.tree.depth[app.view.focus] : 0);
  app.zoom = (node) => zoomTo(app, node);
  return app;
}

function drawNow(app) {
  cancelAnimationFrame(app.pending);
  app.pending = 0;
  const surface = screenSurface(app);
  app.rows = collectCells(app, surface);
  app.hovered = null;
  paintRows(app, surface, app.rows);
}

// Fits the canvas to the visible part of the stage; setting its size clears it, so only on a change.
function screenSurface(app) {
  const { canvas, stage } = app;
  const ratio = devicePixelRatio || 1;
  const width = stage.clientWidth;
  const height = stage.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  return { context: canvas.getContext("2d"), width, height, top: stage.scrollTop, x: 0, y: 0, ratio };
}

// The stage has the height of the whole tree (up to its limit) at every zoom, so nothing jumps.
function sizeStage(app) {
  const height = app.place.levels.count * ROW_HEIGHT;
  document.getElementById("spacer").style.height = `${height}px`;
  app.stage.style.height = `${height + 2}px`;
}

function setWindow(app, low, high, focus, save = saveState) {
  const { whole } = app.tree;
  const size = Math.min(Math.max(high - low, 1), whole);
  const start = Math.min(Math.max(low, 0), whole - size);
  app.view = { low: start, high: start + size, focus };
  document.getElementById("reset").disabled = !app.isZoomed();
  showTooltip(app, null);
  showCrumbs(app);
  save(app);
  app.redraw();
}

// -1 zooms out to everything. A node without width cannot fill the window and is only selected.
function zoomTo(app, node) {
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

// Shows what a grey cell hides. Where it fills the window already, a tenth around the pointer.
function openHidden(app, cell, at) {
  const { view } = app;
  const focus = app.tree.parent[cell.node];
  if (cell.to - cell.from < 0.6 * (view.high - view.low)) setWindow(app, cell.from, cell.to, focus);
  else zoomAround(app, at, 0.1, focus);
}

function zoomAround(app, at, factor, focus = app.view.focus) {
  const { low, high } = app.view;
  const ns = low + at * (high - low);
  const size = (high - low) * factor;
  const start = ns - at * size;
  // The zoomed node may leave the window; the nearest ancestor that fills it is the new focus.
  let node = focus;
  while (node >= 0 && !contains(app, node, start, start + size)) node = app.tree.parent[node];
  setWindow(app, start, start + size, node, saveSoon);
}

function contains(app, node, low, high) {
  const from = app.place.x[node];
  return from <= low && from + app.tree.width[node] >= high;
}

function select(app, node) {
  app.selected = node;
  showDetails(app);
  if (node >= 0) reveal(app, node);
  app.selectionMoved(node);
  saveSoon(app);
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

function search(app, text) {
  app.found = searchTree(app.tree, text);
  showFound(app);
  app.filterTable();
  app.searched();
  saveState(app);
  app.redraw();
  const { count, calls, share } = app.found;
  return { count, calls, share };
}

function setFlame(app, flame) {
  if (app.flame !== flame) {
    app.flame = flame;
    const { stage } = app;
    stage.scrollTop = stage.scrollHeight - stage.clientHeight - stage.scrollTop;  // the same rows in sight
  }
  document.getElementById("flame").setAttribute("aria-pressed", String(flame));
  document.getElementById("icicle").setAttribute("aria-pressed", String(!flame));
  saveState(app);
  app.redraw();
}

function setOrder(app, order) {
  if (app.order === order) return;
  app.order = order;
  document.getElementById("order").value = order;
  app.place = placeNodes(app.tree, order === "largest");
  zoomTo(app, app.view.focus);
}

// ---- the state in the address, so that a link leads to what its sender saw ----

const SAVE_DELAY = 250;  // ms; browsers refuse an address that changes with every key that is held
const STEPS = ["zoom", "window", "view", "time", "range"];  // what the browser's back button goes back over

function saveSoon(app) {
  clearTimeout(app.saveTimer);
  app.saveTimer = setTimeout(() => saveState(app), SAVE_DELAY);
}

function saveState(app) {
  if (!app.started) return;
  clearTimeout(app.saveTimer);
  const state = new URLSearchParams();
  if (app.view.focus >= 0) state.set("zoom", app.view.focus);
  if (!isFilled(app)) state.set("window", windowText(app));
  if (app.found.text) state.set("search", app.found.text);
  if (app.flame) state.set("flame", "1");
  if (app.order !== "recorded") state.set("order", app.order);
  if (app.tree.full) state.set("fold", "1");
  saveChoices(app, state);
  if (app.selected >= 0 && app.selected !== app.view.focus) state.set("cell", app.selected);
  if (app.timeline) writeTimelineState(app, state);
  const before = new URLSearchParams(location.hash.slice(1));
  const isStep = STEPS.some((key) => state.get(key) !== before.get(key));
  try {
    if (isStep) history.pushState(null, "", `#${state}`);
    else history.replaceState(null, "", `#${state}`);
  } catch {
    // Sandboxed frames and browsers that saw too many changes refuse; the view works without.
  }
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

// Runs before `started`, so that restoring one part does not overwrite the others in the address.
function restoreState(app) {
  const state = new URLSearchParams(location.hash.slice(1));
  app.started = false;
  setFolding(app, state.get("fold") === "1");
  restoreChoices(app, state);
  setFlame(app, state.get("flame") === "1");
  setOrder(app, state.get("order") === "largest" ? "largest" : "recorded");
  const text = state.get("search") ?? "";
  document.getElementById("search").value = text;
  search(app, text);
  const nodeIn = (key) => {
    const node = Number(state.get(key) ?? -1);
    return Number.isInteger(node) && node >= 0 && node < app.tree.count ? node : -1;
  };
  zoomTo(app, nodeIn("zoom"));
  select(app, nodeIn("cell") >= 0 ? nodeIn("cell") : nodeIn("zoom"));
  restoreWindow(app, state.get("window"), nodeIn("zoom"));
  if (app.timeline) readTimelineState(app, state);
  clearTimeout(app.saveTimer);
  app.started = true;
}
