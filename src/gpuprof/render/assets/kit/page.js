// What every page has: elements, the tooltip, keys that work anywhere, saved files, and its start.

// ---- elements ----

export function newElement(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

export function newButton(text, action) {
  const button = newElement("button", text);
  button.type = "button";
  button.addEventListener("click", action);
  return button;
}

export function byId(id) {
  return document.getElementById(id);
}

export function listen(id, kind, action) {
  byId(id).addEventListener(kind, action);
}

export function press(id, isPressed) {
  byId(id).setAttribute("aria-pressed", String(isPressed));
}

// Pairs of a term and its value.
export function factList(facts) {
  const list = newElement("dl");
  for (const [term, value] of facts) list.append(newElement("dt", term), newElement("dd", value));
  return list;
}

// Entries are pairs of a value and its text. A list of one is no choice and is hidden.
export function fillOptions(id, entries) {
  const options = [...entries].map(([value, text]) => {
    const option = newElement("option", text);
    option.value = value;
    return option;
  });
  byId(id).replaceChildren(...options);
  byId(id).hidden = options.length < 2;
}

// Puts a name into `element` with places where a line may break: between the words of the name.
export function setBreakable(element, name) {
  const words = name.split(/(?<=::|[./_<,(›-])(?=\w)/);
  element.replaceChildren(...words.flatMap((word, i) => (i ? [newElement("wbr"), word] : [word])));
}

// A box that is wider than the window is marked, and what is cut off at its right fades.
export function watchScroll(box) {
  const show = () => {
    const hiddenWidth = box.scrollWidth - box.clientWidth;
    box.toggleAttribute("data-scrolls", hiddenWidth > 1);
    box.toggleAttribute("data-more", hiddenWidth - box.scrollLeft > 1);
  };
  const sizes = new ResizeObserver(show);
  for (const each of [box, ...box.children]) sizes.observe(each);
  box.addEventListener("scroll", show, { passive: true });
}

// A sentence in place of the picture.
export function showSentence(sentence) {
  const element = byId("sentence");
  element.textContent = sentence;
  element.hidden = false;
}

export function readJson(id) {
  return JSON.parse(byId(id).textContent);
}

// ---- the tooltip ----

export function hideTooltip() {
  byId("tooltip").hidden = true;
}

// Without `content` the tooltip keeps what it has.
export function showTooltip(x, y, content) {
  const tooltip = byId("tooltip");
  tooltip.hidden = false;
  if (content) tooltip.replaceChildren(...content);
  const { width, height } = tooltip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? x - 16 - width : x + 16;
  const top = y + 20 + height > innerHeight ? y - 14 - height : y + 20;
  tooltip.style.transform = `translate(${Math.max(8, left)}px, ${Math.max(8, top)}px)`;
}

// ---- keys ----

export function bindPageKeys(escape) {
  const help = byId("help");
  const box = byId("search");
  if (help) listen("help-button", "click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (help?.open || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      escape(event);
    } else if (event.target.matches("input, select")) {
      return;
    } else if (event.key === "/" && box) {
      event.preventDefault();
      box.focus();
      box.select();
    } else if (event.key === "?") {
      help?.showModal();
    }
  });
}

// ---- saved files ----

export function download(blob, extension) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${document.title.replace(/[^\w.-]+/g, "-").slice(0, 80) || "gpuprof"}.${extension}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000); // some browsers read it after the click
}

// ---- start ----

// `start` draws the page and returns what `window.__gpuprof` shows of it, as property descriptors.
export async function startPage(start) {
  window.__gpuprof = { ready: false };
  try {
    Object.defineProperties(window.__gpuprof, await start());
    for (const box of document.querySelectorAll(".table, .scroll")) watchScroll(box);
    window.__gpuprof.readyAt = performance.now();
    window.__gpuprof.ready = true;
    document.documentElement.dataset.ready = "";
  } catch (error) {
    if (byId("sentence")) {
      showSentence(`The picture could not be drawn: ${error.message}. It needs a browser of 2024 or later.`);
    }
    throw error;
  }
}

// Descriptors of values that are read when they are asked for, and of actions.
export function exposed(getters, actions = {}) {
  const entries = [
    ...Object.entries(getters).map(([name, get]) => [name, { get, enumerable: true }]),
    ...Object.entries(actions).map(([name, value]) => [name, { value, enumerable: true }]),
  ];
  return Object.fromEntries(entries);
}
