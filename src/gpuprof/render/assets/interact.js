// Pointer and keys. The picture answers keys when it has the focus; / ? and Escape work anywhere.

const WHEEL_SPEED = 0.0025;  // of the window for one pixel of wheel

function bindPointer(app) {
  const { canvas, stage } = app;
  canvas.addEventListener("pointermove", (event) => hover(app, event));
  canvas.addEventListener("pointerleave", () => leave(app));
  canvas.addEventListener("click", (event) => clickCell(app, event));
  canvas.addEventListener("dblclick", () => app.zoom(-1));
  stage.addEventListener("scroll", () => { leave(app); app.redraw(); }, { passive: true });
  // Only with Ctrl (a pinch on a touch pad too): a plain wheel scrolls the page, as everywhere.
  canvas.addEventListener("wheel", (event) => wheelZoom(app, event), { passive: false });
}

function hover(app, event) {
  const cell = cellAt(app.rows, event.offsetX, event.offsetY);
  if (event.pointerType !== "touch") showTooltip(app, cell, event.clientX, event.clientY);
  if (cell === app.hovered) return;
  app.hovered = cell;
  app.canvas.toggleAttribute("data-hit", cell !== null);
  paintRows(app, screenSurface(app), app.rows);
}

function leave(app) {
  showTooltip(app, null);
  if (!app.hovered) return;
  app.hovered = null;
  app.redraw();
}

function clickCell(app, event) {
  const cell = cellAt(app.rows, event.offsetX, event.offsetY);
  if (!cell) return;
  if (cell.hidden > 1) openHidden(app, cell, event.offsetX / app.stage.clientWidth);
  else app.zoom(cell.node);
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

function bindKeys(app) {
  app.canvas.addEventListener("keydown", (event) => {
    if (event.key.startsWith("Arrow")) {
      event.preventDefault();
      const node = neighbour(app, event.key);
      if (node >= 0) select(app, node);
    } else if (event.key === "Enter" && app.selected >= 0) {
      app.zoom(app.selected);
    }
  });
  document.addEventListener("keydown", (event) => pageKey(app, event));
}

function pageKey(app, event) {
  const help = document.getElementById("help");
  const box = document.getElementById("search");
  if (help.open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    // In the search box Escape first gives up the search, as people expect of a search box.
    if (event.target === box && box.value) return clearSearch(app, box);
    app.zoom(-1);
    if (event.target === box) app.canvas.focus();
  } else if (event.target.matches("input, select")) {
    return;
  } else if (event.key === "/") {
    event.preventDefault();
    box.focus();
    box.select();
  } else if (event.key === "?") {
    help.showModal();
  }
}

function clearSearch(app, box) {
  box.value = "";
  search(app, "");
}

function bindControls(app) {
  const on = (id, kind, action) => document.getElementById(id).addEventListener(kind, action);
  on("search", "input", (event) => search(app, event.target.value));
  on("reset", "click", () => app.zoom(-1));
  on("icicle", "click", () => setFlame(app, false));
  on("flame", "click", () => setFlame(app, true));
  on("fold", "click", () => setFolding(app, !app.tree.full));
  on("order", "change", (event) => setOrder(app, event.target.value));
  on("png", "click", () => savePng(app));
  on("saves", "beforetoggle", () => placeSaves());
  on("saves", "click", () => document.getElementById("saves").hidePopover());
  on("svg", "click", () => saveSvg(app));
  on("folded", "click", () => saveFolded(app));
  on("speedscope", "click", () => saveSpeedscope(app));
  on("help-button", "click", () => document.getElementById("help").showModal());
  addEventListener("hashchange", () => restoreState(app));
  new ResizeObserver(() => { showCrumbs(app); app.redraw(); }).observe(app.stage);
  addEventListener("resize", () => app.redraw());  // the browser's own zoom changes the pixel ratio
}
