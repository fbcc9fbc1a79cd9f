// The call tree that the page carries, as columns of numbers (text would be ten times as large, and parsing it would
// take most of the time until the picture is shown), and its weights: a page carries all that its run has; a view is one
// of them, and in a comparison one of them at one scale of the two sides.

import { formatAmount } from "../kit/format.js";
import { byId, readJson } from "../kit/page.js";
import { meanOfSides, readDifference, readHiddenDifference, sidesText } from "./difference.js";
import { measureTree } from "./layout.js";

// ---- columns ----

function bytesFromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

// The bytes in the element `id`, which is removed: megabytes of text that are not read again. Only a large page
// waits here: a small one continues at once and is ready by its load event.
export async function takeColumns(id, isGzip) {
  const bytes = bytesFromBase64(byId(id).textContent);
  byId(id).remove();
  return isGzip ? inflate(bytes) : bytes.buffer;
}

// ---- the tree ----

const COLUMN_TYPES = { float64: Float64Array, float32: Float32Array, int32: Int32Array, uint8: Uint8Array };

function splitColumns(buffer, count, specs, begin = 0) {
  const columns = {};
  let offset = begin;
  for (const [name, type] of specs) {
    columns[name] = new COLUMN_TYPES[type](buffer, offset, count);
    offset += columns[name].byteLength;
  }
  return columns;
}

// Two columns travel as differences, see `_columns` in flamegraph.py.
function restoreParent(up) {
  return up.map((distance, node) => (distance ? node - distance : -1));
}

export function restoreTotal(own, inside) {
  return own.map((ns, node) => ns + inside[node]);
}

// The tree as parallel arrays in pre-order: parent, kind, name, calls, threads, and those of its views.
export async function loadTree() {
  const head = readJson("head");
  const buffer = await takeColumns("columns", head.gzip);
  const columns = splitColumns(buffer, head.count, head.columns);
  const { count, kinds, names, views, first, colorings, states, findings } = head;
  const { calls: recorded, oldCalls: recordedOld, steps } = head;
  const { kind, name, calls, threads, paths } = columns;
  const parent = restoreParent(columns.up);
  // `views` are ways to weigh the cells, see applyView; `states` name the verdicts of a difference. `recorded` are
  // the calls of the run, since the tree may show a pair of them as one; `recordedOld` is null for one run.
  const labels = new Map(head.labels); // of kernels' names, by their place in `names`
  const groups = new Map(head.groups); // of repeated layers, by the place of their names
  const facts = { count, kinds, names, labels, groups, views, first, colorings, states, recorded, recordedOld };
  const hidden = loadHidden(buffer, head.hidden);
  return { ...facts, findings, steps, isFlat: head.flat, columns, kind, name, calls, threads, parent, paths, hidden };
}

// The sums by name of the paths in cells "other", see pruned_tree.py; `paths` of the tree has how many each cell has.
function loadHidden(buffer, { at, count, columns: specs }) {
  return { count, ...(count && splitColumns(buffer, count, specs, at)) };
}

export function isOther(tree, node) {
  return tree.kinds[tree.kind[node]] === "other";
}

// ---- weights ----

export function amountText(tree, value) {
  return formatAmount(value, tree.unit);
}

export function ownTitle(tree) {
  return tree.unit === "ns" ? "Self time" : `Self ${tree.time}`;
}

// Gives the tree the figures of a view, and what follows from them.
export function applyView(tree, index) {
  const view = tree.views[index];
  const column = (name) => tree.columns[`${view.key}.${name}`];
  tree.view = index;
  tree.measure = view.measure; // what the widths are, as a heading
  tree.time = view.time; // the same in a sentence: "time" or "GPU time"
  tree.unit = view.unit;
  tree.diff = view.scaling ? readDifference(column) : null;
  if (tree.diff) {
    tree.own = meanOfSides(tree.diff.own);
    tree.total = meanOfSides(tree.diff.total);
  } else {
    tree.own = column("own");
    tree.total = restoreTotal(tree.own, column("inside"));
  }
  if (tree.hidden.count) applyToHidden(tree, (name) => tree.hidden[`${view.key}.${name}`]);
  measureTree(tree);
}

function applyToHidden({ hidden, diff }, column) {
  hidden.diff = diff && readHiddenDifference(column);
  hidden.own = diff ? meanOfSides(hidden.diff.own) : column("own");
  hidden.total = diff ? hidden.own : column("total");
}

// What the run's steps have of the present weight; undefined for a run without steps. `steps.text` is how many.
export function stepsPart({ steps, views, view }) {
  return steps?.views[views[view].key];
}

function hasWaits(tree) {
  const waiting = tree.kinds.indexOf("waiting");
  return tree.kind.some((kind, node) => kind === waiting && tree.own[node] > 0);
}

export function hotTitle(tree) {
  const steps = stepsPart(tree) ? ` of ${tree.steps.text}` : "";
  const waits = hasWaits(tree) ? ", without waits" : "";
  if (tree.unit === "ns") return `Where the ${tree.time}${steps} goes${waits}: most self time`;
  return `Where the ${tree.time} are: most self ${tree.time}`;
}

export function wholeText(tree) {
  return tree.diff ? sidesText(tree.diff.whole) : amountText(tree, tree.whole);
}
