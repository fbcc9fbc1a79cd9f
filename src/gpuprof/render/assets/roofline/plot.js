// The plot as SVG: grid, ceilings, points. Everything is drawn again when the size or the rows change.

import { formatAmount } from "../kit/format.js";
import { byId } from "../kit/page.js";
import { boundColor, makeScales, operationOf, radius } from "./rows.js";
import { highlight } from "./table.js";

const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function drawGrid(scales) {
  const { plot, x, y } = scales;
  const parts = [];
  for (let power = x[0]; power <= x[1]; power++) {
    const at = scales.toX(10 ** power);
    parts.push(shape("line", { class: "grid", x1: at, x2: at, y1: plot.top, y2: plot.bottom }));
    parts.push(shape("text", { x: at, y: plot.bottom + 17, "text-anchor": "middle" }, plainNumber(power)));
  }
  for (let power = y[0]; power <= y[1]; power++) {
    const at = scales.toY(10 ** power);
    parts.push(shape("line", { class: "grid", x1: plot.left, x2: plot.right, y1: at, y2: at }));
    parts.push(
      shape(
        "text",
        { x: plot.left - 8, y: at + 4, "text-anchor": "end" },
        formatAmount(10 ** power, "FLOP/s").replace(/\.0+ /, " "),
      ),
    );
  }
  const middle = (plot.left + plot.right) / 2;
  parts.push(
    shape(
      "text",
      { class: "axis", x: middle, y: plot.bottom + 38, "text-anchor": "middle" },
      isNarrow(plot) ? "Intensity, FLOPs per byte" : "Arithmetic intensity, FLOPs per byte from its memory level",
    ),
  );
  parts.push(shape("text", { class: "axis", x: 4, y: 13 }, "Rate, FLOPs per second"));
  return parts;
}

function isNarrow(plot) {
  return plot.right - plot.left < 480;
}

function plainNumber(power) {
  return power >= 0 && power <= 4
    ? String(10 ** power)
    : power < 0 && power >= -3
      ? (10 ** power).toFixed(-power)
      : `1e${power}`;
}

const NAME_HEIGHT = 14;
const LETTER_WIDTH = 7;
const TRIED = 24; // places along a ceiling

// A peak is level and begins at the steepest memory ceiling; a memory ceiling rises up to the highest peak.
// Names meet neither each other nor another ceiling nor a circle; `unnamed` takes those without such a place.
function drawCeilings(scales, ceilings, circles, unnamed) {
  const peaks = ceilings.filter((row) => row.resource === "compute").sort((a, b) => a.value - b.value);
  const levels = ceilings.filter((row) => row.resource.startsWith("memory.")).sort((a, b) => b.value - a.value);
  const highest = peaks.length ? peaks[peaks.length - 1].value : 10 ** scales.y[1];
  const [flat, rising] = [peakLines(scales, peaks, levels), levelLines(scales, levels, highest)];
  const lines = [...flat, ...rising];
  const taken = circles.map(({ x, y, r }) => ({ points: [[x, y]], reach: r + 3 }));
  for (const { ends } of lines) taken.push({ points: pointsOf(ends, 4), reach: 2 });
  // The slowest level is named first: it is the one that most rows are compared with.
  const named = new Map([...flat, ...rising.toReversed()].map((line) => [line, nameOf(scales, line, taken)]));
  const names = lines.map((line) => named.get(line));
  unnamed.push(...lines.filter((_, index) => names[index] === null).map(({ name }) => name));
  const shapes = lines.map(({ ceiling, kind, ends }) =>
    shape("line", { class: kind, "data-ceiling": ceiling, ...ends }),
  );
  // Names are above all lines.
  return [...shapes, ...names.filter((name) => name !== null)];
}

function peakLines(scales, peaks, levels) {
  const steepest = levels.length ? levels[0].value : null;
  return peaks.map((peak) => {
    const from = steepest ? Math.max(scales.plot.left, scales.toX(peak.value / steepest)) : scales.plot.left;
    const at = scales.toY(peak.value);
    return {
      ceiling: `compute ${peak.dtype}`,
      kind: "ceiling",
      name: `${peak.dtype} ${formatAmount(peak.value, `${operationOf(peak.dtype)}/s`)}`,
      ends: { x1: from, x2: scales.plot.right, y1: at, y2: at },
    };
  });
}

function levelLines(scales, levels, highest) {
  return levels
    .map((level) => ({
      ceiling: level.resource,
      kind: "ceiling memory",
      name: `${level.resource.replace("memory.", "").toUpperCase()} ${formatAmount(level.value, "B/s")}`,
      ends: endsOf(scales, level, highest),
    }))
    .filter(({ ends }) => ends !== null);
}

// Both ends are inside of the picture: where it enters at the left or from below, and the highest peak.
function endsOf(scales, level, highest) {
  const left = Math.max(10 ** scales.x[0], 10 ** scales.y[0] / level.value);
  const right = highest / level.value;
  if (!(right > left)) return null;
  return { x1: scales.toX(left), y1: scales.toY(left * level.value), x2: scales.toX(right), y2: scales.toY(highest) };
}

// Points on a line, a step of pixels apart.
function pointsOf({ x1, y1, x2, y2 }, step) {
  const count = Math.max(1, Math.round(Math.hypot(x2 - x1, y2 - y1) / step));
  return Array.from({ length: count + 1 }, (_, index) => [
    x1 + ((x2 - x1) * index) / count,
    y1 + ((y2 - y1) * index) / count,
  ]);
}

// The name above its line at the first place that is free, else below it; null for none.
function nameOf(scales, { ends, name, ceiling }, taken) {
  const angle = Math.atan2(ends.y2 - ends.y1, ends.x2 - ends.x1);
  const [along, across] = [
    [Math.cos(angle), Math.sin(angle)],
    [Math.sin(angle), -Math.cos(angle)],
  ];
  const wide = name.length * LETTER_WIDTH;
  const spare = Math.hypot(ends.x2 - ends.x1, ends.y2 - ends.y1) - wide - 8;
  if (spare < 0) return null;
  // Peaks are named at their end, and memory ceilings near their beginning.
  const places = Array.from({ length: TRIED }, (_, index) => index / (TRIED - 1));
  if (angle === 0) places.reverse();
  for (const away of [5, -14])
    for (const place of places) {
      const start = 4 + place * spare;
      const at = (right, up) => [
        ends.x1 + along[0] * right + across[0] * up,
        ends.y1 + along[1] * right + across[1] * up,
      ];
      const middle = Array.from({ length: Math.ceil(wide / 5) + 1 }, (_, index) =>
        at(Math.min(start + index * 5, start + wide), away + 4.5),
      );
      if (!isFree(middle, scales.plot, taken)) continue;
      taken.push({ points: middle, reach: NAME_HEIGHT / 2 });
      const [x, y] = at(start, away);
      const turned = angle === 0 ? {} : { transform: `rotate(${(angle * 180) / Math.PI} ${x} ${y})` };
      return shape("text", { class: "ceiling-name", "data-ceiling": ceiling, x, y, ...turned }, name);
    }
  return null;
}

// `points` are the middle of a text; what is taken has a reach around its own points.
function isFree(points, plot, taken) {
  const isInside = points.every(([x, y]) => x > plot.left && x < plot.right && y > plot.top && y < plot.bottom);
  return (
    isInside &&
    taken.every(({ points: others, reach }) =>
      others.every(([x, y]) => points.every(([px, py]) => Math.hypot(x - px, y - py) > reach + 5)),
    )
  );
}

function drawPoints(app) {
  const longest = Math.max(...app.rows.map((row) => row.total_ns));
  const drawn = app.rows.filter((row) => row.at && !app.hidden.has(row.bound));
  // The largest first, so that small ones stay on top and can be reached.
  return drawn
    .sort((a, b) => b.total_ns - a.total_ns)
    .map((row) => {
      const hollow = row.bound === "underutilized" || row.bound === "unknown";
      const point = shape("circle", {
        class: `point${hollow ? " hollow" : ""}`,
        "data-row": row.index,
        cx: app.scales.toX(row.at.intensity),
        cy: app.scales.toY(row.at.rate),
        r: radius(row, longest),
      });
      point.style.fill = boundColor(row.bound);
      if (hollow) point.style.stroke = boundColor(row.bound);
      return point;
    });
}

function circlesOf(points) {
  return points.map((point) => ({
    x: Number(point.getAttribute("cx")),
    y: Number(point.getAttribute("cy")),
    r: Number(point.getAttribute("r")),
  }));
}

export function drawPlot(app) {
  const { clientWidth, clientHeight } = app.svg;
  const places = app.rows.filter((row) => row.at).map((row) => row.at);
  app.scales = makeScales(places, app.device.ceilings, clientWidth, clientHeight);
  app.svg.setAttribute("viewBox", `0 0 ${clientWidth} ${clientHeight}`);
  const unnamed = [];
  const points = drawPoints(app);
  app.svg.replaceChildren(
    ...drawGrid(app.scales),
    ...drawCeilings(app.scales, app.device.ceilings, circlesOf(points), unnamed),
    ...points,
  );
  const below = byId("unnamed");
  below.textContent = `Ceilings without a label in the plot: ${unnamed.join(", ")}`;
  below.hidden = unnamed.length === 0;
  highlight(app);
}
