// The picture as PNG: all rows of the present zoom, also those that are scrolled out of sight, with what a reader of
// the picture alone needs: title, sum, warnings, legend.

import { elided, FONT, LABEL_LIMIT } from "../kit/canvas.js";
import { download } from "../kit/download.js";
import { counted, formatCount } from "../kit/format.js";
import { collectCells, isZoomed, ROW_HEIGHT } from "./cells.js";
import { legendEntries } from "./legend.js";
import { shortName } from "./nodes.js";
import { paintRows } from "./paint.js";
import { foundText } from "./search.js";
import { wholeText } from "./weights.js";

const IMAGE_HEIGHT_LIMIT = 8000; // device pixels; browsers fail silently from 32,768 on
const IMAGE_WIDTH_MIN = 960; // CSS pixels: a picture is also read elsewhere than on this screen
export const IMAGE_RATIO = 2;
export const MARGIN = 16;
export const LINE = 20;
export const TITLE_LINE = 28;
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
export function imageLines(app) {
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

// `x` and `y` are where the picture stands on the canvas.
export function imageSurface(app, lines) {
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
  for (const { text, share, colour } of legendEntries(app)) {
    const label = `${text} ${share}`;
    context.fillStyle = colour;
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
