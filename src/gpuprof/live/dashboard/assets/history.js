// The history of a model: a line for each technique, change points with their intervals, and what they mean.

import { FONT } from "../../../render/assets/kit/canvas.js";
import {
  counted,
  formatAmount,
  formatDuration,
  formatPercent,
  threeDigits,
} from "../../../render/assets/kit/format.js";
import {
  byId,
  fillOptions,
  hideTooltip,
  listen,
  newButton,
  newElement,
  press,
  showTooltip,
  watchScroll,
} from "../../../render/assets/kit/page.js";
import { withColors } from "../../../render/assets/kit/theme.js";
import { drawChart, roundTicks, timeTicks } from "./chart.js";
import { formatDate } from "./entries.js";
import { paletteOf } from "./live.js";

const COLORS = ["--accent", "--second", "--good", "--violet", "--teal", "--bad", "--olive", "--quiet"];
const REACH = 24; // pixels from the pointer to a point
const DAYS = new Intl.DateTimeFormat("en-CA", { month: "short", day: "numeric" });

export function newHistory(actions) {
  return { models: {}, data: null, hidden: new Set(), selected: null, byOrder: false, scales: null, actions, asked: 0 };
}

// ---- values ----

export function formatValue(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "s") return formatDuration(value * 1e9);
  if (unit === "B") return formatAmount(value, "B");
  if (unit === "fraction") return formatPercent(value);
  if (unit === "/s" || unit === "samples/s") return `${threeDigits(value)}/s`;
  return `${threeDigits(value)} ${unit}`.trim();
}

// A figure with its interval; an interval that reads like the figure adds nothing.
function withInterval([low, value, high], unit) {
  const [from, text, to] = [low, value, high].map((each) => formatValue(each, unit));
  const isKnown = typeof low === "number" && typeof high === "number";
  return isKnown && (from !== text || to !== text) ? `${text} (${from} to ${to})` : text;
}

const LARGE_RATIO = 10;
const LARGEST_RATIO = 1e6;

// A factor as a signed change, from ten times on as a multiple.
export function formatChange(ratio) {
  if (ratio === null) return "?";
  if (ratio > LARGEST_RATIO) return `more than ${LARGEST_RATIO.toLocaleString("en-US")}x`;
  if (ratio >= LARGE_RATIO) return `${Math.round(ratio).toLocaleString("en-US")}x`;
  return `${ratio >= 1 ? "+" : "−"}${formatPercent(Math.abs(ratio - 1))}`;
}

function changeText({ ratio, low, high, is_worse: isWorse }) {
  return `${formatChange(ratio)} (95% CI ${formatChange(low)} to ${formatChange(high)}), ${isWorse ? "worse" : "better"}`;
}

// ---- data ----

export function buildHistory(history) {
  for (const id of ["model", "metric"]) listen(id, "change", () => load(history, { isNew: id === "model" }));
  listen("by-time", "click", () => orderBy(history, false));
  listen("by-order", "click", () => orderBy(history, true));
  const canvas = byId("history-chart");
  canvas.addEventListener("pointermove", (event) => point(history, event));
  canvas.addEventListener("pointerleave", hideTooltip);
  canvas.addEventListener("click", (event) => {
    const found = nearest(history, event);
    if (found) select(history, found, { opens: true });
  });
  canvas.addEventListener("keydown", (event) => onKey(history, event));
}

// Called when entries have changed: what is shown is asked for again.
export async function refreshHistory(history) {
  const response = await fetch("/api/models");
  if (!response.ok) return;
  history.models = await response.json();
  const names = Object.keys(history.models);
  byId("history").hidden = names.length === 0;
  if (names.length === 0) return;
  const former = byId("model").value;
  fillOptions(
    "model",
    names.map((name) => [name, `${name} (${history.models[name].results})`]),
  );
  if (names.includes(former)) byId("model").value = former;
  await load(history, { isNew: !names.includes(former) });
}

async function load(history, { isNew }) {
  const model = byId("model").value;
  const metrics = history.models[model].metrics;
  const former = byId("metric").value;
  fillOptions(
    "metric",
    metrics.map((each) => [each, each]),
  );
  byId("metric").value = metrics.includes(former) ? former : metrics[0];
  const query = new URLSearchParams({ model, metric: byId("metric").value });
  for (const form of ["csv", "json", "html"]) byId(`history-${form}`).href = `/export/history.${form}?${query}`;
  const asked = ++history.asked;
  const response = await fetch(`/api/history?${query}`);
  if (!response.ok || asked !== history.asked) return;
  history.data = await response.json();
  if (isNew) Object.assign(history, { hidden: new Set(), selected: null });
  const { selected } = history;
  if (selected && !history.data.series[selected.series]?.points[selected.index]) history.selected = null;
  buildLegend(history);
  buildChanges(history);
  describe(history);
  drawHistory(history);
}

function orderBy(history, byOrder) {
  history.byOrder = byOrder;
  press("by-time", !byOrder);
  press("by-order", byOrder);
  drawHistory(history);
}

function shownSeries({ data, hidden }) {
  return data.series.map((series, index) => ({ ...series, index })).filter(({ label }) => !hidden.has(label));
}

// ---- drawing ----

function xOf(history, series, index) {
  return history.byOrder ? index : series.points[index].t;
}

export function drawHistory(history) {
  if (history.data === null || byId("history").hidden) return;
  const shown = shownSeries(history);
  const canvas = byId("history-chart");
  withColors((read) => {
    const colors = paletteOf(read);
    const color = (index) => read(`var(${COLORS[index % COLORS.length]})`);
    const range = rangeOf(history, shown);
    const lines = shown.flatMap((series) => linesOf(history, series, color(series.index)));
    const marks = shown.flatMap((series) =>
      series.changes.map((change) => ({
        at: (xOf(history, series, change.at - 1) + xOf(history, series, change.at)) / 2,
        color: color(series.index),
        label: shown.length <= 2 ? formatChange(change.ratio) : "",
      })),
    );
    history.scales = drawChart(canvas, {
      ...range,
      top: 26,
      yTitle: history.data.metric,
      xTitle: history.byOrder ? "Results of a technique, in the order of their dates" : "Date of the result",
      yTicks: roundTicks(...range.y, 5),
      xTicks: xTicks(history, range.x),
      formatY: (value) => formatValue(value, history.data.unit),
      lines,
      marks,
      selected: selectedPlace(history),
      colors,
    });
  });
  showSelected(history);
}

function rangeOf(history, shown) {
  let [low, high, first, last] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const series of shown)
    series.points.forEach(({ value, low: from, high: to }, index) => {
      low = Math.min(low, value, from ?? value);
      high = Math.max(high, value, to ?? value);
      const x = xOf(history, series, index);
      first = Math.min(first, x);
      last = Math.max(last, x);
    });
  if (!(high >= low)) return { x: [0, 1], y: [0, 1] };
  const room = (high - low) * 0.08 || high * 0.05;
  const wide = (last - first) * 0.01 || 1;
  return { x: [first - wide, last + wide], y: [Math.max(0, low - room), high + room] };
}

function xTicks(history, [first, last]) {
  const count = Math.max(2, Math.round(byId("history-chart").clientWidth / 130));
  if (history.byOrder)
    return roundTicks(first, last, count)
      .filter(Number.isInteger)
      .map((tick) => [tick, String(tick + 1)]);
  const isShort = last - first < 3 * 86_400_000;
  const ticks = timeTicks(first, last, count);
  if (!isShort) return ticks.map((tick) => [tick, DAYS.format(tick)]);
  const hasSeconds = ticks.some((tick) => tick % 60_000 !== 0);
  return ticks.map((tick) => [tick, formatDate(tick, { hasSeconds })]);
}

function linesOf(history, series, color) {
  const { points, levels } = series;
  const xAt = (index) => xOf(history, series, index);
  const values = {
    count: points.length,
    xAt,
    yAt: (index) => points[index].value,
    interval: (index) => {
      const { low, high } = points[index];
      return low === null || high === null ? null : [low, high];
    },
    color,
    width: 1.25,
    dots: points.length > 150 ? 1.8 : 3,
  };
  const steps = levels.map(([from, to, value]) => ({
    count: 2,
    xAt: (end) => xAt(end ? to - 1 : from),
    yAt: () => value,
    color,
    width: 3,
  }));
  return [values, ...steps];
}

function selectedPlace(history) {
  const { selected, data } = history;
  if (selected === null) return null;
  const series = data.series[selected.series];
  return { x: xOf(history, series, selected.index), y: series.points[selected.index].value };
}

// ---- pointer and keys ----

function nearest(history, event) {
  const { scales } = history;
  if (!scales) return null;
  let best = null;
  let distance = REACH;
  for (const series of shownSeries(history))
    series.points.forEach((each, index) => {
      const [dx, dy] = [
        scales.toX(xOf(history, series, index)) - event.offsetX,
        scales.toY(each.value) - event.offsetY,
      ];
      const away = Math.hypot(dx, dy);
      if (away < distance) [best, distance] = [{ series: series.index, index }, away];
    });
  return best;
}

function point(history, event) {
  const found = nearest(history, event);
  byId("history-chart").toggleAttribute("data-hit", found !== null);
  if (found === null) return hideTooltip();
  const [title, lines] = textsOf(history, found);
  return showTooltip(event.clientX, event.clientY, [
    newElement("b", title),
    ...lines.map((line) => newElement("div", line)),
  ]);
}

function textsOf({ data }, { series, index }) {
  const { label, points, changes } = data.series[series];
  const { value, low, high, t, revision } = points[index];
  const lines = [withInterval([low, value, high], data.unit), formatDate(t)];
  if (revision) lines.push(`revision ${revision.slice(0, 10)}`);
  const change = changes.find(({ at }) => at === index);
  if (change) lines.push(`new level: ${changeText(change)}`, ...change.versions);
  return [label, lines];
}

function select(history, found, { opens = false } = {}) {
  history.selected = found;
  drawHistory(history);
  if (opens) history.actions.open(history.data.series[found.series].points[found.index].id);
}

function showSelected(history) {
  const box = byId("history-details");
  if (history.selected === null) {
    box.textContent = "Point at a result, or use the arrow keys; Enter opens it.";
    return;
  }
  const [title, lines] = textsOf(history, history.selected);
  box.replaceChildren(newElement("b", title), newElement("span", lines.join(" · ")));
}

function onKey(history, event) {
  const shown = shownSeries(history);
  if (shown.length === 0) return;
  const { selected } = history;
  const [side, up] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [
    0, 0,
  ];
  if (event.key === "Enter" && selected) select(history, selected, { opens: true });
  else if (event.key === "Home" || event.key === "End" || side || up) {
    const place = Math.max(
      0,
      shown.findIndex(({ index }) => index === selected?.series),
    );
    const series = shown[Math.min(shown.length - 1, Math.max(0, place + up))];
    const last = series.points.length - 1;
    const from = event.key === "Home" ? 0 : event.key === "End" || selected === null ? last : selected.index + side;
    select(history, { series: series.index, index: Math.min(last, Math.max(0, from)) });
  } else return;
  event.preventDefault();
}

// ---- legend and table ----

function buildLegend(history) {
  const items = history.data.series.map(({ label, points }, index) => {
    const item = newElement("li");
    const button = newButton(undefined, () => {
      if (!history.hidden.delete(label)) history.hidden.add(label);
      button.setAttribute("aria-pressed", String(!history.hidden.has(label)));
      drawHistory(history);
    });
    const swatch = newElement("i");
    swatch.style.background = `var(${COLORS[index % COLORS.length]})`;
    button.setAttribute("aria-pressed", String(!history.hidden.has(label)));
    button.append(swatch, `${label} `, newElement("small", String(points.length)));
    item.append(button);
    return item;
  });
  byId("history-legend").replaceChildren(...items);
}

function buildChanges(history) {
  const { data } = history;
  const box = byId("changes");
  const rows = data.series.flatMap((series, place) =>
    series.changes.map((change) => changeRow(history, place, change)),
  );
  box.hidden = rows.length === 0;
  const table = newElement("table");
  const head = newElement("tr");
  for (const title of ["New level since", "Technique", "Change", "95% interval", "Verdict", "Versions that changed"]) {
    const cell = newElement("th", title, "words");
    cell.scope = "col";
    head.append(cell);
  }
  const [thead, tbody] = [newElement("thead"), newElement("tbody")];
  thead.append(head);
  tbody.append(...rows);
  table.append(newElement("caption", "Change points"), thead, tbody);
  const scrolled = newElement("div", undefined, "scroll");
  scrolled.tabIndex = 0;
  scrolled.setAttribute("role", "group");
  scrolled.setAttribute("aria-label", "Change points");
  scrolled.append(table);
  box.replaceChildren(scrolled);
  watchScroll(scrolled);
}

function changeRow(history, place, change) {
  const series = history.data.series[place];
  const row = newElement("tr");
  const head = newElement("th");
  head.scope = "row";
  head.append(
    newButton(formatDate(series.points[change.at].t), () =>
      select(history, { series: place, index: change.at }, { opens: true }),
    ),
  );
  const cells = [
    series.label,
    formatChange(change.ratio),
    `${formatChange(change.low)} to ${formatChange(change.high)}`,
    change.is_worse ? "worse" : "better",
    change.versions.join(", ") || "–",
  ];
  row.append(head, ...cells.map((text) => newElement("td", text, "words")));
  row.children[4].classList.add(change.is_worse ? "worse" : "better");
  return row;
}

function describe({ data }) {
  const texts = data.series.map(({ label, points, changes }) => {
    const last = points.at(-1);
    const found = changes.map((change) => `${formatDate(points[change.at].t)} ${changeText(change)}`);
    return `${label}: ${points.length} results, the latest ${formatValue(last.value, data.unit)}. Change points: ${found.join("; ") || "none"}.`;
  });
  byId("history-text").textContent = `${data.model}, ${data.metric}. ${texts.join(" ")}`;
}

// ---- picture ----

const PICTURE = { head: 40, row: 22, side: 14, swatch: 10 }; // CSS pixels

// The chart with its title, its legend and the page's background, since a picture is looked at elsewhere.
export function historyPicture(history) {
  const source = byId("history-chart");
  const ratio = source.width / source.clientWidth;
  const shown = shownSeries(history);
  const copy = newElement("canvas");
  copy.width = source.width;
  copy.height = source.height + Math.round((PICTURE.head + PICTURE.row * shown.length + PICTURE.side) * ratio);
  const context = copy.getContext("2d");
  withColors((read) => {
    context.fillStyle = read("var(--page)");
    context.fillRect(0, 0, copy.width, copy.height);
    context.drawImage(source, 0, Math.round(PICTURE.head * ratio));
    context.scale(ratio, ratio);
    context.textBaseline = "middle";
    context.fillStyle = read("var(--text)");
    context.font = FONT.replace("12px", "600 16px");
    context.fillText(`${history.data.model}, ${history.data.metric}`, PICTURE.side, PICTURE.head / 2);
    context.font = FONT;
    drawPictureLegend(context, shown, read, PICTURE.head + source.clientHeight + PICTURE.row / 2);
  });
  return new Promise((resolve) => copy.toBlob(resolve, "image/png"));
}

function drawPictureLegend(context, shown, read, top) {
  const { side, swatch, row } = PICTURE;
  shown.forEach(({ label, index, points }, place) => {
    const at = top + place * row;
    context.fillStyle = read(`var(${COLORS[index % COLORS.length]})`);
    context.fillRect(side, at - swatch / 2, swatch, swatch);
    context.fillStyle = read("var(--text)");
    context.fillText(`${label}, ${counted(points.length, "result")}`, side + swatch + 8, at);
  });
}
