// What is said about a slice. Names reach the page through textContent only.

function sliceKind(app, slice) {
  const { classes, classOf } = app.timeline;
  return app.tree.kinds[classes.kind[classOf[slice]]];
}

function shortSliceName(app, slice) {
  const name = quotedIfBlank(sliceName(app.timeline, slice));
  return sliceKind(app, slice) === "backward" ? withoutPrefix(name) : name;
}

function exactTime(ns) {
  return `${formatTime(ns)} (${formatCount(ns)} ns)`;
}

// Pairs of a term and its value, in the order they are shown.
function sliceFacts(app, slice) {
  const { timeline } = app;
  const row = rowOf(timeline, slice);
  const track = timeline.tracks[row.track];
  const up = parentSlice(timeline, slice);
  const facts = [
    ["Start", tickText(timeline.start[slice], 1, Math.abs(timeline.start[slice]))],
    ["Duration", exactTime(timeline.duration[slice])],
    ["On", `${track.name}, ${track.of}`],
  ];
  if (!track.stream) facts.push(["Depth", formatCount(sliceDepth(timeline, slice))]);
  if (track.stream) facts.push(...launchFacts(app, slice, up));
  else facts.push(["Parent", up >= 0 ? shortSliceName(app, up) : "none"]);
  return facts;
}

function launchFacts(app, slice, up) {
  const { timeline } = app;
  if (up < 0) return [["Launched by", "not recorded"]];
  const after = timeline.start[slice] - timeline.start[up];
  return [["Launched by", shortSliceName(app, up)], ["After its start", formatTime(Math.max(0, after))]];
}

// The number of spans around a slice, whatever lane they are in.
function sliceDepth(timeline, slice) {
  let depth = 0;
  for (let up = parentSlice(timeline, slice); up >= 0; up = parentSlice(timeline, up)) depth++;
  return depth;
}

// The line below the picture is also what a screen reader speaks when the selection moves.
function showSlice(app) {
  const line = document.getElementById("details");
  if (app.slice < 0) {
    line.replaceChildren(newElement("span", "Click a slice to select it, drag to move, wheel to zoom, ? for help."));
    return;
  }
  const facts = sliceFacts(app, app.slice).map(([term, value]) => `${term.toLowerCase()} ${value}`);
  const text = newElement("span", [sliceKind(app, app.slice), ...cellRemarks(app, app.slice), ...facts].join(" · "));
  text.title = text.textContent;  // a narrow line cuts it off
  line.replaceChildren(newElement("b", shortSliceName(app, app.slice)), text);
}

// What a reader must know about the slice's cell in the flame graph.
function cellRemarks(app, slice) {
  const { classes, classOf, cellsOfClass } = app.timeline;
  const node = cellOfSlice(app, slice);
  if (node < 0 || !(app.tree.width[node] > 0)) return ["no width in the flame graph, which shows another weight"];
  const cells = cellsOfClass[classes.ofNode[classes.node[classOf[slice]]]];
  return cells > 1 ? [`one of ${formatCount(cells)} cells of the flame graph, not told which`] : [];
}

function showTimeTooltip(app, event) {
  const block = blockAt(app, event.offsetX, event.offsetY);
  const reading = block ? null : chartAt(app, event.offsetY);
  app.tooltip.hidden = !block && !reading;
  app.lanesCanvas.toggleAttribute("data-hit", block !== null);
  app.explained = null;
  if (app.tooltip.hidden) return;
  app.tooltip.replaceChildren(...(block ? blockContent(app, block) : readingContent(app, reading, event.offsetX)));
  placeTooltip(app, event.clientX, event.clientY);
}

function chartAt(app, y) {
  return linesInSight(app.timeline, y + app.lanes.scrollTop, 1)[0]?.reading ?? null;
}

function factList(facts) {
  const list = newElement("dl");
  for (const [term, value] of facts) list.append(newElement("dt", term), newElement("dd", value));
  return list;
}

function blockContent(app, block) {
  const hidden = blockHides(block);
  if (!hidden) {
    const { first } = block;
    return [newElement("b", quotedIfBlank(sliceName(app.timeline, first))), newElement("p", sliceKind(app, first)), factList(sliceFacts(app, first))];
  }
  const { busy } = app.timeline;
  return [
    newElement("b", `${formatCount(hidden)} slices too short to draw`),
    newElement("p", "Click to zoom into them."),
    factList([["Together", formatTime(busy[block.stop] - busy[block.first])]])];
}

function readingContent(app, reading, x) {
  const { time, lanes } = app;
  const at = readingAt(reading, time.low + (x / lanes.clientWidth) * (time.high - time.low));
  const value = at < 0 ? "no reading yet" : formatReading(reading, reading.value[at]);
  return [newElement("b", metricText(reading)), newElement("p", reading.of), factList([["Reading", value]])];
}
