// The same data as a table that can be sorted and searched.

import { counted, formatCount, formatDuration, formatFraction, formatTimeChange } from "../kit/format.js";
import { byId, newButton, newElement, setBreakable } from "../kit/page.js";
import { newTable, rowHead, sortItems } from "../kit/table.js";
import { showInPicture } from "./actions.js";
import { formatRatio } from "./difference.js";
import { cellOfNode, fullTree } from "./folding.js";
import { pathText } from "./nodes.js";
import { changeOf, foldRepeated, fractionBar, groupKind, meanTotal, ratioOf, verdictText } from "./overview.js";
import { amountText, ownTitle } from "./tree.js";

const TABLE_ROWS = 200;

const SORTED_COLUMN = 2; // self time, or its change

function columnsOf(app) {
  const tree = fullTree(app);
  const name = { title: "Name", key: ({ text }) => text, words: true };
  const kind = { title: "Kind", key: (group) => groupKind(tree, group), words: true };
  const path = ({ node }) => pathText(tree, node);
  if (tree.diff) {
    const [before, now] = sideNames(tree);
    return [
      name,
      kind,
      { title: "Change", key: (group) => Math.abs(changeOf(group)) },
      { title: "Cells that differ", key: verdictText, words: true },
      { title: before, key: ({ change }) => change.old },
      { title: now, key: ({ change }) => change.new },
      { title: "Ratio", key: ratioOf },
      { title: "Where most", key: path, words: true },
    ];
  }
  return [
    name,
    kind,
    { title: ownTitle(tree), key: ({ own }) => own },
    { title: "Percent", key: ({ own }) => own },
    { title: "Total", key: ({ total }) => total },
    { title: "Calls", key: ({ calls }) => calls },
    { title: "Mean", key: meanTotal },
    { title: "Hottest call", key: path, words: true },
  ];
}

function sideNames(tree) {
  const { before = "Before", now = "Now" } = tree.views[tree.view];
  return [before, now];
}

// Another weight builds the table again; the search filters it.
export function buildTable(app, names) {
  const groups = foldRepeated(app.tree, names);
  app.table = { groups, sorted: newTable(columnsOf(app), SORTED_COLUMN, () => showRows(app)) };
  showRows(app);
}

// The names that the search found, the largest self times of them, in the order of the heads.
export function showRows(app) {
  const {
    table: { groups, sorted },
    found: { marks, names },
  } = app;
  const matching = marks ? groups.filter((group) => membersOf(group).some(({ name }) => names[name])) : groups;
  const shown = matching.slice(0, TABLE_ROWS);
  byId("caption").textContent = captionText(app, groups.length, matching.length);
  const listed = sortItems(sorted, shown).flatMap((group) => (group.isOpen ? [group, ...group.parts] : [group]));
  const rows = listed.map((group) => (group.row ??= tableRow(app, group)));
  const body = byId("rows");
  const isSame = rows.length === body.children.length && rows.every((row, i) => row === body.children[i]);
  if (!isSame) body.replaceChildren(...rows); // laying out the table takes longer than the search
}

function membersOf(group) {
  return group.parts ?? [group];
}

function captionText(app, all, matching) {
  const sides = app.tree.diff ? `, ${sideNames(app.tree).join(" and ").toLowerCase()}` : "";
  const meaning = `Self ${app.tree.time} of each name, summed over its calls${sides}.`;
  const largest = matching > TABLE_ROWS ? ` Shown are the ${formatCount(TABLE_ROWS)} largest.` : "";
  const { marks, text } = app.found;
  if (!marks) return (largest ? `${formatCount(matching)} names. ` : "") + meaning + largest;
  if (!matching) return `No name matches “${text}”. ${meaning}`;
  const verb = matching === 1 ? "matches" : "match";
  return `${formatCount(matching)} of ${counted(all, "name")} ${verb} “${text}”. ${meaning}${largest}`;
}

function tableRow(app, group) {
  const kind = groupKind(app.tree, group);
  const row = newElement("tr");
  row.append(nameCell(app, group, kind), newElement("td", kind, "words kind"));
  row.append(...(app.tree.diff ? changeCells(group) : amountCells(app, group)), pathCell(app, group.node));
  return row;
}

function amountCells({ tree }, group) {
  const fraction = newElement("td");
  fraction.append(fractionBar(tree, group), newElement("span", formatFraction(group.own, tree.whole)));
  return [
    newElement("td", amountText(tree, group.own)),
    fraction,
    newElement("td", amountText(tree, group.total)),
    newElement("td", group.calls > 0 ? formatCount(group.calls) : "–"),
    newElement("td", group.calls > 0 ? amountText(tree, meanTotal(group)) : "–"),
  ];
}

function changeCells(group) {
  const { change } = group;
  return [
    newElement("td", formatTimeChange(changeOf(group))),
    newElement("td", verdictText(group), "words cells"),
    newElement("td", formatDuration(change.old)),
    newElement("td", formatDuration(change.new)),
    newElement("td", formatRatio(change.old, change.new)),
  ];
}

// On a narrow screen the kind is under the name instead of in a column.
function nameCell(app, group, kind) {
  const cell = rowHead(undefined, group.parts ? group.text : app.tree.names[group.name]);
  const name = newElement("span");
  setBreakable(name, group.text);
  if (group.parts) cell.append(newToggle(app, group), " ");
  cell.append(name, newElement("small", kind));
  return cell;
}

// Shows the members of a group below it, and hides them again.
function newToggle(app, group) {
  const button = newButton("+", () => {
    group.isOpen = !group.isOpen;
    button.textContent = group.isOpen ? "−" : "+";
    button.setAttribute("aria-expanded", String(group.isOpen));
    showRows(app);
  });
  button.className = "toggle";
  button.setAttribute("aria-label", `Layers of ${group.text}`);
  button.setAttribute("aria-expanded", "false");
  return button;
}

function pathCell(app, node) {
  const cell = newElement("td", undefined, "words path");
  const path = pathText(fullTree(app), node) || "top level";
  const button = newButton(undefined, () => showInPicture(app, cellOfNode(app, node)));
  button.title = `Show in the picture: ${path}`;
  button.append(newElement("bdi", path));
  cell.append(button);
  return cell;
}
