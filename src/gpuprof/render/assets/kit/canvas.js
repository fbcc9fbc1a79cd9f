// Drawing on a 2D context in CSS pixels: sharp edges, text that fits its room, and what of it is in sight.

export const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
export const PADDING = 5;
export const SMALLEST_LABEL = 26; // pixels of room below which a label would be an ellipsis only
export const LABEL_LIMIT = 300; // characters; more never fit and cost time to measure
const HEAD_FRACTION = 0.55; // of the characters kept, those before the ellipsis
const WIDTHS_KEPT = 50_000; // of texts, so that none is measured twice; a long session sees many
const widths = new Map(); // of texts in FONT

// Fits a canvas to `width` and `height` at the screen's `ratio`. Setting its size clears it: only on a change.
export function fittedContext(canvas, { width, height, ratio }) {
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.height = `${height}px`;
  }
  return canvas.getContext("2d");
}

// The part of a scrolled box that is in sight, and the context of the canvas that shows it.
export function boxSurface(canvas, box, height = box.clientHeight) {
  const surface = { width: box.clientWidth, height, top: box.scrollTop, ratio: devicePixelRatio || 1 };
  return { ...surface, context: fittedContext(canvas, surface) };
}

// An empty canvas, with the texts of pictures.
export function clearSurface({ context, width, height, ratio, x = 0, y = 0 }) {
  context.setTransform(ratio, 0, 0, ratio, x * ratio, y * ratio);
  context.clearRect(0, 0, width, height);
  context.font = FONT;
  context.textBaseline = "middle";
  context.direction = "ltr";
}

// Edges on whole device pixels keep cells crisp; a cell of less than one is drawn as one.
export function snapped(surface, cell) {
  const left = Math.round(cell.left * surface.ratio) / surface.ratio;
  const right = Math.round(cell.right * surface.ratio) / surface.ratio;
  const gap = right - left > 3 ? 1 : 0;
  return { left, width: Math.max(right - left - gap, 1 / surface.ratio) };
}

export function textWidth(context, text) {
  let width = widths.get(text);
  if (width === undefined) {
    width = context.measureText(text).width;
    if (widths.size >= WIDTHS_KEPT) widths.clear();
    widths.set(text, width);
  }
  return width;
}

// The longest of the forms that fits, else as much of the last as does, or nothing where that would not help.
export function fitText(context, forms, room) {
  for (const form of forms) {
    if (form.length <= LABEL_LIMIT && textWidth(context, form) <= room) return form;
  }
  const text = forms.at(-1);
  const sample = text.slice(0, LABEL_LIMIT);
  let keep = Math.min(text.length - 1, Math.floor((sample.length * room) / textWidth(context, sample)));
  while (keep > 1 && textWidth(context, elided(text, keep)) > room) keep--;
  return keep > 1 ? elided(text, keep) : "";
}

// A text, and paler after it the first of `figures` that fits into what is left of the room.
export function paintText(context, text, figures, x, y, room) {
  context.fillText(text, x, y);
  const used = textWidth(context, text) + 10;
  if (room - used < 40) return;
  const fitting = figures.find((each) => textWidth(context, each) <= room - used);
  if (fitting === undefined) return;
  const alpha = context.globalAlpha;
  context.globalAlpha = alpha * 0.8;
  context.fillText(fitting, x + used, y);
  context.globalAlpha = alpha;
}

// Where the system forces colors, neighbors are separated by borders.
export function paintBorder(context, color, left, top, width, height) {
  context.lineWidth = 1;
  context.strokeStyle = color;
  context.strokeRect(left + 0.5, top + 0.5, width - 1, height - 1);
}

// The item at `px`, with one pixel of grace, since it may be thinner than the pointer; null for none.
export function itemAt(items, px) {
  const within = (grace) => items.findLast(({ left, right }) => px >= left - grace && px < right + grace);
  return within(0) ?? within(1) ?? null;
}

// The first index from `from` to before `stop` at which `test` holds, as it does at all after it; else `stop`.
export function firstIndex(from, stop, test) {
  let low = from;
  let high = stop;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (test(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

// The first and the last of `keep` characters; never half of a pair of surrogates.
export function elided(text, keep) {
  const head = keep > 3 ? Math.ceil(keep * HEAD_FRACTION) : keep;
  const before = text
    .slice(0, head)
    .replace(/[\ud800-\udbff]$/, "")
    .trimEnd();
  const after =
    keep > head
      ? text
          .slice(head - keep)
          .replace(/^[\udc00-\udfff]/, "")
          .trimStart()
      : "";
  return `${before}…${after}`;
}
