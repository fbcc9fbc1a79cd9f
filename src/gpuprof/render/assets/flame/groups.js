// Nodes of one name and kind together: what the table and the cards list.

import { judgedState, STANDING } from "./difference.js";
import { rowKey, rowModel, tellingNames } from "./nodes.js";

// One group for each pair of name and kind, of layers for each in a model; largest own time first.
export function groupByName(tree) {
  const groups = new Map();
  for (let node = 0; node < tree.count; node++) {
    const key = rowKey(tree, rowModel(tree, node), tree.name[node], tree.kind[node]);
    let group = groups.get(key);
    if (!group) {
      group = { node, own: 0, total: 0, calls: 0, covered: 0, text: "", row: null, change: newChange() };
      groups.set(key, group);
    }
    addToGroup(tree, group, node);
  }
  const sorted = [...groups.values()].sort((a, b) => b.own - a.own);
  const texts = tellingNames(
    tree,
    sorted.map(({ node }) => node),
  );
  sorted.forEach((group, i) => {
    group.text = texts[i];
  });
  return sorted;
}

function addToGroup(tree, group, node) {
  group.own += Math.max(0, tree.own[node]);
  group.calls += tree.calls[node];
  if (tree.diff) addChange(tree, group, node);
  if (tree.own[node] > tree.own[group.node]) group.node = node; // the hottest instance
  if (node < group.covered) return; // inside itself: its time is in the outer call's total already
  group.total += tree.total[node];
  group.covered = tree.end[node];
}

export function meanTotal(group) {
  return group.calls > 0 ? group.total / group.calls : 0;
}

function newChange() {
  return { old: 0, new: 0, callsOld: 0, callsNew: 0, largest: -1, states: new Map() };
}

// The node that the group leads to is the one that changed most, of those whose change is significant first.
function addChange(tree, group, node) {
  const { own, callsOld, callsNew } = tree.diff;
  const { change } = group;
  const state = judgedState(tree, own, node);
  change.old += own.old[node];
  change.new += own.new[node];
  change.callsOld += callsOld[node];
  change.callsNew += callsNew[node];
  change.states.set(state, (change.states.get(state) ?? 0) + 1);
  const size = Math.abs(own.new[node] - own.old[node]) + (STANDING.includes(state) ? tree.whole + 1 : 0);
  if (size <= change.largest) return;
  change.largest = size;
  group.node = node;
}

export function changeOf(group) {
  return group.change.new - group.change.old;
}

export function ratioOf({ change }) {
  return change.old > 0 ? (change.new - change.old) / change.old : Infinity;
}

export function verdictText(group) {
  const { states } = group.change;
  const all = [...states.values()].reduce((sum, count) => sum + count, 0);
  const parts = STANDING.filter((name) => states.has(name)).map((name) => `${states.get(name)} ${name}`);
  if (!parts.length) return states.has("same") ? "no difference" : states.has("unknown") ? "not judged" : "too small";
  return all === 1 ? parts[0].slice(2) : `${parts.join(", ")} of ${all}`;
}

// Names of which at least one cell changed beyond chance, the largest change first.
export function changedGroups(groups) {
  return groups
    .filter(({ change }) => STANDING.some((name) => change.states.has(name)) && change.largest > 0)
    .filter((group) => changeOf(group) !== 0)
    .sort((a, b) => Math.abs(changeOf(b)) - Math.abs(changeOf(a)));
}
