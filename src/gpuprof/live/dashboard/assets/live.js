// The live section: the machine, and a card for each run that is being recorded.

import {
  counted,
  formatAmount,
  formatCount,
  formatDuration,
  formatPercent,
} from "../../../render/assets/kit/format.js";
import { byId, newElement, setBreakable } from "../../../render/assets/kit/page.js";
import { withColors } from "../../../render/assets/kit/theme.js";
import { drawChart, roundTicks, ticksAround } from "./chart.js";
import { lastOf, newRing, pushPoint, valueAt } from "./ring.js";

const KEPT = 600; // points: ten minutes
const RUN_COLUMNS = ["t", "p50", "max", "steps", "cpu", "rss", "read", "written", "spans"];
const MACHINE_COLUMNS = ["t", "cpu", "io_wait", "memory", "received", "sent"];
const NS_PER_S = 1e9;
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const bytes = (value) => formatAmount(value, "B");
const rate = (value) => formatAmount(value, "B/s");

// Title, columns, format, and the top of the scale where it is known.
const MACHINE_TILES = [
  ["CPU", ["cpu"], formatPercent, () => 1],
  ["I/O wait", ["io_wait"], formatPercent, () => 1],
  ["Memory", ["memory"], bytes, (live) => live.memoryTotal],
  ["Network received, sent", ["received", "sent"], rate, () => null],
];
const RUN_TILES = [
  ["Longest step", ["max"], formatDuration, () => null],
  ["CPU", ["cpu"], (value) => `${value.toFixed(2)} cores`, () => null],
  ["RSS", ["rss"], bytes, () => null],
  ["Disk read, written", ["read", "written"], rate, () => null],
];

export function newLive() {
  return {
    machine: newRing(MACHINE_COLUMNS, KEPT),
    tiles: [],
    memoryTotal: null,
    cards: new Map(),
    nameOf: (id) => id,
    isRecording: () => false,
    isLost: false,
    isRefused: false,
  };
}

// ---- the connection ----

// Without a connection nothing is known of now: figures give way to dashes, and charts are pale.
// A server that refuses its figures is there, and its reason is shown.
export function showLost(live, { isRefused = false } = {}) {
  if (live.isLost && live.isRefused === isRefused) return;
  Object.assign(live, { isLost: true, isRefused });
  byId("lost").textContent = live.machine.length
    ? `No connection to the server since ${CLOCK.format(Date.now())}. The charts end there.`
    : "No connection to the server: there are no live figures.";
  byId("devices").replaceChildren();
  for (const card of live.cards.values()) if (!card.isOver) showUnknown(card);
  showRuns(live);
}

function showUnknown(card) {
  card.isUnknown = true;
  card.state.textContent = "unknown";
  card.figure.textContent = "–";
  card.unit.textContent = "no connection";
  card.note.hidden = true;
  for (const { element } of [card.layers, card.operators]) element.hidden = true;
}

// ---- points ----

function machinePoint(live, point) {
  live.memoryTotal = point.memory_total;
  pushPoint(live.machine, point);
}

function runPoint(card, point) {
  if (point.t === undefined) return;
  const { steps } = point;
  pushPoint(card.ring, {
    ...point,
    p50: steps.p50_ns,
    max: steps.max_ns,
    steps: steps.count === null || point.interval_ns === null ? null : (steps.count * NS_PER_S) / point.interval_ns,
  });
}

export function beginLive(live, history) {
  Object.assign(live, { isLost: false, isRefused: false });
  live.machine.length = 0;
  for (const point of history.machine) machinePoint(live, point);
  for (const id of live.cards.keys()) removeCard(live, id);
  for (const [id, points] of Object.entries(history.runs)) {
    const card = cardOf(live, id);
    for (const point of points) runPoint(card, point);
  }
  showRuns(live);
}

// Devices have no history here: their figures are a line of text each.
function showDevices(devices) {
  const items = devices.map((each) => {
    const share = (value) => (value === null ? null : formatPercent(value));
    const facts = [
      [share(each.utilization_share), "busy"],
      [each.memory_used_bytes === null ? null : bytes(each.memory_used_bytes), "used"],
      [each.power_w === null ? null : `${each.power_w.toFixed(0)} W`, ""],
      [each.temperature_c === null ? null : `${each.temperature_c.toFixed(0)} °C`, ""],
      [each.sm_clock_hz === null ? null : formatAmount(each.sm_clock_hz, "Hz"), ""],
      [each.throttle_reasons?.length ? `throttled: ${each.throttle_reasons.join(", ")}` : null, ""],
      [each.is_lost ? "does not respond" : null, ""],
    ];
    const text = facts.filter(([value]) => value !== null).map((pair) => pair.join(" ").trim());
    return newElement("p", `${each.name ?? "Device"} ${each.device}: ${text.join(" · ") || "–"}`);
  });
  byId("devices").replaceChildren(...items);
}

// Returns whether a program has ended.
export function updateLive(live, { machine, runs, left_out: leftOut }) {
  let hasEnded = false;
  machinePoint(live, machine);
  showDevices(machine.devices);
  for (const [id, point] of Object.entries(runs)) {
    const card = cardOf(live, id);
    card.isOver = point.over === true;
    // What is left of the last interval is no rate: the whole one before it stays.
    const isCut = card.isOver && card.ring.length > 0;
    if (!isCut) runPoint(card, point);
    if (!isCut && point.layers) showPoint(card, point);
    if (card.isOver) showEnd(live, card);
    hasEnded ||= card.isOver;
  }
  for (const [id, card] of live.cards) if (!(id in runs) && card.isOver) card.element.classList.add("over");
  live.leftOut = leftOut;
  showRuns(live);
  return hasEnded;
}

function showRuns(live) {
  byId("no-runs").hidden = live.isLost || live.cards.size > 0;
  byId("lost").hidden = !live.isLost || live.isRefused;
  byId("live").toggleAttribute("data-lost", live.isLost);
}

// A card of a program that has ended stays until the page is loaded again, or there are many.
const MOST_CARDS = 12;

function cardOf(live, id) {
  if (live.cards.has(id)) return live.cards.get(id);
  for (const [other, card] of live.cards) {
    if (live.cards.size < MOST_CARDS) break;
    if (card.isOver) removeCard(live, other);
  }
  const card = newCard(id, live.nameOf(id));
  live.cards.set(id, card);
  byId("runs").append(card.element);
  return card;
}

function removeCard(live, id) {
  live.cards.get(id).element.remove();
  live.cards.delete(id);
}

// ---- elements ----

function newCard(id, name) {
  const element = newElement("article", undefined, "card");
  const head = newElement("div", undefined, "card-head");
  const title = newElement("h3");
  setBreakable(title, name);
  const state = newElement("span", "recording", "badge");
  head.append(title, state);
  const figure = newElement("p", "–", "figure");
  const unit = newElement("p", "no steps yet", "quiet");
  const canvas = newCanvas("chart steps", `Median step time of ${name}`);
  const tiles = RUN_TILES.map(newTile);
  const tileBox = newElement("div", undefined, "tiles");
  tileBox.append(...tiles.map((tile) => tile.element));
  const layers = newBars("Layers");
  const operators = newBars("Operators");
  const bars = newElement("div", undefined, "bars");
  bars.append(layers.element, operators.element);
  const note = newElement("p", "", "quiet");
  note.hidden = true;
  element.append(head, figure, unit, canvas, tileBox, bars, note);
  return {
    id,
    element,
    title,
    state,
    figure,
    unit,
    canvas,
    tiles,
    layers,
    operators,
    note,
    ring: newRing(RUN_COLUMNS, KEPT),
  };
}

export function renameCards(live) {
  for (const [id, card] of live.cards) {
    setBreakable(card.title, live.nameOf(id));
    if (card.isOver) showEnd(live, card);
  }
}

function newCanvas(className, label) {
  const canvas = newElement("canvas", undefined, className);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  return canvas;
}

function newTile([title, columns, format, most]) {
  const element = newElement("div", undefined, "tile");
  const value = newElement("dd", "–");
  const list = newElement("dl");
  list.append(newKey(title, columns), value);
  const canvas = newCanvas("spark", `${title} over time`);
  element.append(list, canvas);
  return { element, value, canvas, columns, format, most };
}

// The name of a tile; of two lines, each part of it with the color of its line.
function newKey(title, columns) {
  const element = newElement("dt");
  if (columns.length === 1) element.textContent = title;
  else
    for (const part of title.split(", ")) {
      const key = newElement("span");
      key.append(newElement("i"), part);
      element.append(key, " ");
    }
  return element;
}

function newBars(title) {
  const element = newElement("section");
  const list = newElement("ol", undefined, "share-list");
  element.append(newElement("h4", title), list);
  return { element, list };
}

function showPoint(card, point) {
  const { steps } = point;
  if (steps.count) {
    card.figure.textContent = formatDuration(steps.p50_ns);
    const parts = Object.entries(steps.parts ?? {})
      .filter(([, ns]) => ns > 0)
      .map(([part, ns]) => `${part} ${formatDuration(ns / steps.count)}`);
    // Not a rate: a step that is longer than the interval would make one step a second.
    const time = point.interval_ns === null ? "until now" : `in ${formatDuration(point.interval_ns)}`;
    const within = `median of ${counted(steps.count, "step")} ${time}`;
    const means = parts.length > 0 ? `mean: ${parts.join(", ")}` : "";
    card.unit.textContent = [within, means].filter(Boolean).join(" · ");
  } else if (steps.count === null) {
    card.figure.textContent = point.spans === null ? "–" : formatCount(point.spans);
    card.unit.textContent = "spans in this interval; no steps have been found";
  } else card.unit.textContent = "no end of a step was read in this interval";
  showBars(card.layers, point.layers);
  showBars(card.operators, point.operators);
  card.operators.element.hidden ||= point.no_operators !== null;
  showNotes(card, point);
}

// Whether the program of a run has ended, and the run is not closed yet.
export function isClosing(live, id) {
  return live.cards.get(id)?.isOver === true && live.isRecording(id);
}

function showEnd(live, card) {
  card.state.textContent = isClosing(live, card.id) ? "closing" : "ended";
  card.note.hidden = true;
  if (!card.isEndShown && card.ring.length > 0) card.unit.textContent += " · before the end";
  card.isEndShown = true;
}

function showNotes(card, point) {
  const notes = [];
  if (point.waiting_ns > NS_PER_S)
    notes.push(`compiling or collecting garbage for ${formatDuration(point.waiting_ns)}`);
  if (point.requests) notes.push(requestText(point.requests));
  if (point.late) notes.push("not all events are read yet");
  if (point.dropped) notes.push(`${counted(point.dropped, "event")} dropped`);
  if (point.no_operators === "after_the_end") notes.push("operators are written when the program ends");
  card.note.textContent = notes.join(" · ");
  card.note.hidden = notes.length === 0;
  const [noun, count] = ["process", point.processes];
  card.state.textContent = count === 1 ? "recording" : `recording, ${count} ${noun}es`;
}

function requestText({ ended_per_s: rateOf, p50_ns: p50, p99_ns: p99, queued, failed }) {
  const figure = (value, form) => (value === null ? "–" : form(value));
  const latency = `p50 ${figure(p50, formatDuration)}, p99 ${figure(p99, formatDuration)}`;
  const perSecond = figure(rateOf, (value) => value.toFixed(1));
  return `load test: ${perSecond} requests/s, ${latency}, ${counted(queued, "request")} queued, ${formatCount(failed)} failed`;
}

// The elements of a list are used again: one update makes none.
function showBars({ element, list }, shares) {
  element.hidden = shares.length === 0;
  const whole = shares.reduce((sum, [, ns]) => sum + ns, 0);
  while (list.childElementCount < shares.length) {
    const item = newElement("li");
    const bar = newElement("span", undefined, "bar");
    bar.append(newElement("span"));
    item.append(newElement("span", "", "name"), newElement("span", "", "share"), bar);
    list.append(item);
  }
  [...list.children].forEach((item, index) => {
    item.hidden = index >= shares.length;
    if (item.hidden) return;
    const [name, ns] = shares[index];
    const [label, share, bar] = item.children;
    label.textContent = name === "" ? "others" : name;
    label.title = label.textContent;
    share.textContent = formatPercent(whole > 0 ? ns / whole : null);
    bar.firstElementChild.style.width = `${whole > 0 ? (100 * ns) / whole : 0}%`;
  });
}

// ---- drawing ----

export function buildMachine(live) {
  live.tiles = MACHINE_TILES.map(newTile);
  byId("machine").replaceChildren(...live.tiles.map((tile) => tile.element));
}

// Colors are read again only for another theme.
export function drawLive(live, { isNewTheme = false } = {}) {
  if (isNewTheme || !live.colors) live.colors = withColors(paletteOf);
  for (const tile of live.tiles) drawTile(tile, live.machine, live.colors, tile.most(live), live.isLost);
  for (const card of live.cards.values()) {
    drawSteps(card, live.colors);
    for (const tile of card.tiles) drawTile(tile, card.ring, live.colors, null, live.isLost && !card.isOver);
  }
}

export function paletteOf(read) {
  const names = {
    line: "--line",
    quiet: "--quiet",
    text: "--text",
    page: "--page",
    accent: "--accent",
    second: "--second",
  };
  const colors = Object.entries(names).map(([key, name]) => [key, read(`var(${name})`)]);
  return { ...Object.fromEntries(colors), pale: read("color-mix(in srgb, var(--accent) 40%, var(--page))") };
}

function lineOf(ring, name, color, more) {
  return {
    count: ring.length,
    xAt: (index) => valueAt(ring, "t", index),
    yAt: (index) => valueAt(ring, name, index),
    color,
    ...more,
  };
}

function largestOf(ring, names) {
  let largest = 0;
  for (const name of names)
    for (let index = 0; index < ring.length; index++) {
      const value = valueAt(ring, name, index);
      if (value > largest) largest = value;
    }
  return largest;
}

function timesOf(ring) {
  const last = lastOf(ring, "t");
  return [Math.min(valueAt(ring, "t", 0), last - 60_000), last];
}

function drawTile(tile, ring, colors, most, isLost) {
  const values = tile.columns.map((name) => (isLost ? NaN : lastOf(ring, name)));
  tile.value.textContent = values.map((value) => (Number.isNaN(value) ? "–" : tile.format(value))).join(" · ");
  if (ring.length === 0) return;
  const top = most ?? (largestOf(ring, tile.columns) * 1.1 || 1);
  const lines = tile.columns.map((name, index) =>
    lineOf(ring, name, index ? colors.second : colors.accent, { isFilled: index === 0, width: 1.5 }),
  );
  drawChart(tile.canvas, {
    plain: true,
    x: timesOf(ring),
    y: [0, top],
    yTicks: [],
    xTicks: [],
    formatY: String,
    lines,
    colors,
  });
}

function drawSteps(card, colors) {
  const { ring } = card;
  if (ring.length === 0) return;
  const longest = largestOf(ring, ["p50"]);
  const yTicks = longest > 0 ? ticksAround(longest, 3) : [0];
  const x = timesOf(ring);
  const end = card.isOver ? "end" : card.isUnknown ? "last figures" : "now";
  // Only the line is pale: the texts of the axes are read as before.
  const lines = [lineOf(ring, "p50", card.isUnknown ? colors.pale : colors.accent, { isFilled: true })];
  // The end comes first: what has no place next to it is left out.
  const xTicks = roundTicks(-(x[1] - x[0]) / 1000, 0, 4)
    .reverse()
    .map((s) => [x[1] + s * 1000, s === 0 ? end : `−${-s} s`]);
  drawChart(card.canvas, {
    x,
    y: [0, yTicks.at(-1) || 1],
    top: 26,
    yTitle: "Median step time",
    yTicks,
    xTicks,
    formatY: (ns) => (longest > 0 ? formatDuration(ns) : ""),
    empty: longest > 0 ? null : "no steps yet",
    lines,
    colors,
  });
}
