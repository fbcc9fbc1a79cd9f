// The panel of an entry, and of the comparison of two: figures, and links to the pages that are rendered on demand.

import { formatCount, formatDuration, formatPercent, formatTimeChange } from "../../../render/assets/kit/format.js";
import {
  byId,
  factList,
  listen,
  newButton,
  newElement,
  setBreakable,
  watchScroll,
} from "../../../render/assets/kit/page.js";
import { formatDate, stateOf } from "./entries.js";
import { formatChange, formatValue } from "./history.js";

const PAGE_NAMES = { flamegraph: "Flame graph and timeline", roofline: "Roofline", report: "Report" };
const UNITS = { throughput: "/s", memory: "B", "process-memory": "B", energy: "J", accuracy: "" };

export function buildDrill() {
  listen("drill-close", "click", () => byId("drill").close());
  // A click next to the panel closes it.
  listen("drill", "click", (event) => {
    if (event.target === byId("drill")) byId("drill").close();
  });
}

function show(title, parts) {
  setBreakable(byId("drill-title"), title);
  byId("drill-body").replaceChildren(...parts);
  if (!byId("drill").open) byId("drill").showModal();
  byId("drill").scrollTop = 0;
}

async function ask(address) {
  const response = await fetch(address).catch(() => {
    throw new Error("The server does not respond (start gpuprof dashboard again)");
  });
  const found = await response.json();
  if (response.ok) return found;
  throw new Error(found.hint ? `${found.message} (${found.hint})` : found.message);
}

async function showAsked(title, address, partsOf) {
  show(title, [newElement("p", "Reading …", "quiet")]);
  try {
    const found = await ask(address);
    show(title, partsOf(found));
  } catch (error) {
    show(title, [newElement("p", error.message, "notes")]);
  }
}

function link(text, address, { isDownload = false } = {}) {
  const element = newElement("a", text, "button");
  element.href = address;
  if (isDownload) element.download = "";
  else {
    element.target = "_blank";
    element.rel = "noopener";
  }
  return element;
}

function table(caption, titles, rows) {
  const element = newElement("table");
  const head = newElement("tr");
  for (const [column, title] of titles.entries()) {
    const isWords = rows[0]?.[column] instanceof Node;
    head.append(newElement("th", title, isWords ? "words" : undefined));
  }
  const [thead, tbody] = [newElement("thead"), newElement("tbody")];
  thead.append(head);
  for (const [first, ...cells] of rows) {
    const row = newElement("tr");
    const name = newElement("th");
    setBreakable(name, first);
    name.scope = "row";
    row.append(name, ...cells.map((cell) => (cell instanceof Node ? cell : newElement("td", cell))));
    tbody.append(row);
  }
  const captionBox = newElement("caption");
  captionBox.append(newElement("span", caption));
  element.append(captionBox, thead, tbody);
  const box = newElement("div", undefined, "scroll");
  box.append(element);
  box.tabIndex = 0;
  watchScroll(box);
  return box;
}

// ---- an entry ----

export function openEntry(page, id) {
  const item = page.entries.items.get(id);
  return showAsked(item?.path ?? "Entry", `/api/items/${id}`, (found) => entryParts(page, found));
}

function entryParts(page, found) {
  const state = stateOf(page.entries, found);
  const parts = [factList(factsOf(found, state))];
  if (state === "closing") parts.push(newElement("p", "Its program has ended, and gpuprof closes the run.", "notes"));
  else if (found.problem) parts.push(newElement("p", `${found.problem.code}: ${found.problem.message}`, "notes"));
  const actions = newElement("div", undefined, "actions");
  for (const name of found.pages) actions.append(link(PAGE_NAMES[name], `/view/${found.id}/${name}`));
  if (found.run) {
    actions.append(link("Flame graph of its run", `/view/${found.run}/flamegraph`));
    actions.append(newButton("Its run", () => openEntry(page, found.run)));
  }
  if (found.state === "ready") {
    actions.append(link("JSON", `/export/items/${found.id}.json`, { isDownload: true }));
    actions.append(newButton("Compare with another", () => page.choose(found.id)));
  }
  parts.push(actions);
  if (found.kind === "run" && found.state === "ready" && !found.pages.includes("roofline"))
    parts.push(newElement("p", "No roofline: record the run with gpuprof run --work.", "quiet"));
  if (found.figures.length) parts.push(figureTable(found));
  for (const result of found.results) parts.push(newButton(`Result: ${result.path}`, () => openEntry(page, result.id)));
  const facts = Object.entries(found.facts);
  if (facts.length)
    parts.push(
      newElement("h3", "Measured on"),
      factList(facts.map(([name, value]) => [name.replaceAll("_", " "), value ?? "–"])),
    );
  return parts;
}

function factsOf(found, state) {
  const { summary } = found;
  const facts = [
    ["Kind", found.kind],
    ["State", state],
    ["Date", formatDate(found.unix_ms)],
  ];
  if (!summary) return facts;
  const more = {
    "Program or model": summary.title,
    Duration:
      summary.duration_ns === undefined || summary.duration_ns === null ? null : formatDuration(summary.duration_ns),
    Complete: summary.complete === undefined ? null : summary.complete ? "yes" : "no: not all was recorded",
    Spans: typeof summary.spans === "number" ? formatCount(summary.spans) : null,
    Processes: summary.processes,
    Device: summary.device,
    PyTorch: summary.torch,
    Revision: summary.revision,
    Recommended: summary.choice,
    Baseline: summary.baseline,
    Outcome: summary.outcome,
    Requests: typeof summary.requests === "number" ? formatCount(summary.requests) : null,
    Rate: typeof summary.rate === "number" ? formatValue(summary.rate, "/s") : null,
    // Other results have a table of figures, whose p50 is of each technique.
    p50: found.kind === "load" && summary.p50_s ? formatValue(summary.p50_s[1], "s") : null,
    p99: summary.p99_s ? formatValue(summary.p99_s[1], "s") : null,
  };
  return [
    ...facts,
    ...Object.entries(more)
      .filter(([, value]) => value)
      .map(([name, value]) => [name, String(value)]),
  ];
}

// The longer of both sides are the rows, so that a narrow window has as much of the table as possible.
function figureTable({ figures }) {
  const caption = "p50 of all calls, as in the report; other figures are geometric means of the process runs";
  const metrics = [...new Set(figures.flatMap(({ values }) => Object.keys(values)))];
  const names = figures.map(({ technique, batch_size: size }) =>
    size === null ? technique : `${technique}, batch ${size}`,
  );
  const cell = (figure, metric) => formatValue(figure.values[metric] ?? null, UNITS[metric] ?? "s");
  if (metrics.length > figures.length)
    return table(
      caption,
      ["", ...names],
      metrics.map((metric) => [metric, ...figures.map((figure) => cell(figure, metric))]),
    );
  const rows = figures.map((figure, index) => [names[index], ...metrics.map((metric) => cell(figure, metric))]);
  return table(caption, ["", ...metrics], rows);
}

// ---- a comparison ----

export function openComparison(page, old, now) {
  const names = [old, now].map((id) => page.entries.items.get(id)?.path ?? id);
  const query = new URLSearchParams({ old, new: now });
  return showAsked("Comparison", `/api/compare?${query}`, (found) => {
    const sides = factList([
      ["Old (A)", names[0]],
      ["New (B)", names[1]],
    ]);
    const actions = newElement("div", undefined, "actions");
    actions.append(newButton("Swap A and B", () => openComparison(page, now, old)));
    const pageName = { run: "Flame graph of the difference", load: "Report of the comparison" }[found.kind];
    if (pageName) actions.append(link(pageName, `/difference?${query}`));
    return [sides, actions, ...(found.kind === "run" ? runParts(found) : resultParts(found))];
  });
}

const SCALINGS = {
  none: "Times as measured, not scaled.",
  calls: "Times for the same number of calls.",
  total: "Times for the same total.",
};

function runParts({ tables }) {
  return tables.flatMap(({ by, scaling, old_sum_ns: old, new_sum_ns: now, rows, row_count: count, notes, method }) => [
    table(
      `Self time by ${by}: ${formatDuration(old)} before, ${formatDuration(now)} now. ${SCALINGS[scaling]}`,
      [by, "Verdict", "Change", "Interval", "Before", "Now", "Calls"],
      rows.map((row) => [
        row.name,
        stateCell(row.state, verdictOf(row)),
        formatTimeChange(row.change_ns) + (row.ratio === null ? "" : ` (${formatChange(1 + row.ratio)})`),
        row.low_ns === null ? "–" : `${formatTimeChange(row.low_ns)} to ${formatTimeChange(row.high_ns)}`,
        formatDuration(row.old_ns),
        formatDuration(row.new_ns),
        callsOf(row),
      ]),
    ),
    newElement(
      "p",
      [
        count > rows.length ? `${formatCount(count - rows.length)} more.` : "",
        method ? `Judged by ${method}.` : "",
        ...notes,
      ]
        .filter(Boolean)
        .join(" "),
      "quiet",
    ),
  ]);
}

function callsOf({ calls_old: old, calls_new: now }) {
  const texts = [old, now].map((calls) => formatCount(Math.round(calls)));
  return texts[0] === texts[1] ? texts[0] : texts.join(" to ");
}

// A row that could not be judged must not read as one that was judged and did not differ.
function verdictOf({ state, low_ns: low, high_ns: high }) {
  if (state === "unknown") return "not judged";
  if (state !== "same") return state;
  if (low === null) return "too small to judge";
  return low > 0 || high < 0 ? "below the threshold" : "not significant";
}

function stateCell(state, text = state) {
  const tone = { slower: "worse", new: "worse", worse: "worse", faster: "better", gone: "better", better: "better" }[
    state
  ];
  return newElement("td", text, tone ? `words ${tone}` : "words");
}

const VERDICTS = { better: "B is better", worse: "B is worse", same: "No difference above the margins" };
const OUTCOMES = { passed: "B is not worse than A", failed: "B is worse than A", inconclusive: "Inconclusive" };

function resultParts({ kind, outcome, margin, rows, notes }) {
  // Two loads have one configuration.
  const isLoad = kind === "load";
  const nameOf = (row) => (isLoad ? row.metric : `${row.name}, ${row.metric}`);
  const cells = rows.map((row) => [
    nameOf(row),
    stateCell(row.verdict),
    row.ratio === null ? "–" : formatChange(row.ratio),
    row.low === null || row.high === null ? "–" : `${formatChange(row.low)} to ${formatChange(row.high)}`,
    ...(isLoad ? [formatPercent(row.margin)] : []),
    formatValue(row.old, row.unit),
    formatValue(row.new, row.unit),
  ]);
  const titles = ["", "Verdict", "Change", "Interval", ...(isLoad ? ["Margin"] : []), "Old", "New"];
  const headline = isLoad
    ? (VERDICTS[outcome] ?? outcome)
    : `${OUTCOMES[outcome] ?? "Two techniques"} (changes up to ${formatPercent(margin)} count as equal)`;
  const caption = isLoad
    ? `${rows[0].name}. A change above 0 is worse.`
    : "Old and new are geometric means of the process runs. A change above 0 is worse.";
  return [
    newElement("p", headline, "outcome"),
    table(caption, titles, cells),
    ...reasonsOf(rows, nameOf).map((text) => newElement("p", text, "quiet")),
    ...notes.map((text) => newElement("p", text, "quiet")),
  ];
}

// Each reason once, after the rows that have it.
function reasonsOf(rows, nameOf) {
  const named = new Map();
  for (const row of rows) if (row.reason) named.set(row.reason, [...(named.get(row.reason) ?? []), nameOf(row)]);
  return [...named].map(([reason, names]) => `${names.join("; ")}: ${reason}`);
}
