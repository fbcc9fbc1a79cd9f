// Painting lanes, readings and ruler on 2D contexts. Coordinates are CSS pixels; a context is scaled to the screen.

import { nodeColor } from "../flame/colors.js";
import { nameForms, quotedIfBlank, withoutPrefix } from "../flame/names.js";
import { DIMMED } from "../flame/paint.js";
import {
  boxSurface,
  clearSurface,
  fitText,
  PADDING,
  paintBorder,
  paintText,
  SMALLEST_LABEL,
  snapped,
  textWidth,
} from "../kit/canvas.js";
import { counted, formatDuration, formatInstant, threeDigits } from "../kit/format.js";
import { bandFigures, collectBands } from "./bands.js";
import { refreshMarks } from "./marks.js";
import {
  CHART_HEIGHT,
  blockHides,
  collectBlocks,
  firstEndingAfter,
  linesInSight,
  lowerBound,
  rowOf,
  SLICE_HEIGHT,
  sliceEnd,
  TITLE_HEIGHT,
} from "./rows.js";

// ---- lanes ----

const PALEST_BLOCK = 0.4; // opacity of a block in whose time nearly nothing ran
const BAND_OPACITY = [0.14, 0.5]; // of a band with nearly nothing in it, and of a full one: paler than any slice
const BAND_LABEL = 90; // pixels of room from which a band has a label
const CALL_BAR = 3; // pixels of the bar under a marked call: not by color alone

export function drawTimeline(app) {
  cancelAnimationFrame(app.timePending);
  app.timePending = 0;
  refreshMarks(app);
  const surface = boxSurface(app.lanesCanvas, app.lanes);
  if (!surface.width) return;
  const { context, height, top } = surface;
  clearSurface(surface);
  for (const line of linesInSight(app.timeline, top, height)) paintLine(app, surface, line, line.top - top);
  context.globalAlpha = 1;
  paintRange(app, surface);
  paintSelected(app, surface);
  paintRuler(app);
}

function paintLine(app, surface, line, y) {
  if (line.kind === "title") paintTitle(app, surface, line, y);
  else if (line.kind === "chart") paintChart(app, surface, line.reading, y);
  else {
    paintBands(app, surface, line.row, y);
    paintSlices(app, surface, line.row, y);
  }
}

// Below the slices: what is between them, and too short for the page.
function paintBands(app, surface, row, y) {
  const { context, width } = surface;
  const { timeline, time, palette, marks } = app;
  for (const band of collectBands(timeline, row, time, width)) {
    const figures = bandFigures(timeline, band);
    const isMarked = marks?.isSearch && marks.names[figures.name] === 1;
    const [low, high] = BAND_OPACITY;
    const alpha = low + (high - low) * Math.min(1, figures.busy / figures.span);
    context.globalAlpha = isMarked ? high : (marks ? DIMMED.fill : 1) * alpha;
    context.fillStyle = isMarked ? palette.match : bandColor(app, figures);
    context.fillRect(band.left, y, band.right - band.left, SLICE_HEIGHT - 1);
    if (band.right - band.left >= BAND_LABEL && isBare(timeline, row, figures)) {
      paintBandLabel(app, surface, band, figures, y);
    }
  }
}

// Whether no slice is drawn on a band: between slices its label would be unreadable.
function isBare(timeline, row, { from, span }) {
  const at = firstEndingAfter(timeline, row, from);
  return at >= row.stop || timeline.start[at] >= from + span;
}

function bandColor({ palette, color, timeShades }, { name, kind }) {
  if (palette.forced) return palette.line;
  return color === "kind" ? palette.kinds[kind][timeShades[name]] : palette.none;
}

function paintBandLabel(app, { context }, band, figures, y) {
  const room = band.right - band.left - 2 * PADDING;
  const text = fitText(context, [`${counted(figures.slices, "short call")}, ${formatDuration(figures.busy)}`], room);
  context.globalAlpha = 0.75;
  context.fillStyle = app.palette.text;
  if (text) context.fillText(text, band.left + PADDING, y + SLICE_HEIGHT / 2);
}

function paintTitle(app, { context, width }, { text, small }, y) {
  context.globalAlpha = 1;
  context.fillStyle = app.palette.line;
  context.fillRect(0, y, width, 1);
  context.fillStyle = app.palette.text;
  const middle = y + TITLE_HEIGHT / 2 + 1;
  const shown = fitText(context, [text], width - 2 * PADDING);
  context.fillText(shown, PADDING, middle);
  const used = textWidth(context, shown) + 12;
  context.globalAlpha = 0.7;
  if (width - used > 80)
    context.fillText(fitText(context, [small], width - used - 2 * PADDING), PADDING + used, middle);
}

// Adjacent pixel columns that look alike are one rectangle: a full row would be a thousand.
function paintSlices(app, surface, row, y) {
  const { timeline, time } = app;
  let run = null;
  for (const block of collectBlocks(timeline, row, time, surface.width)) {
    const style = blockStyle(app, surface, block);
    if (block.right - block.left >= 2) {
      flushRun(app, surface, run, y);
      run = null;
      paintBlock(app, surface, block, style, y);
    } else if (run && run.right === block.left && sameStyle(run.style, style)) {
      run.right = block.right;
    } else {
      flushRun(app, surface, run, y);
      run = { left: block.left, right: block.right, style };
    }
  }
  flushRun(app, surface, run, y);
}

function sameStyle(one, other) {
  return one.fill === other.fill && one.alpha === other.alpha && one.isCall === other.isCall;
}

function flushRun(app, { context }, run, y) {
  if (!run) return;
  fillSlice(app, context, run.left, run.right - run.left, run.style, y);
}

function fillSlice(app, context, left, width, style, y) {
  context.globalAlpha = style.alpha;
  context.fillStyle = style.fill;
  context.fillRect(left, y, width, SLICE_HEIGHT - 1);
  if (!style.isCall) return;
  context.globalAlpha = 1;
  context.fillStyle = app.palette.outline;
  context.fillRect(left, y + SLICE_HEIGHT - 1 - CALL_BAR, width, CALL_BAR);
}

function blockStyle(app, surface, block) {
  const { timeline, palette, marks } = app;
  const slice = (block.first + block.stop) >> 1;
  const isMarked = marks !== null && marks.before[block.stop] > marks.before[block.first];
  const narrow = block.right - block.left <= 3;
  const plain = palette.forced && narrow ? palette.line : sliceColor(app, slice);
  const fill = isMarked && marks.isSearch ? palette.match : plain;
  const alpha = isMarked ? 1 : (marks ? DIMMED.fill : 1) * (narrow ? busyFraction(app, surface, block) : 1);
  return { fill, alpha, isMarked, isCall: isMarked && !marks.isSearch, slice, timeline };
}

// How much of its pixels a block was busy, in four steps, so that neighbors can be drawn together.
function busyFraction(app, surface, { first, stop, left, right }) {
  const {
    timeline: { busy },
    time,
  } = app;
  const spanned = ((right - left) * (time.high - time.low)) / surface.width;
  const share = Math.min(1, (busy[stop] - busy[first]) / spanned);
  return PALEST_BLOCK + (1 - PALEST_BLOCK) * (Math.ceil(share * 3) / 3);
}

function sliceColor(app, slice) {
  const {
    timeline: { classes, classOf },
    timeShades,
    palette,
  } = app;
  const number = classOf[slice];
  if (app.color !== "kind" && classes.node[number] >= 0) return nodeColor(app, classes.node[number]);
  return palette.kinds[classes.kind[number]][timeShades[classes.name[number]]];
}

function paintBlock(app, surface, block, style, y) {
  const { context } = surface;
  const { left, width } = snapped(surface, block);
  fillSlice(app, context, left, width, style, y);
  if (app.palette.forced && width > 3) {
    context.globalAlpha = 1;
    paintBorder(context, app.palette.line, left, y, width, SLICE_HEIGHT - 1);
  }
  if (width < SMALLEST_LABEL) return;
  const faded = style.alpha < 0.5;
  context.globalAlpha = faded ? DIMMED.label : 1;
  context.fillStyle =
    style.isMarked && app.marks.isSearch ? app.palette.matchInk : faded ? app.palette.text : app.palette.ink;
  const room = width - 2 * PADDING;
  const text = fitText(context, sliceForms(app, style.slice), room);
  const figures = [formatDuration(app.timeline.duration[style.slice])];
  if (text) paintText(context, text, figures, left + PADDING, y + SLICE_HEIGHT / 2, room);
}

// What a block has room for of its slice's name.
export function drawnSliceText(app, surface, block) {
  const { width } = snapped(surface, block);
  if (blockHides(block) || width < SMALLEST_LABEL) return "";
  return fitText(surface.context, sliceForms(app, block.first), width - 2 * PADDING);
}

function sliceForms(app, slice) {
  const { timeline, sliceTexts } = app;
  const number = timeline.classOf[slice];
  let found = sliceTexts.get(number);
  if (!found) {
    const kind = app.tree.kinds[timeline.classes.kind[number]];
    const name = quotedIfBlank(timeline.names[timeline.classes.name[number]]);
    const label = timeline.labels.get(timeline.classes.name[number]);
    sliceTexts.set(number, (found = nameForms(kind === "backward" ? withoutPrefix(name) : name, kind, label)));
  }
  return found;
}

function paintSelected(app, surface) {
  const { timeline, time, slice } = app;
  if (slice < 0) return;
  const row = rowOf(timeline, slice);
  const line = timeline.lines.find((each) => each.row === row);
  const scale = surface.width / (time.high - time.low);
  const left = Math.max(-2, (timeline.start[slice] - time.low) * scale);
  const right = Math.min(surface.width + 2, (sliceEnd(timeline, slice) - time.low) * scale);
  if (right < 0 || left > surface.width) return;
  const { context } = surface;
  context.lineWidth = 2;
  context.strokeStyle = app.palette.outline;
  context.strokeRect(left, line.top - surface.top, Math.max(right - left, 2), SLICE_HEIGHT - 1);
}

function paintRange(app, { context, width, height }) {
  const { range, time, palette } = app;
  if (!range) return;
  const scale = width / (time.high - time.low);
  const left = (range.low - time.low) * scale;
  const right = (range.high - time.low) * scale;
  context.globalAlpha = 0.12;
  context.fillStyle = palette.text;
  context.fillRect(left, 0, right - left, height);
  context.globalAlpha = 1;
  context.fillStyle = palette.outline;
  for (const x of [left, right]) context.fillRect(Math.round(x) - 0.5, 0, 1, height);
}

const RULER_HEIGHT = 26;
const TICK_SPACING = 110; // CSS pixels between labels at least

// 1, 2 or 5 times a power of ten nanoseconds.
function tickStep(window, widthPx) {
  const least = ((window.high - window.low) * TICK_SPACING) / widthPx;
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least) ?? 10 * power;
}

function paintRuler(app) {
  const { time, palette, rulerCanvas, lanes } = app;
  const surface = boxSurface(rulerCanvas, lanes, RULER_HEIGHT);
  const { context } = surface;
  clearSurface(surface);
  paintRange(app, surface);
  const step = tickStep(time, surface.width);
  const scale = surface.width / (time.high - time.low);
  const largest = Math.max(Math.abs(time.low), Math.abs(time.high));
  context.fillStyle = palette.text;
  for (let tick = Math.ceil(time.low / step) * step; tick <= time.high; tick += step) {
    const x = (tick - time.low) * scale;
    context.fillRect(Math.round(x), RULER_HEIGHT - 8, 1, 8);
    const text = formatInstant(tick, step, largest);
    if (x + 4 + textWidth(context, text) <= surface.width) context.fillText(text, x + 4, RULER_HEIGHT / 2 - 1);
  }
}

// ---- readings of devices as area charts; a reading is valid until the next one ----

const METRIC_TEXTS = {
  utilization_percent: "Utilization",
  memory_used_bytes: "Memory used",
  power_w: "Power",
  sm_clock_hz: "SM clock",
  memory_clock_hz: "Memory clock",
  temperature_c: "Temperature",
};

const LARGE_UNITS = {
  bytes: [
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
  ],
  Hz: [
    [1e9, "GHz"],
    [1e6, "MHz"],
  ],
  C: [[1, "°C"]],
};

export function formatReading({ unit }, value) {
  const [size, text] = (LARGE_UNITS[unit] ?? []).find(([each]) => value >= each) ?? [1, unit];
  return `${threeDigits(value / size)} ${text}`;
}

// The last reading up to `time`; -1 before the first.
export function readingAt({ t }, time) {
  return lowerBound(t, 0, t.length, time + 0.5) - 1;
}

// From the floor up to the largest reading ever; of several in one pixel the largest is drawn.
function paintChart(app, { context, width }, reading, y) {
  const { palette, time, tree } = app;
  const floor = y + CHART_HEIGHT - 2;
  const room = CHART_HEIGHT - 18;
  const scale = width / (time.high - time.low);
  const { t, value, most } = reading;
  const stop = Math.min(t.length, readingAt(reading, time.high) + 1);
  context.globalAlpha = 1;
  context.fillStyle = palette.forced ? palette.line : palette.kinds[tree.kinds.indexOf("kernel")][2];
  for (let i = Math.max(0, readingAt(reading, time.low)); i < stop; i++) {
    const left = Math.max(0, Math.floor((t[i] - time.low) * scale));
    const end = i + 1 < t.length ? (t[i + 1] - time.low) * scale : left + 2;
    const right = Math.min(width, Math.max(left + 1, Math.floor(end)));
    const height = most > 0 ? Math.max(1, (Math.max(0, value[i]) / most) * room) : 1;
    context.fillRect(left, floor - height, right - left, height);
  }
  context.fillStyle = palette.text;
  context.fillText(`${metricText(reading)}, up to ${formatReading(reading, most)}`, PADDING, y + 8);
}

export function metricText({ metric }) {
  return METRIC_TEXTS[metric] ?? metric;
}
