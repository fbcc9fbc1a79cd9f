"use strict";
// Draws the plots. Colours are names of the style sheet, so they are resolved anew for each theme.
{
  const PAPER_WIDTH = 680;  // what A4 leaves between its margins, in CSS pixels
  const PAPER_HEIGHT = 0.78;  // of the screen's: two plots with their tables on a page
  const root = document.documentElement;
  const { figures } = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();
  const config = {
    displaylogo: false,
    responsive: false,
    modeBarButtons: [["zoom2d", "resetScale2d", "toImage"]],
    toImageButtonOptions: { format: "svg", filename: "gpuprof-comparison" },
  };

  function colourReader() {
    const probe = document.createElement("span");
    probe.style.forcedColorAdjust = "none";
    document.body.append(probe);
    const known = new Map();
    const read = (name) => {
      if (!known.has(name)) {
        probe.style.color = name;
        known.set(name, getComputedStyle(probe).color);
      }
      return known.get(name);
    };
    return { read, done: () => probe.remove() };
  }

  // Texts that only look like a colour stay texts: those are never the whole of a value of ours.
  function resolved(value, read) {
    if (typeof value === "string") return /^var\(--[a-z0-9-]+\)$/.test(value) ? read(value) : value;
    if (Array.isArray(value)) return value.map((each) => resolved(each, read));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, resolved(each, read)]));
  }

  function draw() {
    const isPaper = root.hasAttribute("data-print");
    const reader = colourReader();
    for (const figure of figures) {
      const element = document.getElementById(`plot-${figure.key}`);
      const traces = resolved(figure.traces, reader.read).map((trace) => (
        { ...trace, visible: !(trace.meta && hidden.has(trace.meta.variant)) }));
      const layout = resolved(figure.layout, reader.read);
      layout.font.family = getComputedStyle(document.body).fontFamily;
      layout.autosize = false;
      layout.width = isPaper ? PAPER_WIDTH : element.clientWidth;
      if (isPaper) layout.height *= PAPER_HEIGHT;
      element.style.height = `${layout.height}px`;
      // A finger scrolls the page; a mouse chooses a range.
      layout.dragmode = matchMedia("(pointer: fine)").matches ? "zoom" : false;
      Plotly.react(element, traces, layout, { ...config, staticPlot: isPaper });
      thinOut([...element.querySelectorAll(".textpoint text")].reverse());
    }
    reader.done();
  }

  // Of two names that meet, the first stays; the other is in the legend and where the mouse points.
  function thinOut(names) {
    const kept = [];
    for (const name of names) {
      const box = name.getBoundingClientRect();
      const meets = kept.some((other) => (
        box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom));
      name.style.visibility = meets ? "hidden" : "";
      if (!meets) kept.push(box);
    }
  }

  // A table wider than the window says so, and what is cut off at its right fades.
  function showScroll(element) {
    const hiddenWidth = element.scrollWidth - element.clientWidth;
    element.toggleAttribute("data-scrolls", hiddenWidth > 1);
    element.toggleAttribute("data-more", hiddenWidth - element.scrollLeft > 1);
  }
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) showScroll(target.closest(".scroll"));
  });
  for (const element of document.querySelectorAll(".scroll")) {
    sizes.observe(element);
    sizes.observe(element.firstElementChild);
    element.addEventListener("scroll", () => showScroll(element), { passive: true });
  }

  function toggle(variant) {
    if (!hidden.delete(variant)) hidden.add(variant);
    for (const button of document.querySelectorAll(`[data-hides="${variant}"]`)) {
      button.setAttribute("aria-pressed", String(!hidden.has(variant)));
    }
    draw();
  }

  for (const button of document.querySelectorAll("[data-hides]")) {
    button.addEventListener("click", () => toggle(Number(button.dataset.hides)));
  }
  document.getElementById("theme").addEventListener("change", (event) => {
    root.dataset.theme = event.target.value;
    draw();
  });
  for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
    matchMedia(query).addEventListener("change", draw);
  }
  if (!root.hasAttribute("data-print")) {
    for (const [name, isPaper] of [["beforeprint", true], ["afterprint", false]]) {
      addEventListener(name, () => {
        root.toggleAttribute("data-print", isPaper);
        for (const details of document.querySelectorAll("details")) details.open ||= isPaper;
        draw();
      });
    }
  }
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width || root.hasAttribute("data-print")) return;
    width = innerWidth;
    requestAnimationFrame(draw);
  });
  draw();
  window.__gpuprof = { ready: true, figures: figures.map(({ key }) => key), hidden };
  root.setAttribute("data-ready", "");
}
