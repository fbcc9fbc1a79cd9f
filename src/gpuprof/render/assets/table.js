// The same data as text: the largest own times as cards and as a table that can be sorted.

const TABLE_ROWS = 200;
const CARDS = 5;

// One group for each pair of name and kind, largest own time first.
function groupByName(tree) {
  const groups = new Map();
  for (let node = 0; node < tree.count; node++) {
    const key = tree.name[node] * tree.kinds.length + tree.kind[node];
    let group = groups.get(key);
    if (!group) {
      group = { node, own: 0, total: 0, calls: 0, covered: 0 };
      groups.set(key, group);
    }
    addToGroup(tree, group, node);
  }
  return [...groups.values()].sort((a, b) => b.own - a.own);
}

function addToGroup(tree, group, node) {
  group.own += Math.max(0, tree.own[node]);
  group.calls += tree.calls[node];
  if (tree.own[node] > tree.own[group.node]) group.node = node;  // the hottest instance
  if (node < group.covered) return;  // inside itself: its time is in the outer call's total already
  group.total += tree.total[node];
  group.covered = tree.end[node];
}

const TABLE_COLUMNS = [
  { title: "Name", key: (tree, group) => shortName(tree, group.node), words: true },
  { title: "Kind", key: (tree, group) => tree.kinds[tree.kind[group.node]], words: true },
  { title: "Own time", key: (tree, group) => group.own },
  { title: "Share", key: (tree, group) => group.own },
  { title: "Total", key: (tree, group) => group.total },
  { title: "Calls", key: (tree, group) => group.calls },
  { title: "Mean", key: (tree, group) => meanTotal(group) },
  { title: "Hottest call", key: (tree, group) => pathText(tree, group.node), words: true },
];

function meanTotal(group) {
  return group.calls > 0 ? group.total / group.calls : 0;
}

function buildTable(app, groups) {
  const shown = groups.slice(0, TABLE_ROWS).map((group) => ({ group, row: tableRow(app, group) }));
  const [count, all] = [formatCount(shown.length), formatCount(groups.length)];
  document.getElementById("caption").textContent = groups.length > shown.length
    ? `The ${count} largest own times of ${all} names, all calls of a name together.`
    : "Own time of each name, all its calls together.";
  const heads = TABLE_COLUMNS.map((column, index) => {
    const button = newElement("button", column.title);
    button.type = "button";
    button.addEventListener("click", () => sortTable(app, shown, index));
    const head = newElement("th", undefined, column.words ? "words" : "");
    head.scope = "col";
    head.append(button);
    return head;
  });
  document.getElementById("heads").replaceChildren(...heads);
  sortTable(app, shown, 2);
}

// A second click on the same column turns the order round.
function sortTable(app, shown, index) {
  const column = TABLE_COLUMNS[index];
  const heads = document.getElementById("heads").children;
  const now = heads[index].getAttribute("aria-sort");
  const upwards = now ? now === "descending" : Boolean(column.words);
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[index].setAttribute("aria-sort", upwards ? "ascending" : "descending");
  const sign = upwards ? 1 : -1;
  const keyed = shown.map((entry) => ({ ...entry, key: column.key(app.tree, entry.group) }));
  keyed.sort((a, b) => sign * (column.words ? a.key.localeCompare(b.key) : a.key - b.key));
  document.getElementById("rows").replaceChildren(...keyed.map(({ row }) => row));
}

function tableRow(app, group) {
  const { tree } = app;
  const row = newElement("tr");
  const name = newElement("th", shortName(tree, group.node));
  name.scope = "row";
  name.title = fullName(tree, group.node);
  const share = newElement("td");
  share.append(shareBar(app, group), formatShare(group.own, tree.whole));
  row.append(
    name,
    newElement("td", tree.kinds[tree.kind[group.node]], "words"),
    newElement("td", formatTime(group.own)),
    share,
    newElement("td", formatTime(group.total)),
    newElement("td", formatCount(group.calls)),
    newElement("td", group.calls > 0 ? formatTime(meanTotal(group)) : "–"),
    pathCell(app, group.node));
  return row;
}

function pathCell(app, node) {
  const cell = newElement("td", undefined, "words path");
  const button = newElement("button");
  const path = pathText(app.tree, node) || "top level";
  button.type = "button";
  button.title = `Show in the picture: ${path}`;
  button.append(newElement("bdi", path));
  button.addEventListener("click", () => showInPicture(app, node));
  cell.append(button);
  return cell;
}

// A leaf alone would be one full-width bar: its parent shows what it stands among.
function showInPicture(app, node) {
  const up = app.tree.parent[node];
  app.zoom(up >= 0 ? up : node);
  select(app, node);
  app.stage.scrollIntoView({ block: "center" });
  app.canvas.focus({ preventScroll: true });
}

function shareBar(app, group) {
  const bar = newElement("span", undefined, "bar");
  const fill = newElement("span");
  fill.style.width = `${app.tree.whole > 0 ? (100 * group.own) / app.tree.whole : 0}%`;
  fill.style.background = `var(--kind-${app.tree.kinds[app.tree.kind[group.node]]})`;
  bar.append(fill);
  return bar;
}

function buildCards(app, groups) {
  const cards = groups.slice(0, CARDS).filter((group) => group.own > 0).map((group) => {
    const name = shortName(app.tree, group.node);
    const button = newElement("button");
    button.type = "button";
    button.title = `Highlight ${name} (${app.tree.kinds[app.tree.kind[group.node]]})`;
    button.append(
      newElement("span", name, "name"),
      newElement("span", formatShare(group.own, app.tree.whole), "share"), " ",
      newElement("span", formatTime(group.own), "time"),
      shareBar(app, group));
    button.addEventListener("click", () => toggleSearch(app, name));
    const item = newElement("li");
    item.append(button);
    return item;
  });
  document.getElementById("hot").replaceChildren(...cards);
}

function toggleSearch(app, name) {
  const text = app.found.text === name ? "" : name;
  document.getElementById("search").value = text;
  search(app, text);
}

function buildLegend(app) {
  const { tree } = app;
  const own = new Float64Array(tree.kinds.length);
  for (let node = 0; node < tree.count; node++) own[tree.kind[node]] += Math.max(0, tree.own[node]);
  const used = new Set(tree.kind);
  const items = tree.kinds.map((kind, code) => ({ kind, code })).filter(({ code }) => used.has(code));
  document.getElementById("legend").replaceChildren(...items.map(({ kind, code }) => {
    const item = newElement("li");
    const swatch = newElement("i");
    swatch.style.background = `var(--kind-${kind})`;
    item.append(swatch, `${kind} `, newElement("small", formatShare(own[code], tree.whole)));
    return item;
  }));
}

// For who cannot see the picture: what it is, and the answer it gives.
function describe(app, groups) {
  const { tree } = app;
  const largest = groups.slice(0, 3).map((group) =>
    `${shortName(tree, group.node)} (${tree.kinds[tree.kind[group.node]]}) ${formatShare(group.own, tree.whole)}`);
  document.getElementById("summary").textContent =
    `${formatTime(tree.whole)} in ${formatCount(tree.count)} cells. Most own time: ${largest.join(", ")}. `
    + "Arrow keys select, Enter zooms, Escape zooms out, slash searches. A table with the same data follows.";
  app.canvas.setAttribute("aria-label", `Flame graph: ${document.title}`);
}
