// Where each node is, in nanoseconds across and in levels down. No function here recurses: a stack of 20,000 frames in
// the run would otherwise become one in the browser. Pre-order makes that easy, since a loop upwards meets parents
// first and a loop downwards meets children first.

// Adds what does not depend on the order of siblings: the end of each subtree, depth and width.
export function measureTree(tree) {
  const { count, parent, own } = tree;
  const end = new Int32Array(count);
  const depth = new Int32Array(count);
  const width = new Float64Array(count);
  for (let node = 0; node < count; node++) {
    end[node] = node + 1;
    depth[node] = parent[node] < 0 ? 0 : depth[parent[node]] + 1;
    width[node] = Math.max(0, own[node]);
  }
  for (let node = count - 1; node >= 0; node--) {
    const up = parent[node];
    if (up < 0) continue;
    // Self times, not totals: totals of asynchronous calls overlap and would not fit side by side.
    width[up] += width[node];
    if (end[node] > end[up]) end[up] = end[node];
  }
  Object.assign(tree, { end, depth, width, whole: sumOfRoots(tree, width) });
}

function sumOfRoots(tree, width) {
  let sum = 0;
  for (let node = 0; node < tree.count; node++) if (tree.parent[node] < 0) sum += width[node];
  return sum;
}

// The place of every node: `x` in ns, and the nodes of each level from left to right.
export function placeNodes(tree, largestFirst) {
  const x = positions(tree, largestFirst ? byWidth(tree) : null);
  const levels = groupLevels(tree); // of what has a width: a node may have no width in another weight
  if (largestFirst) sortLevels(levels, x, tree.width);
  const rank = new Int32Array(tree.count).fill(-1);
  levels.nodes.forEach((node, at) => {
    rank[node] = at;
  });
  return { x, rank, levels };
}

function byWidth(tree) {
  const { width } = tree;
  return Int32Array.from({ length: tree.count }, (_, node) => node).sort((a, b) => width[b] - width[a]);
}

function positions(tree, order) {
  const { count, parent, width } = tree;
  const x = new Float64Array(count);
  const used = new Float64Array(count); // by the children of a node that are placed already
  let usedByRoots = 0;
  for (let i = 0; i < count; i++) {
    const node = order ? order[i] : i;
    const up = parent[node];
    x[node] = up < 0 ? usedByRoots : used[up];
    if (up < 0) usedByRoots += width[node];
    else used[up] += width[node];
  }
  // Offsets within the parent become positions; the parent's own is final by then.
  for (let node = 0; node < count; node++) if (parent[node] >= 0) x[node] += x[parent[node]];
  return x;
}

// A counting sort by depth: level d is nodes[start[d]] to nodes[start[d + 1] - 1].
function groupLevels(tree) {
  const { count, depth, width } = tree;
  let deepest = -1;
  for (let node = 0; node < count; node++) if (width[node] > 0 && depth[node] > deepest) deepest = depth[node];
  const start = new Int32Array(deepest + 2);
  for (let node = 0; node < count; node++) if (width[node] > 0) start[depth[node] + 1]++;
  for (let level = 0; level <= deepest; level++) start[level + 1] += start[level];
  const next = start.slice();
  const nodes = new Int32Array(start[deepest + 1]);
  for (let node = 0; node < count; node++) if (width[node] > 0) nodes[next[depth[node]]++] = node;
  return { start, nodes, count: deepest + 1 };
}

function sortLevels(levels, x, width) {
  for (let level = 0; level < levels.count; level++) {
    const nodes = levels.nodes.subarray(levels.start[level], levels.start[level + 1]);
    // A node without width has the same position as the node after it and comes before that one.
    nodes.sort((a, b) => x[a] - x[b] || width[a] - width[b]);
  }
}

export function widestChild(tree, node) {
  let widest = -1;
  for (let child = node + 1; child < tree.end[node]; child = tree.end[child]) {
    if (widest < 0 || tree.width[child] > tree.width[widest]) widest = child;
  }
  return widest;
}

// The sibling `step` places to the right; siblings are side by side in their level.
export function sibling(tree, place, node, step) {
  if (place.rank[node] < 0) return -1;
  const at = place.rank[node] + step;
  const other = place.levels.nodes[at];
  const depth = tree.depth[node];
  const inLevel = at >= place.levels.start[depth] && at < place.levels.start[depth + 1];
  return inLevel && tree.parent[other] === tree.parent[node] ? other : -1;
}
