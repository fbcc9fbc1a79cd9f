// The controls above the picture, and the heading: what they show and what they do.

import { byId, fillOptions, listen, press } from "../kit/elements.js";
import { showFound } from "../kit/search.js";
import { chooseView, search, setColour, setFlame, setFolding, setOrder, zoomTo } from "./actions.js";
import { isZoomed } from "./cells.js";
import { colourModes } from "./colours.js";
import { savePng } from "./picture.js";
import { saveSvg } from "./picture_svg.js";
import { foundText } from "./search.js";
import { saveFolded, saveSpeedscope } from "./stacks.js";
import { sizeStage } from "./state.js";
import { hotTitle, wholeText } from "./weights.js";

export function bindControls(app) {
  fillChoices(app);
  byId("fold").hidden = !app.canFold;
  showHeading(app);
  listen("search", "input", (event) => search(app, event.target.value));
  listen("reset", "click", () => zoomTo(app, -1));
  listen("icicle", "click", () => setFlame(app, false));
  listen("flame", "click", () => setFlame(app, true));
  listen("fold", "click", () => setFolding(app, !app.tree.full));
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
  app.changes.on("colour", () => showChoices(app));
  app.changes.on("tree", () => {
    press("fold", Boolean(app.tree.full));
    showChoices(app);
    showHeading(app);
    sizeStage(app);
  });
}

// ---- weights, scales and colours ----

function fillChoices(app) {
  const { views } = app.tree;
  const scaled = views.filter((view) => view.scaling);
  fillOptions("weight", new Map(views.map((view) => [view.weight ?? view.key, `Width: ${view.label}`])));
  fillOptions("scaling", new Map(scaled.map((view) => [view.scaling, `Scale: ${view.scalingLabel}`])));
  fillOptions(
    "colour",
    colourModes(app.tree).map(({ key, label }) => [key, label]),
  );
  showChoices(app);
  const choose = () => {
    const [weight, scaling] = [byId("weight").value, byId("scaling").value];
    chooseView(app, scaling ? `${weight}-${scaling}` : weight);
    app.address.save();
  };
  listen("weight", "change", choose);
  listen("scaling", "change", choose);
  listen("colour", "change", (event) => {
    setColour(app, event.target.value);
    app.address.save();
  });
}

function showChoices({ tree, colour }) {
  const view = tree.views[tree.view];
  byId("weight").value = view.weight ?? view.key;
  byId("scaling").value = view.scaling ?? "";
  byId("colour").value = colour;
}

// ---- texts ----

function showSearch({ found, tree }) {
  if (byId("search").value !== found.text) byId("search").value = found.text;
  showFound(foundText(found, tree), found.invalid);
}

function showHeading({ tree }) {
  byId("measure").textContent = tree.measure;
  byId("total").textContent = wholeText(tree);
  for (const noun of document.querySelectorAll("[data-noun]")) noun.textContent = tree.time;
  const { note } = tree.views[tree.view];
  byId("view-note").textContent = note;
  byId("view-note").hidden = !note;
  byId("hot-title").textContent = tree.diff ? "What changed most: own time" : hotTitle(tree);
}

// Under its button; style sheets cannot say so in every browser yet.
function placeSaves() {
  const { left, bottom } = byId("more-saves").getBoundingClientRect();
  const { style } = byId("saves");
  style.left = `${Math.max(8, Math.min(left, innerWidth - 150))}px`;
  style.top = `${bottom + 4}px`;
}
