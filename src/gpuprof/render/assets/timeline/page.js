// The timeline's place in the page: the views, its part of the address, and its state for tests and for the console.

import { buildLegend } from "../flame/colors.js";
import { showDetails } from "../flame/details.js";
import { sizeStage } from "../flame/state.js";
import { boxSurface } from "../kit/canvas.js";
import { counted } from "../kit/format.js";
import { byId, exposed, listen, press } from "../kit/page.js";
import { bandFigures, collectBands } from "./bands.js";
import { bindTimelineDetails, showRange, showSlice, sliceDepth, sliceKind } from "./details.js";
import { bindTimeline } from "./input.js";
import { cellOfSlice, refreshMarks } from "./marks.js";
import { drawnSliceText, drawTimeline } from "./paint.js";
import { blockHides, collectBlocks, linesInSight, parentSlice, rowOf, SLICE_HEIGHT, sliceName } from "./rows.js";
import { createTimeline, isWholeTime, selectSlice, setRange, setTime } from "./state.js";
import { rangeTotals } from "./totals.js";
import { saveTrace } from "./trace.js";

const VIEWS = ["flame", "timeline", "both"];
const LANES_LIMIT = 0.62; // of the window's height

export function showView(app, shown) {
  const flame = shown !== "timeline";
  app.shown = shown;
  for (const element of document.querySelectorAll("[data-view]")) {
    element.hidden = shown !== "both" && element.dataset.view !== shown;
  }
  for (const name of VIEWS) press(`view-${name}`, name === shown);
  buildLegend(app);
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
  byId("lanes-spacer").style.height = `${height}px`;
  app.lanes.style.height = `${Math.min(height, Math.max(200, innerHeight * LANES_LIMIT))}px`;
}

export function writeTimeline(app, state) {
  if (app.shown !== "flame") state.set("view", app.shown);
  if (!isWholeTime(app)) state.set("time", `${Math.floor(app.time.low)}-${Math.ceil(app.time.high)}`);
  if (app.slice >= 0) state.set("slice", app.slice);
  if (app.range) state.set("range", `${app.range.low}-${app.range.high}`);
}

export function readTimeline(app, state) {
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

// "12-34" as a range of time, null for anything else.
function readSpan(text) {
  const found = /^(-?\d+)-(-?\d+)$/.exec(text ?? "");
  if (!found) return null;
  const [low, high] = [Number(found[1]), Number(found[2])];
  return low < high ? { low, high } : null;
}

// `loaded` is what loadTimeline returns: the data, the reason why there is none, or null.
export function addTimeline(app, loaded) {
  const isLeftOut = typeof loaded === "string";
  byId("left-out").textContent = isLeftOut ? loaded : "";
  byId("left-out").hidden = !isLeftOut;
  if (isLeftOut || !loaded || loaded.count + (loaded.merged?.slices ?? 0) + loaded.readings.length === 0) return;
  byId("views").hidden = false;
  if (loaded.note) byId("timeline-note").textContent = loaded.note;
  else byId("timeline-note").remove();
  createTimeline(app, loaded);
  describeTimeline(app);
  bindTimelineDetails(app);
  bindTimeline(app);
  for (const name of VIEWS) {
    listen(`view-${name}`, "click", () => {
      showView(app, name);
      app.address.save();
    });
  }
  for (const button of document.querySelectorAll('[data-saves="trace"]')) {
    button.hidden = false;
    button.addEventListener("click", () => saveTrace(app));
  }
}

// A description for those who cannot see the picture.
function describeTimeline(app) {
  const { timeline, lanesCanvas } = app;
  const streams = timeline.tracks.filter(({ stream }) => stream).length;
  const merged = timeline.merged ? ` and ${counted(timeline.merged.slices, "shorter call")} in bands` : "";
  const parts = [
    `${counted(timeline.count, "slice")}${merged}`,
    `on ${counted(timeline.tracks.length - streams, "thread")}`,
  ];
  if (streams) parts.push(`and ${counted(streams, "GPU stream")}`);
  if (timeline.readings.length) parts.push(`with ${counted(timeline.readings.length, "chart")} of readings`);
  lanesCanvas.setAttribute("aria-label", `Timeline: ${document.title}`);
  byId("timeline-summary").textContent =
    `${parts.join(" ")}. Enter selects the first slice in sight; left and right then go to the slice before and after, ` +
    "up and down to the one around and inside. Plus and minus zoom, Home shows everything, Escape clears the selection.";
}

// A slice as a test reads it.
function plainSlice(app, slice) {
  const { timeline } = app;
  const { track, lane, level } = rowOf(timeline, slice);
  return {
    name: sliceName(timeline, slice),
    kind: sliceKind(app, slice),
    track,
    lane,
    level,
    start: timeline.start[slice],
    duration: timeline.duration[slice],
    parent: parentSlice(timeline, slice),
    depth: sliceDepth(timeline, slice),
    node: cellOfSlice(app, slice),
    marked: app.marks ? app.marks.before[slice + 1] > app.marks.before[slice] : false,
  };
}

function visibleBlocks(app) {
  const { timeline, time, lanes } = app;
  const surface = boxSurface(app.lanesCanvas, app.lanes);
  return linesInSight(timeline, lanes.scrollTop, lanes.clientHeight).flatMap((line) => {
    if (line.kind !== "row") return [];
    return collectBlocks(timeline, line.row, time, lanes.clientWidth).map((block) => ({
      slice: block.first,
      hidden: blockHides(block),
      x: block.left,
      width: block.right - block.left,
      y: line.top - lanes.scrollTop,
      height: SLICE_HEIGHT,
      text: drawnSliceText(app, surface, block),
    }));
  });
}

function visibleBands(app) {
  const { timeline, time, lanes } = app;
  return linesInSight(timeline, lanes.scrollTop, lanes.clientHeight).flatMap((line) => {
    if (line.kind !== "row") return [];
    return collectBands(timeline, line.row, time, lanes.clientWidth).map((band) => ({
      ...bandFigures(timeline, band),
      x: band.left,
      width: band.right - band.left,
      y: line.top - lanes.scrollTop,
    }));
  });
}

function markedCount(app) {
  refreshMarks(app);
  return app.marks ? app.marks.count : 0;
}

export function exposeTimeline(app) {
  const { timeline } = app;
  const tracks = timeline.tracks.map(({ name, of, stream }) => ({ name, of, stream }));
  return Object.defineProperties(
    {},
    exposed(
      {
        count: () => timeline.count,
        tracks: () => tracks,
        window: () => ({ ...app.time }),
        whole: () => ({ ...timeline.whole }),
        view: () => app.shown,
        selected: () => app.slice,
        chosen: () => app.range,
        marked: () => markedCount(app),
        blocks: () => visibleBlocks(app),
        bands: () => visibleBands(app),
        merged: () => timeline.merged?.slices ?? 0,
      },
      {
        show: (view) => {
          showView(app, view);
          drawTimeline(app);
        },
        select: (slice) => {
          selectSlice(app, slice);
          refreshMarks(app);
        },
        zoom: (low, high) => setTime(app, low, high),
        range: (low, high) => setRange(app, { low, high }),
        totals: (low, high) => rangeTotals(app, { low, high }),
        slice: (slice) => plainSlice(app, slice),
        redraw: () => drawTimeline(app),
      },
    ),
  );
}
