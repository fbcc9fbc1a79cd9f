// Numbers and paths as a person reads them. `_duration` in flamegraph.py does the same as formatTime.

const TIME_UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
const NUMBERS = [0, 1, 2].map((digits) =>
  new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
const PATH_LIMIT = 8;  // names of a path that are shown; a stack may be 20,000 deep

function threeDigits(value) {
  return NUMBERS[value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2].format(value);
}

function formatTime(ns) {
  for (const [size, unit] of TIME_UNITS) {
    if (ns >= size * 0.9995) return `${threeDigits(ns / size)} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

function formatCount(count) {
  return NUMBERS[0].format(count);
}

function counted(count, noun) {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

// "Unavailable" is a value: a share of nothing is not 0%.
function formatShare(part, whole) {
  if (!(whole > 0)) return "–";
  const percent = (100 * part) / whole;
  if (percent > 0 && percent < 0.01) return "<0.01%";
  return `${NUMBERS[percent >= 1 ? 1 : 2].format(percent)}%`;
}

// The ancestors of a node, outermost first, at most `limit` of the nearest.
function ancestors(tree, node, limit = Infinity) {
  const found = [];
  for (let up = tree.parent[node]; up >= 0 && found.length < limit; up = tree.parent[up]) found.push(up);
  return found.reverse();
}

function pathText(tree, node) {
  const nearest = ancestors(tree, node, PATH_LIMIT);
  const names = nearest.map((up) => shownName(tree, up));
  if (nearest.length && tree.parent[nearest[0]] >= 0) names.unshift("…");
  return names.join(" › ");
}
