// Which rectangles a window of the tree shows. Only rows and columns in sight are visited, so the cost follows the
// screen and not the run.

import { firstIndex, itemAt } from "../kit/canvas.js";

export const ROW_HEIGHT = 22; // CSS pixels
const SMALLEST_CELL = 0.5; // CSS pixels; anything narrower joins its neighbors in one gray cell

// The level drawn at a row and back: the flame has its root in the last row. It is its own inverse.
export function flipRow(app, row) {
  return app.flame ? app.place.levels.count - 1 - row : row;
}

// The cells in sight on `surface` ({width, height, top} in CSS pixels), row by row from the top.
export function collectCells(app, surface) {
  const rows = [];
  const first = Math.max(0, Math.floor(surface.top / ROW_HEIGHT));
  const last = Math.min(app.place.levels.count, Math.ceil((surface.top + surface.height) / ROW_HEIGHT));
  for (let row = first; row < last; row++) {
    rows.push(collectRow(app, flipRow(app, row), row * ROW_HEIGHT - surface.top, surface.width));
  }
  return rows;
}

function collectRow(app, level, y, widthPx) {
  const {
    tree,
    place: { x, levels },
    view: { low, high },
    found: { marks },
  } = app;
  const scale = widthPx / (high - low);
  const stop = levels.start[level + 1];
  const cells = [];
  let run = null; // the gray cell that is still growing
  for (let at = firstInSight(app, level); at < stop; at++) {
    const node = levels.nodes[at];
    const from = x[node];
    if (from >= high) break;
    const to = from + tree.width[node];
    const marked = marks !== null && marks[node] === 1;
    if ((to - from) * scale >= SMALLEST_CELL) {
      cells.push(newCell(node, from, to, 0, marked));
      run = null;
    } else if (run && (from - run.to) * scale < SMALLEST_CELL) {
      run.to = to;
      run.hidden++;
      run.marked ||= marked;
    } else {
      cells.push((run = newCell(node, from, to, 1, marked)));
    }
  }
  for (const cell of cells) {
    cell.left = Math.max(0, (cell.from - low) * scale);
    cell.right = Math.min(widthPx, (cell.to - low) * scale);
  }
  return { level, y, cells };
}

// `hidden` is 0 for a node's own cell, else how many nodes the gray cell hides.
function newCell(node, from, to, hidden, marked) {
  return { node, from, to, hidden, marked, left: 0, right: 0 };
}

// Nodes of a level do not overlap, so their ends grow from left to right.
function firstInSight(app, level) {
  const {
    tree,
    place: { x, levels },
    view,
  } = app;
  return firstIndex(levels.start[level], levels.start[level + 1], (at) => {
    const node = levels.nodes[at];
    return x[node] + tree.width[node] > view.low;
  });
}

// The cell under a point; null for none.
export function cellAt(rows, px, py) {
  const row = rows.find(({ y }) => py >= y && py < y + ROW_HEIGHT);
  return row ? itemAt(row.cells, px) : null;
}

export function isZoomed({ tree, view }) {
  return view.low > 0 || view.high < tree.whole;
}

// Rows above it show the callers of what was zoomed to.
export function zoomedDepth(app) {
  return isZoomed(app) && app.view.focus >= 0 ? app.tree.depth[app.view.focus] : 0;
}
