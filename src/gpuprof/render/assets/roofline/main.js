// Start. `window.__gpuprof` is what the tests and the curious hold on to.

const KINDS = ["operator", "layer", "kernel"];

function showBy(app, by) {
  app.by = by;
  app.rows = app.device.rows[by].map((row, index) => ({ ...row, index, at: place(row) }));
  app.counts = app.device.counts;
  app.ceilings = app.device.ceilings;
  app.selected = -1;
  app.hovered = -1;
  app.hidden = new Set();
  for (const each of KINDS) {
    const button = document.getElementById(`by-${each}`);
    button.setAttribute("aria-pressed", String(each === by));
    button.hidden = each === "kernel" && app.device.rows.kernel.length === 0;
  }
  buildTable(app);
  buildLegend(app);
  draw(app);
  showDetails(app);
  describe(app);
}

// The rows of a device stand under its own roofs.
function showDevice(app, index) {
  app.device = app.data.devices[index];
  document.getElementById("base").title = app.device.base_title;
  document.getElementById("base-name").textContent = app.device.base;
  document.getElementById("total").textContent = app.device.total;
  document.getElementById("matched").textContent = app.device.matched;
  const by = app.device.rows[app.by ?? "operator"].length ? app.by ?? "operator" : "operator";
  showBy(app, by);
}

function listDevices(app) {
  const options = app.data.devices.map((device, index) => {
    const option = make("option", device.title);
    option.value = String(index);
    return option;
  });
  const list = document.getElementById("device");
  list.replaceChildren(...options);
  list.hidden = options.length < 2 && !app.data.devices[0].device.startsWith("cuda");
  list.addEventListener("change", () => showDevice(app, Number(list.value)));
}

function describe(app) {
  const first = app.rows.slice(0, 3).map((row) => `${row.name}: ${boundText(row)}, ${row.evidence}`);
  document.getElementById("summary").textContent =
    `${app.device.title}. ${app.rows.length} ${app.by}s. The longest: ${first.join(". ")}. Arrow keys choose, Escape lets go. A table follows.`;
}

function expose(app) {
  Object.defineProperties(window.__gpuprof, {
    selected: { get: () => app.selected },
    device: { get: () => app.device.device },
    rows: { get: () => app.rows.map((row) => ({ name: row.name, bound: row.bound, at: row.at })) },
  });
}

function start() {
  window.__gpuprof = { ready: false };
  const sentence = document.getElementById("sentence");
  try {
    const data = JSON.parse(document.getElementById("data").textContent);
    if (data.devices.every((device) => device.rows.operator.length + device.rows.kernel.length === 0)) {
      sentence.textContent = "No operator of this run was both counted and timed, so there is nothing to draw.";
      sentence.hidden = false;
    } else {
      const app = { data, svg: document.getElementById("plot"), elements: [] };
      document.getElementById("main").hidden = false;
      listDevices(app);
      showDevice(app, 0);
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
