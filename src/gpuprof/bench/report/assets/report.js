// The page of a comparison: its plots are drawn again for each theme, width and choice of variants.

import { byId, exposed, readJson, startPage } from "../../../render/assets/kit/page.js";
import { bindPrint, bindTheme, withColors } from "../../../render/assets/kit/theme.js";

const PAPER_WIDTH = 680; // what A4 leaves between its margins, in CSS pixels
const PAPER_HEIGHT = 0.78; // of the screen's: two plots with their tables on a page
const BUTTONS_HEIGHT = 24; // of the plot's buttons, which have a row of their own above what is drawn
const CONFIG = {
  displaylogo: false,
  responsive: false,
  modeBarButtons: [["zoom2d", "resetScale2d", "toImage"]],
  toImageButtonOptions: { format: "svg", filename: "gpuprof-comparison" },
};

// `isForPaper`: the page was made to be printed and never changes.
function start() {
  const { figures } = readJson("data");
  const page = { figures, hidden: new Set() };
  const isForPaper = isPaper();
  for (const button of document.querySelectorAll("[data-hides]")) {
    button.addEventListener("click", () => toggle(page, Number(button.dataset.hides)));
  }
  bindTheme(() => draw(page));
  if (!isForPaper) {
    bindPrint((isPrinted) => {
      for (const details of document.querySelectorAll("details")) details.open ||= isPrinted;
      draw(page);
    });
    watchWidth(() => draw(page));
  }
  draw(page);
  const keys = figures.map(({ key }) => key);
  return exposed({ figures: () => keys, hidden: () => page.hidden });
}

function isPaper() {
  return document.documentElement.hasAttribute("data-print");
}

// Texts that only look like a color stay texts: those are never the whole of a value of ours.
function resolved(value, read) {
  if (typeof value === "string") return /^var\(--[a-z0-9-]+\)$/.test(value) ? read(value) : value;
  if (Array.isArray(value)) return value.map((each) => resolved(each, read));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, resolved(each, read)]));
}

function draw({ figures, hidden }) {
  withColors((read) => {
    for (const figure of figures) drawFigure(figure, hidden, read);
  });
}

function drawFigure(figure, hidden, read) {
  const element = byId(`plot-${figure.key}`);
  const traces = resolved(figure.traces, read).map((trace) => ({
    ...trace,
    visible: !(trace.meta && hidden.has(trace.meta.variant)),
  }));
  const layout = resolved(figure.layout, read);
  layout.font.family = getComputedStyle(document.body).fontFamily;
  layout.autosize = false;
  layout.width = isPaper() ? PAPER_WIDTH : element.clientWidth;
  if (isPaper()) layout.height *= PAPER_HEIGHT;
  const room = isPaper() ? 0 : BUTTONS_HEIGHT;
  element.style.setProperty("--buttons", `${room}px`);
  element.style.height = `${layout.height + room}px`;
  // A finger scrolls the page; a mouse selects a range.
  layout.dragmode = matchMedia("(pointer: fine)").matches ? "zoom" : false;
  Plotly.react(element, traces, layout, { ...CONFIG, staticPlot: isPaper() });
  thinOut([...element.querySelectorAll(".textpoint text")].reverse());
}

// Of two names that meet, the first stays; the other is in the legend and where the mouse points.
function thinOut(names) {
  const kept = [];
  for (const name of names) {
    const box = name.getBoundingClientRect();
    const meets = kept.some(
      (other) => box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom,
    );
    name.style.visibility = meets ? "hidden" : "";
    if (!meets) kept.push(box);
  }
}

function watchWidth(redraw) {
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width || isPaper()) return;
    width = innerWidth;
    requestAnimationFrame(redraw);
  });
}

function toggle(page, variant) {
  if (!page.hidden.delete(variant)) page.hidden.add(variant);
  for (const button of document.querySelectorAll(`[data-hides="${variant}"]`)) {
    button.setAttribute("aria-pressed", String(!page.hidden.has(variant)));
  }
  draw(page);
}

startPage(start);
