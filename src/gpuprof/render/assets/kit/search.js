// Text and regular expressions that names are searched for.

import { byId } from "./elements.js";

// A test for names, or null where the text is not a regular expression that can be read.
export function compileQuery(text) {
  const pattern = /^\/(.+)\/([imsu]*)$/.exec(text);
  if (!pattern) {
    const needle = text.toLowerCase();
    return (name) => name.toLowerCase().includes(needle);
  }
  try {
    const expression = new RegExp(pattern[1], pattern[2]);
    return (name) => expression.test(name);
  } catch {
    return null;
  }
}

// A text that finds exactly the names that are shown as `name`.
export function exactQuery(name) {
  return `/^${name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")}$/`;
}

// The box has the found count next to it.
export function showFound(text, isInvalid) {
  byId("found").textContent = text;
  byId("search").setAttribute("aria-invalid", String(isInvalid));
}
