// Pointer and keys of the flame graph. It follows keys when it has the focus; / ? and Escape work anywhere.

import { byId } from "../kit/elements.js";
import { bindPageKeys } from "../kit/keyboard.js";
import { hideTooltip } from "../kit/tooltip.js";
import { openHidden, search, select, zoomAround, zoomTo } from "./actions.js";
import { cellAt } from "./cells.js";
import { showCellTooltip, showCrumbs } from "./details.js";
import { sibling, widestChild } from "./layout.js";
import { paintRows } from "./paint.js";
import { screenSurface } from "./state.js";

export const WHEEL_SPEED = 0.0025; // of the window for one pixel of wheel

export function bindPointer(app) {
  const { canvas, stage } = app;
  canvas.addEventListener("pointermove", (event) => hover(app, event));
  canvas.addEventListener("pointerleave", () => leave(app));
  canvas.addEventListener("click", (event) => clickCell(app, event));
  canvas.addEventListener("dblclick", () => zoomTo(app, -1));
  stage.addEventListener(
    "scroll",
    () => {
      leave(app);
      app.redraw();
    },
    { passive: true },
  );
  // Only with Ctrl (a pinch on a touch pad too): a plain wheel scrolls the page, as everywhere.
  canvas.addEventListener("wheel", (event) => wheelZoom(app, event), { passive: false });
  new ResizeObserver(() => {
    showCrumbs(app);
    app.redraw();
  }).observe(stage);
  addEventListener("resize", () => app.redraw()); // the browser's own zoom changes the pixel ratio
}

function hover(app, event) {
  const cell = cellAt(app.rows, event.offsetX, event.offsetY);
  if (event.pointerType !== "touch") showCellTooltip(app, cell, event.clientX, event.clientY);
  if (cell === app.hovered) return;
  app.hovered = cell;
  app.canvas.toggleAttribute("data-hit", cell !== null);
  paintRows(app, screenSurface(app), app.rows);
}

function leave(app) {
  hideTooltip();
  if (!app.hovered) return;
  app.hovered = null;
  app.redraw();
}

function clickCell(app, event) {
  const cell = cellAt(app.rows, event.offsetX, event.offsetY);
  if (!cell) return;
  if (cell.hidden > 1) openHidden(app, cell, event.offsetX / app.stage.clientWidth);
  else zoomTo(app, cell.node);
}

function wheelZoom(app, event) {
  if (!event.ctrlKey) return;
  event.preventDefault();
  zoomAround(app, event.offsetX / app.stage.clientWidth, Math.exp(event.deltaY * WHEEL_SPEED));
}

// Up and down follow the picture: in a flame the caller is below.
function neighbour(app, key) {
  const { tree, place, selected } = app;
  if (selected < 0) return app.view.focus >= 0 ? app.view.focus : place.levels.nodes[0];
  if (key === "ArrowLeft") return sibling(tree, place, selected, -1);
  if (key === "ArrowRight") return sibling(tree, place, selected, 1);
  const towardsRoot = (key === "ArrowUp") !== app.flame;
  // Down goes to the widest child: walking down follows where the time goes.
  return towardsRoot ? tree.parent[selected] : widestChild(tree, selected);
}

export function bindKeys(app) {
  app.canvas.addEventListener("keydown", (event) => {
    if (event.key.startsWith("Arrow")) {
      event.preventDefault();
      const node = neighbour(app, event.key);
      if (node >= 0) select(app, node);
    } else if (event.key === "Enter" && app.selected >= 0) {
      zoomTo(app, app.selected);
    }
  });
  bindPageKeys(({ target }) => {
    const isInSearch = target === byId("search");
    // In the search box Escape first gives up the search, as people expect of a search box.
    if (isInSearch && target.value) return search(app, "");
    zoomTo(app, -1);
    if (isInSearch) app.canvas.focus();
    return undefined;
  });
}
