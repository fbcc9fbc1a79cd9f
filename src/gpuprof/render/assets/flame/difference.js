// What changed between two sides. A cell is as wide as the mean of both, so that what is new and what is gone has a
// place, too. What is significant is colored; what may be chance is gray.

import { formatCount, formatDuration, formatPercentSize, formatTimeChange } from "../kit/format.js";

export const CHANGE_MODES = [
  { key: "total", label: "Color: change of total" },
  { key: "own", label: "Color: change of self time" },
];

export const CHANGE_TEXTS = {
  slower: "slower",
  faster: "faster",
  same: "no difference beyond chance",
  new: "new",
  gone: "gone",
  unknown: "not judged: too few calls",
};

const TOO_SMALL = "too small to be judged";
const MANYFOLD = 10; // from here on a ratio is written as such, not in percent

// A sign before the name, so that color is not the only sign.
export const CHANGE_MARKS = { slower: "▲", faster: "▼", new: "+", gone: "−" };

export const SIGNIFICANT = ["slower", "faster", "new", "gone"];

export function readDifference(column) {
  const sum = (values) => values.reduce((all, value) => all + value, 0);
  const found = readHiddenDifference(column);
  const { own } = found;
  return { total: readChange(column, "total"), ...found, whole: { old: sum(own.old), new: sum(own.new) } };
}

// Of names that have no cells there is the self time alone.
export function readHiddenDifference(column) {
  return { own: readChange(column, "own"), callsOld: column("calls.old"), callsNew: column("calls.new") };
}

function readChange(column, name) {
  const [old, now, low, high, state] = ["old", "new", "low", "high", "state"].map((key) => column(`${name}.${key}`));
  return { old, new: now, low, high, state };
}

export function meanOfSides({ old, new: now }) {
  return Float64Array.from(old, (ns, node) => (ns + now[node]) / 2);
}

export function stateOf(app, node) {
  const { tree } = app;
  const change = tree.diff?.[app.color];
  return change ? tree.states[change.state[node]] : "";
}

export function changeMark(app, node) {
  return CHANGE_MARKS[stateOf(app, node)] ?? "";
}

export function formatRatio(old, now) {
  if (!(old > 0)) return now > 0 ? "new" : "–";
  if (now / old >= MANYFOLD) return `${formatCount(Math.round(now / old))}×`;
  const percent = (100 * (now - old)) / old;
  return `${percent > 0 ? "+" : percent < 0 ? "−" : ""}${formatPercentSize(percent)}`;
}

export function sidesText({ old, new: now }) {
  return `${formatDuration(old)} → ${formatDuration(now)}`;
}

export function changeFigures(tree, node) {
  const { old, new: now } = tree.diff.total;
  const ratio = formatRatio(old[node], now[node]);
  return [`${sidesText({ old: old[node], new: now[node] })} · ${ratio}`, ratio];
}

export function differenceFacts(tree, node) {
  const { total, own, callsOld, callsNew } = tree.diff;
  const facts = [];
  for (const [title, change] of [
    ["Total", total],
    ["Self", own],
  ]) {
    const [old, now] = [change.old[node], change.new[node]];
    facts.push([title, `${sidesText({ old, new: now })}, ${formatTimeChange(now - old)} (${formatRatio(old, now)})`]);
    facts.push([`${title} interval`, intervalText(change, node)]);
    facts.push([`${title} verdict`, CHANGE_TEXTS[judgedState(tree, change, node)] ?? TOO_SMALL]);
  }
  facts.push(["Calls", `${formatCount(callsOld[node])} → ${formatCount(callsNew[node])}`]);
  return facts;
}

// What takes too little of the whole takes no part in the tests: that is no difference, but none that was judged.
export function judgedState(tree, change, node) {
  const state = tree.states[change.state[node]];
  return state === "same" && !hasInterval(change, node) ? "small" : state;
}

function hasInterval({ low, high }, node) {
  return low[node] <= high[node];
}

function intervalText(change, node) {
  const { low, high } = change;
  if (!hasInterval(change, node)) return "unavailable";
  return `${formatTimeChange(low[node])} to ${formatTimeChange(high[node])}`;
}
