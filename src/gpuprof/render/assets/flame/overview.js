// Nodes of one name and kind together, and the largest of them: as cards, and in a sentence for those who cannot see
// the picture.

import { formatCount, formatFraction, formatTimeChange } from "../kit/format.js";
import { byId, newButton, newElement, setBreakable } from "../kit/page.js";
import { exactQuery } from "../kit/table.js";
import { search } from "./actions.js";
import { fullTree } from "./folding.js";
import { formatRatio, judgedState, sidesText, SIGNIFICANT } from "./difference.js";
import { nameText, plainName, rowKey } from "./nodes.js";
import { amountText, stepsPart } from "./tree.js";

const WITHOUT_CARD = ["process", "waiting", "other"];

export function groupKind(tree, group) {
  return tree.kinds[group.kind];
}

// ---- groups ----

// One group for each pair of name and kind; largest self time first.
export function groupByName(tree) {
  const groups = new Map();
  const other = tree.kinds.indexOf("other");
  const groupOf = (name, kind, node) => {
    const key = rowKey(tree, name, kind);
    let group = groups.get(key);
    if (!group) groups.set(key, (group = newGroup(name, kind, node)));
    return group;
  };
  for (let node = 0; node < tree.count; node++) {
    if (tree.kind[node] !== other) addToGroup(tree, groupOf(tree.name[node], tree.kind[node], node), node);
  }
  addHidden(tree, groupOf);
  const sorted = [...groups.values()].sort((a, b) => b.own - a.own);
  for (const group of sorted) group.text = nameText(tree, group.name, group.kind);
  return sorted;
}

function newGroup(name, kind, node) {
  return { name, kind, node, own: 0, total: 0, calls: 0, covered: 0, text: "", row: null, change: newChange() };
}

// A name that is in cells "other" alone leads to the one of them with most of its time.
function addHidden(tree, groupOf) {
  const { hidden } = tree;
  for (let at = 0; at < hidden.count; at++) {
    const group = groupOf(hidden.name[at], hidden.kind[at], hidden.node[at]);
    if (tree.diff) addChange(tree, group, hidden.diff, at, hidden.node[at]);
    group.own += hidden.own[at];
    group.total += hidden.total[at];
    group.calls += hidden.calls[at];
  }
}

function addToGroup(tree, group, node) {
  group.own += Math.max(0, tree.own[node]);
  group.calls += tree.calls[node];
  if (tree.diff) addChange(tree, group, tree.diff, node, node);
  if (tree.own[node] > tree.own[group.node]) group.node = node; // the hottest instance
  if (node < group.covered) return; // inside itself: its time is in the outer call's total already
  group.total += tree.total[node];
  group.covered = tree.end[node];
}

// Repeated layers as one, with its members in `parts`: which ones belong together, the page was given.
export function foldRepeated(tree, groups) {
  const repeated = new Map();
  const alone = [];
  for (const group of groups) {
    const text = groupKind(tree, group) === "layer" ? tree.groups.get(group.name) : undefined;
    if (text === undefined) alone.push(group);
    else if (repeated.has(text)) repeated.get(text).push(group);
    else repeated.set(text, [group]);
  }
  const folded = [...repeated].map(([text, parts]) => (parts.length > 1 ? repeatedGroup(text, parts) : parts[0]));
  return [...alone, ...folded].sort((a, b) => b.own - a.own);
}

// The cell that it leads to is the hottest of all.
function repeatedGroup(text, parts) {
  const sum = (key) => parts.reduce((total, part) => total + part[key], 0);
  const [{ node, name, kind }] = parts;
  const sums = { own: sum("own"), total: sum("total"), calls: sum("calls") };
  return { node, name, kind, ...sums, text: `${text} x${parts.length}`, row: null, parts, isOpen: false };
}

export function meanTotal(group) {
  return group.calls > 0 ? group.total / group.calls : 0;
}

function newChange() {
  return { old: 0, new: 0, callsOld: 0, callsNew: 0, largest: -1, states: new Map() };
}

// The node that the group leads to is the one that changed most, of those whose change is significant first.
function addChange(tree, group, { own, callsOld, callsNew }, at, node) {
  const { change } = group;
  const state = judgedState(tree, own, at);
  change.old += own.old[at];
  change.new += own.new[at];
  change.callsOld += callsOld[at];
  change.callsNew += callsNew[at];
  change.states.set(state, (change.states.get(state) ?? 0) + 1);
  const size = Math.abs(own.new[at] - own.old[at]) + (SIGNIFICANT.includes(state) ? tree.whole + 1 : 0);
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
  const parts = SIGNIFICANT.filter((name) => states.has(name)).map((name) => `${states.get(name)} ${name}`);
  if (!parts.length && states.has("same")) return all === 1 ? "no difference" : `none of ${all}`;
  if (!parts.length) return states.has("unknown") ? "not judged" : "too small";
  return all === 1 ? parts[0].slice(2) : `${parts.join(", ")} of ${all}`;
}

// Names of which at least one cell changed beyond chance, the largest change first. Idle threads and other waits use
// no processor: with more threads they are longer.
function changedGroups(tree, groups) {
  return groups
    .filter((group) => !["other", "waiting"].includes(groupKind(tree, group)))
    .filter(({ change }) => SIGNIFICANT.some((name) => change.states.has(name)) && change.largest > 0)
    .filter((group) => changeOf(group) !== 0)
    .sort((a, b) => Math.abs(changeOf(b)) - Math.abs(changeOf(a)));
}

// ---- cards and summary ----

const CARDS = 5;
const KEYS = "Arrow keys select, Enter zooms, Escape zooms out, slash searches. A table with the same data follows.";

export function buildOverview(app, groups) {
  const cards = app.tree.diff ? changeCards(app, groups) : amountCards(app, groups);
  byId("hot").replaceChildren(...cards);
  byId("summary").textContent = `${app.tree.diff ? changeSummary(app, groups) : amountSummary(app, groups)} ${KEYS}`;
  const what = app.tree.diff ? "Flame graph of the difference" : "Flame graph";
  app.canvas.setAttribute("aria-label", `${what}: ${document.title}`);
}

// Highlights the group's name, and a second click no longer.
function newCard(app, group, title, ...figures) {
  const query = exactQuery(plainName(app.tree, group.name, group.kind));
  const button = newButton(undefined, () => search(app, app.found.text === query ? "" : query));
  const name = newElement("span", undefined, "name");
  setBreakable(name, group.text);
  button.title = `Highlight ${app.tree.names[group.name]}${title}`;
  button.append(name, ...figures);
  const item = newElement("li");
  item.append(button);
  return item;
}

function amountCards(app, groups) {
  const { tree } = app;
  const part = stepsPart(fullTree(app));
  if (part) return part.rows.map(([name, kind, own]) => amountCard(app, namedGroup(tree, name, kind, own), part.whole));
  // Untracked time is a cell, a row and in the legend; a card would only show that a program starts.
  // Waits use no processor.
  const calls = groups.filter((group) => group.own > 0 && !WITHOUT_CARD.includes(groupKind(tree, group)));
  return calls.slice(0, CARDS).map((group) => amountCard(app, group, tree.whole));
}

function namedGroup(tree, name, kind, own) {
  return { name, kind, own, text: nameText(tree, name, kind) };
}

function amountCard(app, group, whole) {
  const { tree } = app;
  return newCard(
    app,
    group,
    ` (${groupKind(tree, group)})`,
    newElement("span", formatFraction(group.own, whole), "share"),
    " ",
    newElement("span", amountText(tree, group.own), "time"),
    fractionBar(tree, group, whole),
  );
}

function changeCards(app, groups) {
  const cards = changedGroups(app.tree, groups)
    .slice(0, CARDS)
    .map((group) =>
      newCard(
        app,
        group,
        "",
        newElement("span", formatTimeChange(changeOf(group)), "share"),
        " ",
        newElement("span", `${formatRatio(group.change.old, group.change.new)}, ${verdictText(group)}`, "verdict"),
      ),
    );
  return cards.length ? cards : [newElement("li", "No difference beyond chance.", "none")];
}

function amountSummary({ tree }, groups) {
  const largest = groups
    .filter((group) => groupKind(tree, group) !== "waiting")
    .slice(0, 3)
    .map((group) => `${group.text} (${groupKind(tree, group)}) ${formatFraction(group.own, tree.whole)}`);
  return `${amountText(tree, tree.whole)} in ${formatCount(tree.count)} cells. Most self time: ${largest.join(", ")}.`;
}

function changeSummary({ tree }, groups) {
  const largest = changedGroups(tree, groups)
    .slice(0, 3)
    .map((group) => `${group.text} ${formatTimeChange(changeOf(group))} (${verdictText(group)})`);
  const changes = largest.length
    ? `Largest changes of self time: ${largest.join(", ")}.`
    : "No difference beyond chance.";
  return `Difference of two sides, ${sidesText(tree.diff.whole)}. ${changes}`;
}

export function fractionBar(tree, group, whole = tree.whole) {
  const bar = newElement("span", undefined, "bar");
  const fill = newElement("span");
  fill.style.width = `${whole > 0 ? Math.min(100, (100 * group.own) / whole) : 0}%`;
  fill.style.background = `var(--kind-${groupKind(tree, group)})`;
  bar.append(fill);
  return bar;
}
