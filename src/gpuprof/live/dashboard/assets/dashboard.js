// The dashboard: a stream of live figures, and what is in the folder.

import { bindPageKeys, byId, exposed, hideTooltip, startPage } from "../../../render/assets/kit/page.js";
import { bindTheme } from "../../../render/assets/kit/theme.js";
import { buildEntries, newEntries, showEntries, updateEntries } from "./entries.js";
import { beginLive, buildMachine, drawLive, newLive, renameCards, updateLive } from "./live.js";
import { followServer } from "./stream.js";

const STATES = { live: "Live", lost: "Reconnecting", connecting: "Connecting" };

async function start() {
  const live = newLive();
  const entries = newEntries({ open() {}, compare() {} });
  live.nameOf = (id) => entries.items.get(id)?.path ?? id;
  buildMachine(live);
  buildEntries(entries);
  const page = { live, entries, ticks: 0, isAsking: false, isDrawn: true };
  bindTheme(() => draw(page));
  addEventListener("resize", () => drawSoon(page));
  bindPageKeys(() => clearSearch(page));
  await refresh(page);
  followServer({
    onHello: (hello) => {
      beginLive(live, hello.history);
      showProblem(hello.problem);
      drawSoon(page);
      if (hello.version !== entries.version) refresh(page);
    },
    onTick: (tick) => onTick(page, tick),
    onState: showState,
  });
  return exposed({ ticks: () => page.ticks, entries: () => entries.items.size, version: () => entries.version });
}

function onTick(page, tick) {
  page.ticks++;
  updateLive(page.live, tick);
  showProblem(tick.problem);
  drawSoon(page);
  if (tick.version !== page.entries.version) refresh(page);
}

function showState(state) {
  const element = byId("status");
  element.dataset.state = state;
  element.textContent = STATES[state];
}

function showProblem(text) {
  byId("problem").hidden = text === null;
  byId("problem").textContent = text ?? "";
}

// One request at a time: the next tick asks again if more has changed.
async function refresh(page) {
  if (page.isAsking) return;
  page.isAsking = true;
  try {
    const response = await fetch(`/api/catalogue?since=${page.entries.version}`);
    if (response.ok) {
      updateEntries(page.entries, await response.json());
      renameCards(page.live);
    }
  } catch {
    showState("lost");
  } finally {
    page.isAsking = false;
  }
}

function drawSoon(page) {
  if (!page.isDrawn) return;
  page.isDrawn = false;
  requestAnimationFrame(() => draw(page));
}

function draw(page) {
  page.isDrawn = true;
  drawLive(page.live);
}

function clearSearch(page) {
  hideTooltip();
  byId("search").value = "";
  showEntries(page.entries);
}

startPage(start);
