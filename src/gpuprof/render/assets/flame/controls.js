// The controls above the picture, the heading, pointer and keys. The picture follows keys when it has the focus; / ? and
// Escape work anywhere.

import { bindPageKeys, byId, fillOptions, hideTooltip, listen, press } from "../kit/page.js";
import { showFound } from "../kit/table.js";
import {
  chooseView,
  openHidden,
  search,
  select,
  setColor,
  setFlame,
  setFolding,
  setOrder,
  zoomAround,
  zoomTo,
} from "./actions.js";
import { cellAt, isZoomed } from "./cells.js";
import { colorModes } from "./colors.js";
import { showCellTooltip, showCrumbs } from "./details.js";
import { fullTree } from "./folding.js";
import { sibling, widestChild } from "./layout.js";
import { foundText } from "./nodes.js";
import { paintRows } from "./paint.js";
import { savePng, saveSvg } from "./picture.js";
import { saveFolded, saveSpeedscope } from "./stacks.js";
import { screenSurface, sizeStage } from "./state.js";
import { hotTitle, wholeText } from "./tree.js";

// ---- controls ----

const FOLD_BUTTONS = [
  ["fold", "recursion"],
  ["fold-layers", "layers"],
];

export function bindControls(app) {
  fillChoices(app);
  for (const [id, what] of FOLD_BUTTONS) {
    byId(id).hidden = !app.canFold[what];
    press(id, app.folding[what]);
    listen(id, "click", () => setFolding(app, { [what]: !app.folding[what], open: new Set() }));
  }
  showHeading(app);
  listen("search", "input", (event) => search(app, event.target.value));
  listen("reset", "click", () => zoomTo(app, -1));
  listen("icicle", "click", () => setFlame(app, false));
  listen("flame", "click", () => setFlame(app, true));
  listen("order", "change", (event) => setOrder(app, event.target.value));
  listen("png", "click", () => savePng(app));
  listen("saves", "beforetoggle", placeSaves);
  listen("saves", "click", () => byId("saves").hidePopover());
  listen("svg", "click", () => saveSvg(app));
  listen("folded", "click", () => saveFolded(app));
  listen("speedscope", "click", () => saveSpeedscope(app));
  app.changes.on("window", () => {
    byId("reset").disabled = !isZoomed(app);
  });
  app.changes.on("search tree", () => showSearch(app));
  app.changes.on("order", () => {
    byId("order").value = app.order;
  });
  app.changes.on("direction", () => {
    press("flame", app.flame);
    press("icicle", !app.flame);
  });
  app.changes.on("color", () => showChoices(app));
  app.changes.on("tree", () => {
    for (const [id, what] of FOLD_BUTTONS) press(id, app.folding[what]);
    showChoices(app);
    showHeading(app);
    sizeStage(app);
  });
}

// ---- weights, scales and colors ----

function fillChoices(app) {
  const { views } = app.tree;
  const scaled = views.filter((view) => view.scaling);
  fillOptions("weight", new Map(views.map((view) => [view.weight ?? view.key, `Width: ${view.label}`])));
  fillOptions("scaling", new Map(scaled.map((view) => [view.scaling, `Scale: ${view.scalingLabel}`])));
  fillOptions(
    "color",
    colorModes(app.tree).map(({ key, label }) => [key, label]),
  );
  showChoices(app);
  const choose = () => {
    const [weight, scaling] = [byId("weight").value, byId("scaling").value];
    chooseView(app, scaling ? `${weight}-${scaling}` : weight);
    app.address.save();
  };
  listen("weight", "change", choose);
  listen("scaling", "change", choose);
  listen("color", "change", (event) => {
    setColor(app, event.target.value);
    app.address.save();
  });
}

function showChoices({ tree, color }) {
  const view = tree.views[tree.view];
  byId("weight").value = view.weight ?? view.key;
  byId("scaling").value = view.scaling ?? "";
  byId("color").value = color;
}

// ---- texts ----

function showSearch({ found, tree }) {
  if (byId("search").value !== found.text) byId("search").value = found.text;
  showFound(foundText(found, tree), found.invalid);
}

function showHeading(app) {
  const { tree } = app;
  byId("measure").textContent = tree.measure;
  byId("total").textContent = wholeText(tree);
  for (const noun of document.querySelectorAll("[data-noun]")) noun.textContent = tree.time;
  const { note } = tree.views[tree.view];
  byId("view-note").textContent = note;
  byId("view-note").hidden = !note;
  byId("hot-title").textContent = tree.diff ? "What changed most: self time" : hotTitle(fullTree(app));
}

// Under its button; style sheets cannot place it in every browser yet.
function placeSaves() {
  const { left, bottom } = byId("more-saves").getBoundingClientRect();
  const { style } = byId("saves");
  style.left = `${Math.max(8, Math.min(left, innerWidth - 150))}px`;
  style.top = `${bottom + 4}px`;
}

// ---- pointer and keys ----

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
  new ResizeObserver(() => fitPicture(app)).observe(stage);
  addEventListener("resize", () => fitPicture(app)); // the browser's own zoom changes the pixel ratio
}

// On paper the picture stays as it was drawn: there the stage has the height of the canvas.
function fitPicture(app) {
  if (document.documentElement.hasAttribute("data-print")) return;
  showCrumbs(app);
  app.redraw();
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
