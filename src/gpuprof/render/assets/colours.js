// What the colours show: the kind of call, what else the run knows of it, or how it changed.

const CATEGORY_COLOURS = 8;

function colourModes(tree) {
  const kind = { key: "kind", label: "Colour: kind" };
  const others = tree.colourings.map(({ key, label }) => ({ key, label: `Colour: ${label.toLowerCase()}` }));
  return tree.diff ? [...CHANGE_MODES, kind, ...others] : [kind, ...others];
}

function setColour(app, key) {
  const modes = colourModes(app.tree);
  app.colour = modes.some((mode) => mode.key === key) ? key : modes[0].key;
  showChoices(app);
  buildLegend(app);
  app.explained = null;
  app.redraw();
}

function readColours(read) {
  const categories = Array.from({ length: CATEGORY_COLOURS }, (_, i) => read(`category-${i}`));
  return { categories, none: read("category-none"), change: readChangeColours(read), hatches: new Map() };
}

function coloured(app) {
  return app.tree.colourings.find(({ key }) => key === app.colour);
}

function nodeColour(app, node) {
  const { palette, tree } = app;
  if (tree.diff && tree.diff[app.colour]) return changeColour(app, node);
  const scheme = coloured(app);
  if (!scheme) return palette.kinds[tree.kind[node]][app.shades[tree.name[node]]];
  return categoryColour(palette, scheme, tree.columns[`colour.${scheme.key}`][node]);
}

// The last category says that nothing is known.
function categoryColour(palette, scheme, code) {
  return code === scheme.categories.length - 1 ? palette.none : palette.categories[code % CATEGORY_COLOURS];
}

function colourFacts(app, node) {
  const { tree } = app;
  return tree.colourings.map(({ key, label, categories }) => [label, categories[tree.columns[`colour.${key}`][node]]]);
}

// Text, share, the colour on the canvas, the same for a style sheet, and the hatch of a swatch.
function legendEntries(app) {
  const { tree, palette } = app;
  if (tree.diff && tree.diff[app.colour]) return changeLegend(app);
  const scheme = coloured(app);
  if (!scheme) {
    return kindsInUse(tree).map(({ kind, code, text, share }) => (
      { text, share, colour: palette.kinds[code][SHADES.indexOf(0)], style: `var(--kind-${kind})` }));
  }
  const own = new Float64Array(scheme.categories.length);
  const codes = tree.columns[`colour.${scheme.key}`];
  const used = new Set(codes);
  for (let node = 0; node < tree.count; node++) own[codes[node]] += Math.max(0, tree.own[node]);
  return scheme.categories.map((text, code) => ({
    code,
    text,
    share: formatShare(own[code], tree.whole),
    colour: categoryColour(palette, scheme, code),
    style: code === scheme.categories.length - 1 ? "var(--category-none)" : `var(--category-${code % CATEGORY_COLOURS})`,
  })).filter(({ code }) => used.has(code));
}
