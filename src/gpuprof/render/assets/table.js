// The same data as text: the largest own times as cards and as a table that can be sorted and searched.

const TABLE_ROWS = 200;
const CARDS = 5;

// One group for each pair of name and kind, of layers for each in a model; largest own time first.
function groupByName(tree) {
  const groups = new Map();
  for (let node = 0; node < tree.count; node++) {
    const key = rowKey(tree, rowModel(tree, node), tree.name[node], tree.kind[node]);
    let group = groups.get(key);
    if (!group) {
      group = { node, own: 0, total: 0, calls: 0, covered: 0, text: "", row: null, change: newChange() };
      groups.set(key, group);
    }
    addToGroup(tree, group, node);
  }
  const sorted = [...groups.values()].sort((a, b) => b.own - a.own);
  const texts = tellingNames(tree, sorted.map(({ node }) => node));
  sorted.forEach((group, i) => { group.text = texts[i]; });
  return sorted;
}

function addToGroup(tree, group, node) {
  group.own += Math.max(0, tree.own[node]);
  group.calls += tree.calls[node];
  if (tree.diff) addChange(tree, group, node);
  if (tree.own[node] > tree.own[group.node]) group.node = node;  // the hottest instance
  if (node < group.covered) return;  // inside itself: its time is in the outer call's total already
  group.total += tree.total[node];
  group.covered = tree.end[node];
}

const TABLE_COLUMNS = [
  { title: "Name", key: (tree, group) => group.text, words: true },
  { title: "Kind", key: (tree, group) => kindName(tree, group.node), words: true },
  { title: "Own time", own: true, key: (tree, group) => group.own },
  { title: "Share", key: (tree, group) => group.own },
  { title: "Total", key: (tree, group) => group.total },
  { title: "Calls", key: (tree, group) => group.calls },
  { title: "Mean", key: (tree, group) => meanTotal(group) },
  { title: "Hottest call", key: (tree, group) => pathText(tree, group.node), words: true },
];
const BY_OWN_TIME = 2;

function meanTotal(group) {
  return group.calls > 0 ? group.total / group.calls : 0;
}

function buildTable(app, groups) {
  const columns = app.tree.diff ? DIFFERENCE_COLUMNS : TABLE_COLUMNS;
  const table = { groups, columns, index: app.tree.diff ? BY_CHANGE : BY_OWN_TIME, upwards: false };
  const heads = columns.map((column, index) => {
    const button = newElement("button", column.own ? ownTitle(app.tree) : column.title);
    button.type = "button";
    button.addEventListener("click", () => sortTable(app, table, index));
    const head = newElement("th", undefined, column.words ? "words" : "");
    head.scope = "col";
    head.append(button);
    return head;
  });
  document.getElementById("heads").replaceChildren(...heads);
  app.filterTable = () => showRows(app, table);
  app.filterTable();
}

// A second click on the same column turns the order round.
function sortTable(app, table, index) {
  table.upwards = table.index === index ? !table.upwards : Boolean(table.columns[index].words);
  table.index = index;
  showRows(app, table);
}

// The names that the search found, the largest own times of them, in the order that was asked for.
function showRows(app, table) {
  const { marks } = app.found;
  const matching = marks ? table.groups.filter(({ node }) => marks[node]) : table.groups;
  const shown = matching.slice(0, TABLE_ROWS);
  document.getElementById("caption").textContent = captionText(app, table, matching.length);
  showOrder(table);
  const rows = sortGroups(app, table, shown).map((group) => (group.row ??= tableRow(app, group)));
  const body = document.getElementById("rows");
  const isSame = rows.length === body.children.length && rows.every((row, i) => row === body.children[i]);
  if (!isSame) body.replaceChildren(...rows);  // laying out the table takes longer than the search
}

function captionText(app, table, matching) {
  const sides = app.tree.diff ? ", before and now" : "";
  const meaning = `Own ${app.tree.time} of each name, all its calls together${sides}.`;
  const largest = matching > TABLE_ROWS ? ` Shown are the ${formatCount(TABLE_ROWS)} largest.` : "";
  const { marks, text } = app.found;
  if (!marks) return (largest ? `${formatCount(matching)} names. ` : "") + meaning + largest;
  if (!matching) return `No name matches “${text}”. ${meaning}`;
  const verb = matching === 1 ? "matches" : "match";
  return `${formatCount(matching)} of ${counted(table.groups.length, "name")} ${verb} “${text}”. ${meaning}${largest}`;
}

function showOrder(table) {
  const heads = document.getElementById("heads").children;
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[table.index].setAttribute("aria-sort", table.upwards ? "ascending" : "descending");
}

function sortGroups(app, table, groups) {
  const column = table.columns[table.index];
  const sign = table.upwards ? 1 : -1;
  const keyed = groups.map((group) => ({ group, key: column.key(app.tree, group) }));
  keyed.sort((a, b) => sign * (column.words ? a.key.localeCompare(b.key) : a.key - b.key));
  return keyed.map(({ group }) => group);
}

function tableRow(app, group) {
  const { tree } = app;
  if (tree.diff) return differenceRow(app, group);
  const row = newElement("tr");
  const kind = kindName(tree, group.node);
  const share = newElement("td");
  share.append(shareBar(app, group), newElement("span", formatShare(group.own, tree.whole)));
  row.append(
    nameCell(tree, group, kind),
    newElement("td", kind, "words kind"),
    newElement("td", formatAmount(tree, group.own)),
    share,
    newElement("td", formatAmount(tree, group.total)),
    newElement("td", group.calls > 0 ? formatCount(group.calls) : "–"),
    newElement("td", group.calls > 0 ? formatAmount(tree, meanTotal(group)) : "–"),
    pathCell(app, group.node));
  return row;
}

// On a narrow screen the kind stands under the name instead of in a column.
function nameCell(tree, group, kind) {
  const cell = newElement("th");
  const name = newElement("span");
  setBreakable(name, group.text);
  cell.scope = "row";
  cell.title = fullListedName(tree, group.node);
  cell.append(name, newElement("small", kind));
  return cell;
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
  fill.style.background = `var(--kind-${kindName(app.tree, group.node)})`;
  bar.append(fill);
  return bar;
}

function buildCards(app, groups) {
  if (app.tree.diff) return buildChangeCards(app, groups);
  // Time outside all spans is a cell, a row and in the legend; a card would only say that a program starts.
  const calls = groups.filter((group) => group.own > 0 && kindName(app.tree, group.node) !== "process");
  const cards = calls.slice(0, CARDS).map((group) => {
    const button = newElement("button");
    const name = newElement("span", undefined, "name");
    setBreakable(name, group.text);
    button.type = "button";
    button.title = `Highlight ${fullListedName(app.tree, group.node)} (${kindName(app.tree, group.node)})`;
    button.append(
      name,
      newElement("span", formatShare(group.own, app.tree.whole), "share"), " ",
      newElement("span", formatAmount(app.tree, group.own), "time"),
      shareBar(app, group));
    button.addEventListener("click", () => toggleSearch(app, exactQuery(listedName(app.tree, group.node))));
    const item = newElement("li");
    item.append(button);
    return item;
  });
  document.getElementById("hot").replaceChildren(...cards);
}

function toggleSearch(app, query) {
  const text = app.found.text === query ? "" : query;
  document.getElementById("search").value = text;
  search(app, text);
}

// The kinds that occur, with the own time of each; a process's is that outside all spans.
function kindsInUse(tree) {
  const own = new Float64Array(tree.kinds.length);
  for (let node = 0; node < tree.count; node++) own[tree.kind[node]] += Math.max(0, tree.own[node]);
  const used = new Set(tree.kind);
  return tree.kinds.map((kind, code) => ({
    kind,
    code,
    used: used.has(code),
    text: kind === "process" && own[code] > 0 ? "process, outside all spans" : kind,
    share: formatShare(own[code], tree.whole),
  })).filter((entry) => entry.used);
}

function buildLegend(app) {
  const items = legendEntries(app).map(({ text, share, style, hatch }) => {
    const item = newElement("li");
    const swatch = newElement("i", undefined, hatch ? `hatch-${hatch}` : undefined);
    swatch.style.backgroundColor = style;
    item.append(swatch, `${text} `, newElement("small", share));
    return item;
  });
  document.getElementById("legend").replaceChildren(...items);
}

// For who cannot see the picture: what it is, and the answer it gives.
function describe(app, groups) {
  const { tree } = app;
  if (tree.diff) return describeChange(app, groups);
  const largest = groups.slice(0, 3).map((group) =>
    `${group.text} (${kindName(tree, group.node)}) ${formatShare(group.own, tree.whole)}`);
  document.getElementById("summary").textContent =
    `${formatAmount(tree, tree.whole)} in ${formatCount(tree.count)} cells. Most own time: ${largest.join(", ")}. `
    + "Arrow keys select, Enter zooms, Escape zooms out, slash searches. A table with the same data follows.";
  app.canvas.setAttribute("aria-label", `Flame graph: ${document.title}`);
}
