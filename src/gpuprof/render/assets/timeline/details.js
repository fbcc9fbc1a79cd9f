// Text about slices: tooltip, the line below the picture, the marks and the totals of a range.

import { quotedIfBlank, withoutPrefix } from "../flame/names.js";
import { counted, formatCount, formatDuration, formatExactDuration, formatInstant } from "../kit/format.js";
import { byId, factList, hideTooltip, newElement, setBreakable, showTooltip } from "../kit/page.js";
import { rowHead } from "../kit/table.js";
import { bandAt, bandFigures } from "./bands.js";
import { cellOfSlice } from "./marks.js";
import { formatReading, metricText, readingAt } from "./paint.js";
import { blockAt, blockHides, linesInSight, parentSlice, rowOf, sliceName } from "./rows.js";
import { isWholeTime } from "./state.js";
import { isEstimated, rangeTotals } from "./totals.js";

const RANGE_ROWS = 12;

export function sliceKind(app, slice) {
  const { classes, classOf } = app.timeline;
  return app.tree.kinds[classes.kind[classOf[slice]]];
}

function shortSliceName(app, slice) {
  const { timeline } = app;
  const kind = sliceKind(app, slice);
  const label = kind === "gc" ? timeline.labels.get(timeline.classes.name[timeline.classOf[slice]]) : undefined;
  const name = quotedIfBlank(label ?? sliceName(timeline, slice));
  return kind === "backward" ? withoutPrefix(name) : name;
}

// Pairs of a term and its value, in the order they are shown.
function sliceFacts(app, slice) {
  const { timeline } = app;
  const row = rowOf(timeline, slice);
  const track = timeline.tracks[row.track];
  const up = parentSlice(timeline, slice);
  const facts = [
    ["Start", formatInstant(timeline.start[slice], 1, Math.abs(timeline.start[slice]))],
    ["Duration", formatExactDuration(timeline.duration[slice])],
    ["On", `${track.name}, ${track.of}`],
  ];
  if (!track.stream) facts.push(["Depth", formatCount(sliceDepth(timeline, slice))]);
  if (track.stream) facts.push(...launchFacts(app, slice, up));
  else facts.push(["Parent", up >= 0 ? shortSliceName(app, up) : "none"]);
  return facts;
}

function launchFacts(app, slice, up) {
  const { timeline } = app;
  if (up < 0) return [["Launched by", mergedLauncher(app, slice) ?? "not recorded"]];
  const after = timeline.start[slice] - timeline.start[up];
  return [
    ["Launched by", shortSliceName(app, up)],
    ["After its start", formatDuration(Math.max(0, after))],
  ];
}

// The name of what launched a slice, where it is too short for the page.
function mergedLauncher({ timeline, tree }, slice) {
  const { classes, classOf, names, merged } = timeline;
  const up = merged ? classes.parent[classOf[slice]] : -1;
  if (up < 0 || tree.kinds[classes.kind[up]] === "process") return null;
  return `${quotedIfBlank(names[classes.name[up]])}, shorter than ${formatDuration(merged.below)}`;
}

// The number of spans around a slice, whatever lane they are in.
export function sliceDepth(timeline, slice) {
  let depth = 0;
  for (let up = parentSlice(timeline, slice); up >= 0; up = parentSlice(timeline, up)) depth++;
  return depth;
}

// The line below the picture is also what a screen reader reads out when the selection moves.
export function showSlice(app) {
  const line = byId("details");
  if (app.slice < 0) {
    line.replaceChildren(newElement("span", "Click a slice to select it, drag to move, wheel to zoom, ? for help."));
    return;
  }
  const facts = sliceFacts(app, app.slice).map(([term, value]) => `${term.toLowerCase()} ${value}`);
  const text = newElement("span", [sliceKind(app, app.slice), ...cellRemarks(app, app.slice), ...facts].join(" · "));
  text.title = text.textContent; // a narrow line cuts it off
  line.replaceChildren(newElement("b", shortSliceName(app, app.slice)), text);
}

// Facts about the slice's cell in the flame graph.
function cellRemarks(app, slice) {
  const { classes, classOf, cellsOfClass } = app.timeline;
  const node = cellOfSlice(app, slice);
  if (node < 0 || !(app.tree.width[node] > 0)) return ["no width in the flame graph, which shows another weight"];
  const cells = cellsOfClass[classes.ofNode[classes.node[classOf[slice]]]];
  return cells > 1 ? [`one of ${formatCount(cells)} cells of the flame graph, which one is unknown`] : [];
}

export function showTimeTooltip(app, event) {
  const block = blockAt(app, event.offsetX, event.offsetY);
  const band = block ? null : bandAt(app, event.offsetX, event.offsetY);
  const reading = block || band ? null : chartAt(app, event.offsetY);
  app.lanesCanvas.toggleAttribute("data-hit", block !== null || band !== null);
  app.explained = null;
  if (!block && !band && !reading) return hideTooltip();
  const content = block
    ? blockContent(app, block)
    : band
      ? bandContent(app, band)
      : readingContent(app, reading, event.offsetX);
  return showTooltip(event.clientX, event.clientY, content);
}

function chartAt(app, y) {
  return linesInSight(app.timeline, y + app.lanes.scrollTop, 1)[0]?.reading ?? null;
}

function blockContent(app, block) {
  const { timeline } = app;
  const hidden = blockHides(block);
  if (hidden) {
    return [
      newElement("b", `${formatCount(hidden)} slices too short to draw`),
      newElement("p", "Click to zoom into them."),
      factList([["Together", formatDuration(timeline.busy[block.stop] - timeline.busy[block.first])]]),
    ];
  }
  const { first } = block;
  const isCollection = sliceKind(app, first) === "gc";
  const name = newElement("b", isCollection ? shortSliceName(app, first) : quotedIfBlank(sliceName(timeline, first)));
  return [name, newElement("p", sliceKind(app, first)), factList(sliceFacts(app, first))];
}

function bandContent(app, band) {
  const { timeline, tree } = app;
  const { slices, busy, span, name, kind } = bandFigures(timeline, band);
  return [
    newElement("b", `${counted(slices, "call")} shorter than ${formatDuration(timeline.merged.below)}`),
    newElement("p", "Summed up when the page was written."),
    factList([
      ["Together", formatDuration(busy)],
      ["In a stretch of", formatDuration(span)],
      ["Longest", `${quotedIfBlank(timeline.names[name])} (${tree.kinds[kind]})`],
    ]),
  ];
}

function readingContent(app, reading, x) {
  const { time, lanes } = app;
  const at = readingAt(reading, time.low + (x / lanes.clientWidth) * (time.high - time.low));
  const value = at < 0 ? "no reading yet" : formatReading(reading, reading.value[at]);
  return [newElement("b", metricText(reading)), newElement("p", reading.of), factList([["Reading", value]])];
}

function showMarks({ marks }) {
  byId("marked").textContent = marks ? marksText(marks) : "";
  for (const id of ["mark-before", "mark-after"]) byId(id).hidden = !marks?.count;
}

function marksText({ count, text, isShared, merged }) {
  const more = merged ? `${count ? " and " : ", "}${counted(merged, "call")} too short to draw` : "";
  if (!count) return `no slice of ${text}${more}`;
  const which = isShared ? ", with those of other layers: the run does not distinguish them" : "";
  return `${counted(count, "slice")} of ${text} ${count === 1 ? "is" : "are"} marked${which}${more && `; ${more.slice(5)}`}`;
}

export function showRange(app) {
  const box = byId("range");
  box.hidden = !app.range || app.shown === "flame";
  if (box.hidden) return;
  const totals = rangeTotals(app, app.range);
  const slices = totals.reduce((sum, { calls }) => sum + calls, 0);
  const { low, high } = app.range;
  const from = formatInstant(low, Math.max(1, (high - low) / 1000), high);
  const estimated = isEstimated(app, app.range) ? "; of short calls at both ends, a part is estimated" : "";
  const largest = totals.length > RANGE_ROWS ? `, the ${RANGE_ROWS} names with the most self time` : "";
  byId("range-caption").textContent =
    `${formatDuration(high - low)} from ${from}: ${counted(slices, "slice")} of ${counted(totals.length, "name")}${largest}${estimated}`;
  byId("range-rows").replaceChildren(...totals.slice(0, RANGE_ROWS).map(rangeRow));
}

function rangeRow({ name, text, kind, own, total, calls }) {
  const row = newElement("tr");
  const head = rowHead(undefined, name);
  setBreakable(head, text);
  const figures = [formatDuration(own), formatDuration(total), formatCount(calls)];
  row.append(head, newElement("td", kind, "words"), ...figures.map((figure) => newElement("td", figure)));
  return row;
}

export function bindTimelineDetails(app) {
  app.changes.on("slice", () => showSlice(app));
  app.changes.on("range", () => showRange(app));
  app.changes.on("marks", () => showMarks(app));
  app.changes.on("time", () => {
    hideTooltip();
    byId("time-reset").disabled = isWholeTime(app);
  });
}
