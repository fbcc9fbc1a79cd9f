// Start. `window.__gpuprof` is what the tests and the curious hold on to.

function showBy(app, by) {
  app.by = by;
  app.rows = app.data[by].map((row, index) => ({ ...row, index, at: place(row) }));
  app.selected = -1;
  app.hovered = -1;
  app.hidden = new Set();
  for (const each of ["operator", "layer"]) {
    document.getElementById(`by-${each}`).setAttribute("aria-pressed", String(each === by));
  }
  buildTable(app);
  buildLegend(app);
  draw(app);
  showDetails(app);
  describe(app);
}

function describe(app) {
  const first = app.rows.slice(0, 3).map((row) => `${row.name}: ${boundText(row)}, ${row.evidence}`);
  document.getElementById("summary").textContent =
    `${app.rows.length} ${app.by}s. The longest: ${first.join(". ")}. Arrow keys choose, Escape lets go. A table follows.`;
}

function expose(app) {
  Object.defineProperties(window.__gpuprof, {
    selected: { get: () => app.selected },
    rows: { get: () => app.rows.map((row) => ({ name: row.name, bound: row.bound, at: row.at })) },
  });
}

function start() {
  window.__gpuprof = { ready: false };
  const sentence = document.getElementById("sentence");
  try {
    const data = JSON.parse(document.getElementById("data").textContent);
    if (data.operator.length === 0) {
      sentence.textContent = "No operator of this run was both counted and timed, so there is nothing to draw.";
      sentence.hidden = false;
    } else {
      const app = { data, ceilings: data.ceilings, counts: data.counts, svg: document.getElementById("plot"), elements: [] };
      document.getElementById("main").hidden = false;
      showBy(app, "operator");
      bindPlot(app);
      bindButtons(app);
      expose(app);
    }
    window.__gpuprof.ready = true;
    document.documentElement.dataset.ready = "";
  } catch (error) {
    sentence.textContent = `The picture could not be drawn: ${error.message}. It needs a browser of 2024 or later.`;
    sentence.hidden = false;
    throw error;
  }
}

start();
