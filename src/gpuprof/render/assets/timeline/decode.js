// Decoding the timeline: see `_packed` in timeline_columns.py. Slices are in rows, in each by time, so what a window shows is
// found by binary search.

import { takeColumns } from "../flame/tree.js";
import { readJson } from "../kit/page.js";
import { decodeMerged } from "./bands.js";
import { joinPlanes, unzigzag } from "./planes.js";

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

// Rows of all tracks, from the top to the bottom; slices of a row are those from `first` to before `stop`, and
// bands likewise.
function decodeRows(tracks) {
  let stop = 0;
  let stopBand = 0;
  return tracks.flatMap(({ rows }, track) =>
    rows.map(([lane, level, count, bands]) => {
      const [first, firstBand] = [stop, stopBand];
      stop += count;
      stopBand += bands;
      return { track, lane, level, first, stop, firstBand, stopBand };
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
    merged: decodeMerged(parts, head, rows),
    window: head.window, // [low, high] where the page has only what meets it
    note: head.note,
  };
}

// The timeline's data, null where the page has none, or the reason why it was left out.
export async function loadTimeline() {
  const head = readJson("timeline-head");
  if (head === null || head.left_out) return head && head.left_out;
  return decodeTimeline(await takeColumns("timeline-columns", head.gzip), head);
}
