// Painting cells on a 2D context. Coordinates are CSS pixels; the context is scaled to the screen.

import { clearSurface, fitText, PADDING, paintBorder, paintText, SMALLEST_LABEL, snapped } from "../kit/canvas.js";
import { formatCount, formatFraction } from "../kit/format.js";
import { ROW_HEIGHT, zoomedDepth } from "./cells.js";
import { HATCHED, nodeColor } from "./colors.js";
import { changeFigures, changeMark, stateOf } from "./difference.js";
import { nameForms } from "./names.js";
import { kindName, labelOf, shownName } from "./nodes.js";
import { amountText, isOther } from "./tree.js";

// Opacity of a cell and of its label: what a search left out, and the rows above the zoomed node.
export const FULL = { fill: 1, label: 1 };

export const DIMMED = { fill: 0.25, label: 0.55 };
const CONTEXT = { fill: 0.35, label: 0.95 };

export function paintRows(app, surface, rows) {
  const { context } = surface;
  clearSurface(surface);
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
  context.fillStyle = cellColor(app, cell, width);
  context.fillRect(left, row.y, width, ROW_HEIGHT - 1);
  paintHatch(app, context, cell, left, row.y, width);
  if (app.palette.forced && width > 3) paintBorder(context, app.palette.line, left, row.y, width, ROW_HEIGHT - 1);
  if (width >= SMALLEST_LABEL) {
    context.globalAlpha = opacity.label;
    // A faded fill lets the page through, so its label takes the color of text on the page.
    context.fillStyle = cell.marked ? app.palette.matchInk : opacity === FULL ? app.palette.ink : app.palette.text;
    const room = width - 2 * PADDING;
    const text = cellText(app, context, cell, room);
    if (text) paintText(context, text, cellFigures(app, cell), left + PADDING, row.y + ROW_HEIGHT / 2, room);
  }
}

export function cellOpacity(app, level, cell) {
  if (cell.marked) return FULL;
  if (app.found.marks) return DIMMED;
  return level < zoomedDepth(app) ? CONTEXT : FULL;
}

export function cellColor(app, cell, width) {
  const { palette } = app;
  if (cell.marked) return palette.match;
  if (palette.forced && width <= 3) return palette.line; // no room for a border around nothing
  if (cell.hidden > 1) return palette.more;
  return nodeColor(app, cell.node);
}

function paintHatch(app, context, cell, x, y, width) {
  if (!app.tree.diff || cell.marked || cell.hidden > 1 || width < 3) return;
  const state = stateOf(app, cell.node);
  if (!HATCHED.includes(state)) return;
  context.fillStyle = hatchOf(app, context, state);
  context.fillRect(x, y, width, ROW_HEIGHT - 1);
}

// New: stripes that rise. Gone: stripes that fall. Not judged: dots.
function hatchOf(app, context, state) {
  const { hatches, change } = app.palette;
  if (!hatches.has(state)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.strokeStyle = pen.fillStyle = change.hatch;
    if (state === "unknown") {
      pen.fillRect(1, 1, 1, 1);
      pen.fillRect(5, 5, 1, 1);
    } else {
      if (state === "gone") pen.setTransform(-1, 0, 0, 1, 8, 0);
      for (const [x, y] of [
        [-4, 4],
        [0, 8],
        [4, 12],
      ]) {
        pen.moveTo(x, y);
        pen.lineTo(x + 8, y - 8);
      }
      pen.stroke();
    }
    hatches.set(state, context.createPattern(tile, "repeat"));
  }
  return hatches.get(state);
}

export function cellLabel(app, cell) {
  return cell.hidden > 1 ? `${formatCount(cell.hidden)} more` : shownName(app.tree, cell.node);
}

export function drawnText(app, surface, cell) {
  const { width } = snapped(surface, cell);
  return width >= SMALLEST_LABEL ? cellText(app, surface.context, cell, width - 2 * PADDING) : "";
}

// What a cell has room for of its label.
export function cellText(app, context, cell, room) {
  if (cell.hidden > 1) return fitText(context, [cellLabel(app, cell)], room);
  const mark = changeMark(app, cell.node);
  const forms = formsOf(app, cell.node);
  return fitText(context, mark ? forms.map((form) => `${mark} ${form}`) : forms, room);
}

function formsOf(app, node) {
  const { tree, forms } = app;
  if (isOther(tree, node)) return [shownName(tree, node), "other"];
  if (tree.texts?.has(node)) return nameForms(shownName(tree, node), "layer");
  const key = tree.name[node] * tree.kinds.length + tree.kind[node];
  let found = forms.get(key);
  if (!found) forms.set(key, (found = nameForms(shownName(tree, node), kindName(tree, node), labelOf(tree, node))));
  return found;
}

function cellFigures(app, cell) {
  const { tree } = app;
  if (tree.diff && cell.hidden <= 1) return changeFigures(tree, cell.node);
  const share = formatFraction(cell.to - cell.from, tree.whole);
  return [`${amountText(tree, cell.to - cell.from)} · ${share}`, share];
}

function paintOutline(app, surface, row, cell) {
  const selected = holdsSelection(app, row.level, cell);
  const hovered = cell === app.hovered;
  if (!selected && !hovered) return;
  const { left, width } = snapped(surface, cell);
  const line = selected ? 2 : 1;
  surface.context.lineWidth = line;
  surface.context.strokeStyle = app.palette.outline;
  surface.context.strokeRect(left + line / 2, row.y + line / 2, Math.max(width - line, 1), ROW_HEIGHT - 1 - line);
}

// A selected node that is too narrow to draw is somewhere in a gray cell: that one is outlined.
function holdsSelection(app, level, cell) {
  const { selected, tree, place } = app;
  if (cell.node === selected) return true;
  if (cell.hidden <= 1 || selected < 0 || tree.depth[selected] !== level) return false;
  return place.x[selected] >= cell.from && place.x[selected] + tree.width[selected] <= cell.to;
}
