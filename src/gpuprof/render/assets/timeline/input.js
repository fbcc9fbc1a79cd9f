// Pointer and keys of the timeline. Dragging moves it; with Shift, or on the ruler, it selects a range.

import { WHEEL_SPEED } from "../flame/controls.js";
import { hideTooltip, listen } from "../kit/page.js";
import { bandAt, bandFigures } from "./bands.js";
import { showTimeTooltip } from "./details.js";
import { blockAt, blockHides, childSlice, firstEndingAfter, parentSlice, rowOf, sliceEnd } from "./rows.js";
import {
  goToMark,
  isWholeTime,
  panTime,
  resetTime,
  selectSlice,
  setRange,
  setTime,
  zoomTime,
  zoomToSlice,
} from "./state.js";

const DRAG_START = 4; // pixels below which a press is a click
const SCROLL_PAUSE = 300; // ms after the page scrolled in which a wheel continues to scroll it
const KEY_ZOOM = 0.6;
const KEY_PAN = 0.2;
const WHEEL_LINE = 16; // pixels, where a wheel counts lines

function timeAt(app, x) {
  const { low, high } = app.time;
  return low + (x / app.lanes.clientWidth) * (high - low);
}

export function bindTimeline(app) {
  const { lanes, lanesCanvas, rulerCanvas } = app;
  let scrolled = -Infinity;
  addEventListener(
    "scroll",
    (event) => {
      scrolled = event.timeStamp;
    },
    { passive: true },
  );
  for (const canvas of [lanesCanvas, rulerCanvas]) {
    // Scrolling the page past the picture must not zoom it.
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (event.ctrlKey || event.timeStamp - scrolled > SCROLL_PAUSE) wheelTime(app, event);
      },
      { passive: false },
    );
    canvas.addEventListener("pointerdown", (event) => startDrag(app, event, canvas === rulerCanvas || event.shiftKey));
  }
  lanesCanvas.addEventListener("pointermove", (event) => {
    if (!app.drag && event.pointerType !== "touch") showTimeTooltip(app, event);
  });
  lanesCanvas.addEventListener("pointerleave", () => {
    hideTooltip();
  });
  lanesCanvas.addEventListener("dblclick", (event) => {
    const block = blockAt(app, event.offsetX, event.offsetY);
    if (block && !blockHides(block) && block.first === app.slice) zoomToSlice(app, app.slice);
  });
  lanesCanvas.addEventListener("keydown", (event) => timelineKey(app, event));
  lanes.addEventListener(
    "scroll",
    () => {
      hideTooltip();
      app.redrawTimeline();
    },
    { passive: true },
  );
  new ResizeObserver(() => app.redrawTimeline()).observe(lanes);
  bindTimelineButtons(app);
}

function bindTimelineButtons(app) {
  const on = (id, action) => listen(id, "click", action);
  on("time-reset", () => resetTime(app));
  on("time-in", () => zoomTime(app, 0.5, KEY_ZOOM));
  on("time-out", () => zoomTime(app, 0.5, 1 / KEY_ZOOM));
  on("mark-before", () => goToMark(app, -1));
  on("mark-after", () => goToMark(app, 1));
  on("range-close", () => setRange(app, null));
  on("range-zoom", () => setTime(app, app.range.low, app.range.high));
}

// Outwards from everything there is nothing to zoom: the page scrolls.
function wheelTime(app, event) {
  const unit = event.deltaMode === 1 ? WHEEL_LINE : 1;
  const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
  const by = (isSideways ? event.deltaX || event.deltaY : event.deltaY) * unit;
  if (!by || (!isSideways && by > 0 && isWholeTime(app) && !event.ctrlKey)) return;
  event.preventDefault();
  if (isSideways) panTime(app, by / app.lanes.clientWidth);
  else zoomTime(app, event.offsetX / app.lanes.clientWidth, Math.exp(by * WHEEL_SPEED));
}

function startDrag(app, event, isRange) {
  if (event.button !== 0) return;
  const canvas = event.currentTarget;
  const { lanes } = app;
  const box = canvas.getBoundingClientRect();
  const at = (each) => each.clientX - box.left;
  const began = { x: at(event), y: event.clientY, time: app.time, top: lanes.scrollTop, moved: false };
  app.drag = began;
  if (isRange) event.preventDefault();
  app.lanesCanvas.focus({ preventScroll: true });
  canvas.setPointerCapture(event.pointerId);
  const move = (each) => {
    began.moved ||= Math.hypot(at(each) - began.x, each.clientY - began.y) >= DRAG_START;
    if (!began.moved) return;
    if (isRange) setRange(app, { low: timeAt(app, began.x), high: timeAt(app, at(each)) });
    else dragTime(app, began, at(each) - began.x, each.clientY - began.y, each.pointerType);
  };
  const stop = (each) => {
    canvas.removeEventListener("pointermove", move);
    for (const kind of ["pointerup", "pointercancel"]) canvas.removeEventListener(kind, stop);
    app.drag = null;
    if (!began.moved && each.type === "pointerup") clickTime(app, each, isRange);
  };
  canvas.addEventListener("pointermove", move);
  for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, stop);
}

function dragTime(app, began, dx, dy, pointerType) {
  const { low, high } = began.time;
  const by = (dx / app.lanes.clientWidth) * (high - low);
  setTime(app, low - by, high - by);
  if (pointerType !== "touch") app.lanes.scrollTop = began.top - dy; // a finger scrolls by itself
}

function clickTime(app, event, isRange) {
  if (isRange) return setRange(app, null);
  const block = blockAt(app, event.offsetX, event.offsetY);
  if (!block) return clickBand(app, event);
  if (!blockHides(block)) return selectSlice(app, block.first, false);
  const {
    timeline: { start },
    time,
  } = app;
  const [low, high] = [start[block.first], sliceEnd(app.timeline, block.stop - 1)];
  // What a block hides is a pixel wide: three times that keeps what is around it in sight.
  if ((high - low) * 3 < (time.high - time.low) * 0.6) setTime(app, low - (high - low), high + (high - low));
  else zoomTime(app, event.offsetX / app.lanes.clientWidth, 0.1);
  return undefined;
}

// There is nothing to see in a band that fills the window: the page has only its sums.
function clickBand(app, event) {
  const band = bandAt(app, event.offsetX, event.offsetY);
  selectSlice(app, -1);
  if (!band) return;
  const { from, span } = bandFigures(app.timeline, band);
  if (3 * span < 0.6 * (app.time.high - app.time.low)) setTime(app, from - span, from + 2 * span);
}

const TIMELINE_KEYS = {
  "+": (app) => zoomTime(app, 0.5, KEY_ZOOM),
  "=": (app) => zoomTime(app, 0.5, KEY_ZOOM),
  "-": (app) => zoomTime(app, 0.5, 1 / KEY_ZOOM),
  w: (app) => zoomTime(app, 0.5, KEY_ZOOM),
  s: (app) => zoomTime(app, 0.5, 1 / KEY_ZOOM),
  a: (app) => panTime(app, -KEY_PAN),
  d: (app) => panTime(app, KEY_PAN),
  0: resetTime,
  Home: resetTime,
  n: (app) => goToMark(app, 1),
  p: (app) => goToMark(app, -1),
  Enter: (app) => (app.slice >= 0 ? zoomToSlice(app, app.slice) : selectSlice(app, firstInWindow(app))),
  Escape: leaveTimeline,
  PageDown: (app) => {
    app.lanes.scrollTop += app.lanes.clientHeight * 0.8;
  },
  PageUp: (app) => {
    app.lanes.scrollTop -= app.lanes.clientHeight * 0.8;
  },
  ArrowLeft: (app, shift) => arrow(app, shift, -KEY_PAN, (slice) => neighbourSlice(app, slice, -1)),
  ArrowRight: (app, shift) => arrow(app, shift, KEY_PAN, (slice) => neighbourSlice(app, slice, 1)),
  ArrowUp: (app, shift) => arrow(app, shift, 0, (slice) => parentSlice(app.timeline, slice)),
  ArrowDown: (app, shift) => arrow(app, shift, 0, (slice) => childSlice(app.timeline, slice)),
};

function timelineKey(app, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const action = TIMELINE_KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  event.stopPropagation(); // Escape and the like mean the flame graph elsewhere
  action(app, event.shiftKey);
}

// With a slice selected arrows walk from it; without one, or with Shift, they move the picture.
function arrow(app, shift, pan, step) {
  if (shift || (app.slice < 0 && pan)) return panTime(app, pan);
  const slice = app.slice < 0 ? firstInWindow(app) : step(app.slice);
  if (slice >= 0) selectSlice(app, slice);
  return undefined;
}

function neighbourSlice(app, slice, step) {
  const { first, stop } = rowOf(app.timeline, slice);
  const other = slice + step;
  return other >= first && other < stop ? other : -1;
}

// The first slice of the topmost row that has one in sight.
function firstInWindow(app) {
  const { timeline, time } = app;
  for (const row of timeline.rows) {
    const at = firstEndingAfter(timeline, row, time.low);
    if (at < row.stop && timeline.start[at] < time.high) return at;
  }
  return -1;
}

// One thing after the other: the range, the selection with its marks, the zoom.
function leaveTimeline(app) {
  if (app.range) setRange(app, null);
  else if (app.slice >= 0 || app.selected >= 0) selectSlice(app, -1);
  else resetTime(app);
}
