// The timeline for Perfetto and chrome://tracing: Chrome's trace format, see chrome.py for the whole run with all that
// the page does not carry.

import { download } from "../kit/page.js";
import { metricText } from "./paint.js";
import { rowOf } from "./rows.js";

const CATEGORY_OF_KIND = { operator: "cpu_op", backward: "cpu_op", kernel: "kernel", transfer: "gpu_memcpy" };
const EVENTS_IN_PART = 5000;

// Microseconds with three decimals are exact to the nanosecond.
function microseconds(ns) {
  const size = Math.abs(ns);
  const text = `${Math.floor(size / 1000)}.${String(size % 1000).padStart(3, "0")}`;
  return ns < 0 ? `-${text}` : text;
}

// A number for each process or device, and for each lane of a thread or stream.
function traceTracks({ tracks, rows, readings }) {
  const processes = new Map();
  for (const { of } of [...tracks, ...readings]) if (!processes.has(of)) processes.set(of, processes.size + 1);
  const lanes = new Map();
  for (const { track, lane } of rows) {
    const key = `${track}/${lane}`;
    if (!lanes.has(key)) lanes.set(key, { pid: processes.get(tracks[track].of), tid: lanes.size + 1, track, lane });
  }
  return { processes, lanes };
}

function* nameEvents({ tracks }, { processes, lanes }) {
  const named = (name, pid, tid, args) => JSON.stringify({ ph: "M", name, pid, tid, args });
  for (const [name, pid] of processes) {
    yield named("process_name", pid, 0, { name });
    yield named("process_sort_index", pid, 0, { sort_index: pid });
  }
  for (const { pid, tid, track, lane } of lanes.values()) {
    yield named("thread_name", pid, tid, { name: lane ? `${tracks[track].name} (${lane + 1})` : tracks[track].name });
    yield named("thread_sort_index", pid, tid, { sort_index: tid });
  }
}

function* sliceEvents(app, { lanes }) {
  const { timeline } = app;
  const { rows, start, duration, classOf, classes, launcher, onThreads } = timeline;
  const heads = Array.from({ length: classes.count }, (_, number) => {
    const kind = app.tree.kinds[classes.kind[number]];
    return `"name":${JSON.stringify(timeline.names[classes.name[number]])},"cat":"${CATEGORY_OF_KIND[kind] ?? "user_annotation"}"`;
  });
  const placeOf = ({ pid, tid }) => `"pid":${pid},"tid":${tid}`;
  const arrow = (phase, id, place, at, more = "") =>
    `{"ph":"${phase}","name":"ac2g","cat":"ac2g","id":${id},${place},"ts":${microseconds(at)}${more}}`;
  for (const row of rows) {
    const place = placeOf(lanes.get(`${row.track}/${row.lane}`));
    for (let slice = row.first; slice < row.stop; slice++) {
      const times = `"ts":${microseconds(start[slice])},"dur":${microseconds(duration[slice])}`;
      yield `{"ph":"X",${heads[classOf[slice]]},${place},${times}}`;
      const from = slice < onThreads ? -1 : launcher[slice - onThreads];
      if (from < 0) continue;
      const { track, lane } = rowOf(timeline, from);
      yield arrow("s", slice, placeOf(lanes.get(`${track}/${lane}`)), start[from]);
      yield arrow("f", slice, place, start[slice], ',"bp":"e"');
    }
  }
}

function* readingEvents({ readings }, { processes }) {
  for (const reading of readings) {
    const head = `"ph":"C","pid":${processes.get(reading.of)},"name":${JSON.stringify(metricText(reading))}`;
    for (let i = 0; i < reading.t.length; i++) {
      yield `{${head},"ts":${microseconds(reading.t[i])},"args":{"value":${JSON.stringify(reading.value[i])}}}`;
    }
  }
}

function traceText(app) {
  const { timeline } = app;
  const tracks = traceTracks(timeline);
  const parts = ['{"displayTimeUnit":"ns","traceEvents":[\n'];
  let pending = [];
  for (const events of [nameEvents(timeline, tracks), sliceEvents(app, tracks), readingEvents(timeline, tracks)]) {
    for (const event of events) {
      if (pending.push(event) < EVENTS_IN_PART) continue;
      parts.push(pending.join(",\n"), ",\n");
      pending = [];
    }
  }
  // Every trace begins with a name, so nothing but the first part is ever without an event before it.
  if (!pending.length) parts.pop();
  parts.push(pending.join(",\n"), "\n]}\n");
  return new Blob(parts);
}

export function saveTrace(app) {
  download(traceText(app), "trace.json");
}
