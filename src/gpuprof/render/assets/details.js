// What is said about a node beside its cell: tooltip, the line below the picture, the zoom path.
// Names reach the page through textContent only.

// Callers shown in the zoom path, and characters of each name.
const CRUMBS = { count: 5, length: 40 };
const NARROW_CRUMBS = { count: 1, length: 16 };

function newElement(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

// Pairs of a term and its value, in the order they are shown.
function nodeFacts(app, node) {
  const { tree } = app;
  if (tree.diff) return differenceFacts(tree, node);
  const up = tree.parent[node];
  const facts = [
    ["Total", formatAmount(tree, tree.total[node])],
    ["Own", formatAmount(tree, tree.own[node])],
  ];
  if (tree.calls[node] > 0) {
    facts.push(["Calls", formatCount(tree.calls[node])]);
    facts.push(["Mean per call", formatAmount(tree, tree.total[node] / tree.calls[node])]);
  }
  facts.push(["Share of everything", formatShare(tree.width[node], tree.whole)]);
  if (up >= 0) facts.push(["Share of parent", formatShare(tree.width[node], tree.width[up])]);
  facts.push(["Threads", formatCount(tree.threads[node])], ...colourFacts(app, node));
  if (overlaps(tree, node)) facts.push(["Drawn width", `${formatAmount(tree, tree.width[node])} (calls overlap)`]);
  return facts;
}

// Asynchronous calls: the total counts waiting in which others ran, the width does not.
function overlaps(tree, node) {
  return Math.abs(tree.total[node] - tree.width[node]) > 0.005 * tree.total[node] + 1000;
}

function nodeContent(app, node) {
  const { tree } = app;
  const list = newElement("dl");
  for (const [term, value] of nodeFacts(app, node)) {
    list.append(newElement("dt", term), newElement("dd", value));
  }
  return [newElement("b", quotedIfBlank(fullName(tree, node))), newElement("p", whereabouts(tree, node)), list];
}

function whereabouts(tree, node) {
  const kind = kindName(tree, node);
  const path = pathText(tree, node);
  if (kind === "process" && path) return `${path}, while it was in no span, layer or operator`;
  return path ? `${kind} in ${path}` : kind;
}

function hiddenContent(app, cell) {
  const many = `${formatCount(cell.hidden)} cells too narrow to draw`;
  const share = formatShare(cell.to - cell.from, app.tree.whole);
  const list = newElement("dl");
  list.append(newElement("dt", "Together"), newElement("dd", `${formatAmount(app.tree, cell.to - cell.from)} (${share})`));
  return [newElement("b", many), newElement("p", "Click to zoom into them."), list];
}

function showTooltip(app, cell, clientX, clientY) {
  const { tooltip } = app;
  tooltip.hidden = cell === null;
  if (!cell) return;
  if (cell !== app.explained) {
    tooltip.replaceChildren(...(cell.hidden > 1 ? hiddenContent(app, cell) : nodeContent(app, cell.node)));
    app.explained = cell;
  }
  placeTooltip(app, clientX, clientY);
}

function placeTooltip({ tooltip }, clientX, clientY) {
  const { width, height } = tooltip.getBoundingClientRect();
  const x = clientX + 16 + width > innerWidth ? clientX - 16 - width : clientX + 16;
  const y = clientY + 20 + height > innerHeight ? clientY - 14 - height : clientY + 20;
  tooltip.style.transform = `translate(${Math.max(8, x)}px, ${Math.max(8, y)}px)`;
}

// The line below the picture is also what a screen reader speaks when the selection moves.
function showDetails(app) {
  const line = document.getElementById("details");
  if (app.selected < 0) {
    line.replaceChildren(newElement("span", "Click a cell to zoom, arrow keys to walk, ? for help."));
    return;
  }
  const facts = nodeFacts(app, app.selected).map(([term, value]) => `${term.toLowerCase()} ${value}`);
  const kind = kindName(app.tree, app.selected);
  line.replaceChildren(
    newElement("b", shownName(app.tree, app.selected)),
    newElement("span", [kind, ...facts].join(" · ")));
}

function showCrumbs(app) {
  const bar = document.getElementById("crumbs");
  const { tree, view: { focus } } = app;
  bar.replaceChildren(crumb(app, -1, "All calls"));
  if (focus < 0) return bar.lastChild.setAttribute("aria-current", "location");
  const { count, length } = app.stage.clientWidth < 600 ? NARROW_CRUMBS : CRUMBS;
  const path = [...ancestors(tree, focus, count), focus];
  if (tree.parent[path[0]] >= 0) bar.append(newElement("span", " › …"));
  for (const node of path) bar.append(newElement("span", " › "), crumb(app, node, crumbText(tree, node, length)));
  bar.lastChild.setAttribute("aria-current", "location");
}

function crumbText(tree, node, length) {
  const forms = nameForms(shownName(tree, node), kindName(tree, node));
  const text = forms.find((form) => form.length <= length) ?? forms.at(-1);
  return text.length <= length ? text : elided(text, length);
}

function crumb(app, node, text) {
  const button = newElement("button", text);
  button.type = "button";
  button.title = node < 0 ? "Zoom out to everything" : fullName(app.tree, node);
  button.addEventListener("click", () => app.zoom(node));
  return button;
}

function showFound(app) {
  document.getElementById("found").textContent = foundText(app.found, app.tree);
  document.getElementById("search").setAttribute("aria-invalid", String(app.found.invalid));
}
