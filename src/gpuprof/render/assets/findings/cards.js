// The cards of findings, which the page has as HTML: each leads to its cell in the flame graph and to its time in the
// timeline. A target is [cell, [begin, end]], see render/findings.py.

import { showInPicture } from "../flame/actions.js";
import { cellOfNode } from "../flame/folding.js";
import { byId } from "../kit/page.js";
import { showView } from "../timeline/page.js";
import { setRange, setTime } from "../timeline/state.js";

const MARGIN = 0.25; // of the range that the timeline shows before and after it

export function bindFindings(app) {
  for (const button of document.querySelectorAll("[data-finding]")) {
    const [cell, range] = app.tree.findings[button.dataset.finding];
    const leads = { flame: cell >= 0, timeline: Boolean(app.timeline && range) };
    // The title leads to the picture in sight, or to the only one that has the finding.
    const view = button.dataset.leads;
    button.hidden = Boolean(view) && !leads[view];
    button.disabled = !leads.flame && !leads.timeline;
    button.addEventListener("click", () => {
      const isInTime = (view ?? (app.shown === "timeline" ? "timeline" : "flame")) === "timeline";
      showFinding(app, { cell, range }, leads.timeline && (isInTime || !leads.flame));
    });
  }
}

// Both pictures get it, so that a change of the view shows it, too.
function showFinding(app, { cell, range }, isInTime) {
  const hidden = isInTime ? "flame" : "timeline";
  if (app.timeline && app.shown === hidden) showView(app, isInTime ? "timeline" : "flame");
  if (cell >= 0) showInPicture(app, cellOfNode(app, cell));
  if (app.timeline && range) showTime(app, range);
  if (!isInTime) return;
  byId("lanes").scrollIntoView({ block: "center" });
  app.lanesCanvas.focus({ preventScroll: true });
}

function showTime(app, [low, high]) {
  const margin = (high - low) * MARGIN;
  setTime(app, low - margin, high + margin);
  setRange(app, { low, high });
}
