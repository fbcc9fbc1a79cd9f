// Start: decode, lay out, show. `window.__gpuprof` is what the tests and the curious hold on to.

function say(sentence) {
  const element = document.getElementById("sentence");
  element.textContent = sentence;
  element.hidden = false;
}

function show(app, timeline) {
  fillChoices(app);
  offerFolding(app);
  buildParts(app);
  document.getElementById("main").hidden = false;  // only now: nothing moves after it is seen
  sizeStage(app);
  bindPointer(app);
  bindKeys(app);
  bindControls(app);
  bindTheme(app);
  bindChoices(app);
  addTimeline(app, timeline);
  exposeTimeline(app);
  restoreState(app);
  app.drawNow();
}

// What the page shows beside the picture; another weight makes it anew.
function buildParts(app) {
  const groups = groupByName(app.tree);
  buildCards(app, groups);
  buildTable(app, groups);
  buildLegend(app);
  describe(app, groups);
}

function flatCells(app) {
  if (app.pending) app.drawNow();
  const surface = screenSurface(app);
  return app.rows.flatMap(({ y, cells }) => cells.map((cell) => ({
    node: cell.node,
    x: cell.left,
    y,
    width: cell.right - cell.left,
    height: ROW_HEIGHT,
    hidden: cell.hidden > 1 ? cell.hidden : 0,
    marked: cell.marked,
    label: cellLabel(app, cell),
    state: cell.hidden > 1 ? "" : stateName(app, cell.node),
    text: drawnText(app, surface, cell),
  })));
}

function expose(app) {
  Object.defineProperties(window.__gpuprof, {
    selected: { get: () => app.selected },
    zoomed: { get: () => app.view.focus },
    palette: { get: () => app.palette },
    visibleCells: { get: () => flatCells(app) },
  });
  Object.assign(window.__gpuprof, {
    zoom: (node) => app.zoom(node),
    select: (node) => select(app, node),
    search: (text) => {
      document.getElementById("search").value = text;
      return search(app, text);
    },
    redraw: () => app.drawNow(),
  });
}

async function start() {
  window.__gpuprof = { ready: false, nodes: 0 };
  try {
    const [tree, timeline] = await Promise.all([loadTree(), loadTimeline()]);
    applyView(tree, tree.first);
    window.__gpuprof.nodes = tree.count;
    if (tree.recorded === 0 && !(tree.whole > 0)) {
      say("This run holds no calls, so there is nothing to draw. Record some work and open it again.");
    } else if (!(tree.whole > 0)) {
      say("The calls of this run took no measurable time, so there is no width to draw.");
    } else {
      const app = createApp(tree);
      expose(app);
      show(app, timeline);
    }
    window.__gpuprof.readyAt = performance.now();
    window.__gpuprof.ready = true;
    document.documentElement.dataset.ready = "";
  } catch (error) {
    say(`The picture could not be drawn: ${error.message}. It needs a browser of 2024 or later.`);
    throw error;
  }
}

start();
