// The state of the timeline and what changes it: {time, slice, range, shown}.

const SHORTEST_WINDOW = 20;      // ns
const LANES_LIMIT = 0.62;        // of the window's height

function createTimeline(app, timeline) {
  Object.assign(app, {
    timeline: indexTimeline(timeline, app.tree.kinds),
    lanes: document.getElementById("lanes"),
    lanesCanvas: document.getElementById("lanes-canvas"),
    rulerCanvas: document.getElementById("ruler"),
    time: { ...timeline.whole },
    timeShades: nameShades(timeline.names),
    sliceTexts: new Map(),  // by class, see nameForms
    slice: -1,
    range: null,
    marks: null,
    marksStale: true,
    markedCell: -1,
    shown: "flame",
    timePending: 0,
  });
  app.redrawTimeline = () => {
    if (app.shown !== "flame") app.timePending ||= requestAnimationFrame(() => drawTimeline(app));
  };
  app.selectionMoved = (node) => cellSelected(app, node);
  app.searched = () => marksChanged(app);
  wrapDrawing(app);
}

// Whoever redraws the page, for a theme or for paper, means both pictures.
function wrapDrawing(app) {
  const { drawNow: drawFlame, redraw: redrawFlame } = app;
  app.drawNow = () => {
    if (app.shown !== "timeline") drawFlame();
    if (app.shown !== "flame") drawTimeline(app);
  };
  app.redraw = () => {
    redrawFlame();
    app.redrawTimeline();
  };
}

function showView(app, shown) {
  const flame = shown !== "timeline";
  app.shown = shown;
  for (const element of document.querySelectorAll("[data-view]")) element.hidden = (element.dataset.view === "flame") !== flame && shown !== "both";
  for (const name of ["flame", "timeline", "both"]) {
    document.getElementById(`view-${name}`).setAttribute("aria-pressed", String(name === shown));
  }
  if (flame) sizeStage(app);
  if (shown !== "flame") {
    sizeLanes(app);
    showRange(app);
  }
  if (shown === "timeline" || app.slice >= 0) showSlice(app);
  else showDetails(app);
  app.redraw();
}

function sizeLanes(app) {
  const { height } = app.timeline;
  document.getElementById("lanes-spacer").style.height = `${height}px`;
  app.lanes.style.height = `${Math.min(height, Math.max(200, innerHeight * LANES_LIMIT))}px`;
}

function setTime(app, low, high) {
  const { whole } = app.timeline;
  const size = Math.min(Math.max(high - low, Math.min(SHORTEST_WINDOW, whole.high - whole.low)), whole.high - whole.low);
  const start = Math.min(Math.max(low, whole.low), whole.high - size);
  app.time = { low: start, high: start + size };
  app.tooltip.hidden = true;
  document.getElementById("time-reset").disabled = isWholeTime(app);
  saveSoon(app);
  app.redrawTimeline();
}

function isWholeTime({ time, timeline: { whole } }) {
  return time.low <= whole.low && time.high >= whole.high;
}

function resetTime(app) {
  setTime(app, app.timeline.whole.low, app.timeline.whole.high);
}

// `at` is the place of the window that stays where it is, from 0 to 1.
function zoomTime(app, at, factor) {
  const { low, high } = app.time;
  const size = Math.max((high - low) * factor, SHORTEST_WINDOW);
  const start = low + at * (high - low - size);
  setTime(app, start, start + size);
}

function panTime(app, share) {
  const { low, high } = app.time;
  const by = share * (high - low);
  setTime(app, low + by, high + by);
}

function zoomToSlice(app, slice) {
  const { start, duration } = app.timeline;
  const beside = Math.max(duration[slice] * 0.1, SHORTEST_WINDOW / 2);
  setTime(app, start[slice] - beside, start[slice] + duration[slice] + beside);
}

// -1 for nothing. `reveals` moves the window to the slice, unless the pointer is on it.
function selectSlice(app, slice, reveals = true) {
  app.slice = slice;
  selectCellOf(app, slice);
  showSlice(app);
  if (slice >= 0 && reveals) revealSlice(app, slice);
  saveSoon(app);
  app.redrawTimeline();
}

function revealSlice(app, slice) {
  const { timeline, time, lanes } = app;
  const [low, high] = [timeline.start[slice], sliceEnd(timeline, slice)];
  const size = time.high - time.low;
  if (high < time.low || low > time.high) setTime(app, low - size / 2, low + size / 2);
  const row = rowOf(timeline, slice);
  const { top } = timeline.lines.find((line) => line.row === row);
  if (top < lanes.scrollTop) lanes.scrollTop = Math.max(0, top - TITLE_HEIGHT);
  else if (top + SLICE_HEIGHT > lanes.scrollTop + lanes.clientHeight) lanes.scrollTop = top + 2 * SLICE_HEIGHT - lanes.clientHeight;
}

// null for no range. Its ends may be given in any order.
function setRange(app, range) {
  const { whole } = app.timeline;
  const clip = (ns) => Math.round(Math.min(Math.max(ns, whole.low), whole.high));
  app.range = range && { low: clip(Math.min(range.low, range.high)), high: clip(Math.max(range.low, range.high)) };
  showRange(app);
  saveSoon(app);
  app.redrawTimeline();
}

// ---- the state in the address ----

function writeTimelineState(app, state) {
  if (app.shown !== "flame") state.set("view", app.shown);
  if (!isWholeTime(app)) state.set("time", `${Math.floor(app.time.low)}-${Math.ceil(app.time.high)}`);
  if (app.slice >= 0) state.set("slice", app.slice);
  if (app.range) state.set("range", `${app.range.low}-${app.range.high}`);
}

function readTimelineState(app, state) {
  const { timeline } = app;
  const time = readSpan(state.get("time")) ?? timeline.whole;
  setTime(app, time.low, time.high);
  setRange(app, readSpan(state.get("range")));
  const slice = /^\d+$/.test(state.get("slice") ?? "") ? Number(state.get("slice")) : -1;
  const view = state.get("view");
  showView(app, ["timeline", "both"].includes(view) ? view : "flame");
  if (slice >= 0 && slice < timeline.count) selectSlice(app, slice, false);
  else if (app.slice >= 0) app.slice = -1;
}

// "12-34" as a stretch of time, null for anything else.
function readSpan(text) {
  const found = /^(-?\d+)-(-?\d+)$/.exec(text ?? "");
  if (!found) return null;
  const [low, high] = [Number(found[1]), Number(found[2])];
  return low < high ? { low, high } : null;
}
