// What the colors show: the kind of call, what else the run has recorded of it, or how it changed. Colors are in the style
// sheet; a canvas cannot use its variables, so they are resolved once a theme.

import { counted, formatFraction } from "../kit/format.js";
import { byId, newElement } from "../kit/page.js";
import { hasForcedColors, withColors } from "../kit/theme.js";
import { CHANGE_MARKS, CHANGE_MODES, CHANGE_TEXTS, stateOf } from "./difference.js";
import { ownTitle, wholeText } from "./tree.js";

const SHADES = [-0.1, -0.05, 0, 0.05, 0.1]; // towards black or white: distinguishes neighbors of one kind
const STRENGTHS = [0.05, 0.2]; // of a change, as a fraction of the old time: from here on a stronger color
const STRENGTH_TEXTS = ["by less than 5%", "by 5% to 20%", "by 20% and more"];
export const HATCHED = ["new", "gone", "unknown"];

export function readPalette({ kinds, colorings }) {
  return withColors((resolve) => {
    const read = (name) => resolve(`var(--${name})`);
    const forced = hasForcedColors();
    const categoryColor = (name, white) => (forced ? read("category-none") : mixed(read(name), 255, white));
    return {
      forced,
      ink: read("ink"),
      more: read("more"),
      match: read("match"),
      matchInk: read("match-ink"),
      page: read("page"),
      text: read("text"),
      outline: read("outline"),
      line: read("line"),
      colorings: Object.fromEntries(
        colorings.map(({ key, colors }) => [key, colors.map(([name, white]) => categoryColor(name, white))]),
      ),
      change: readChangeColors(read),
      hatches: new Map(),
      kinds: kinds.map((kind) => shadesOf(read(`kind-${kind}`), forced)),
    };
  });
}

function shadesOf(color, forced) {
  return SHADES.map((shade) => (forced ? color : mixed(color, shade > 0 ? 255 : 0, Math.abs(shade))));
}

// With a fraction of black (0) or white (255).
function mixed(color, target, fraction) {
  const channels = color
    .match(/[\d.]+/g)
    .slice(0, 3)
    .map((value) => Math.round(Number(value) + (target - Number(value)) * fraction));
  return `rgb(${channels.join(", ")})`;
}

// The same name has the same shade in every page, so that two pages can be compared side by side.
function shadeOfName(name) {
  let hash = 0x811c9dc5;
  const length = Math.min(name.length, 200);
  for (let i = 0; i < length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  return Math.abs((hash ^ (hash >>> 15)) % SHADES.length);
}

export function nameShades(names) {
  return Uint8Array.from(names, shadeOfName);
}

export function colorModes(tree) {
  const kind = { key: "kind", label: "Color: kind" };
  const others = tree.colorings.map(({ key, label }) => ({ key, label: `Color: ${label.toLowerCase()}` }));
  return tree.diff ? [...CHANGE_MODES, kind, ...others] : [kind, ...others];
}

function colored(app) {
  return app.tree.colorings.find(({ key }) => key === app.color);
}

export function nodeColor(app, node) {
  const { palette, tree } = app;
  if (tree.diff?.[app.color]) return changeColor(app, node);
  const scheme = colored(app);
  if (!scheme) return palette.kinds[tree.kind[node]][app.shades[tree.name[node]]];
  return palette.colorings[scheme.key][tree.columns[`color.${scheme.key}`][node]];
}

export function colorFacts(app, node) {
  const { tree } = app;
  return tree.colorings.map(({ key, label, categories }) => [label, categories[tree.columns[`color.${key}`][node]]]);
}

function readChangeColors(read) {
  const shades = (name) => [0, 1, 2].map((strength) => read(`${name}-${strength}`));
  return {
    slower: shades("slower"),
    faster: shades("faster"),
    same: [read("same")],
    new: [read("new")],
    gone: [read("gone")],
    unknown: [read("unjudged")],
    hatch: read("hatch"),
  };
}

function changeColor(app, node) {
  const change = app.tree.diff[app.color];
  const shades = app.palette.change[stateOf(app, node)];
  return shades.length === 1 ? shades[0] : shades[strengthOf(change, node)];
}

function strengthOf(change, node) {
  const ratio = Math.abs(change.new[node] - change.old[node]) / change.old[node];
  return STRENGTHS.filter((from) => ratio >= from).length;
}

// ---- legend ----

// Text, share, color, and the hatch of a swatch.
export function legendEntries(app) {
  const { tree, palette } = app;
  if (tree.diff?.[app.color]) return changeLegend(app);
  const scheme = colored(app);
  if (!scheme) return kindEntries(app);
  const own = new Float64Array(scheme.categories.length);
  const codes = tree.columns[`color.${scheme.key}`];
  const used = new Set(codes);
  for (let node = 0; node < tree.count; node++) own[codes[node]] += Math.max(0, tree.own[node]);
  return scheme.categories
    .map((text, code) => ({
      code,
      text,
      share: formatFraction(own[code], tree.whole),
      color: palette.colorings[scheme.key][code],
    }))
    .filter(({ code }) => used.has(code));
}

const KIND_TEXTS = { python: "Python", nvtx: "NVTX", gc: "garbage collection", other: "other paths" };

// The kinds that are drawn, with the self time of each; a process's is what is untracked.
function kindEntries(app) {
  const { tree, palette } = app;
  const own = new Float64Array(tree.kinds.length);
  for (let node = 0; node < tree.count; node++) own[tree.kind[node]] += Math.max(0, tree.own[node]);
  const used = drawnKinds(app);
  return tree.kinds
    .map((kind, code) => ({
      code,
      text: kind === "process" && own[code] > 0 ? "process, untracked" : (KIND_TEXTS[kind] ?? kind),
      share: formatFraction(own[code], tree.whole),
      color: palette.kinds[code][SHADES.indexOf(0)],
    }))
    .filter(({ code }) => used.has(code));
}

// A cell without width is not drawn, but its calls are in the timeline.
function drawnKinds({ tree, shown = "flame", timeline }) {
  const used = new Set();
  for (let node = 0; node < tree.count; node++) {
    if (shown !== "timeline" && tree.width[node] > 0) used.add(tree.kind[node]);
  }
  if (shown !== "flame") for (const kind of timeline.classes.kind) used.add(kind);
  if (shown === "timeline") used.delete(tree.kinds.indexOf("process")); // around its calls, but no slice
  return used;
}

function changeLegend(app) {
  const { tree, palette } = app;
  const change = tree.diff[app.color];
  const counts = new Map();
  for (let node = 0; node < tree.count; node++) {
    if (!(tree.width[node] > 0)) continue;
    const name = tree.states[change.state[node]];
    const key = palette.change[name].length > 1 ? `${name}/${strengthOf(change, node)}` : `${name}/0`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return Object.keys(CHANGE_TEXTS)
    .flatMap((name) =>
      palette.change[name].map((color, strength) =>
        legendEntry(name, strength, color, palette.change[name].length > 1, counts.get(`${name}/${strength}`)),
      ),
    )
    .filter(({ count }) => count);
}

function legendEntry(name, strength, color, hasStrengths, count) {
  const words = [CHANGE_MARKS[name], CHANGE_TEXTS[name], hasStrengths && STRENGTH_TEXTS[strength]].filter(Boolean);
  return {
    text: words.join(" "),
    share: count ? counted(count, "cell") : "",
    count,
    color,
    hatch: HATCHED.includes(name) ? name : "",
  };
}

export function buildLegend(app) {
  const items = legendEntries(app).map(({ text, share, color, hatch }) => {
    const item = newElement("li");
    const swatch = newElement("i", undefined, hatch ? `hatch-${hatch}` : undefined);
    swatch.style.backgroundColor = color;
    item.append(swatch, `${text} `, newElement("small", share));
    return item;
  });
  byId("legend").replaceChildren(...items);
  const counts = app.tree.diff?.[app.color]; // of cells
  byId("legend-whole").textContent = counts ? "" : `${ownTitle(app.tree)}, of ${wholeText(app.tree)}:`;
  byId("legend-small").querySelector("i").style.backgroundColor = app.palette.more;
}

// The entry of the gray cells keeps its room, so that a zoom moves nothing.
export function showSmallCells(rows) {
  const isDrawn = rows.some(({ cells }) => cells.some(({ hidden }) => hidden > 1));
  byId("legend-small").style.visibility = isDrawn ? "visible" : "hidden";
}
