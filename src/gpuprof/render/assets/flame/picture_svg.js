// The picture as SVG: the same cells as in the PNG, as shapes with a title each. Text is escaped: names may be
// anything, and an SVG that is opened by itself would run a script.

import { elided, FONT, PADDING, SMALLEST_LABEL, snapped } from "../kit/canvas.js";
import { download } from "../kit/download.js";
import { formatFraction } from "../kit/format.js";
import { collectCells, ROW_HEIGHT } from "./cells.js";
import { legendEntries } from "./legend.js";
import { fullName } from "./nodes.js";
import { cellColour, cellLabel, cellOpacity, cellText, FULL } from "./paint.js";
import { IMAGE_RATIO, imageLines, imageSurface, LINE, MARGIN, TITLE_LINE } from "./picture.js";
import { amountText } from "./weights.js";

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
  const fill = `fill="${cellColour(app, cell, width)}" fill-opacity="${opacity.fill}"`;
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
  const entries = legendEntries(app).map(({ text, share, colour }) => {
    const label = `${text} ${share}`;
    const entry =
      `<rect x="${x}" y="${y - 6}" width="12" height="12" fill="${colour}" stroke="${app.palette.line}"/>` +
      `<text x="${x + 18}" y="${y}">${xmlText(label)}</text>`;
    x += 36 + label.length * SVG_WIDTH_OF_CHARACTER;
    return entry;
  });
  return `<g fill="${app.palette.text}">${entries.join("")}</g>`;
}
