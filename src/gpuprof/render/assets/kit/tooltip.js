// The one tooltip of a page, next to the pointer and always in the window.

import { byId } from "./elements.js";

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
