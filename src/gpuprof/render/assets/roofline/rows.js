// Rows of the roofline: their labels, colors and facts, and their places on logarithmic axes.

import { formatAmount, formatCount, formatDuration, formatPercent } from "../kit/format.js";
import { newElement } from "../kit/page.js";

// Numbers of 8 bits are whole ones: what is done with them are no FLOPs.
export function operationOf(dtype) {
  return /int8$/.test(dtype ?? "") ? "OP" : "FLOP";
}

export function boundText(row) {
  if (row.bound === "memory") return `memory (${row.memory_level})`;
  return row.bound === "underutilized" ? `underutilized (${row.nearest})` : row.bound;
}

export function boundColor(bound) {
  return `var(--bound-${bound.replaceAll(" ", "-")})`;
}

export function swatch(bound) {
  const element = newElement("i");
  element.style.background = boundColor(bound);
  return element;
}

export function rowFacts(row) {
  const operation = operationOf(row.dtype);
  return [
    ...(row.kernel ? [["Kernel", row.kernel]] : []),
    ["Percent of the time", formatPercent(row.time_share)],
    ["A call", `${formatDuration(row.time_ns)}, ${formatCount(row.calls)} calls`],
    [`${operation}s`, `${formatAmount(row.flops, operation)} (${row.exactness})`],
    ["Reached", formatAmount(row.flops_per_s, `${operation}/s`)],
    ["Ideal bytes", formatAmount(row.bytes, "B")],
    ["Served by", row.memory_level === null ? "–" : `${row.memory_level}, ${formatAmount(row.memory_bytes, "B")}`],
    ...Object.entries(row.used).map(([resource, fraction]) => [`Used: ${resource}`, formatPercent(fraction)]),
    ["Confidence", row.confidence.toFixed(2)],
  ];
}

// ---- axes ----

const MARGIN = { left: 84, right: 24, top: 26, bottom: 48 };
const LARGEST_RADIUS = 26;
const SMALLEST_RADIUS = 4;

// The place of a row: FLOPs a byte of the memory that its label is about, and FLOPs a second.
export function place(row) {
  const bytes = row.memory_bytes || row.bytes;
  if (!(row.flops > 0) || !(bytes > 0) || !(row.time_ns > 0)) return null;
  return { intensity: row.flops / bytes, rate: (row.flops / row.time_ns) * 1e9 };
}

function spanOf(values) {
  const low = Math.floor(Math.log10(Math.min(...values)));
  const high = Math.ceil(Math.log10(Math.max(...values)));
  return high > low ? [low, high] : [low, low + 1];
}

// The axes include every point, every ridge and every ceiling.
export function makeScales(places, ceilings, width, height) {
  const compute = ceilings.filter((row) => row.resource === "compute");
  const memory = ceilings.filter((row) => row.resource.startsWith("memory."));
  const ridges = compute.flatMap((peak) => memory.map((level) => peak.value / level.value));
  const x = spanOf([...places.map((at) => at.intensity), ...ridges, 1]);
  const y = spanOf([...places.map((at) => at.rate), ...compute.map((peak) => peak.value), 1e9]);
  const plot = {
    left: MARGIN.left,
    right: Math.max(MARGIN.left + 50, width - MARGIN.right),
    top: MARGIN.top,
    bottom: Math.max(MARGIN.top + 50, height - MARGIN.bottom),
  };
  return {
    x,
    y,
    plot,
    toX: (value) => plot.left + ((Math.log10(value) - x[0]) / (x[1] - x[0])) * (plot.right - plot.left),
    toY: (value) => plot.bottom - ((Math.log10(value) - y[0]) / (y[1] - y[0])) * (plot.bottom - plot.top),
  };
}

// Areas are proportional to time.
export function radius(row, longest) {
  const share = longest > 0 ? row.total_ns / longest : 0;
  return Math.max(SMALLEST_RADIUS, LARGEST_RADIUS * Math.sqrt(share));
}
