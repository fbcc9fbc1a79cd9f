// The ruler above the lanes: times since the beginning of the run.

const RULER_HEIGHT = 26;
const TICK_SPACING = 110;  // CSS pixels between labels at least

// 1, 2 or 5 times a power of ten nanoseconds.
function tickStep(window, widthPx) {
  const least = ((window.high - window.low) * TICK_SPACING) / widthPx;
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least) ?? 10 * power;
}

// A time with as many digits as tell it from its neighbours a step away.
function tickText(ns, step, largest) {
  const [size, unit] = TIME_UNITS.find(([each]) => largest >= each) ?? [1, "ns"];
  const digits = Math.min(9, Math.max(0, Math.ceil(Math.log10(size / step) - 1e-9)));
  const text = (ns / size).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${text} ${unit}`;
}

function paintRuler(app) {
  const { time, palette, rulerCanvas, lanes } = app;
  const surface = { width: lanes.clientWidth, height: RULER_HEIGHT, ratio: devicePixelRatio || 1 };
  const context = fittedContext(rulerCanvas, surface);
  context.setTransform(surface.ratio, 0, 0, surface.ratio, 0, 0);
  context.clearRect(0, 0, surface.width, RULER_HEIGHT);
  context.font = FONT;
  context.textBaseline = "middle";
  paintRange(app, { context, ...surface });
  const step = tickStep(time, surface.width);
  const scale = surface.width / (time.high - time.low);
  const largest = Math.max(Math.abs(time.low), Math.abs(time.high));
  context.fillStyle = palette.text;
  for (let tick = Math.ceil(time.low / step) * step; tick <= time.high; tick += step) {
    const x = (tick - time.low) * scale;
    context.fillRect(Math.round(x), RULER_HEIGHT - 8, 1, 8);
    const text = tickText(tick, step, largest);
    if (x + 4 + measured(app, context, text) <= surface.width) context.fillText(text, x + 4, RULER_HEIGHT / 2 - 1);
  }
}
