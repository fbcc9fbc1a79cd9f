// Readings of devices as area charts; a reading holds until the next one.

import { PADDING } from "../kit/canvas.js";
import { threeDigits } from "../kit/format.js";
import { CHART_HEIGHT, lowerBound } from "./rows.js";

const METRIC_TEXTS = {
  utilization_percent: "Utilisation",
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
export function paintChart(app, { context, width }, reading, y) {
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
