// The table of runs and results: searched, sorted, and selected for a comparison.

import { counted, formatCount, formatDuration } from "../../../render/assets/kit/format.js";
import { byId, fillOptions, listen, newElement, newButton, setBreakable } from "../../../render/assets/kit/page.js";
import { compileQuery, newTable, rowHead, showFound, sortItems } from "../../../render/assets/kit/table.js";

const PAGE = 60; // rows; a thousand at once take a tenth of a second to lay out
const KIND_NAMES = {
  run: "Runs",
  benchmark: "Benchmarks",
  comparison: "Comparisons",
  load: "Load tests",
  gate: "Gates",
  result: "Other files",
};
const [DATES, DATES_WITH_SECONDS] = ["short", "medium"].map(
  (timeStyle) => new Intl.DateTimeFormat("en-CA", { dateStyle: "short", timeStyle, hourCycle: "h23" }),
);

export function formatDate(ms, { hasSeconds = false } = {}) {
  return (hasSeconds ? DATES_WITH_SECONDS : DATES).format(ms).replace(",", "");
}

const COLUMNS = [
  { title: "Name", words: true, key: (item) => item.path },
  { title: "Kind", words: true, key: (item) => item.kind },
  { title: "Program or model", words: true, key: (item) => item.summary?.title ?? "" },
  { title: "Date", key: (item) => item.unix_ms },
  { title: "Duration or p50", key: (item) => figureNs(item) ?? -1 },
  { title: "State", words: true, key: (item) => item.state },
];

function figureNs(item) {
  const { summary } = item;
  if (!summary) return null;
  if (item.kind === "run") return summary.duration_ns ?? null;
  return summary.p50_s ? summary.p50_s[1] * 1e9 : null;
}

export function stateOf(entries, { id, state }) {
  return entries.isClosing(id) ? "closing" : state;
}

export function newEntries(actions) {
  return { items: new Map(), isClosing: () => false, version: 0, pending: 0, shown: PAGE, chosen: [], actions };
}

export function buildEntries(entries) {
  entries.table = newTable(COLUMNS, 3, () => showEntries(entries));
  listen("search", "input", () => {
    entries.shown = PAGE;
    showEntries(entries);
  });
  listen("kind", "change", () => {
    entries.shown = PAGE;
    showEntries(entries);
  });
  listen("more", "click", () => {
    entries.shown += 10 * PAGE;
    showEntries(entries);
  });
  listen("rows", "click", (event) => {
    const row = event.target.closest("tr");
    if (!row) return;
    if (event.target.matches("input")) choose(entries, row.dataset.id);
    else entries.actions.open(row.dataset.id);
  });
  listen("rows", "keydown", (event) => onKey(entries, event));
}

function onKey(entries, event) {
  const row = event.target.closest("tr");
  const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
  if (next) next.focus();
  else if (event.key === "Enter") entries.actions.open(row.dataset.id);
  else if (event.key === "c" && !event.ctrlKey && !event.metaKey) choose(entries, row.dataset.id);
  else return;
  event.preventDefault();
}

// Takes in what has changed.
export function updateEntries(entries, { version, whole, items, removed, pending, cut }) {
  if (whole) entries.items.clear();
  for (const item of items) entries.items.set(item.id, item);
  for (const id of removed) entries.items.delete(id);
  entries.chosen = entries.chosen.filter((id) => entries.items.has(id));
  Object.assign(entries, { version, pending });
  showCut(cut);
  showEntries(entries);
}

// A folder that has more than is listed must not look as if this was all.
function showCut(cut) {
  byId("cut").hidden = cut === null;
  if (cut === null) return;
  const left = [
    cut.folders ? `${counted(cut.folders, "folder")} and what is in them` : "",
    cut.files ? counted(cut.files, "file") : "",
  ];
  byId("cut").textContent =
    `The folder has more than ${formatCount(cut.limit)} entries. ` +
    `Not listed: ${left.filter(Boolean).join(", ")}. Hint: serve a folder inside it.`;
}

// ---- comparison ----

export function choose(entries, id) {
  const { chosen } = entries;
  entries.chosen = chosen.includes(id) ? chosen.filter((each) => each !== id) : [...chosen, id].slice(-2);
  showEntries(entries);
}

function showChosen(entries) {
  const box = byId("selected");
  const items = entries.chosen.map((id) => entries.items.get(id));
  box.hidden = items.length === 0;
  const names = items.map((item, index) => {
    const chip = newElement("span", undefined, "chip");
    setBreakable(chip, `${index === 0 ? "A" : "B"}: ${item.path}`);
    return chip;
  });
  const [a, b] = entries.chosen;
  const compare = newButton("Compare", () => entries.actions.compare(a, b));
  compare.disabled = items.length < 2;
  const clear = newButton("Clear", () => {
    entries.chosen = [];
    showEntries(entries);
  });
  box.replaceChildren(...names, compare, clear);
}

// ---- rows ----

export function showEntries(entries) {
  showKinds(entries);
  const test = compileQuery(byId("search").value) ?? (() => false);
  const kind = byId("kind").value;
  const all = [...entries.items.values()];
  const found = all.filter(
    (item) =>
      (!kind || item.kind === kind || item.state === kind) && (test(item.path) || test(item.summary?.title ?? "")),
  );
  const rows = sortItems(entries.table, found).slice(0, entries.shown);
  const focused = document.activeElement?.closest?.("#rows tr")?.dataset.id;
  byId("rows").replaceChildren(...rows.map((item) => rowOf(entries, item)));
  if (focused) byId("rows").querySelector(`[data-id="${focused}"]`)?.focus();
  const reading = entries.pending ? `, reading ${formatCount(entries.pending)}` : "";
  showFound(
    `${found.length === all.length ? "" : `${formatCount(found.length)} of `}${counted(all.length, "entry").replace("entrys", "entries")}${reading}`,
    false,
  );
  byId("more").hidden = found.length <= entries.shown;
  byId("more").textContent = `Show more (${formatCount(found.length - entries.shown)})`;
  const empty = byId("no-entries");
  empty.hidden = found.length > 0;
  empty.classList.toggle("of-folder", all.length === 0);
  empty.textContent = all.length
    ? "Nothing matches the search."
    : "No runs and no results are in this folder yet: gpuprof run train.py, or gpuprof bench MODEL --output-dir results";
  showChosen(entries);
}

function showKinds(entries) {
  const counts = new Map();
  for (const { kind, state } of entries.items.values()) {
    counts.set(kind, (counts.get(kind) ?? 0) + 1);
    if (state === "damaged") counts.set("damaged", (counts.get("damaged") ?? 0) + 1);
  }
  const options = [...counts].map(([kind, count]) => [
    kind,
    `${KIND_NAMES[kind] ?? "Damaged"} (${formatCount(count)})`,
  ]);
  const former = byId("kind").value;
  const known = [["", "All kinds"], ...options];
  const text = JSON.stringify(known);
  if (entries.kinds === text) return;
  entries.kinds = text;
  fillOptions("kind", known);
  if (counts.has(former)) byId("kind").value = former;
}

function rowOf(entries, item) {
  const row = newElement("tr", undefined, `state-${stateOf(entries, item)}`);
  row.dataset.id = item.id;
  row.tabIndex = 0;
  const head = rowHead("", item.path);
  const box = newElement("input");
  box.type = "checkbox";
  box.checked = entries.chosen.includes(item.id);
  box.disabled = item.state !== "ready";
  box.setAttribute("aria-label", `Compare ${item.path}`);
  box.tabIndex = -1;
  const name = newElement("span");
  setBreakable(name, item.path);
  head.append(box, name);
  const ns = figureNs(item);
  const state = newElement("td", undefined, "words");
  state.append(newElement("span", stateOf(entries, item), "badge"));
  const title = newElement("td", undefined, "words title");
  setBreakable(title, item.summary?.title ?? item.problem?.message ?? "–");
  row.append(
    head,
    newElement("td", item.kind, "words"),
    title,
    newElement("td", formatDate(item.unix_ms)),
    newElement("td", ns === null ? "–" : formatDuration(ns)),
    state,
  );
  return row;
}
