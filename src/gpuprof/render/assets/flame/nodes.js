// Names and paths of nodes, and the search over them. Models of one run may have layers of the same path; where they
// do, lists write `model/path` and the search finds that, too. The rule is that of the summary, see `_display_names`
// in fold.py.

import { counted, formatFraction } from "../kit/format.js";
import { compileQuery } from "../kit/table.js";
import { quotedIfBlank, withoutPrefix } from "./names.js";

// ---- names and paths ----

const PATH_LIMIT = 8; // names of a path that are shown; a stack may be 20,000 deep

export function fullName(tree, node) {
  return tree.names[tree.name[node]];
}

export function kindName(tree, node) {
  return tree.kinds[tree.kind[node]];
}

export function shortName(tree, node) {
  const name = fullName(tree, node);
  return kindName(tree, node) === "backward" ? withoutPrefix(name) : name;
}

export function shownName(tree, node) {
  return quotedIfBlank(shortName(tree, node));
}

// The ancestors of a node, outermost first, at most `limit` of the nearest.
export function ancestors(tree, node, limit = Infinity) {
  const found = [];
  for (let up = tree.parent[node]; up >= 0 && found.length < limit; up = tree.parent[up]) found.push(up);
  return found.reverse();
}

export function pathText(tree, node) {
  const nearest = ancestors(tree, node, PATH_LIMIT);
  const names = nearest.map((up) => shownName(tree, up));
  if (nearest.length && tree.parent[nearest[0]] >= 0) names.unshift("…");
  return names.join(" › ");
}

// Adds the name of the outermost layer around each node, -1 outside of all, and whether lists need it.
export function noteModels(tree) {
  const layer = tree.kinds.indexOf("layer");
  const roots = new Int32Array(tree.count);
  for (let node = 0; node < tree.count; node++) {
    const up = tree.parent[node];
    const inherited = up < 0 ? -1 : roots[up];
    roots[node] = inherited < 0 && tree.kind[node] === layer ? tree.name[node] : inherited;
  }
  tree.roots = roots;
  tree.namesModels = needModels(tree, layer);
  return tree;
}

function needModels(tree, layer) {
  const { names, name, roots } = tree;
  const used = new Set(roots);
  used.delete(-1);
  if (used.size < 2) return false;
  const pairs = new Map();
  for (let node = 0; node < tree.count; node++) {
    if (tree.kind[node] === layer) pairs.set(roots[node] * names.length + name[node], node);
  }
  const nodes = [...pairs.values()];
  // Roots without layers of their own, such as a loss next to the model, make no name ambiguous.
  const prefixing = new Set(
    nodes.filter((node) => underRoot(tree, node) !== names[name[node]]).map((node) => roots[node]),
  );
  return prefixing.size > 1 || new Set(nodes.map((node) => names[name[node]])).size < nodes.length;
}

// A layer that is called directly, outside its model, is its own root: its path has it already.
export function underRoot(tree, node) {
  const name = tree.names[tree.name[node]];
  const root = tree.names[tree.roots[node]];
  return name === root || name.startsWith(`${root}.`) ? name : `${root}/${name}`;
}

// Whether a list writes more of this node than its name.
export function hasModelName(tree, node) {
  return tree.namesModels && kindName(tree, node) === "layer";
}

// What a title writes of a node of a list: as `listedName`, with nothing left out.
export function fullListedName(tree, node) {
  return hasModelName(tree, node) ? underRoot(tree, node) : fullName(tree, node);
}

// Equal names of one kind are one row of a list, those of layers for each model; from numbers, to be quick.
export function rowKey({ names, kinds }, model, name, kind) {
  return (model * names.length + name) * kinds.length + kind;
}

// The model that a row of this node is for; 0 where a row is for all.
export function rowModel(tree, node) {
  return kindName(tree, node) === "layer" ? tree.roots[node] + 1 : 0;
}

export function listedName(tree, node) {
  return hasModelName(tree, node) ? underRoot(tree, node) : shortName(tree, node);
}

// A test of nodes for what lists write of them in addition to their names.
export function modelNameTest(tree, test) {
  if (!tree.namesModels) return () => false;
  const known = new Map();
  return (node) => {
    if (!hasModelName(tree, node)) return false;
    const key = tree.roots[node] * tree.names.length + tree.name[node];
    if (!known.has(key)) known.set(key, test(underRoot(tree, node)));
    return known.get(key);
  };
}

// The label of a kernel, made of its name by `kernel_labels` in kernel_labels.py; undefined where it is the name.
export function labelOf(tree, node) {
  return kindName(tree, node) === "kernel" ? tree.labels.get(tree.name[node]) : undefined;
}

// What a list shows of a node: of kernels the label, of other calls the whole name.
export function listText(tree, node) {
  return labelOf(tree, node) ?? quotedIfBlank(listedName(tree, node));
}

// ---- search: names are few even where nodes are many, so each name is tested once ----

export const NO_SEARCH = { text: "", marks: null, count: 0, calls: 0, ns: 0, share: 0, invalid: false };

// Which names a test finds, as they are in the run or as the pages write them; 1 for each.
export function matchingNames({ names, labels }, test) {
  const found = Uint8Array.from(names, (name) => (test(name) || test(withoutPrefix(name)) ? 1 : 0));
  for (const [name, label] of labels) if (test(label)) found[name] = 1;
  return found;
}

// `marks` has a 1 for each matching node. `ns` counts a match inside another match once. A process is no call.
export function searchTree(tree, text) {
  if (!text) return NO_SEARCH;
  const test = compileQuery(text);
  if (!test) return { ...NO_SEARCH, text, invalid: true };
  const names = matchingNames(tree, test);
  const isListedSo = modelNameTest(tree, test);
  const process = tree.kinds.indexOf("process");
  const marks = new Uint8Array(tree.count);
  let count = 0;
  let calls = 0;
  let ns = 0;
  let covered = 0; // nodes below this index are inside the last outermost match
  for (let node = 0; node < tree.count; node++) {
    if (!names[tree.name[node]] && !isListedSo(node)) continue;
    marks[node] = 1;
    count++;
    if (tree.kind[node] !== process) calls += tree.calls[node];
    if (node < covered) continue;
    covered = tree.end[node];
    ns += tree.width[node];
  }
  return { text, marks, count, calls, ns, share: tree.whole > 0 ? ns / tree.whole : 0, invalid: false };
}

export function foundText(found, tree) {
  if (!found.text) return "";
  if (found.invalid) return "not a regular expression";
  if (!found.count) return "no match";
  const parts = [counted(found.count, "cell")];
  if (found.calls) parts.push(counted(found.calls, "call"));
  return `${parts.join(", ")}, ${formatFraction(found.ns, tree.whole)} of the ${tree.time}`;
}
