// Which rectangles a row shows. A slice of a pixel or more is drawn as itself; narrower ones of the same pixel column
// are one block, found by one search however many they are. So the cost follows the screen.

import { firstEndingAfter, lowerBound } from "./rows.js";

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
  let low = 0;
  let high = lines.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lines[middle].top + lines[middle].height <= top) low = middle + 1;
    else high = middle;
  }
  const found = [];
  for (; low < lines.length && lines[low].top < top + height; low++) found.push(lines[low]);
  return found;
}

// The block at a point of the canvas, with one pixel of grace; null for none.
export function blockAt(app, px, py) {
  const { timeline } = app;
  const line = linesInSight(timeline, py + app.lanes.scrollTop, 1)[0];
  if (!line || line.kind !== "row") return null;
  const blocks = collectBlocks(timeline, line.row, app.time, app.lanes.clientWidth);
  return (
    blocks.findLast(({ left, right }) => px >= left && px < right) ??
    blocks.findLast(({ left, right }) => px >= left - 1 && px < right + 1) ??
    null
  );
}
