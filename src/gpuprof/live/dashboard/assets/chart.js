// Lines over time on a canvas: axes, gaps, intervals and marks. All charts of the dashboard are drawn here.

import { clearSurface, fitText, fittedContext, textWidth } from "../../../render/assets/kit/canvas.js";

const TICK_STEPS = [1, 2, 5, 10];

// Round values from `low` to `high`, about `count` of them.
export function roundTicks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * TICK_STEPS.find((each) => each * size >= rough * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) ticks.push(tick);
  return ticks;
}

// Round values from 0 to the first one that is not below `longest`: no data is above the last label.
export function ticksAround(longest, count) {
  const [zero, step] = roundTicks(0, longest, count);
  const last = Math.ceil(longest / step - 1e-9);
  return [zero, ...Array.from({ length: last }, (_, index) => (index + 1) * step)];
}

const DAY_S = 86_400;
const TIME_STEPS = [1, 2, 5, 10, 15, 30].flatMap((step) => [step, step * 60]).sort((a, b) => a - b);
const HOUR_STEPS = [1, 2, 3, 6, 12];
const DAY_STEPS = [1, 2, 3, 5, 7, 10, 14, 21, 30, 60, 90, 180, 365, 730, 1825, 3650];

// Instants of local time from `first` to `last`, about `count` of them: midnights, or round times of shorter ranges.
// Of a range without two seconds it is the one in the middle: labels have no parts of seconds.
export function timeTicks(first, last, count) {
  const steps = [...TIME_STEPS, ...HOUR_STEPS.map((hours) => hours * 3600), ...DAY_STEPS.map((days) => days * DAY_S)];
  const rough = (last - first) / 1000 / count;
  const place = steps.findIndex((seconds) => seconds >= rough);
  // A step that is much longer than asked for may leave one tick, which shows no scale.
  for (const seconds of [steps.at(place), steps[place - 1]]) {
    const ticks = seconds ? timesEvery(seconds, first, last) : [];
    if (ticks.length > 1) return ticks;
  }
  return [(first + last) / 2];
}

function timesEvery(seconds, first, last) {
  const day = new Date(first);
  const midnight = new Date(day.getFullYear(), day.getMonth(), day.getDate());
  const ticks = [];
  // Days of a change of the clock have other lengths: two hours at most.
  const begin = Math.floor((first - midnight) / 1000 / seconds) - Math.ceil(7200 / seconds);
  for (let number = Math.max(0, begin); ; number++) {
    const [days, rest] = [Math.floor((number * seconds) / DAY_S), (number * seconds) % DAY_S];
    const tick = new Date(day.getFullYear(), day.getMonth(), day.getDate() + days, 0, 0, rest).getTime();
    if (!(tick <= last)) return ticks;
    if (tick >= first) ticks.push(tick);
  }
}

// Draws `chart` and returns the functions from values to pixels.
export function drawChart(canvas, chart) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (width < 20 || height < 20) return null;
  const ratio = devicePixelRatio || 1;
  const context = fittedContext(canvas, { width, height, ratio });
  clearSurface({ context, width, height, ratio });
  const ticks = chart.yTicks.map((tick) => [tick, chart.formatY(tick)]);
  const left = chart.plain ? 2 : Math.ceil(Math.max(0, ...ticks.map(([, text]) => textWidth(context, text)))) + 12;
  const room = {
    left,
    right: width - (chart.plain ? 2 : 14),
    top: chart.top ?? 6,
    bottom: height - (chart.plain ? 3 : chart.xTitle ? 42 : 24),
  };
  const scales = newScales(chart, room);
  if (!chart.plain) drawAxes(context, chart, scales, ticks);
  if (!chart.plain) drawTitles(context, chart, room);
  drawMarks(context, chart, scales);
  for (const line of chart.lines) drawLine(context, line, scales);
  if (chart.selected) drawSelected(context, chart.selected, scales, chart.colors);
  return scales;
}

function newScales({ x, y }, room) {
  const wide = (room.right - room.left) / (x[1] - x[0] || 1);
  const high = (room.bottom - room.top) / (y[1] - y[0] || 1);
  return {
    room,
    toX: (value) => room.left + (value - x[0]) * wide,
    toY: (value) => room.bottom - (value - y[0]) * high,
  };
}

function drawAxes(context, chart, { room, toX, toY }, ticks) {
  context.lineWidth = 1;
  context.strokeStyle = chart.colors.line;
  context.fillStyle = chart.colors.quiet;
  context.textAlign = "right";
  for (const [tick, text] of ticks) {
    const at = Math.round(toY(tick)) + 0.5;
    context.beginPath();
    context.moveTo(room.left, at);
    context.lineTo(room.right, at);
    context.stroke();
    context.fillText(text, room.left - 8, at);
  }
  context.textAlign = "left";
  const taken = [];
  for (const [tick, text] of chart.xTicks) {
    const wide = textWidth(context, text);
    const from = Math.min(Math.max(toX(tick) - wide / 2, room.left), room.right - wide);
    if (!taken.every(([begin, end]) => from >= end + 16 || from + wide + 16 <= begin)) continue;
    context.fillText(text, from, room.bottom + 14);
    taken.push([from, from + wide]);
  }
}

// What the axes are, or why there is nothing between them.
function drawTitles(context, { xTitle, yTitle, empty, colors }, room) {
  context.fillStyle = colors.quiet;
  if (yTitle) context.fillText(yTitle, 2, 10);
  context.textAlign = "center";
  if (xTitle) context.fillText(xTitle, (room.left + room.right) / 2, room.bottom + 33);
  if (empty) context.fillText(empty, (room.left + room.right) / 2, (room.top + room.bottom) / 2);
  context.textAlign = "left";
}

// Changes of level: dashed lines with their sizes. A label that has no place between the others is left out.
function drawMarks(context, { marks = [], colors }, { room, toX }) {
  const lines = marks.map(({ at }) => Math.round(toX(at)) + 0.5);
  marks.forEach(({ color }, place) => drawMarkLine(context, lines[place], color, room));
  const taken = lines.map((x) => [x - 1, x + 1]);
  for (const [place, { label }] of marks.entries()) {
    if (!label) continue;
    const x = lines[place];
    const text = fitText(context, [label], 120);
    const wide = textWidth(context, text) + 8;
    const isFree = (from) =>
      from >= room.left &&
      from + wide <= room.right &&
      taken.every(([begin, end]) => from >= end || from + wide <= begin);
    const left = [x + 3, x - 3 - wide].find(isFree);
    if (left === undefined) continue;
    taken.push([left, left + wide]);
    context.fillStyle = colors.page;
    context.globalAlpha = 0.85;
    context.fillRect(left, room.top, wide, 18);
    context.globalAlpha = 1;
    context.fillStyle = colors.text;
    context.fillText(text, left + 4, room.top + 9);
  }
}

function drawMarkLine(context, x, color, room) {
  context.save();
  context.strokeStyle = color;
  context.lineWidth = 1.5;
  context.setLineDash([4, 3]);
  context.beginPath();
  context.moveTo(x, room.top);
  context.lineTo(x, room.bottom);
  context.stroke();
  context.restore();
}

function drawLine(context, line, scales) {
  const { count, yAt, color } = line;
  context.strokeStyle = color;
  context.fillStyle = color;
  context.lineWidth = line.width ?? 1.75;
  context.lineJoin = "round";
  if (line.interval) drawIntervals(context, line, scales);
  for (const [from, to] of partsOf(count, yAt)) drawPart(context, line, scales, from, to);
  if (line.dots) drawDots(context, line, scales);
}

// The first index of each part without a gap, and the one after its last.
function partsOf(count, yAt) {
  const parts = [];
  let from = -1;
  for (let index = 0; index <= count; index++) {
    const isGap = index === count || Number.isNaN(yAt(index));
    if (!isGap && from < 0) from = index;
    if (isGap && from >= 0) {
      parts.push([from, index]);
      from = -1;
    }
  }
  return parts;
}

// A part of one point is a dot.
function drawPart(context, { xAt, yAt, isFilled }, { toX, toY, room }, from, to) {
  if (to - from === 1) {
    context.beginPath();
    context.arc(toX(xAt(from)), toY(yAt(from)), 1.5, 0, 2 * Math.PI);
    context.fill();
    return;
  }
  context.beginPath();
  for (let index = from; index < to; index++) context.lineTo(toX(xAt(index)), toY(yAt(index)));
  context.stroke();
  if (!isFilled) return;
  context.lineTo(toX(xAt(to - 1)), room.bottom);
  context.lineTo(toX(xAt(from)), room.bottom);
  context.globalAlpha = 0.14;
  context.fill();
  context.globalAlpha = 1;
}

function drawIntervals(context, { count, xAt, interval }, scales) {
  context.globalAlpha = 0.45;
  context.beginPath();
  for (let index = 0; index < count; index++) {
    const found = interval(index);
    if (found === null) continue;
    const px = scales.toX(xAt(index));
    context.moveTo(px, scales.toY(found[0]));
    context.lineTo(px, scales.toY(found[1]));
  }
  context.stroke();
  context.globalAlpha = 1;
}

function drawDots(context, { count, xAt, yAt, dots }, scales) {
  for (let index = 0; index < count; index++) {
    const y = yAt(index);
    if (Number.isNaN(y)) continue;
    context.beginPath();
    context.arc(scales.toX(xAt(index)), scales.toY(y), dots, 0, 2 * Math.PI);
    context.fill();
  }
}

function drawSelected(context, { x, y }, scales, colors) {
  context.lineWidth = 2;
  context.strokeStyle = colors.text;
  context.beginPath();
  context.arc(scales.toX(x), scales.toY(y), 6, 0, 2 * Math.PI);
  context.stroke();
}
