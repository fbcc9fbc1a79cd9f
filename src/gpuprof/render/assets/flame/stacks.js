// The tree for other tools: folded stacks and speedscope's format. A path has the weight of its last call's self
// time, so the weights add up to the picture's sum.

import { download } from "../kit/page.js";
import { fullTree } from "./folding.js";

// What separates names, lines, and the weight; the same as in folded.py.
function foldedName(name) {
  const plain = name.replace(/[;\s\x00-\x1f\x7f\x85\u2028\u2029]+/g, (found) => (found.includes(";") ? ", " : " "));
  return plain.trim() || "(unnamed)";
}

// Calls `visit(path, node)` for each node in pre-order; `path` has the nodes down to it and changes.
function walkPaths(tree, visit) {
  const path = [];
  for (let node = 0; node < tree.count; node++) {
    while (path.length && path.at(-1) !== tree.parent[node]) path.pop();
    path.push(node);
    visit(path, node);
  }
}

function foldedText(tree) {
  const names = tree.names.map(foldedName);
  const lines = [];
  walkPaths(tree, (path, node) => {
    const own = Math.round(tree.own[node]);
    if (own > 0) lines.push(`${path.map((each) => names[tree.name[each]]).join(";")} ${own}\n`);
  });
  return new Blob(lines);
}

function speedscopeText(tree) {
  const samples = [];
  const weights = [];
  walkPaths(tree, (path, node) => {
    const own = Math.round(tree.own[node]);
    if (own <= 0) return;
    samples.push(`[${path.map((each) => tree.name[each]).join(",")}]`);
    weights.push(own);
  });
  const head = JSON.stringify({
    $schema: "https://www.speedscope.app/file-format-schema.json",
    exporter: "gpuprof",
    name: document.title,
    activeProfileIndex: 0,
    shared: { frames: tree.names.map((name) => ({ name })) },
  });
  const profile = JSON.stringify({
    type: "sampled",
    name: `${document.title}: ${tree.measure}`,
    unit: { ns: "nanoseconds", B: "bytes" }[tree.unit] ?? "none",
    startValue: 0,
    endValue: weights.reduce((sum, weight) => sum + weight, 0),
  });
  const parts = samples.map((sample, i) => (i ? `,${sample}` : sample));
  return new Blob([
    head.slice(0, -1),
    ',"profiles":[',
    profile.slice(0, -1),
    ',"samples":[',
    ...parts,
    '],"weights":[',
    weights.join(","),
    "]}]}\n",
  ]);
}

export function saveFolded(app) {
  download(foldedText(fullTree(app)), "folded");
}

export function saveSpeedscope(app) {
  download(speedscopeText(fullTree(app)), "speedscope.json");
}
