// Rows of the roofline: what their labels, colours and facts are.

import { newElement } from "../kit/elements.js";
import { formatAmount, formatCount, formatDuration, formatPercent } from "../kit/format.js";

// Numbers of 8 bits are whole ones: what is done with them are no FLOPs.
export function operationOf(dtype) {
  return /int8$/.test(dtype ?? "") ? "OP" : "FLOP";
}

export function boundText(row) {
  if (row.bound === "memory") return `memory (${row.memory_level})`;
  return row.bound === "under-utilised" ? `under-utilised (${row.nearest})` : row.bound;
}

export function boundColour(bound) {
  return `var(--bound-${bound.replace(" ", "-")})`;
}

export function swatch(bound) {
  const element = newElement("i");
  element.style.background = boundColour(bound);
  return element;
}

export function rowFacts(row) {
  const operation = operationOf(row.dtype);
  return [
    ["Share of the time", formatPercent(row.time_share)],
    ["A call", `${formatDuration(row.time_ns)}, ${formatCount(row.calls)} calls`],
    [`${operation}s`, `${formatAmount(row.flops, operation)} (${row.exactness})`],
    ["Reached", formatAmount(row.flops_per_s, `${operation}/s`)],
    ["Ideal bytes", formatAmount(row.bytes, "B")],
    ["Served by", row.memory_level === null ? "–" : `${row.memory_level}, ${formatAmount(row.memory_bytes, "B")}`],
    ...Object.entries(row.used).map(([resource, fraction]) => [`Used: ${resource}`, formatPercent(fraction)]),
    ["Sure", row.confidence.toFixed(2)],
  ];
}
