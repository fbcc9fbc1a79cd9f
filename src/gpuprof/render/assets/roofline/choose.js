// What is pointed at and what is chosen, on both sides; and the words about it.

function rowAt(app, index) {
  return index >= 0 ? app.rows[index] : null;
}

function light(app) {
  const lit = app.hovered >= 0 ? app.hovered : app.selected;
  const row = rowAt(app, lit);
  for (const element of app.svg.querySelectorAll("[data-row]")) {
    element.classList.toggle("lit", Number(element.dataset.row) === lit);
  }
  for (const element of app.svg.querySelectorAll("[data-roof]")) {
    element.classList.toggle("lit", row !== null && element.dataset.roof === row.roof);
  }
  for (const element of app.elements) {
    element.classList.toggle("lit", Number(element.dataset.row) === app.selected);
    if (Number(element.dataset.row) === app.selected) element.setAttribute("aria-current", "true");
    else element.removeAttribute("aria-current");
  }
}

function select(app, index, { scroll = false } = {}) {
  app.selected = index;
  markFocusable(app);
  light(app);
  showDetails(app);
  if (scroll && index >= 0) app.elements[index].scrollIntoView({ block: "nearest" });
}

function showDetails(app) {
  const details = document.getElementById("details");
  const row = rowAt(app, app.selected);
  if (row === null) {
    details.replaceChildren(make("b", "Nothing chosen"),
      make("span", "Point at a circle, press one, or a row. Arrow keys go from the longest to the shortest."));
    return;
  }
  const roof = row.roof_share === null ? "" : `, ${formatPercent(row.roof_share)} of the roof`;
  details.replaceChildren(
    make("b", `${row.name}: ${boundText(row)}${roof}, sure ${row.confidence.toFixed(2)}`),
    make("span", row.advice ? `${row.evidence}. ${row.advice}` : row.evidence));
}

function showTooltip(app, index, x = 0, y = 0) {
  const tooltip = document.getElementById("tooltip");
  const row = rowAt(app, index);
  tooltip.hidden = row === null;
  if (row === null) return;
  const facts = make("dl");
  for (const [term, value] of factsOf(row)) facts.append(make("dt", term), make("dd", value));
  tooltip.replaceChildren(make("b", row.name), make("p", boundText(row)), make("p", row.evidence, "why"), facts);
  const { offsetWidth, offsetHeight } = tooltip;
  const left = x + 16 + offsetWidth > innerWidth ? x - 16 - offsetWidth : x + 16;
  const top = Math.min(y + 16, innerHeight - offsetHeight - 8);
  tooltip.style.transform = `translate(${Math.max(8, left)}px, ${Math.max(8, top)}px)`;
}

function factsOf(row) {
  const operation = operationOf(row.dtype);
  return [
    ["Share of the time", formatPercent(row.time_share)],
    ["A call", `${formatTime(row.time_ns)}, ${formatCount(row.calls)} calls`],
    [`${operation}s`, `${formatRate(row.flops, operation)} (${row.exactness})`],
    ["Reached", formatRate(row.flops_per_s, `${operation}/s`)],
    ["Ideal bytes", formatRate(row.bytes, "B")],
    ["Served by", row.memory_level === null ? "–" : `${row.memory_level}, ${formatRate(row.memory_bytes, "B")}`],
    ...Object.entries(row.used).map(([resource, share]) => [`Used: ${resource}`, formatPercent(share)]),
    ["Sure", row.confidence.toFixed(2)],
  ];
}
