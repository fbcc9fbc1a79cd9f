// Rates and what binds, as a person reads them. Times and counts are in format.js.

const RATE_UNITS = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

// "Unavailable" is a value.
function formatRate(value, unit) {
  if (value === null) return "–";
  for (const [size, prefix] of RATE_UNITS) {
    if (value >= size * 0.9995) return `${threeDigits(value / size)} ${prefix}${unit}`;
  }
  return `${threeDigits(value)} ${unit}`;
}

// Numbers of 8 bits are whole ones: what is done with them are no FLOPs.
function operationOf(dtype) {
  return /int8$/.test(dtype ?? "") ? "OP" : "FLOP";
}

function formatPercent(share) {
  return share === null ? "–" : `${threeDigits(100 * share)}%`;
}

function boundText(row) {
  if (row.bound === "memory") return `memory (${row.memory_level})`;
  return row.bound === "underutilized" ? `underutilized (${row.nearest})` : row.bound;
}

function boundColour(bound) {
  return `var(--bound-${bound.replaceAll(" ", "-")})`;
}

function swatch(bound) {
  const element = document.createElement("i");
  element.style.background = boundColour(bound);
  return element;
}

function make(name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}
