// What the widths show. A page carries all weights that its run has; a view is one of them, and in a comparison one
// of them at one scale of the two sides.

import { formatAmount } from "../kit/format.js";
import { meanOfSides, readDifference, sidesText } from "./difference.js";
import { measureTree } from "./layout.js";
import { restoreTotal } from "./tree.js";

export function amountText(tree, value) {
  return formatAmount(value, tree.unit);
}

export function ownTitle(tree) {
  return tree.unit === "ns" ? "Own time" : `Own ${tree.time}`;
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
  measureTree(tree);
}

export function hotTitle(tree) {
  if (tree.unit === "ns") return `Where the ${tree.time} goes: most own time`;
  return `Where the ${tree.time} are: most own ${tree.time}`;
}

export function wholeText(tree) {
  return tree.diff ? sidesText(tree.diff.whole) : amountText(tree, tree.whole);
}
