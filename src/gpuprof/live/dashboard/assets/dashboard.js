// The dashboard: a stream of live figures, and what is in the folder.

import { counted } from "../../../render/assets/kit/format.js";
import {
  bindPageKeys,
  byId,
  download,
  exposed,
  hideTooltip,
  listen,
  newElement,
  startPage,
} from "../../../render/assets/kit/page.js";
import { bindTheme } from "../../../render/assets/kit/theme.js";
import { buildDrill, openComparison, openEntry } from "./drill.js";
import { buildEntries, choose, newEntries, showEntries, updateEntries } from "./entries.js";
import { buildHistory, drawHistory, historyPicture, newHistory, refreshHistory } from "./history.js";
import { beginLive, buildMachine, drawLive, isClosing, newLive, renameCards, showLost, updateLive } from "./live.js";
import { followServer } from "./stream.js";

const STATES = { live: "Live", lost: "Reconnecting", connecting: "Connecting", refused: "Refused" };

async function start() {
  const page = { ticks: 0, isAsking: false, isDrawn: true };
  const live = newLive();
  const open = (id) => openEntry(page, id);
  const entries = newEntries({ open, compare: (old, now) => openComparison(page, old, now) });
  const history = newHistory({ open });
  Object.assign(page, { live, entries, history, choose: (id) => chooseFromPanel(page, id) });
  // The card of a run that was deleted keeps its name.
  const names = new Map();
  live.nameOf = (id) => {
    if (entries.items.has(id)) names.set(id, entries.items.get(id).path);
    return names.get(id) ?? id;
  };
  live.isRecording = (id) => entries.items.get(id)?.state === "recording";
  entries.isClosing = (id) => isClosing(live, id);
  buildMachine(live);
  buildEntries(entries);
  buildHistory(history);
  buildDrill();
  bindTheme(() => drawAgain(page));
  listen("history-png", "click", async () => download(await historyPicture(history), "png"));
  addEventListener("resize", () => drawSoon(page, { withHistory: true }));
  bindPageKeys(() => clearSearch(page));
  followServer({
    onHello: (hello) => {
      beginLive(live, hello.history);
      showProblem(hello.problem);
      drawSoon(page);
      if (hello.version !== entries.version) refresh(page);
    },
    onTick: (tick) => onTick(page, tick),
    onProblem: (state) => showProblem(state.problem),
    onState: (state) => {
      showState(state);
      if (state !== "lost") return;
      if (live.isRefused) showProblem(null);
      showLost(live);
      drawSoon(page);
    },
    onRefused: (reason) => {
      showState("refused");
      showLost(live, { isRefused: true });
      showProblem(`The server sends this page no live figures: ${reason}`);
      drawSoon(page);
    },
  });
  await refresh(page);
  return exposed({
    ticks: () => page.ticks,
    entries: () => entries.items.size,
    pending: () => entries.pending,
    history: () => history.data,
    runs: () => live.cards.size,
  });
}

function onTick(page, tick) {
  page.ticks++;
  if (updateLive(page.live, tick)) showEntries(page.entries);
  showAlerts(page, tick.alerts);
  showProblem(tick.problem);
  showLostAlerts(tick.lost_alerts);
  drawSoon(page);
  if (tick.version !== page.entries.version) refresh(page);
}

// ---- the state of the server ----

function showState(state) {
  const element = byId("status");
  element.dataset.state = state;
  element.textContent = STATES[state];
}

function showProblem(text) {
  byId("problem").hidden = text === null;
  document.body.classList.toggle("has-problem", text !== null);
  byId("problem").textContent = text ?? "";
}

function showLostAlerts(count) {
  byId("lost-alerts").hidden = count === 0;
  byId("lost-alerts").textContent = `The webhook did not take ${counted(count, "alert")}.`;
}

// Only a change is announced to those who do not see the page.
function showAlerts(page, alerts) {
  const text = JSON.stringify(alerts);
  if (text === page.alerts) return;
  page.alerts = text;
  byId("alerts").hidden = alerts.length === 0;
  const items = alerts.map(({ run, rule, severity, subject, text: what }) => {
    const item = newElement("li", undefined, `severity-${severity}`);
    // The machine is no part of a run, and has no key.
    const about = [run === null ? "" : page.live.nameOf(run), subject.kind, String(subject.key)];
    item.append(newElement("b", rule), ` ${what} `, newElement("span", about.filter(Boolean).join(" "), "quiet"));
    return item;
  });
  byId("alert-list").replaceChildren(...items);
}

// One request at a time: the next tick asks again if more has changed.
async function refresh(page) {
  if (page.isAsking) return;
  page.isAsking = true;
  try {
    const response = await fetch(`/api/catalog?since=${page.entries.version}`);
    if (response.ok) {
      const changes = await response.json();
      updateEntries(page.entries, changes);
      renameCards(page.live);
      if (hasResults(changes)) await refreshHistory(page.history);
    }
  } catch {
    showState("lost");
  } finally {
    page.isAsking = false;
  }
}

function hasResults({ items, removed, whole }) {
  return whole || removed.length > 0 || items.some(({ kind }) => kind === "benchmark" || kind === "comparison");
}

// ---- drawing ----

function drawSoon(page, { withHistory = false } = {}) {
  page.isHistoryDrawn = page.isHistoryDrawn !== false && !withHistory;
  if (!page.isDrawn) return;
  page.isDrawn = false;
  requestAnimationFrame(() => {
    page.isDrawn = true;
    drawLive(page.live);
    if (!page.isHistoryDrawn) drawHistory(page.history);
    page.isHistoryDrawn = true;
  });
}

function drawAgain(page) {
  drawLive(page.live, { isNewTheme: true });
  drawHistory(page.history);
}

// ---- selection ----

function chooseFromPanel(page, id) {
  byId("drill").close();
  if (!page.entries.chosen.includes(id)) choose(page.entries, id);
  byId("selected").scrollIntoView({ block: "center" });
}

function clearSearch(page) {
  hideTooltip();
  byId("search").value = "";
  showEntries(page.entries);
}

startPage(start);
