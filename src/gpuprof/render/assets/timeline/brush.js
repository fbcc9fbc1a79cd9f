// From one picture to the other. Marks are slices that a search found, or the calls of a selected cell;
// `before[i]` is how many of the slices before i are marked, so a block knows at once whether it hides any.

function newMarks(timeline, isSearch, marked, text) {
  const before = new Int32Array(timeline.count + 1);
  const { classOf } = timeline;
  for (let i = 0; i < timeline.count; i++) before[i + 1] = before[i] + marked[classOf[i]];
  return { isSearch, before, text, count: before[timeline.count], isShared: false };
}

function searchMarks(app) {
  const { timeline, found } = app;
  const test = found.invalid ? null : compileQuery(found.text);
  const names = Uint8Array.from(timeline.names, (name) => (test && (test(name) || test(withoutPrefix(name))) ? 1 : 0));
  const isListedSo = test ? modelNameTest(fullTree(app), test) : () => false;
  const { name, node } = timeline.classes;
  const marked = name.map((id, number) => (names[id] || (node[number] >= 0 && isListedSo(node[number])) ? 1 : 0));
  return newMarks(timeline, true, marked, `“${found.text}”`);
}

// A cell's calls; of a cell that only groups others, the calls of those next beneath it.
function callMarks(app, node) {
  const { timeline, tree } = app;
  const marked = new Uint8Array(timeline.classes.count);
  for (const each of nodesOfCell(app, node)) markClasses(timeline.classes, fullTree(app), each, marked);
  const isShared = marked.some((isMarked, number) => isMarked && timeline.cellsOfClass[number] > 1);
  return { ...newMarks(timeline, false, marked, listedName(tree, node)), isShared };
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
  // Operators that share the cell of the engine's span around them, too.
  const own = classes.ofNode[node];
  if (own >= 0) classes.node.forEach((first, number) => { if (first === classes.node[own]) marked[number] = 1; });
}

// Marks follow the search and the flame graph's selection; they are made when they are next drawn.
function refreshMarks(app) {
  if (!app.marksStale) return;
  app.marksStale = false;
  const hasCell = app.markedCell >= 0 && isCall(app, app.markedCell);
  app.marks = app.found.text ? searchMarks(app) : hasCell ? callMarks(app, app.markedCell) : null;
  showMarks(app);
}

// A process is around everything: marking it would say nothing.
function isCall(app, node) {
  return kindName(app.tree, node) !== "process";
}

function showMarks(app) {
  const { marks } = app;
  document.getElementById("marked").textContent = marks ? marksText(marks) : "";
  for (const id of ["mark-before", "mark-after"]) document.getElementById(id).hidden = !marks?.count;
}

function marksText({ count, text, isShared }) {
  if (!count) return `no slice of ${text}`;
  const which = isShared ? ", with those of other layers: the run does not tell them apart" : "";
  return `${counted(count, "slice")} of ${text} ${count === 1 ? "is" : "are"} marked${which}`;
}

function marksChanged(app) {
  app.marksStale = true;
  app.redrawTimeline();
}

// The flame graph's selection moved; `selectSlice` moves it too and then marks nothing.
function cellSelected(app, node) {
  if (app.isBrushing) return;
  app.markedCell = node;
  app.slice = -1;
  marksChanged(app);
}

function cellOfSlice(app, slice) {
  return cellOfNode(app, app.timeline.classes.node[app.timeline.classOf[slice]]);
}

function selectCellOf(app, slice) {
  const node = slice < 0 ? -1 : cellOfSlice(app, slice);
  app.isBrushing = true;
  app.markedCell = -1;
  select(app, node);
  app.isBrushing = false;
  marksChanged(app);
}

// The nearest marked slice after (1) or before (-1) the selected one, else after the window's beginning.
function nextMarked(app, step) {
  const { timeline, marks: { before }, slice, time } = app;
  const from = slice >= 0 ? timeline.start[slice] : time.low;
  let best = -1;
  for (const row of timeline.rows) {
    const at = step > 0
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
