// The picture as PNG and as SVG: all rows of the present zoom, also those that are scrolled out of sight, with what a
// reader of the picture alone needs: title, sum, warnings, legend.

import { elided, FONT, LABEL_LIMIT, PADDING, SMALLEST_LABEL, snapped } from "../kit/canvas.js";
import { counted, formatCount, formatFraction } from "../kit/format.js";
import { download } from "../kit/page.js";
import { collectCells, isZoomed, ROW_HEIGHT } from "./cells.js";
import { legendEntries } from "./colors.js";
import { foundText, fullName, shortName } from "./nodes.js";
import { cellColor, cellLabel, cellOpacity, cellText, FULL, paintRows } from "./paint.js";
import { amountText, wholeText } from "./tree.js";

// ---- PNG ----

const IMAGE_HEIGHT_LIMIT = 8000; // device pixels; browsers fail silently from 32,768 on
const IMAGE_WIDTH_MIN = 960; // CSS pixels: a picture is also read elsewhere than on this screen
const IMAGE_RATIO = 2;
const MARGIN = 16;
const LINE = 20;
const TITLE_LINE = 28;
const NOTE_LIMIT = 6;
const TITLE_FONT = FONT.replace("12px", "600 17px");

export function savePng(app) {
  const lines = imageLines(app);
  const surface = imageSurface(app, lines);
  paintRows(app, surface, collectCells(app, surface));
  paintHeading(app, surface, lines);
  paintLegend(app, surface);
  paintPage(app, surface);
  surface.canvas.toBlob((blob) => download(blob, "png"));
}

// The lines under the title: the page's own, and what the present view shows.
function imageLines(app) {
  const { tree, view, found } = app;
  const notes = [...document.querySelectorAll(".notes li")].map((note) => note.textContent);
  const facts = [`${tree.measure} ${wholeText(tree)}, ${recordedText(tree)}`];
  if (isZoomed(app)) facts.push(view.focus < 0 ? "zoomed" : `zoomed to ${shortName(tree, view.focus)}`);
  if (found.text) facts.push(`“${found.text}”: ${foundText(found, tree)}`);
  const subtitle = document.querySelector(".subtitle").textContent;
  return [subtitle, ...notes.slice(0, NOTE_LIMIT), facts.join(" · ")].filter(Boolean);
}

function recordedText({ recorded, recordedOld }) {
  const calls = counted(recorded, "call");
  return recordedOld === null ? calls : `${formatCount(recordedOld)} → ${calls}`;
}

// `x` and `y` are where the picture is on the canvas.
function imageSurface(app, lines) {
  const width = Math.max(app.stage.clientWidth, IMAGE_WIDTH_MIN);
  const y = MARGIN + TITLE_LINE + lines.length * LINE + 8;
  const below = 2 * LINE + MARGIN;
  const levels = app.place.levels.count;
  const rows = Math.min(levels, Math.floor((IMAGE_HEIGHT_LIMIT / IMAGE_RATIO - y - below) / ROW_HEIGHT));
  const height = rows * ROW_HEIGHT;
  // What is cut off is the end far from the root.
  const top = app.flame ? levels * ROW_HEIGHT - height : 0;
  const canvas = document.createElement("canvas");
  canvas.width = (width + 2 * MARGIN) * IMAGE_RATIO;
  canvas.height = (y + height + below) * IMAGE_RATIO;
  const context = canvas.getContext("2d");
  return { canvas, context, width, height, top, x: MARGIN, y, ratio: IMAGE_RATIO, plain: true };
}

function paintHeading(app, surface, lines) {
  const { context, width } = surface;
  context.setTransform(IMAGE_RATIO, 0, 0, IMAGE_RATIO, MARGIN * IMAGE_RATIO, MARGIN * IMAGE_RATIO);
  context.fillStyle = app.palette.text;
  context.font = TITLE_FONT;
  context.fillText(fitImageText(context, document.title, width), 0, TITLE_LINE / 2);
  context.font = FONT;
  lines.forEach((line, i) => {
    context.fillText(fitImageText(context, line, width), 0, TITLE_LINE + (i + 0.5) * LINE);
  });
}

// Not fitText: the widths that it remembers are those of the cells' font.
function fitImageText(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let keep = Math.min(text.length, LABEL_LIMIT);
  while (keep > 1 && context.measureText(elided(text, keep)).width > room) keep--;
  return elided(text, keep);
}

function paintLegend(app, surface) {
  const { context, ratio } = surface;
  const y = surface.y + surface.height + LINE;
  context.setTransform(ratio, 0, 0, ratio, MARGIN * ratio, y * ratio);
  let x = 0;
  for (const { text, share, color } of legendEntries(app)) {
    const label = `${text} ${share}`;
    context.fillStyle = color;
    context.fillRect(x, -6, 12, 12);
    context.strokeStyle = app.palette.line;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, -5.5, 11, 11);
    context.fillStyle = app.palette.text;
    context.fillText(label, x + 18, 0);
    x += 18 + context.measureText(label).width + 18;
  }
}

function paintPage(app, surface) {
  const { canvas, context } = surface;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = app.palette.page;
  context.fillRect(0, 0, canvas.width, canvas.height);
}

// ---- SVG: text is escaped, since names may be anything and an SVG that is opened by itself would run a script ----

const SVG_WIDTH_OF_CHARACTER = 6.6; // CSS pixels at 12px; what a viewer's font has more is cut off by the cell

function xmlText(text) {
  const legal = String(text).replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, "\ufffd");
  return legal.replace(/[&<>"']/g, (found) => `&#${found.charCodeAt(0)};`);
}

export function saveSvg(app) {
  download(new Blob([svgText(app)], { type: "image/svg+xml" }), "svg");
}

function svgText(app) {
  const lines = imageLines(app);
  const surface = imageSurface(app, lines);
  surface.context.font = FONT;
  const rows = collectCells(app, surface);
  const width = surface.width + 2 * MARGIN;
  const height = surface.canvas.height / IMAGE_RATIO;
  const { page, text } = app.palette;
  const heading = [document.title, ...lines].map((line, i) =>
    svgLine(
      line,
      TITLE_LINE / 2 + (i ? (i - 0.5) * LINE + TITLE_LINE / 2 : 0) + MARGIN,
      surface.width,
      i ? "" : ' font-size="17" font-weight="600"',
    ),
  );
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" `,
    `font-family="system-ui, sans-serif" font-size="12" dominant-baseline="central" role="img">`,
    `<title>${xmlText(document.title)}</title>`,
    `<rect width="100%" height="100%" fill="${page}"/>`,
    `<g fill="${text}">${heading.join("")}</g>`,
    `<g transform="translate(${MARGIN} ${surface.y})">`,
    ...rows.flatMap((row) => row.cells.map((cell) => svgCell(app, surface, row, cell))),
    "</g>",
    svgLegend(app, surface),
    "</svg>\n",
  ].join("");
}

function svgLine(line, y, room, more) {
  const keep = Math.floor(room / SVG_WIDTH_OF_CHARACTER);
  return `<text x="${MARGIN}" y="${y}"${more}>${xmlText(line.length > keep ? elided(line, keep) : line)}</text>`;
}

function svgCell(app, surface, row, cell) {
  const { left, width } = snapped(surface, cell);
  const opacity = cellOpacity(app, row.level, cell);
  const label = width >= SMALLEST_LABEL ? cellText(app, surface.context, cell, width - 2 * PADDING) : "";
  const ink = cell.marked ? app.palette.matchInk : opacity === FULL ? app.palette.ink : app.palette.text;
  const name = cell.hidden > 1 ? cellLabel(app, cell) : fullName(app.tree, cell.node);
  const figures = `${amountText(app.tree, cell.to - cell.from)}, ${formatFraction(cell.to - cell.from, app.tree.whole)}`;
  const fill = `fill="${cellColor(app, cell, width)}" fill-opacity="${opacity.fill}"`;
  const at = `x="${left + PADDING}" y="${row.y + ROW_HEIGHT / 2}"`;
  return [
    `<g><title>${xmlText(`${name}: ${figures}`)}</title>`,
    `<rect x="${left}" y="${row.y}" width="${width}" height="${ROW_HEIGHT - 1}" ${fill}/>`,
    label ? `<text ${at} fill="${ink}" fill-opacity="${opacity.label}">${xmlText(label)}</text>` : "",
    "</g>",
  ].join("");
}

function svgLegend(app, surface) {
  const y = surface.y + surface.height + LINE;
  let x = MARGIN;
  const entries = legendEntries(app).map(({ text, share, color }) => {
    const label = `${text} ${share}`;
    const entry =
      `<rect x="${x}" y="${y - 6}" width="12" height="12" fill="${color}" stroke="${app.palette.line}"/>` +
      `<text x="${x + 18}" y="${y}">${xmlText(label)}</text>`;
    x += 36 + label.length * SVG_WIDTH_OF_CHARACTER;
    return entry;
  });
  return `<g fill="${app.palette.text}">${entries.join("")}</g>`;
}
