// Painting cells on a 2D context. Coordinates are CSS pixels; the context is scaled to the screen.

const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
const PADDING = 5;
const SMALLEST_LABEL = 26;   // pixels of room below which a label would be an ellipsis only
const WIDTHS_KEPT = 50_000;  // of texts, so that none is measured twice; a long session sees many
// Opacity of a cell and of its label: what a search left out, and the rows above the zoomed node.
const FULL = { fill: 1, label: 1 };
const DIMMED = { fill: 0.25, label: 0.55 };
const CONTEXT = { fill: 0.35, label: 0.95 };

function paintRows(app, surface, rows) {
  const { context, width, height, ratio } = surface;
  context.setTransform(ratio, 0, 0, ratio, surface.x * ratio, surface.y * ratio);
  context.clearRect(0, 0, width, height);
  context.font = FONT;
  context.textBaseline = "middle";
  context.direction = "ltr";
  for (const row of rows) for (const cell of row.cells) paintCell(app, surface, row, cell);
  context.globalAlpha = 1;
  if (surface.plain) return;
  for (const row of rows) for (const cell of row.cells) paintOutline(app, surface, row, cell);
}

function paintCell(app, surface, row, cell) {
  const { context } = surface;
  const { left, width } = snapped(surface, cell);
  const opacity = cellOpacity(app, row.level, cell);
  context.globalAlpha = opacity.fill;
  context.fillStyle = cellColour(app, cell, width);
  context.fillRect(left, row.y, width, ROW_HEIGHT - 1);
  paintHatch(app, context, cell, left, row.y, width);
  if (app.palette.forced && width > 3) {
    context.strokeStyle = app.palette.line;
    context.strokeRect(left + 0.5, row.y + 0.5, width - 1, ROW_HEIGHT - 2);
  }
  if (width >= SMALLEST_LABEL) {
    context.globalAlpha = opacity.label;
    // A faded fill lets the page through, so its label takes the colour of text on the page.
    context.fillStyle = cell.marked ? app.palette.matchInk : opacity === FULL ? app.palette.ink : app.palette.text;
    paintLabel(app, context, cell, left + PADDING, row.y + ROW_HEIGHT / 2, width - 2 * PADDING);
  }
}

// Edges on whole device pixels keep cells crisp; a cell of less than one is drawn as one.
function snapped(surface, cell) {
  const left = Math.round(cell.left * surface.ratio) / surface.ratio;
  const right = Math.round(cell.right * surface.ratio) / surface.ratio;
  const gap = right - left > 3 ? 1 : 0;
  return { left, width: Math.max(right - left - gap, 1 / surface.ratio) };
}

function cellOpacity(app, level, cell) {
  if (cell.marked) return FULL;
  if (app.found.marks) return DIMMED;
  return level < app.zoomedDepth() ? CONTEXT : FULL;
}

function cellColour(app, cell, width) {
  const { palette } = app;
  if (cell.marked) return palette.match;
  if (palette.forced && width <= 3) return palette.line;  // no room for a border around nothing
  if (cell.hidden > 1) return palette.more;
  return nodeColour(app, cell.node);
}

function cellLabel(app, cell) {
  return cell.hidden > 1 ? `${formatCount(cell.hidden)} more` : shownName(app.tree, cell.node);
}

function drawnText(app, surface, cell) {
  const { width } = snapped(surface, cell);
  return width >= SMALLEST_LABEL ? cellText(app, surface.context, cell, width - 2 * PADDING) : "";
}

// What a cell has room for of its label.
function cellText(app, context, cell, room) {
  if (cell.hidden > 1) return fitText(app, context, [cellLabel(app, cell)], room);
  const mark = changeMark(app, cell.node);
  const forms = formsOf(app, cell.node);
  return fitText(app, context, mark ? forms.map((form) => `${mark} ${form}`) : forms, room);
}

function formsOf(app, node) {
  const { tree, forms } = app;
  const key = tree.name[node] * tree.kinds.length + tree.kind[node];
  let found = forms.get(key);
  if (!found) forms.set(key, (found = nameForms(shownName(tree, node), kindName(tree, node))));
  return found;
}

function paintLabel(app, context, cell, x, y, room) {
  const text = cellText(app, context, cell, room);
  if (!text) return;
  context.fillText(text, x, y);
  const used = measured(app, context, text) + 10;
  if (room - used < 40) return;
  const alpha = context.globalAlpha;
  context.globalAlpha = alpha * 0.8;
  for (const figures of cellFigures(app, cell)) {
    if (measured(app, context, figures) > room - used) continue;
    context.fillText(figures, x + used, y);
    break;
  }
  context.globalAlpha = alpha;
}

function cellFigures(app, cell) {
  const { tree } = app;
  if (tree.diff && cell.hidden <= 1) return changeFigures(tree, cell.node);
  const share = formatShare(cell.to - cell.from, tree.whole);
  return [`${formatAmount(tree, cell.to - cell.from)} · ${share}`, share];
}

function measured(app, context, text) {
  const { textWidths } = app;
  let width = textWidths.get(text);
  if (width === undefined) {
    width = context.measureText(text).width;
    if (textWidths.size >= WIDTHS_KEPT) textWidths.clear();
    textWidths.set(text, width);
  }
  return width;
}

// The longest of the forms that fits, else as much of the last as does, or nothing where that would not help.
function fitText(app, context, forms, room) {
  for (const form of forms) {
    if (form.length <= LABEL_LIMIT && measured(app, context, form) <= room) return form;
  }
  const text = forms.at(-1);
  const sample = text.slice(0, LABEL_LIMIT);
  let keep = Math.min(text.length - 1, Math.floor((sample.length * room) / measured(app, context, sample)));
  while (keep > 1 && measured(app, context, elided(text, keep)) > room) keep--;
  return keep > 1 ? elided(text, keep) : "";
}

function paintOutline(app, surface, row, cell) {
  const selected = holdsSelection(app, row.level, cell);
  const hovered = cell === app.hovered;
  if (!selected && !hovered) return;
  const { left, width } = snapped(surface, cell);
  const line = selected ? 2 : 1;
  surface.context.lineWidth = line;
  surface.context.strokeStyle = app.palette.outline;
  surface.context.strokeRect(
    left + line / 2, row.y + line / 2, Math.max(width - line, 1), ROW_HEIGHT - 1 - line);
}

// A selected node that is too narrow to draw is somewhere in a grey cell: that one is outlined.
function holdsSelection(app, level, cell) {
  const { selected, tree, place } = app;
  if (cell.node === selected) return true;
  if (cell.hidden <= 1 || selected < 0 || tree.depth[selected] !== level) return false;
  return place.x[selected] >= cell.from && place.x[selected] + tree.width[selected] <= cell.to;
}
