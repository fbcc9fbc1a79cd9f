// Light, dark, forced colors and paper.

import { byId, newElement } from "./page.js";

// Calls `use` with a function that resolves a CSS color: a canvas and a plot cannot read variables.
export function withColors(use) {
  const probe = newElement("span");
  // Where the system forces colors, the probe still has what the style sheet asked for.
  probe.style.forcedColorAdjust = "none";
  document.body.append(probe);
  const known = new Map();
  const read = (color) => {
    if (!known.has(color)) {
      probe.style.color = color;
      known.set(color, getComputedStyle(probe).color);
    }
    return known.get(color);
  };
  const result = use(read);
  probe.remove();
  return result;
}

export function hasForcedColors() {
  return matchMedia("(forced-colors: active)").matches;
}

// Calls `repaint` where the theme changes, by choice or by the system.
export function bindTheme(repaint) {
  byId("theme").addEventListener("change", (event) => {
    document.documentElement.dataset.theme = event.target.value;
    repaint();
  });
  for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
    matchMedia(query).addEventListener("change", () => repaint());
  }
}

// Paper is white whatever the screen was; the picture is drawn before the print is taken.
export function bindPrint(draw) {
  const print = (isPaper) => () => {
    document.documentElement.toggleAttribute("data-print", isPaper);
    draw(isPaper);
  };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
}
