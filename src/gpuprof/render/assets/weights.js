// What the widths show. A page carries all weights that its run has; a view is one of them, and in a
// comparison one of them at one scale of the two sides.

const AMOUNT_PREFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

// `amount` in page.py does the same.
function formatAmount(tree, value) {
  if (tree.unit === "ns") return formatTime(value);
  if (tree.unit === "launches") return formatCount(value);
  for (const [size, prefix] of AMOUNT_PREFIXES) {
    if (value >= size * 0.9995) return `${threeDigits(value / size)} ${prefix}${tree.unit}`;
  }
  return `${Math.round(value)} ${tree.unit}`;
}

function ownTitle(tree) {
  return tree.unit === "ns" ? "Own time" : `Own ${tree.time}`;
}

// Gives the tree the figures of a view, and what follows from them.
function applyView(tree, index) {
  const view = tree.views[index];
  const column = (name) => tree.columns[`${view.key}.${name}`];
  tree.view = index;
  tree.measure = view.measure;  // what the widths are, as a heading
  tree.time = view.time;        // the same in a sentence: "time" or "GPU time"
  tree.unit = view.unit;
  tree.diff = view.scaling ? readDifference(column) : null;
  if (tree.diff) {
    tree.own = meanOfSides(tree.diff.own);
    tree.total = meanOfSides(tree.diff.total);
  } else {
    tree.own = column("own");
    tree.total = restoreTotal(tree.own, column("inside"));
  }
  measureTree(tree);
}

function switchView(app, index) {
  const { tree } = app;
  if (index === tree.view) return;
  applyView(tree, index);
  showTreeAnew(app, app.view.focus);
  showDetails(app);
}

// After the tree's cells or their widths changed.
function showTreeAnew(app, focus) {
  const { tree } = app;
  app.place = placeNodes(tree, app.order === "largest");
  app.view = { low: 0, high: tree.whole, focus: -1 };
  app.found = searchTree(tree, app.found.text);
  showHeading(app);
  showFound(app);
  buildParts(app);
  sizeStage(app);
  app.zoom(focus >= 0 && tree.width[focus] > 0 ? focus : -1);
}

function showHeading(app) {
  const { tree } = app;
  document.getElementById("measure").textContent = tree.measure;
  document.getElementById("total").textContent = wholeText(tree);
  for (const noun of document.querySelectorAll("[data-noun]")) noun.textContent = tree.time;
  const note = tree.views[tree.view].note;
  const line = document.getElementById("view-note");
  line.textContent = note || "";
  line.hidden = !note;
  document.getElementById("hot-title").textContent =
    tree.diff ? "What changed most: own time" : hotTitle(tree);
}

function hotTitle(tree) {
  if (tree.unit === "ns") return `Where the ${tree.time} goes: most own time`;
  return `Where the ${tree.time} are: most own ${tree.time}`;
}

function wholeText(tree) {
  return tree.diff ? sidesText(tree.diff.whole) : formatAmount(tree, tree.whole);
}

// ---- the lists to choose from ----

function fillChoices(app) {
  const { views } = app.tree;
  const weights = new Map(views.map((view) => [view.weight ?? view.key, `Width: ${view.label}`]));
  const scalings = new Map(views.filter((view) => view.scaling).map((view) => [view.scaling, `Scale: ${view.scalingLabel}`]));
  const colours = new Map(colourModes(app.tree).map(({ key, label }) => [key, label]));
  fillChoice("weight", weights);
  fillChoice("scaling", scalings);
  fillChoice("colour", colours);
  showChoices(app);
  showHeading(app);
}

function fillChoice(id, entries) {
  const box = document.getElementById(id);
  const options = [...entries].map(([key, text]) => {
    const option = newElement("option", text);
    option.value = key;
    return option;
  });
  box.replaceChildren(...options);
  box.hidden = options.length < 2;
}

function showChoices(app) {
  const view = app.tree.views[app.tree.view];
  document.getElementById("weight").value = view.weight ?? view.key;
  document.getElementById("scaling").value = view.scaling ?? "";
  document.getElementById("colour").value = app.colour;
}

function bindChoices(app) {
  const on = (id, action) => document.getElementById(id).addEventListener("change", action);
  const chooseView = () => {
    const weight = document.getElementById("weight").value;
    const scaling = document.getElementById("scaling").value;
    const key = scaling ? `${weight}-${scaling}` : weight;
    chooseByKey(app, key);
    saveState(app);
  };
  on("weight", chooseView);
  on("scaling", chooseView);
  on("colour", (event) => {
    setColour(app, event.target.value);
    saveState(app);
  });
}

function chooseByKey(app, key) {
  const index = app.tree.views.findIndex((view) => view.key === key);
  switchView(app, index < 0 ? app.tree.first : index);
  showChoices(app);
}

function saveChoices(app, state) {
  const { tree } = app;
  if (tree.view !== tree.first) state.set("weight", tree.views[tree.view].key);
  if (app.colour !== colourModes(tree)[0].key) state.set("colour", app.colour);
}

function restoreChoices(app, state) {
  chooseByKey(app, state.get("weight"));
  setColour(app, state.get("colour"));
}
