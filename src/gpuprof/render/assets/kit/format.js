// Numbers, durations, bytes and rates as a person reads them: the one family of formatters of all pages.
// Three digits, SI prefixes, and "–" for what is unavailable.

const NUMBERS = [0, 1, 2].map(
  (digits) => new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }),
);
const DURATIONS = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "us"],
];
const PREFIXES = [
  [1e18, "E"],
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

// A value in the largest of the units that it reaches; null below all of them.
function scaled(value, units, unit = "") {
  const found = units.find(([size]) => value >= size * 0.9995);
  return found ? `${threeDigits(value / found[0])} ${found[1]}${unit}` : null;
}

export function threeDigits(value) {
  return NUMBERS[value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2].format(value);
}

export function formatDuration(ns) {
  return scaled(ns, DURATIONS) ?? `${Math.round(ns)} ns`;
}

// A difference of times, with its sign.
export function formatTimeChange(ns) {
  return ns > 0 ? `+${formatDuration(ns)}` : ns < 0 ? `−${formatDuration(-ns)}` : formatDuration(0);
}

export function formatExactDuration(ns) {
  return `${formatDuration(ns)} (${formatCount(ns)} ns)`;
}

// An instant `ns`, with the digits that distinguish it from one `step` away; `largest` sets the unit.
export function formatInstant(ns, step, largest) {
  const [size, unit] = DURATIONS.find(([each]) => largest >= each) ?? [1, "ns"];
  const digits = Math.min(9, Math.max(0, Math.ceil(Math.log10(size / step) - 1e-9)));
  const text = (ns / size).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${text} ${unit}`;
}

export function formatCount(count) {
  return NUMBERS[0].format(count);
}

export function counted(count, noun) {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

// Bytes, FLOPs, rates: a value with a unit; null is unavailable.
export function formatAmount(value, unit) {
  if (value === null) return "–";
  if (unit === "ns") return formatDuration(value);
  if (unit === "launches") return formatCount(value);
  return scaled(value, PREFIXES, unit) ?? `${Number.isInteger(value) ? value : threeDigits(value)} ${unit}`;
}

// One decimal from 1% on, two below.
export function formatPercent(fraction) {
  if (fraction === null) return "–";
  const percent = 100 * fraction;
  if (percent > 0 && percent < 0.01) return "<0.01%";
  return `${NUMBERS[percent >= 1 ? 1 : 2].format(percent)}%`;
}

// A fraction of nothing is unavailable, not 0%.
export function formatFraction(part, whole) {
  return formatPercent(whole > 0 ? part / whole : null);
}

// The size of a change alone, with one decimal.
export function formatPercentSize(percent) {
  return `${NUMBERS[1].format(Math.abs(percent))}%`;
}
