// The start of a page. `window.__gpuprof` is its one global: state and actions for tests and for the console.

import { byId, showSentence } from "./elements.js";

// `start` draws the page and returns what `window.__gpuprof` shows of it, as property descriptors.
export async function startPage(start) {
  window.__gpuprof = { ready: false };
  try {
    Object.defineProperties(window.__gpuprof, await start());
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
