// The rows as text, tied to the points: whichever is chosen lights up the other.

const COLUMNS = [
  { title: "Name", words: true, key: (row) => row.name },
  { title: "Time", key: (row) => row.time_share ?? -1 },
  { title: "Call", key: (row) => row.time_ns },
  { title: "Bound", words: true, key: (row) => boundText(row) },
  { title: "Roof", key: (row) => row.roof_share ?? -1 },
  { title: "Sure", key: (row) => row.confidence },
  { title: "Evidence", words: true, key: (row) => row.evidence },
];

function buildTable(app) {
  const heads = COLUMNS.map((column, index) => {
    const button = make("button", column.title);
    button.type = "button";
    button.addEventListener("click", () => sortTable(app, index));
    const head = make("th", undefined, column.words ? "words" : "");
    head.scope = "col";
    head.append(button);
    return head;
  });
  document.getElementById("heads").replaceChildren(...heads);
  app.elements = app.rows.map((row) => tableRow(app, row));
  app.sorted = null;
  sortTable(app, 1);
  const left = app.rows.filter((row) => !row.at).length;
  const all = app.counts[app.by];
  document.getElementById("caption").textContent =
    `${formatCount(app.rows.length)} of ${formatCount(all)} ${app.by}s, those that take the most time.`
    + (left ? ` ${formatCount(left)} of them calculate nothing, or nobody knows what: they have no point in the plot.` : "");
}

function tableRow(app, row) {
  const element = make("tr");
  element.tabIndex = -1;
  element.dataset.row = row.index;
  const name = make("th", row.phase === "backward" ? `← ${row.name}` : row.name);
  name.scope = "row";
  name.title = row.name;
  const bound = make("td", undefined, "words");
  bound.append(swatch(row.bound), boundText(row));
  const why = make("td", row.evidence, "words");
  why.title = row.evidence;
  element.append(name, make("td", formatPercent(row.time_share)), make("td", formatTime(row.time_ns)), bound,
    make("td", formatPercent(row.roof_share)), make("td", row.confidence.toFixed(2)), why);
  element.addEventListener("click", () => select(app, row.index));
  return element;
}

// A second click on the same column turns the order round.
function sortTable(app, index) {
  const column = COLUMNS[index];
  const heads = document.getElementById("heads").children;
  const now = heads[index].getAttribute("aria-sort");
  const upwards = now ? now === "descending" : Boolean(column.words);
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[index].setAttribute("aria-sort", upwards ? "ascending" : "descending");
  const sign = upwards ? 1 : -1;
  app.order = [...app.rows].sort((a, b) => {
    const [left, right] = [column.key(a), column.key(b)];
    return sign * (column.words ? left.localeCompare(right) : left - right);
  });
  showRows(app);
}

function showRows(app) {
  const shown = app.order.filter((row) => !app.hidden.has(row.bound));
  document.getElementById("rows").replaceChildren(...shown.map((row) => app.elements[row.index]));
  markFocusable(app);
}

// One row is reached with Tab: the chosen one, or the first.
function markFocusable(app) {
  const elements = [...document.getElementById("rows").children];
  const lit = elements.find((element) => Number(element.dataset.row) === app.selected);
  for (const element of elements) element.tabIndex = -1;
  if (elements.length) (lit ?? elements[0]).tabIndex = 0;
}
