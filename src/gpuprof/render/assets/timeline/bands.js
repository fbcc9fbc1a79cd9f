// Slices that the page does not have one by one, see merged_slices.py: sums by row in narrow stretches of time, which are
// drawn as bands, and sums by name in wide ones, for totals.

import { itemAt } from "../kit/canvas.js";
import { joinPlanes, unzigzag } from "./planes.js";
import { linesInSight, lowerBound } from "./rows.js";

// null where the page has all slices.
export function decodeMerged(parts, head, rows) {
  if (!head.merged) return null;
  const { slices, below, begin, names, kinds, bands, sums } = head.merged;
  const numbers = (name, count) => joinPlanes(parts[name].bytes, count, new Float64Array(count));
  const ofBands = (name) => numbers(`band.${name}`, bands.count);
  const ofSums = (name) => numbers(`sum.${name}`, sums.count);
  const merged = {
    ...{ slices, below, begin, names, kinds },
    bands: { width: bands.width, start: ofBands("step"), slices: ofBands("slices"), busy: ofBands("busy") },
    sums: { width: sums.width, start: ofSums("step"), slices: ofSums("slices"), total: ofSums("total") },
  };
  merged.bands.key = ofBands("key");
  Object.assign(merged.sums, { key: ofSums("key"), outermost: ofSums("outermost"), own: unzigzag(ofSums("own")) });
  for (const row of rows) restoreTimes(merged.bands, begin, row.firstBand, row.stopBand);
  restoreTimes(merged.sums, begin, 0, sums.count);
  return merged;
}

// Steps from one stretch to the next become the times at which they begin.
function restoreTimes({ start, width }, begin, first, stop) {
  let stretch = 0;
  for (let at = first; at < stop; at++) {
    stretch += start[at];
    start[at] = begin + stretch * width;
  }
}

// Bands {first, stop, left, right} of a row in a window; those of less than a pixel are one.
export function collectBands(timeline, row, window, widthPx) {
  if (!timeline.merged) return [];
  const { start, width } = timeline.merged.bands;
  const scale = widthPx / (window.high - window.low);
  const found = [];
  let at = lowerBound(start, row.firstBand, row.stopBand, window.low - width + 1);
  while (at < row.stopBand && start[at] < window.high) {
    const left = Math.max(0, (start[at] - window.low) * scale);
    let next = at + 1;
    if (width * scale < 1) {
      const until = window.low + (Math.floor(left) + 1) / scale;
      next = Math.max(next, lowerBound(start, next, row.stopBand, until));
    }
    const right = Math.min(widthPx, (start[next - 1] + width - window.low) * scale);
    found.push({ first: at, stop: next, left, right: Math.max(right, Math.min(left + 1, widthPx)) });
    at = next;
  }
  return found;
}

// The band at a point of the canvas; null for none.
export function bandAt(app, px, py) {
  const { timeline, time, lanes } = app;
  const line = linesInSight(timeline, py + lanes.scrollTop, 1)[0];
  if (!line || line.kind !== "row") return null;
  return itemAt(collectBands(timeline, line.row, time, lanes.clientWidth), px);
}

// Sums of a drawn band: slices, the time that they take, and the name and kind of the longest of them. That is the key of
// the busiest stretch, where several are drawn as one.
export function bandFigures({ merged }, { first, stop }) {
  const { slices, busy, key, width, start } = merged.bands;
  const sums = {
    slices: 0,
    busy: 0,
    key: key[first],
    from: start[first],
    span: start[stop - 1] + width - start[first],
  };
  let most = -1;
  for (let at = first; at < stop; at++) {
    sums.slices += slices[at];
    sums.busy += busy[at];
    if (busy[at] <= most) continue;
    most = busy[at];
    sums.key = key[at];
  }
  return { ...sums, name: merged.names[sums.key], kind: merged.kinds[sums.key] };
}

// Calls `visit(key, place, part)` for each sum of a range; `part` is less than 1 for a stretch of which only a part is inside.
export function visitSums({ merged }, low, high, visit) {
  if (!merged) return;
  const { start, width, key } = merged.sums;
  for (let at = 0; at < start.length; at++) {
    const part = (Math.min(high, start[at] + width) - Math.max(low, start[at])) / width;
    if (part > 0) visit(key[at], at, part);
  }
}

// How many of the slices have a name that `marked` marks.
export function countMerged({ merged }, marked) {
  if (!merged) return 0;
  const { key, slices } = merged.sums;
  let count = 0;
  for (let at = 0; at < key.length; at++) if (marked[merged.names[key[at]]]) count += slices[at];
  return count;
}
