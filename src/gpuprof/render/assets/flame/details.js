// Text about a node near its cell: tooltip, the line below the picture, the zoom path.

import { elided } from "../kit/canvas.js";
import { formatCount, formatFraction } from "../kit/format.js";
import { byId, factList, hideTooltip, newButton, newElement, showTooltip } from "../kit/page.js";
import { openLayers, zoomTo } from "./actions.js";
import { colorFacts } from "./colors.js";
import { differenceFacts } from "./difference.js";
import { nameForms, quotedIfBlank } from "./names.js";
import { ancestors, fullName, kindName, labelOf, pathText, shownName } from "./nodes.js";
import { amountText, isOther } from "./tree.js";

// Callers shown in the zoom path, and characters of each name.
const CRUMBS = { count: 5, length: 40 };
const NARROW_CRUMBS = { count: 1, length: 16 };

// Pairs of a term and its value, in the order they are shown.
function nodeFacts(app, node) {
  const { tree } = app;
  if (tree.diff) return differenceFacts(tree, node);
  const up = tree.parent[node];
  const facts = [
    ["Total", amountText(tree, tree.total[node])],
    ["Self", amountText(tree, tree.own[node])],
  ];
  if (tree.calls[node] > 0 && isOther(tree, node)) {
    facts.push(["Calls", formatCount(tree.calls[node])]);
  } else if (tree.calls[node] > 0) {
    facts.push(["Calls", formatCount(tree.calls[node])]);
    facts.push(["Mean per call", amountText(tree, tree.total[node] / tree.calls[node])]);
  }
  facts.push(["Percent of the total", formatFraction(tree.width[node], tree.whole)]);
  if (up >= 0) facts.push(["Percent of the parent", formatFraction(tree.width[node], tree.width[up])]);
  if (!isOther(tree, node)) facts.push(["Threads", formatCount(tree.threads[node])], ...colorFacts(app, node));
  if (overlaps(tree, node)) facts.push(["Drawn width", `${amountText(tree, tree.width[node])} (calls overlap)`]);
  return facts;
}

// Asynchronous calls: the total counts waiting in which others ran, the width does not.
function overlaps(tree, node) {
  return Math.abs(tree.total[node] - tree.width[node]) > 0.005 * tree.total[node] + 1000;
}

function nodeContent(app, node) {
  const { tree } = app;
  return [
    newElement(
      "b",
      ["gc", "other"].includes(kindName(tree, node)) ? shownName(tree, node) : quotedIfBlank(fullName(tree, node)),
    ),
    newElement("p", whereabouts(tree, node)),
    factList(nodeFacts(app, node)),
  ];
}

function whereabouts(tree, node) {
  const kind = isOther(tree, node)
    ? "paths with little time, summed up when the page was written,"
    : kindName(tree, node);
  const path = pathText(tree, node);
  if (kind === "process" && path) return `${path}, while it was in no span, layer or operator`;
  return path ? `${kind} in ${path}` : kind;
}

function hiddenContent(app, cell) {
  const many = `${formatCount(cell.hidden)} cells too narrow to draw`;
  const share = formatFraction(cell.to - cell.from, app.tree.whole);
  const together = `${amountText(app.tree, cell.to - cell.from)} (${share})`;
  return [newElement("b", many), newElement("p", "Click to zoom into them."), factList([["Together", together]])];
}

export function showCellTooltip(app, cell, x, y) {
  if (!cell) return hideTooltip();
  const isNew = cell !== app.explained;
  app.explained = cell;
  const content = isNew ? (cell.hidden > 1 ? hiddenContent(app, cell) : nodeContent(app, cell.node)) : null;
  return showTooltip(x, y, content);
}

// The line below the picture is also what a screen reader reads out when the selection moves.
export function showDetails(app) {
  const line = byId("details");
  if (app.selected < 0) {
    line.replaceChildren(newElement("span", "Click a cell to zoom, use arrow keys to move, press ? for help."));
    return;
  }
  const facts = nodeFacts(app, app.selected).map(([term, value]) => `${term.toLowerCase()} ${value}`);
  const kind = kindName(app.tree, app.selected);
  line.replaceChildren(
    newElement("b", shownName(app.tree, app.selected)),
    newElement("span", [kind, ...facts].join(" · ")),
  );
  if (app.tree.texts?.has(app.selected))
    line.append(
      " ",
      newButton("Unfold", () => openLayers(app, app.selected)),
    );
}

export function showCrumbs(app) {
  const bar = byId("crumbs");
  const {
    tree,
    view: { focus },
  } = app;
  bar.replaceChildren(crumb(app, -1, "All calls"));
  if (focus < 0) return bar.lastChild.setAttribute("aria-current", "location");
  const { count, length } = app.stage.clientWidth < 600 ? NARROW_CRUMBS : CRUMBS;
  const path = [...ancestors(tree, focus, count), focus];
  if (tree.parent[path[0]] >= 0) bar.append(newElement("span", " › …"));
  for (const node of path) bar.append(newElement("span", " › "), crumb(app, node, crumbText(tree, node, length)));
  bar.lastChild.setAttribute("aria-current", "location");
}

function crumbText(tree, node, length) {
  const forms = nameForms(shownName(tree, node), kindName(tree, node), labelOf(tree, node));
  const text = forms.find((form) => form.length <= length) ?? forms.at(-1);
  return text.length <= length ? text : elided(text, length);
}

function crumb(app, node, text) {
  const button = newButton(text, () => zoomTo(app, node));
  button.title = node < 0 ? "Zoom out to everything" : fullName(app.tree, node);
  return button;
}

export function bindDetails(app) {
  app.changes.on("window", () => {
    hideTooltip();
    showCrumbs(app);
  });
  app.changes.on("selection tree", () => showDetails(app));
}
