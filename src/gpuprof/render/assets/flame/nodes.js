// Names and paths of nodes, and the search over them.

import { counted, formatFraction } from "../kit/format.js";
import { compileQuery } from "../kit/table.js";
import { quotedIfBlank, withoutPrefix } from "./names.js";
import { amountText, isOther } from "./tree.js";

// ---- names and paths ----

const PATH_LIMIT = 8; // names of a path that are shown; a stack may be 20,000 deep

export function fullName(tree, node) {
  return tree.texts?.get(node) ?? tree.names[tree.name[node]];
}

export function kindName(tree, node) {
  return tree.kinds[tree.kind[node]];
}

export function shortName(tree, node) {
  const name = fullName(tree, node);
  return kindName(tree, node) === "backward" ? withoutPrefix(name) : name;
}

export function shownName(tree, node) {
  if (isOther(tree, node)) return `other (${counted(tree.paths[node], "path")})`;
  return quotedIfBlank((kindName(tree, node) === "gc" && labelOf(tree, node)) || shortName(tree, node));
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

// Equal names of one kind are one row of a list; from numbers, to be quick.
export function rowKey({ kinds }, name, kind) {
  return name * kinds.length + kind;
}

// The label of a kernel or collection, see `_labels` in flamegraph.py; undefined where it is the name.
export function labelOf(tree, node) {
  return isLabeled(kindName(tree, node)) ? tree.labels.get(tree.name[node]) : undefined;
}

export function isLabeled(kind) {
  return kind === "kernel" || kind === "gc";
}

// What a list shows of a node: of kernels the label, of other calls the whole name.
export function listText(tree, node) {
  if (isOther(tree, node)) return shownName(tree, node);
  return tree.texts?.get(node) ?? nameText(tree, tree.name[node], tree.kind[node]);
}

export function nameText(tree, name, kind) {
  const label = isLabeled(tree.kinds[kind]) ? tree.labels.get(name) : undefined;
  return label ?? quotedIfBlank(plainName(tree, name, kind));
}

export function plainName(tree, name, kind) {
  return tree.kinds[kind] === "backward" ? withoutPrefix(tree.names[name]) : tree.names[name];
}

// ---- search: names are few even where nodes are many, so each name is tested once ----

export const NO_SEARCH = { text: "", marks: null, count: 0, calls: 0, ns: 0, share: 0, hidden: null, invalid: false };

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
  const [process, other] = ["process", "other"].map((kind) => tree.kinds.indexOf(kind));
  const marks = new Uint8Array(tree.count);
  let count = 0;
  let calls = 0;
  let ns = 0;
  let covered = 0; // nodes below this index are inside the last outermost match
  for (let node = 0; node < tree.count; node++) {
    if (!names[tree.name[node]] || tree.kind[node] === other) continue;
    marks[node] = 1;
    count++;
    if (tree.kind[node] !== process) calls += tree.calls[node];
    if (node < covered) continue;
    covered = tree.end[node];
    ns += tree.width[node];
  }
  return {
    text,
    marks,
    names,
    count,
    calls,
    ns,
    share: tree.whole > 0 ? ns / tree.whole : 0,
    hidden: searchHidden(tree, names),
    invalid: false,
  };
}

// What a search finds in cells "other", where it marks nothing.
function searchHidden({ hidden }, names) {
  const found = { paths: 0, calls: 0, own: 0 };
  for (let at = 0; at < hidden.count; at++) {
    if (!names[hidden.name[at]]) continue;
    found.paths += hidden.paths[at];
    found.calls += hidden.calls[at];
    found.own += hidden.own[at];
  }
  return found;
}

export function foundText(found, tree) {
  if (!found.text) return "";
  if (found.invalid) return "not a regular expression";
  const more = found.hidden?.paths ? hiddenText(found.hidden, tree) : "";
  if (!found.count) return more ? `no cell, ${more}` : "no match";
  const parts = [counted(found.count, "cell")];
  if (found.calls) parts.push(counted(found.calls, "call"));
  const share = formatFraction(found.ns, tree.whole);
  return `${parts.join(", ")}, ${share} of the ${tree.time}${more && `; ${more}`}`;
}

function hiddenText({ paths, calls, own }, tree) {
  return `${counted(paths, "path")} in cells “other” (${counted(calls, "call")}, ${amountText(tree, own)} self ${tree.time})`;
}
