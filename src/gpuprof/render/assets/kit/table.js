// Lists of names: a table that is sorted by its heads, and texts and expressions to search for.

import { byId, newButton, newElement } from "./page.js";

// ---- sorting ----

// Calls `show` after each change of the order; the largest of the column `index` are first.
export function newTable(columns, index, show) {
  const table = { columns, index, upwards: false };
  const heads = columns.map(({ title, words }, column) => {
    const head = newElement("th", undefined, words ? "words" : "");
    head.scope = "col";
    head.append(newButton(title, () => sortBy(table, column, show)));
    return head;
  });
  byId("heads").replaceChildren(...heads);
  return table;
}

// A second click on the same column reverses the order.
function sortBy(table, column, show) {
  table.upwards = table.index === column ? !table.upwards : Boolean(table.columns[column].words);
  table.index = column;
  show();
}

// The items in the order of the table, which its heads show.
export function sortItems(table, items) {
  const heads = byId("heads").children;
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[table.index].setAttribute("aria-sort", table.upwards ? "ascending" : "descending");
  const { key, words } = table.columns[table.index];
  const sign = table.upwards ? 1 : -1;
  return items
    .map((item) => ({ item, key: key(item) }))
    .sort((a, b) => sign * (words ? a.key.localeCompare(b.key) : a.key - b.key))
    .map(({ item }) => item);
}

// A row's name, as its head.
export function rowHead(text, title) {
  const head = newElement("th", text);
  head.scope = "row";
  if (title !== undefined) head.title = title;
  return head;
}

// ---- searching ----

// A test for names, or null where the text is not a regular expression that can be read.
export function compileQuery(text) {
  const pattern = /^\/(.+)\/([imsu]*)$/.exec(text);
  if (!pattern) {
    const needle = text.toLowerCase();
    return (name) => name.toLowerCase().includes(needle);
  }
  try {
    const expression = new RegExp(pattern[1], pattern[2]);
    return (name) => expression.test(name);
  } catch {
    return null;
  }
}

// A text that finds exactly the names that are shown as `name`.
export function exactQuery(name) {
  return `/^${name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")}$/`;
}

// The box has the found count next to it.
export function showFound(text, isInvalid) {
  byId("found").textContent = text;
  byId("search").setAttribute("aria-invalid", String(isInvalid));
}
