// Marked slices: those that a search found, or the calls of a selected cell. `before[i]` is how many of the slices
// before i are marked, so one subtraction counts those in a block.

import { kindName, listText, matchingNames } from "../flame/nodes.js";
import { cellOfNode, fullTree, nodesOfCell } from "../flame/folding.js";
import { compileQuery } from "../kit/table.js";
import { countMerged } from "./bands.js";
import { lowerBound } from "./rows.js";

function newMarks(timeline, isSearch, marked, text) {
  const before = new Int32Array(timeline.count + 1);
  const { classOf } = timeline;
  for (let i = 0; i < timeline.count; i++) before[i + 1] = before[i] + marked[classOf[i]];
  return { isSearch, before, text, count: before[timeline.count], isShared: false, merged: 0 };
}

function searchMarks(app) {
  const { timeline, found } = app;
  const test = found.invalid ? null : compileQuery(found.text);
  const names = matchingNames(timeline, test ?? (() => false));
  const marked = timeline.classes.name.map((id) => names[id]);
  return { ...newMarks(timeline, true, marked, `“${found.text}”`), names, merged: countMerged(timeline, names) };
}

// A cell's calls; of a cell that only groups others, the calls of those next beneath it.
function callMarks(app, node) {
  const { timeline, tree } = app;
  const marked = new Uint8Array(timeline.classes.count);
  for (const each of nodesOfCell(app, node)) markClasses(timeline.classes, fullTree(app), each, marked);
  const isShared = marked.some((isMarked, number) => isMarked && timeline.cellsOfClass[number] > 1);
  return { ...newMarks(timeline, false, marked, listText(tree, node)), isShared };
}

function markClasses(classes, tree, node, marked) {
  for (let at = node; at < tree.end[node];) {
    const number = classes.ofNode[at];
    if (number < 0) {
      at++;
      continue;
    }
    marked[number] = 1;
    at = tree.end[at];
  }
  // Operators in the same cell as the engine's span around them, too.
  const own = classes.ofNode[node];
  if (own >= 0)
    classes.node.forEach((first, number) => {
      if (first === classes.node[own]) marked[number] = 1;
    });
}

// Marks follow the search and the flame graph's selection; they are made when they are next drawn.
export function refreshMarks(app) {
  if (!app.marksStale) return;
  app.marksStale = false;
  const hasCell = app.markedCell >= 0 && isCall(app, app.markedCell);
  app.marks = app.found.text ? searchMarks(app) : hasCell ? callMarks(app, app.markedCell) : null;
  app.changes.announce("marks");
}

// A process is around everything: marking it would show nothing.
function isCall(app, node) {
  return kindName(app.tree, node) !== "process";
}

export function cellOfSlice(app, slice) {
  return cellOfNode(app, app.timeline.classes.node[app.timeline.classOf[slice]]);
}

// The nearest marked slice after (1) or before (-1) the selected one, else after the window's beginning.
export function nextMarked(app, step) {
  const {
    timeline,
    marks: { before },
    slice,
    time,
  } = app;
  const from = slice >= 0 ? timeline.start[slice] : time.low;
  let best = -1;
  for (const row of timeline.rows) {
    const at =
      step > 0
        ? firstMarked(before, lowerBound(timeline.start, row.first, row.stop, from + (slice >= 0 ? 0.5 : 0)), row.stop)
        : lastMarked(before, row.first, lowerBound(timeline.start, row.first, row.stop, from));
    if (at < 0) continue;
    if (best < 0 || (timeline.start[at] - timeline.start[best]) * step < 0) best = at;
  }
  return best;
}

function firstMarked(before, first, stop) {
  const at = lowerBound(before, first, stop + 1, before[first] + 1);
  return at <= stop && before[at] > before[first] ? at - 1 : -1;
}

function lastMarked(before, first, stop) {
  if (before[stop] === before[first]) return -1;
  return lowerBound(before, first, stop + 1, before[stop]) - 1;
}
