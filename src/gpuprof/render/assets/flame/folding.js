// Cells of several paths. Repeated layers, such as layers.0.mlp and layers.1.mlp, are one cell. With folded
// recursion a call that its own name called directly is drawn as one with its caller. What they call is beneath once. The
// folded tree is a tree like the run's, `full` leads back to it.

import { restoreTotal } from "./tree.js";

function isRecursive(tree, node) {
  const up = tree.parent[node];
  return up >= 0 && tree.name[up] === tree.name[node] && tree.kind[up] === tree.kind[node];
}

export function hasRecursion(tree) {
  for (let node = 0; node < tree.count; node++) if (isRecursive(tree, node)) return true;
  return false;
}

// The group of a repeated layer; undefined for all others. The page was given which ones belong together.
function layerGroup(tree, node) {
  return tree.kinds[tree.kind[node]] === "layer" ? tree.groups.get(tree.name[node]) : undefined;
}

export function hasRepeatedLayers(tree) {
  if (!tree.groups.size) return false;
  const first = new Map();
  for (let node = 0; node < tree.count; node++) {
    const group = layerGroup(tree, node);
    if (group === undefined) continue;
    const key = `${tree.parent[node]}/${group}`;
    if (!first.has(key)) first.set(key, tree.name[node]);
    else if (first.get(key) !== tree.name[node]) return true;
  }
  return false;
}

// The run's own tree, whose nodes the timeline's slices belong to.
export function fullTree({ tree }) {
  return tree.full ?? tree;
}

// `folding` is {recursion, layers, open}: `open` has the nodes whose group of layers is not folded, the first of each.
export function foldTree(full, folding) {
  const { groupOf, groups } = groupCells(full, folding);
  const order = preOrder(groups);
  const place = new Int32Array(order.length);
  order.forEach((group, at) => {
    place[group] = at;
  });
  const outermost = Int32Array.from(order, (group) => groups[group].first);
  const folded = {
    ...full,
    full,
    texts: foldedTexts(full, groups, order), // of cells of several layers
    outermost, // of the full tree's nodes in a cell
    placeOf: Int32Array.from(groupOf, (group) => place[group]), // of each node of the full tree
    count: order.length,
    parent: Int32Array.from(order, (group) => (groups[group].up < 0 ? -1 : place[groups[group].up])),
    kind: Uint8Array.from(outermost, (node) => full.kind[node]),
    name: Int32Array.from(outermost, (node) => full.name[node]),
  };
  folded.calls = summed(folded, full.calls);
  if (full.paths) folded.paths = summed(folded, full.paths);
  folded.threads = new Int32Array(folded.count);
  folded.placeOf.forEach((at, node) => {
    folded.threads[at] = Math.max(folded.threads[at], full.threads[node]);
  });
  folded.columns = foldedColumns(folded);
  return folded;
}

// "layers.*.mlp x4" by cell.
function foldedTexts(full, groups, order) {
  const texts = new Map();
  order.forEach((group, at) => {
    const { first, layers } = groups[group];
    if (layers.size > 1) texts.set(at, `${layerGroup(full, first)} x${layers.size}`);
  });
  return texts;
}

// A group for each cell of the folded tree. Only beneath a folded call are siblings of one name put together:
// elsewhere the run keeps them apart for a reason.
function groupCells(full, folding) {
  const groupOf = new Int32Array(full.count);
  const groups = [];
  const alike = new Map();
  const isMerged = (group) => group !== undefined && (group.isFolded || group.isJoined);
  const joins = (twin, up, layer) => {
    if (twin === undefined) return false;
    return isMerged(groups[up]) || (layer !== undefined && !folding.open.has(groups[twin].first));
  };
  for (let node = 0; node < full.count; node++) {
    const up = full.parent[node] < 0 ? -1 : groupOf[full.parent[node]];
    if (folding.recursion && isRecursive(full, node)) {
      groupOf[node] = up;
      groups[up].isFolded = true;
      continue;
    }
    const layer = folding.layers ? layerGroup(full, node) : undefined;
    const key = `${up}/${layer ?? `${full.kind[node]}/${full.name[node]}`}`;
    const twin = alike.get(key);
    const isJoined = joins(twin, up, layer);
    groupOf[node] = isJoined ? twin : groups.length;
    if (isJoined) groups[twin].isJoined = true;
    else groups.push({ first: node, up, children: [], isFolded: false, isJoined: false, layers: new Set() });
    if (layer !== undefined) groups[groupOf[node]].layers.add(full.name[node]);
    if (!isJoined && up >= 0) groups[up].children.push(groupOf[node]);
    if (twin === undefined) alike.set(key, groupOf[node]);
  }
  return { groupOf, groups };
}

function preOrder(groups) {
  const order = [];
  const open = groups.flatMap(({ up }, group) => (up < 0 ? [group] : [])).reverse();
  while (open.length) {
    const group = open.pop();
    order.push(group);
    for (let i = groups[group].children.length - 1; i >= 0; i--) open.push(groups[group].children[i]);
  }
  return order;
}

function summed(folded, values, counts = () => true) {
  const sums = new Float64Array(folded.count);
  folded.placeOf.forEach((at, node) => {
    if (counts(node)) sums[at] += values[node];
  });
  return sums;
}

// Those of the views and colors. A call inside its own cell is in the total of the outermost one already.
function foldedColumns(folded) {
  const { full } = folded;
  const isOutermost = (node) => full.parent[node] < 0 || folded.placeOf[full.parent[node]] !== folded.placeOf[node];
  const columns = {};
  for (const { key } of full.colorings) {
    columns[`color.${key}`] = folded.outermost.map((node) => full.columns[`color.${key}`][node]);
  }
  for (const { key } of full.views) {
    const own = full.columns[`${key}.own`];
    const total = restoreTotal(own, full.columns[`${key}.inside`]);
    columns[`${key}.own`] = summed(folded, own);
    columns[`${key}.inside`] = summed(folded, total, isOutermost).map((sum, at) => sum - columns[`${key}.own`][at]);
  }
  return columns;
}

// What a search marks in the run's tree, as cells.
export function foldMarks({ placeOf, count: size }, full) {
  const marks = new Uint8Array(size);
  placeOf.forEach((at, node) => {
    marks[at] |= full[node];
  });
  return { marks, count: marks.reduce((sum, mark) => sum + mark, 0) };
}

// The node of the run's tree that a cell represents, and back.
export function nodeOfCell({ tree }, cell) {
  return cell >= 0 && tree.full ? tree.outermost[cell] : cell;
}

// The cell of a node of the run's tree, and the nodes of a cell.
export function cellOfNode({ tree }, node) {
  return node >= 0 && tree.full ? tree.placeOf[node] : node;
}

export function nodesOfCell({ tree }, cell) {
  if (!tree.full) return [cell];
  const nodes = [];
  tree.placeOf.forEach((at, node) => {
    if (at === cell) nodes.push(node);
  });
  return nodes;
}
