// The timeline's place in the page, and what the tests and the curious hold on to.

// `loaded` is what loadTimeline tells: the data, a text that says why there is none, or null.
function addTimeline(app, loaded) {
  if (loaded === null) return;
  document.getElementById("views").hidden = typeof loaded === "string" || loaded.count + loaded.readings.length === 0;
  if (typeof loaded === "string") {
    const line = document.getElementById("left-out");
    line.textContent = loaded;
    line.hidden = false;
  }
  if (document.getElementById("views").hidden) return;
  createTimeline(app, loaded);
  describeTimeline(app);
  bindTimeline(app);
  for (const button of document.querySelectorAll('[data-saves="trace"]')) {
    button.hidden = false;
    button.addEventListener("click", () => saveTrace(app));
  }
}

// For who cannot see the picture: what it holds.
function describeTimeline(app) {
  const { timeline, lanesCanvas } = app;
  const streams = timeline.tracks.filter(({ stream }) => stream).length;
  const parts = [counted(timeline.count, "slice"), `on ${counted(timeline.tracks.length - streams, "thread")}`];
  if (streams) parts.push(`and ${counted(streams, "GPU stream")}`);
  if (timeline.readings.length) parts.push(`with ${counted(timeline.readings.length, "chart")} of readings`);
  lanesCanvas.setAttribute("aria-label", `Timeline: ${document.title}`);
  document.getElementById("timeline-summary").textContent =
    `${parts.join(" ")}. Enter selects the first slice in sight; left and right then go to the slice before and after, `
    + "up and down to the one around and inside. Plus and minus zoom, Home shows everything, Escape lets go.";
}

// A slice as a test reads it.
function plainSlice(app, slice) {
  const { timeline } = app;
  const { track, lane, level } = rowOf(timeline, slice);
  return {
    name: sliceName(timeline, slice), kind: sliceKind(app, slice), track, lane, level,
    start: timeline.start[slice], duration: timeline.duration[slice], parent: parentSlice(timeline, slice),
    depth: sliceDepth(timeline, slice), node: cellOfSlice(app, slice),
    marked: app.marks ? app.marks.before[slice + 1] > app.marks.before[slice] : false,
  };
}

function visibleBlocks(app) {
  const { timeline, time, lanes } = app;
  return linesInSight(timeline, lanes.scrollTop, lanes.clientHeight).flatMap((line) => {
    if (line.kind !== "row") return [];
    return collectBlocks(timeline, line.row, time, lanes.clientWidth).map((block) => ({
      slice: block.first, hidden: blockHides(block), x: block.left, width: block.right - block.left,
      y: line.top - lanes.scrollTop, height: SLICE_HEIGHT,
    }));
  });
}

function exposeTimeline(app) {
  const drawn = (action) => (...values) => {
    action(...values);
    refreshMarks(app);
  };
  window.__gpuprof.timeline = app.timeline ? Object.defineProperties({
    count: app.timeline.count,
    tracks: app.timeline.tracks.map(({ name, of, stream }) => ({ name, of, stream })),
    show: (view) => { showView(app, view); drawTimeline(app); },
    select: drawn((slice) => selectSlice(app, slice)),
    zoom: (low, high) => setTime(app, low, high),
    range: (low, high) => setRange(app, { low, high }),
    totals: (low, high) => rangeTotals(app, { low, high }),
    slice: (slice) => plainSlice(app, slice),
    redraw: () => drawTimeline(app),
  }, {
    window: { get: () => ({ ...app.time }) },
    whole: { get: () => ({ ...app.timeline.whole }) },
    view: { get: () => app.shown },
    selected: { get: () => app.slice },
    chosen: { get: () => app.range },
    marked: { get: () => { refreshMarks(app); return app.marks ? app.marks.count : 0; } },
    blocks: { get: () => visibleBlocks(app) },
  }) : null;
}
