// The totals of a range of time by name.

import { quotedIfBlank, withoutPrefix } from "../flame/names.js";
import { isLabeled, rowKey } from "../flame/nodes.js";
import { visitSums } from "./bands.js";
import { firstEndingAfter } from "./rows.js";

// Nanoseconds within the range and slices, for each class.
function classTotals(timeline, low, high) {
  const { rows, start, duration, classOf, classes } = timeline;
  const ns = new Float64Array(classes.count);
  const calls = new Int32Array(classes.count);
  for (const row of rows) {
    for (let at = firstEndingAfter(timeline, row, low); at < row.stop && start[at] < high; at++) {
      const end = Math.min(high, start[at] + duration[at]);
      ns[classOf[at]] += end - Math.max(low, start[at]);
      calls[classOf[at]]++;
    }
  }
  return { ns, calls };
}

// What is left of each class outside of what is directly inside it on its thread.
function classOwn(app, ns) {
  const { classes, around, twins } = app.timeline;
  const onGpu = new Set(["kernel", "transfer"].map((kind) => app.tree.kinds.indexOf(kind)));
  const own = ns.slice();
  for (let number = 0; number < classes.count; number++) {
    const up = around[number];
    if (twins[number])
      own[number] = 0; // what is inside is taken off the span around it
    else if (up >= 0 && !onGpu.has(classes.kind[number])) own[up] -= ns[number];
  }
  return own.map((each) => Math.max(0, each));
}

// Marks classes that have none of their own name and kind around them: only those count in a name's total.
function outermostClasses(classes) {
  const { count, name, kind, parent } = classes;
  const marks = new Uint8Array(count);
  const children = childLists(classes);
  const open = new Map();
  const stack = [];
  for (let root = 0; root < count; root++) if (parent[root] < 0) stack.push(root);
  while (stack.length) {
    const number = stack.pop();
    const isLeaving = number < 0;
    const at = isLeaving ? -number - 1 : number;
    const key = `${name[at]}/${kind[at]}`;
    open.set(key, (open.get(key) ?? 0) + (isLeaving ? -1 : 1));
    if (isLeaving) continue;
    marks[at] = open.get(key) === 1 ? 1 : 0;
    stack.push(-at - 1);
    for (let i = children.start[at]; i < children.start[at + 1]; i++) stack.push(children.of[i]);
  }
  return marks;
}

// Children of class c are of[start[c]] to of[start[c + 1] - 1].
function childLists({ count, parent }) {
  const start = new Int32Array(count + 2);
  for (let i = 0; i < count; i++) if (parent[i] >= 0) start[parent[i] + 2]++;
  for (let i = 2; i < count + 2; i++) start[i] += start[i - 1];
  const of = new Int32Array(count);
  for (let i = 0; i < count; i++) if (parent[i] >= 0) of[start[parent[i] + 1]++] = i;
  return { start, of };
}

// One row for each name and kind in the range, the largest self time first.
export function rangeTotals(app, { low, high }) {
  const { timeline } = app;
  const { classes } = timeline;
  const { ns, calls } = classTotals(timeline, low, high);
  const own = classOwn(app, ns);
  timeline.outermost ??= outermostClasses(classes);
  const groups = new Map();
  for (let number = 0; number < classes.count; number++) {
    if (!calls[number]) continue;
    const group = groupOf(app, groups, classes.name[number], classes.kind[number]);
    group.own += own[number];
    group.calls += calls[number];
    if (timeline.outermost[number]) group.total += ns[number];
  }
  addMerged(app, groups, low, high);
  return [...groups.values()].sort((a, b) => b.own - a.own || b.total - a.total);
}

// Calls that are summed up. They take their time from the names around them, of which the range may have no call.
function addMerged(app, groups, low, high) {
  const { merged } = app.timeline;
  if (!merged) return;
  const { slices, own, outermost } = merged.sums;
  visitSums(app.timeline, low, high, (key, at, part) => {
    const group = groupOf(app, groups, merged.names[key], merged.kinds[key]);
    group.own += own[at] * part;
    group.total += outermost[at] * part;
    group.calls += slices[at] * part;
  });
  for (const [key, group] of groups) {
    group.calls = Math.round(group.calls);
    group.own = Math.max(0, group.own);
    if (!group.calls) groups.delete(key);
  }
}

// Whether the range ends within a stretch of time of which the page has sums only.
export function isEstimated({ timeline }, { low, high }) {
  if (!timeline.merged) return false;
  let isCut = false;
  visitSums(timeline, low, high, (_key, _at, part) => {
    isCut ||= part < 1;
  });
  return isCut;
}

function groupOf(app, groups, name, kind) {
  const key = rowKey(app.tree, name, kind);
  let group = groups.get(key);
  if (!group) groups.set(key, (group = newGroup(app, name, app.tree.kinds[kind])));
  return group;
}

// What a row shows, and its whole name.
function newGroup({ timeline: { names, labels } }, number, kind) {
  const full = names[number];
  const label = isLabeled(kind) ? labels.get(number) : undefined;
  const group = { kind, own: 0, total: 0, calls: 0 };
  return { ...group, name: full, text: label ?? quotedIfBlank(kind === "backward" ? withoutPrefix(full) : full) };
}
