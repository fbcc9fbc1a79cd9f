// What the colours mean, with the own time or the cells of each.

import { byId, newElement } from "../kit/elements.js";
import { counted, formatFraction } from "../kit/format.js";
import { CATEGORY_COLOURS, categoryColour, coloured, HATCHED, SHADES, STRENGTH_TEXTS, strengthOf } from "./colours.js";
import { CHANGE_MARKS, CHANGE_TEXTS } from "./difference.js";

// Text, share, the colour on the canvas, the same for a style sheet, and the hatch of a swatch.
export function legendEntries(app) {
  const { tree, palette } = app;
  if (tree.diff?.[app.colour]) return changeLegend(app);
  const scheme = coloured(app);
  if (!scheme) return kindEntries(app);
  const own = new Float64Array(scheme.categories.length);
  const codes = tree.columns[`colour.${scheme.key}`];
  const used = new Set(codes);
  for (let node = 0; node < tree.count; node++) own[codes[node]] += Math.max(0, tree.own[node]);
  return scheme.categories
    .map((text, code) => ({
      code,
      text,
      share: formatFraction(own[code], tree.whole),
      colour: categoryColour(palette, scheme, code),
      style:
        code === scheme.categories.length - 1 ? "var(--category-none)" : `var(--category-${code % CATEGORY_COLOURS})`,
    }))
    .filter(({ code }) => used.has(code));
}

// The kinds that occur, with the own time of each; a process's is that outside all spans.
function kindEntries({ tree, palette }) {
  const own = new Float64Array(tree.kinds.length);
  for (let node = 0; node < tree.count; node++) own[tree.kind[node]] += Math.max(0, tree.own[node]);
  const used = new Set(tree.kind);
  return tree.kinds
    .map((kind, code) => ({
      code,
      text: kind === "process" && own[code] > 0 ? "process, outside all spans" : kind,
      share: formatFraction(own[code], tree.whole),
      colour: palette.kinds[code][SHADES.indexOf(0)],
      style: `var(--kind-${kind})`,
    }))
    .filter(({ code }) => used.has(code));
}

function changeLegend(app) {
  const { tree, palette } = app;
  const change = tree.diff[app.colour];
  const counts = new Map();
  for (let node = 0; node < tree.count; node++) {
    if (!(tree.width[node] > 0)) continue;
    const name = tree.states[change.state[node]];
    const key = palette.change[name].length > 1 ? `${name}/${strengthOf(change, node)}` : `${name}/0`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return Object.keys(CHANGE_TEXTS)
    .flatMap((name) =>
      palette.change[name].map((colour, strength) =>
        legendEntry(name, strength, colour, palette.change[name].length > 1, counts.get(`${name}/${strength}`)),
      ),
    )
    .filter(({ count }) => count);
}

function legendEntry(name, strength, colour, hasStrengths, count) {
  const words = [CHANGE_MARKS[name], CHANGE_TEXTS[name], hasStrengths && STRENGTH_TEXTS[strength]].filter(Boolean);
  return {
    text: words.join(" "),
    share: count ? counted(count, "cell") : "",
    count,
    colour,
    style: colour,
    hatch: HATCHED.includes(name) ? name : "",
  };
}

export function buildLegend(app) {
  const items = legendEntries(app).map(({ text, share, style, hatch }) => {
    const item = newElement("li");
    const swatch = newElement("i", undefined, hatch ? `hatch-${hatch}` : undefined);
    swatch.style.backgroundColor = style;
    item.append(swatch, `${text} `, newElement("small", share));
    return item;
  });
  byId("legend").replaceChildren(...items);
}
