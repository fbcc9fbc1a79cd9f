// Colours live in page.css. The canvas cannot use CSS variables, so they are resolved once a theme.

const SHADES = [-0.1, -0.05, 0, 0.05, 0.1];  // towards black or white: tells neighbours of one kind apart

function readPalette(kinds) {
  const probe = document.createElement("span");
  // Where the system forces colours, the probe shall still say what the style sheet asked for.
  probe.style.forcedColorAdjust = "none";
  document.body.append(probe);
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const forced = matchMedia("(forced-colors: active)").matches;
  const palette = {
    forced,
    ink: read("ink"), more: read("more"), match: read("match"), matchInk: read("match-ink"),
    page: read("page"), text: read("text"), outline: read("outline"), line: read("line"),
    ...readColours(read),
    kinds: kinds.map((kind) => shadesOf(read(`kind-${kind}`), forced)),
  };
  probe.remove();
  return palette;
}

function shadesOf(colour, forced) {
  const channels = colour.match(/[\d.]+/g).slice(0, 3).map(Number);
  return SHADES.map((shade) => {
    if (forced) return colour;
    const target = shade > 0 ? 255 : 0;
    const mixed = channels.map((value) => Math.round(value + (target - value) * Math.abs(shade)));
    return `rgb(${mixed.join(", ")})`;
  });
}

// The same name has the same shade in every page, so that two pages can be compared side by side.
function shadeOfName(name) {
  let hash = 0x811c9dc5;
  const length = Math.min(name.length, 200);
  for (let i = 0; i < length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  return ((hash >>> 0) ^ (hash >>> 15)) % SHADES.length;
}

function nameShades(names) {
  return Uint8Array.from(names, (name) => Math.abs(shadeOfName(name)));
}

function bindTheme(app) {
  const repaint = () => {
    app.palette = readPalette(app.tree.kinds);
    app.redraw();
  };
  document.getElementById("theme").addEventListener("change", (event) => {
    document.documentElement.dataset.theme = event.target.value;
    repaint();
  });
  for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
    matchMedia(query).addEventListener("change", repaint);
  }
  // Paper is white whatever the screen was; the canvas must be drawn before the print is taken.
  const print = (on) => () => {
    document.documentElement.toggleAttribute("data-print", on);
    app.palette = readPalette(app.tree.kinds);
    app.drawNow();
  };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
}
