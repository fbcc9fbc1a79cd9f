// Where slices are: rows on the page, slices in rows, what is around a slice and inside it, and which rectangles a row
// shows.

import { BACKWARD_PREFIX, withoutPrefix } from "../flame/names.js";
import { firstIndex, itemAt } from "../kit/canvas.js";

// ---- rows and slices ----

export const SLICE_HEIGHT = 18; // CSS pixels
export const TITLE_HEIGHT = 22; // of the line that names a thread, stream or device
export const CHART_HEIGHT = 40;
const GROUP_GAP = 8;

// The lines of the picture from the top: {kind: "title" | "row" | "chart", top, height, ...}.
function placeLines(timeline) {
  const lines = [];
  let top = 0;
  const add = (height, line) => {
    lines.push({ ...line, top, height });
    top += height;
  };
  timeline.tracks.forEach((track, number) => {
    if (number) top += GROUP_GAP;
    add(TITLE_HEIGHT, { kind: "title", text: track.name, small: track.of });
    for (const row of timeline.rowsOf[number]) add(SLICE_HEIGHT, { kind: "row", row });
  });
  timeline.readings.forEach((reading, number) => {
    const isFirst = number === 0 || timeline.readings[number - 1].of !== reading.of;
    if (isFirst) {
      top += GROUP_GAP;
      add(TITLE_HEIGHT, { kind: "title", text: reading.of, small: "readings" });
    }
    add(CHART_HEIGHT, { kind: "chart", reading });
  });
  return { lines, height: top };
}

// What follows from the decoded columns and is small.
export function indexTimeline(timeline, kinds) {
  const { rows, tracks, start, duration, readings } = timeline;
  timeline.rowsOf = tracks.map(() => []);
  timeline.rowAt = new Map();
  for (const row of rows) {
    timeline.rowsOf[row.track].push(row);
    timeline.rowAt.set(`${row.track}/${row.lane}/${row.level}`, row);
  }
  timeline.twins = engineTwins(timeline);
  timeline.around = classesAround(timeline.classes, kinds.indexOf("python"));
  let low = Infinity;
  let high = -Infinity;
  for (const { first, stop } of rows) {
    if (first === stop) continue;
    low = Math.min(low, start[first]);
    high = Math.max(high, start[stop - 1] + duration[stop - 1]);
  }
  if (timeline.merged) {
    const { start: begins, width } = timeline.merged.bands;
    low = Math.min(low, timeline.merged.begin);
    for (const { firstBand, stopBand } of rows) {
      if (stopBand > firstBand) high = Math.max(high, begins[stopBand - 1] + width);
    }
  }
  for (const { t } of readings) {
    low = Math.min(low, t[0]);
    high = Math.max(high, t[t.length - 1]);
  }
  if (timeline.window) [low, high] = timeline.window;
  timeline.whole =
    low < high ? { low, high } : { low: low === Infinity ? 0 : low, high: (low === Infinity ? 0 : low) + 1 };
  Object.assign(timeline, placeLines(timeline));
  return timeline;
}

function neighbourRow(timeline, { track, lane, level }, step) {
  return timeline.rowAt.get(`${track}/${lane}/${level + step}`);
}

function countCells({ count, ofNode }) {
  const cells = new Int32Array(count);
  for (const number of ofNode) if (number >= 0) cells[number]++;
  return cells;
}

// Marks the operators that the flame graph shows in the cell of the engine's span around them: what is inside
// is of a class below the span's. See shown_tree.py.
function engineTwins(timeline) {
  const {
    classes: { count, name, parent },
    names,
  } = timeline;
  timeline.cellsOfClass = countCells(timeline.classes);
  const twins = new Uint8Array(count);
  // The name of what each engine span evaluates: names are few even where classes are many.
  const places = new Map(names.map((text, place) => [text, place]));
  const evaluated = Int32Array.from(names, (text) =>
    text.startsWith(BACKWARD_PREFIX) ? (places.get(withoutPrefix(text)) ?? -1) : -1,
  );
  for (let number = 0; number < count; number++) {
    if (parent[number] < 0 || timeline.cellsOfClass[number] > 0) continue;
    twins[number] = evaluated[name[parent[number]]] === name[number] ? 1 : 0;
  }
  return twins;
}

// The class around each on its own track: functions are sampled on another one than the spans between which
// they are in the tree.
function classesAround({ parent, kind }, python) {
  return parent.map((next, number) => {
    let up = next;
    while (up >= 0 && (kind[up] === python) !== (kind[number] === python)) up = parent[up];
    return up;
  });
}

// The first of `values` from `from` to before `stop` that is not below `limit`. Nearby ones are found fast.
export function lowerBound(values, from, stop, limit) {
  let step = 1;
  let low = from;
  while (low + step < stop && values[low + step] < limit) {
    low += step;
    step *= 2;
  }
  let high = Math.min(low + step, stop);
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The first slice of a row that ends after `time`; slices of a row follow one another.
export function firstEndingAfter(timeline, row, time) {
  const { start, duration } = timeline;
  let at = lowerBound(start, row.first, row.stop, time);
  while (at > row.first && start[at - 1] + duration[at - 1] > time) at--;
  return at;
}

export function rowOf(timeline, slice) {
  const { rows } = timeline;
  return rows[firstIndex(0, rows.length, (at) => rows[at].stop > slice)];
}

export function sliceEnd(timeline, slice) {
  return timeline.start[slice] + timeline.duration[slice];
}

function holds(timeline, outer, slice) {
  return timeline.start[outer] <= timeline.start[slice] && sliceEnd(timeline, outer) >= timeline.start[slice];
}

// The slice of `row` that is open where `slice` begins and is of the class around it; -1 for none.
function parentIn(timeline, row, slice) {
  const { classOf, classes, around, twins } = timeline;
  const wanted = around[classOf[slice]];
  let at = lowerBound(timeline.start, row.first, row.stop, timeline.start[slice] + 0.5) - 1;
  // A slice of no length, or one that ends where this one begins, may be between.
  for (let tries = 0; at >= row.first && tries < 3; at--, tries++) {
    const is = twins[classOf[at]] ? classes.parent[classOf[at]] : classOf[at];
    if (at !== slice && is === wanted && holds(timeline, at, slice)) return at;
  }
  return -1;
}

// What a slice is inside of: on a stream what launched it, on a thread the span around it, which may be in
// another lane where tasks interleave.
export function parentSlice(timeline, slice) {
  if (slice >= timeline.onThreads) return timeline.launcher[slice - timeline.onThreads];
  const own = rowOf(timeline, slice);
  const rows = timeline.rowsOf[own.track];
  const above = neighbourRow(timeline, own, -1);
  const near = above ? parentIn(timeline, above, slice) : -1;
  if (near >= 0) return near;
  let found = -1;
  for (const row of rows) {
    const at = row === own || row === above ? -1 : parentIn(timeline, row, slice);
    if (at >= 0 && (found < 0 || timeline.start[at] > timeline.start[found])) found = at;
  }
  return found;
}

// The first slice inside, else the first that it launched; -1 for none.
export function childSlice(timeline, slice) {
  const own = rowOf(timeline, slice);
  const below = neighbourRow(timeline, own, 1);
  if (below && slice < timeline.onThreads) {
    const at = lowerBound(timeline.start, below.first, below.stop, timeline.start[slice]);
    const isInside = at < below.stop && sliceEnd(timeline, at) <= sliceEnd(timeline, slice);
    if (isInside && parentSlice(timeline, at) === slice) return at;
  }
  return launchedSlices(timeline, slice)[0] ?? -1;
}

// What ran on streams for a slice, in the order of streams.
function launchedSlices(timeline, slice) {
  const { launcher, onThreads } = timeline;
  timeline.byLauncher ??= Int32Array.from(launcher, (_, i) => i).sort((a, b) => launcher[a] - launcher[b] || a - b);
  const order = timeline.byLauncher;
  const first = firstIndex(0, order.length, (at) => launcher[order[at]] >= slice);
  const stop = firstIndex(first, order.length, (at) => launcher[order[at]] > slice);
  return Array.from(order.subarray(first, stop), (at) => onThreads + at);
}

export function sliceName(timeline, slice) {
  return timeline.names[timeline.classes.name[timeline.classOf[slice]]];
}

// ---- blocks: a slice of a pixel or more is drawn as itself; narrower ones of a pixel column are one block ----

const NARROWEST_SLICE = 1; // CSS pixel

// Blocks {first, stop, left, right} of one row: all slices from `first` to before `stop` are in it.
export function collectBlocks(timeline, row, window, widthPx) {
  const { start, duration } = timeline;
  const scale = widthPx / (window.high - window.low);
  const blocks = [];
  let at = firstEndingAfter(timeline, row, window.low);
  while (at < row.stop && start[at] < window.high) {
    const left = (start[at] - window.low) * scale;
    const width = duration[at] * scale;
    if (width >= NARROWEST_SLICE) {
      blocks.push({ first: at, stop: at + 1, left: Math.max(0, left), right: Math.min(widthPx, left + width) });
      at++;
      continue;
    }
    const column = Math.max(0, Math.floor(left));
    const until = window.low + (column + 1) / scale;
    let next = lowerBound(start, at + 1, row.stop, until);
    // Of those that begin in a column only the last can be wide.
    if (next - 1 > at && duration[next - 1] * scale >= NARROWEST_SLICE) next--;
    blocks.push({ first: at, stop: next, left: column, right: column + 1 });
    at = next;
  }
  return blocks;
}

export function blockHides(block) {
  return block.stop - block.first > 1 ? block.stop - block.first : 0;
}

// The lines of the picture between two heights.
export function linesInSight(timeline, top, height) {
  const { lines } = timeline;
  const first = firstIndex(0, lines.length, (at) => lines[at].top + lines[at].height > top);
  return lines.slice(
    first,
    firstIndex(first, lines.length, (at) => lines[at].top >= top + height),
  );
}

// The block at a point of the canvas; null for none.
export function blockAt(app, px, py) {
  const { timeline } = app;
  const line = linesInSight(timeline, py + app.lanes.scrollTop, 1)[0];
  if (!line || line.kind !== "row") return null;
  return itemAt(collectBlocks(timeline, line.row, app.time, app.lanes.clientWidth), px);
}
