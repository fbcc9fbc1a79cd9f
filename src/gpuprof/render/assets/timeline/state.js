// The state of the timeline, {time, slice, range, marks, shown}, and what changes it. It announces "time", "slice",
// "range" and "marks".

import { select } from "../flame/actions.js";
import { nameShades } from "../flame/colors.js";
import { byId } from "../kit/page.js";
import { cellOfSlice, nextMarked } from "./marks.js";
import { drawTimeline } from "./paint.js";
import { indexTimeline, rowOf, SLICE_HEIGHT, sliceEnd, TITLE_HEIGHT } from "./rows.js";

const SHORTEST_WINDOW = 20; // ns

export function createTimeline(app, timeline) {
  Object.assign(app, {
    timeline: indexTimeline(timeline, app.tree.kinds),
    lanes: byId("lanes"),
    lanesCanvas: byId("lanes-canvas"),
    rulerCanvas: byId("ruler"),
    time: { ...timeline.whole },
    timeShades: nameShades(timeline.names),
    sliceTexts: new Map(), // by class, see nameForms
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
  app.changes.on("selection", (node) => cellSelected(app, node));
  app.changes.on("search tree", () => marksChanged(app));
  wrapDrawing(app);
}

// A redraw of the page, for a theme or for paper, includes both pictures.
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

export function setTime(app, low, high) {
  const { whole } = app.timeline;
  const size = Math.min(
    Math.max(high - low, Math.min(SHORTEST_WINDOW, whole.high - whole.low)),
    whole.high - whole.low,
  );
  const start = Math.min(Math.max(low, whole.low), whole.high - size);
  app.time = { low: start, high: start + size };
  app.changes.announce("time");
  app.address.saveSoon();
  app.redrawTimeline();
}

export function isWholeTime({ time, timeline: { whole } }) {
  return time.low <= whole.low && time.high >= whole.high;
}

export function resetTime(app) {
  setTime(app, app.timeline.whole.low, app.timeline.whole.high);
}

// `at` is the place of the window that stays where it is, from 0 to 1.
export function zoomTime(app, at, factor) {
  const { low, high } = app.time;
  const size = Math.max((high - low) * factor, SHORTEST_WINDOW);
  const start = low + at * (high - low - size);
  setTime(app, start, start + size);
}

export function panTime(app, fraction) {
  const { low, high } = app.time;
  const by = fraction * (high - low);
  setTime(app, low + by, high + by);
}

export function zoomToSlice(app, slice) {
  const { start, duration } = app.timeline;
  const margin = Math.max(duration[slice] * 0.1, SHORTEST_WINDOW / 2);
  setTime(app, start[slice] - margin, start[slice] + duration[slice] + margin);
}

// -1 for nothing. `reveals` moves the window to the slice, unless the pointer is on it.
export function selectSlice(app, slice, reveals = true) {
  app.slice = slice;
  selectCellOf(app, slice);
  app.changes.announce("slice");
  if (slice >= 0 && reveals) revealSlice(app, slice);
  app.address.saveSoon();
  app.redrawTimeline();
}

function selectCellOf(app, slice) {
  const node = slice < 0 ? -1 : cellOfSlice(app, slice);
  app.followsSlice = true;
  app.markedCell = -1;
  select(app, node);
  app.followsSlice = false;
  marksChanged(app);
}

// The flame graph's selection moved; `selectSlice` moves it too and then marks nothing.
function cellSelected(app, node) {
  if (app.followsSlice) return;
  app.markedCell = node;
  app.slice = -1;
  marksChanged(app);
}

function marksChanged(app) {
  app.marksStale = true;
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
  else if (top + SLICE_HEIGHT > lanes.scrollTop + lanes.clientHeight)
    lanes.scrollTop = top + 2 * SLICE_HEIGHT - lanes.clientHeight;
}

// null for no range. Its ends may be given in any order.
export function setRange(app, range) {
  const { whole } = app.timeline;
  const clip = (ns) => Math.round(Math.min(Math.max(ns, whole.low), whole.high));
  app.range = range && { low: clip(Math.min(range.low, range.high)), high: clip(Math.max(range.low, range.high)) };
  app.changes.announce("range");
  app.address.saveSoon();
  app.redrawTimeline();
}

export function goToMark(app, step) {
  if (!app.marks?.count) return;
  const [marks, cell] = [app.marks, app.markedCell];
  const slice = nextMarked(app, step);
  if (slice < 0) return;
  selectSlice(app, slice);
  // Walking through the calls of a cell keeps them marked.
  Object.assign(app, { marks, markedCell: cell, marksStale: false });
}
