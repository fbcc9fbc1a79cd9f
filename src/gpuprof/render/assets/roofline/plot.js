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
      isNarrow(plot) ? "FLOP a byte of the memory level" : "Arithmetic intensity, FLOPs per byte from its memory level",
    ),
  );
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

// Names of ceilings that are closer than this would overlap.
const NAME_HEIGHT = 14;

const LETTER_WIDTH = 7;

// A peak is level and begins at the steepest memory ceiling; a memory ceiling rises up to the highest peak.
// `unnamed` takes the names that there is no room for.
function drawCeilings(scales, ceilings, unnamed) {
  const peaks = ceilings.filter((row) => row.resource === "compute").sort((a, b) => a.value - b.value);
  const levels = ceilings.filter((row) => row.resource.startsWith("memory.")).sort((a, b) => b.value - a.value);
  const highest = peaks.length ? peaks[peaks.length - 1].value : 10 ** scales.y[1];
  const steepest = levels.length ? levels[0].value : null;
  const lowest = peaks.length ? peaks[0].value : highest;
  const parts = [
    ...drawPeaks(scales, peaks, steepest, unnamed),
    ...drawLevels(scales, levels, highest, lowest, unnamed),
  ];
  // Names stay readable where another ceiling runs through them.
  return ["line", "text"].flatMap((kind) => parts.filter((part) => part.tagName === kind));
}

function drawPeaks(scales, peaks, steepest, unnamed) {
  const { plot } = scales;
  let named = Infinity;
  return peaks.flatMap((peak) => {
    const from = steepest ? Math.max(plot.left, scales.toX(peak.value / steepest)) : plot.left;
    const at = scales.toY(peak.value);
    const ceiling = `compute ${peak.dtype}`;
    const name = `${peak.dtype} ${formatAmount(peak.value, `${operationOf(peak.dtype)}/s`)}`;
    const line = shape("line", { class: "ceiling", "data-ceiling": ceiling, x1: from, x2: plot.right, y1: at, y2: at });
    if (named - at <= NAME_HEIGHT) {
      unnamed.push(name);
      return [line];
    }
    named = at;
    return [
      line,
      shape(
        "text",
        { class: "ceiling-name", "data-ceiling": ceiling, x: plot.right - 4, y: at - 5, "text-anchor": "end" },
        name,
      ),
    ];
  });
}

// The slowest level is named first: it is the one that most rows are compared with.
function drawLevels(scales, levels, highest, lowest, unnamed) {
  let named = Infinity;
  return levels
    .map((level, index) => [level, index])
    .reverse()
    .map(([level, index]) => {
      const line = lineOf(scales, level, highest);
      if (line === null) return [];
      const name = `${level.resource.replace("memory.", "").toUpperCase()} ${formatAmount(level.value, "B/s")}`;
      const text = namedAlong(scales, line, index, name, scales.toY(lowest) + NAME_HEIGHT);
      const across = scales.toY(level.value) * Math.cos(line.angle);
      const parts = [shape("line", { class: "ceiling memory", "data-ceiling": level.resource, ...line.ends })];
      if (text === null || named - across <= NAME_HEIGHT) unnamed.push(name);
      else {
        named = across;
        text.dataset.ceiling = level.resource;
        parts.push(text);
      }
      return parts;
    })
    .reverse()
    .flat();
}

// Both ends are inside of the picture: where it enters at the left or from below, and the highest peak.
function lineOf(scales, level, highest) {
  const left = Math.max(10 ** scales.x[0], 10 ** scales.y[0] / level.value);
  const right = highest / level.value;
  if (!(right > left)) return null;
  const ends = {
    x1: scales.toX(left),
    y1: scales.toY(left * level.value),
    x2: scales.toX(right),
    y2: scales.toY(highest),
  };
  return { ends, angle: Math.atan2(ends.y2 - ends.y1, ends.x2 - ends.x1) };
}

// Names of adjacent ceilings are at different places along them, and end below `top`, where peaks are named.
function namedAlong(scales, { ends: { x1, y1, x2, y2 }, angle }, index, name, top) {
  const length = Math.hypot(x2 - x1, y2 - y1);
  const until = length * Math.min(1, (y1 - top) / (y1 - y2));
  const part = 0.12 + (isNarrow(scales.plot) ? 0.2 : 0.14) * index;
  const start = Math.min(part * length, until - name.length * LETTER_WIDTH);
  if (start < 4) return null;
  const [x, y] = [x1 + start * Math.cos(angle), y1 + start * Math.sin(angle)];
  return shape(
    "text",
    { class: "ceiling-name", x, y: y - 5, transform: `rotate(${(angle * 180) / Math.PI} ${x} ${y})` },
    name,
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

export function drawPlot(app) {
  const { clientWidth, clientHeight } = app.svg;
  const places = app.rows.filter((row) => row.at).map((row) => row.at);
  app.scales = makeScales(places, app.device.ceilings, clientWidth, clientHeight);
  app.svg.setAttribute("viewBox", `0 0 ${clientWidth} ${clientHeight}`);
  const unnamed = [];
  app.svg.replaceChildren(
    ...drawGrid(app.scales),
    ...drawCeilings(app.scales, app.device.ceilings, unnamed),
    ...drawPoints(app),
  );
  const below = byId("unnamed");
  below.textContent = `Ceilings without a label in the plot: ${unnamed.join(", ")}`;
  below.hidden = unnamed.length === 0;
  highlight(app);
}
