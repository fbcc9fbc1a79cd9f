// Keys that work anywhere on a page: / searches, ? shows the help, Escape leaves.

import { byId, listen } from "./elements.js";

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
