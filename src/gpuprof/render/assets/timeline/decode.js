// Decoding the timeline: see `_packed` in timeline.py. Slices are in rows, in each by time, so what a window shows is
// found by binary search.

import { takeColumns } from "../flame/tree.js";
import { readJson } from "../kit/page.js";

// Byte planes, the lowest first, as numbers. Three of them are integers in one pass; what is above is rare.
function joinPlanes(bytes, count, into) {
  const planes = count ? bytes.length / count : 0;
  const second = planes > 1 ? count : -1;
  const third = planes > 2 ? 2 * count : -1;
  for (let i = 0; i < count; i++) {
    let value = bytes[i];
    if (second > 0) value |= bytes[second + i] << 8;
    if (third > 0) value |= bytes[third + i] << 16;
    into[i] = value;
  }
  for (let plane = 3; plane < planes; plane++) {
    const unit = 256 ** plane;
    const at = plane * count;
    for (let i = 0; i < count; i++) if (bytes[at + i]) into[i] += bytes[at + i] * unit;
  }
  return into;
}

// The sign is the lowest bit. In place.
function unzigzag(values) {
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (value <= 0x7fffffff) values[i] = (value >>> 1) ^ -(value & 1);
    else values[i] = value % 2 ? -(value + 1) / 2 : value / 2;
  }
  return values;
}

function columnParts(buffer, sizes) {
  const parts = {};
  let offset = 0;
  for (const [name, size] of Object.entries(sizes)) {
    parts[name] = { bytes: new Uint8Array(buffer, offset, size), offset };
    offset += size;
  }
  return parts;
}

function decodeClasses(buffer, { offset }, head) {
  const column = (index, length) => new Int32Array(buffer, offset + 4 * head.classes * index, length);
  const [name, kind, parent, node] = [0, 1, 2, 3].map((index) => column(index, head.classes));
  return { count: head.classes, name, kind, parent, node, ofNode: column(4, head.nodes) };
}

function decodeReadings(buffer, part, head) {
  let { offset } = part;
  return head.readings.map(({ of, metric, unit, count }) => {
    const t = new Float64Array(buffer, offset, count);
    const value = new Float64Array(buffer, offset + 8 * count, count);
    offset += 16 * count;
    return { of, metric, unit, t, value, most: value.reduce((most, each) => Math.max(most, each), 0) };
  });
}

// Gaps between slices of a row become starts; the first of a row counts from the beginning.
function restoreStarts(gap, duration, rows, base) {
  for (const { first, stop } of rows) {
    let end = base;
    for (let i = first; i < stop; i++) {
      gap[i] += end;
      end = gap[i] + duration[i];
    }
  }
  return gap;
}

// Rows of all tracks, from the top to the bottom; slices of a row are those from `first` to before `stop`.
function decodeRows(tracks) {
  let first = 0;
  return tracks.flatMap(({ rows }, track) =>
    rows.map(([lane, level, count]) => {
      first += count;
      return { track, lane, level, first: first - count, stop: first };
    }),
  );
}

// Sums of the durations before each slice: how busy a stretch of a row is.
function runningSums(duration) {
  const sums = new Float64Array(duration.length + 1);
  for (let i = 0; i < duration.length; i++) sums[i + 1] = sums[i] + duration[i];
  return sums;
}

function restoreLaunchers(distance) {
  for (let i = 1; i < distance.length; i++) distance[i] += distance[i - 1];
  return Int32Array.from(distance);
}

function decodeTimeline(buffer, head) {
  const parts = columnParts(buffer, head.columns);
  const { count, on_threads: onThreads } = head;
  const rows = decodeRows(head.tracks);
  const duration = joinPlanes(parts.duration.bytes, count, new Float64Array(count));
  const gap = unzigzag(joinPlanes(parts.gap.bytes, count, new Float64Array(count)));
  const distance = joinPlanes(parts.launcher.bytes, count - onThreads, new Float64Array(count - onThreads));
  return {
    count,
    onThreads,
    rows,
    duration,
    names: head.names,
    labels: new Map(head.labels), // see loadTree
    tracks: head.tracks,
    start: restoreStarts(gap, duration, rows, head.base),
    busy: runningSums(duration),
    classOf: joinPlanes(parts.class.bytes, count, new Int32Array(count)),
    launcher: restoreLaunchers(unzigzag(distance)),
    classes: decodeClasses(buffer, parts.classes, head),
    readings: decodeReadings(buffer, parts.readings, head),
  };
}

// The timeline's data, null where the page has none, or the reason why it was left out.
export async function loadTimeline() {
  const head = readJson("timeline-head");
  if (head === null || head.left_out) return head && head.left_out;
  return decodeTimeline(await takeColumns("timeline-columns", head.gzip), head);
}
