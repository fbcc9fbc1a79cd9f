// Pointer, keys, buttons.

function indexOf(event) {
  const element = event.target.closest("[data-row]");
  return element ? Number(element.dataset.row) : -1;
}

function bindPlot(app) {
  app.svg.addEventListener("pointermove", (event) => {
    const index = indexOf(event);
    if (event.pointerType !== "touch") showTooltip(app, index, event.clientX, event.clientY);
    if (index === app.hovered) return;
    app.hovered = index;
    light(app);
  });
  app.svg.addEventListener("pointerleave", () => {
    app.hovered = -1;
    showTooltip(app, -1);
    light(app);
  });
  app.svg.addEventListener("click", (event) => select(app, indexOf(event), { scroll: true }));
  app.svg.addEventListener("keydown", (event) => step(app, event, app.order));
  document.getElementById("rows").addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      select(app, indexOf(event));
    } else if (step(app, event, app.order)) app.elements[app.selected].focus();
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") select(app, -1);
  });
}

// Down and right: the next row of the table as it is sorted.
function step(app, event, order) {
  const way = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  const shown = order.filter((row) => !app.hidden.has(row.bound));
  if (way === undefined || shown.length === 0) return false;
  event.preventDefault();
  const now = shown.findIndex((row) => row.index === app.selected);
  const next = now < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, now + way));
  select(app, shown[next].index);
  return true;
}

function buildLegend(app) {
  const shares = new Map();
  for (const row of app.rows) shares.set(row.bound, (shares.get(row.bound) ?? 0) + (row.time_share ?? 0));
  const items = [...shares].sort((a, b) => b[1] - a[1]).map(([bound, share]) => {
    const button = make("button");
    button.type = "button";
    button.setAttribute("aria-pressed", String(!app.hidden.has(bound)));
    button.append(swatch(bound), `${bound} `, make("small", formatPercent(share)));
    button.addEventListener("click", () => {
      if (!app.hidden.delete(bound)) app.hidden.add(bound);
      button.setAttribute("aria-pressed", String(!app.hidden.has(bound)));
      showRows(app);
      draw(app);
    });
    const item = make("li");
    item.append(button);
    return item;
  });
  document.getElementById("legend").replaceChildren(...items);
}

function bindButtons(app) {
  for (const by of KINDS) {
    document.getElementById(`by-${by}`).addEventListener("click", () => showBy(app, by));
  }
  document.getElementById("theme").addEventListener("change", (event) => {
    document.documentElement.dataset.theme = event.target.value;
  });
  new ResizeObserver(() => draw(app)).observe(app.svg);
}
