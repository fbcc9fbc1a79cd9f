// The flame graph's part of the address.

import { chooseView, search, select, setColour, setFlame, setFolding, setOrder, setWindow, zoomTo } from "./actions.js";
import { colourModes } from "./colours.js";

export function writeFlame(app, state) {
  const { tree } = app;
  if (app.view.focus >= 0) state.set("zoom", app.view.focus);
  if (!isFilled(app)) state.set("window", windowText(app));
  if (app.found.text) state.set("search", app.found.text);
  if (app.flame) state.set("flame", "1");
  if (app.order !== "recorded") state.set("order", app.order);
  if (tree.full) state.set("fold", "1");
  if (tree.view !== tree.first) state.set("weight", tree.views[tree.view].key);
  if (app.colour !== colourModes(tree)[0].key) state.set("colour", app.colour);
  if (app.selected >= 0 && app.selected !== app.view.focus) state.set("cell", app.selected);
}

export function readFlame(app, state) {
  setFolding(app, state.get("fold") === "1");
  chooseView(app, state.get("weight"));
  setColour(app, state.get("colour"));
  setFlame(app, state.get("flame") === "1");
  setOrder(app, state.get("order") === "largest" ? "largest" : "recorded");
  search(app, state.get("search") ?? "");
  const nodeIn = (key) => {
    const node = Number(state.get(key) ?? -1);
    return Number.isInteger(node) && node >= 0 && node < app.tree.count ? node : -1;
  };
  zoomTo(app, nodeIn("zoom"));
  select(app, nodeIn("cell") >= 0 ? nodeIn("cell") : nodeIn("zoom"));
  restoreWindow(app, state.get("window"), nodeIn("zoom"));
}

// Whether the window is just that of the zoomed node, or of everything.
function isFilled({ tree, place, view }) {
  const low = view.focus < 0 ? 0 : place.x[view.focus];
  const high = view.focus < 0 ? tree.whole : low + tree.width[view.focus];
  return Math.max(Math.abs(view.low - low), Math.abs(view.high - high)) <= 1e-4 * (view.high - view.low);
}

// In parts of the whole, which has another size where the widths are bytes or launches.
function windowText({ tree, view }) {
  return [view.low, view.high].map((at) => at / tree.whole).join("_");
}

// The selected cell may be outside of it, and of the zoomed one.
function restoreWindow(app, text, focus) {
  const [low, high] = (text ?? "").split("_").map((part) => Number(part) * app.tree.whole);
  if (low >= 0 && low < high && high <= app.tree.whole) setWindow(app, low, high, focus);
}
