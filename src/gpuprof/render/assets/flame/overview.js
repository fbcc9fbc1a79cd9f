// The largest own times, or their changes: as cards, and in a sentence for those who cannot see the picture.

import { byId, newButton, newElement, setBreakable } from "../kit/elements.js";
import { formatCount, formatFraction } from "../kit/format.js";
import { exactQuery } from "../kit/search.js";
import { search } from "./actions.js";
import { formatChange, formatRatio, sidesText } from "./difference.js";
import { changedGroups, changeOf, verdictText } from "./groups.js";
import { fullListedName, kindName, listedName } from "./nodes.js";
import { fractionBar } from "./table.js";
import { amountText } from "./weights.js";

const CARDS = 5;
const KEYS = "Arrow keys select, Enter zooms, Escape zooms out, slash searches. A table with the same data follows.";

export function buildOverview(app, groups) {
  const cards = app.tree.diff ? changeCards(app, groups) : amountCards(app, groups);
  byId("hot").replaceChildren(...cards);
  byId("summary").textContent = `${app.tree.diff ? changeSummary(app, groups) : amountSummary(app, groups)} ${KEYS}`;
  const what = app.tree.diff ? "Flame graph of the difference" : "Flame graph";
  app.canvas.setAttribute("aria-label", `${what}: ${document.title}`);
}

// Highlights the group's name, and a second click no longer.
function newCard(app, group, title, ...figures) {
  const query = exactQuery(listedName(app.tree, group.node));
  const button = newButton(undefined, () => search(app, app.found.text === query ? "" : query));
  const name = newElement("span", undefined, "name");
  setBreakable(name, group.text);
  button.title = `Highlight ${fullListedName(app.tree, group.node)}${title}`;
  button.append(name, ...figures);
  const item = newElement("li");
  item.append(button);
  return item;
}

function amountCards(app, groups) {
  const { tree } = app;
  // Time outside all spans is a cell, a row and in the legend; a card would only say that a program starts.
  const calls = groups.filter((group) => group.own > 0 && kindName(tree, group.node) !== "process");
  return calls
    .slice(0, CARDS)
    .map((group) =>
      newCard(
        app,
        group,
        ` (${kindName(tree, group.node)})`,
        newElement("span", formatFraction(group.own, tree.whole), "share"),
        " ",
        newElement("span", amountText(tree, group.own), "time"),
        fractionBar(tree, group),
      ),
    );
}

function changeCards(app, groups) {
  const cards = changedGroups(groups)
    .slice(0, CARDS)
    .map((group) =>
      newCard(
        app,
        group,
        "",
        newElement("span", formatChange(changeOf(group)), "share"),
        " ",
        newElement("span", `${formatRatio(group.change.old, group.change.new)}, ${verdictText(group)}`, "verdict"),
      ),
    );
  return cards.length ? cards : [newElement("li", "No difference beyond chance.", "none")];
}

function amountSummary({ tree }, groups) {
  const largest = groups
    .slice(0, 3)
    .map((group) => `${group.text} (${kindName(tree, group.node)}) ${formatFraction(group.own, tree.whole)}`);
  return `${amountText(tree, tree.whole)} in ${formatCount(tree.count)} cells. Most own time: ${largest.join(", ")}.`;
}

function changeSummary({ tree }, groups) {
  const largest = changedGroups(groups)
    .slice(0, 3)
    .map((group) => `${group.text} ${formatChange(changeOf(group))} (${verdictText(group)})`);
  const changes = largest.length
    ? `Largest changes of own time: ${largest.join(", ")}.`
    : "No difference beyond chance.";
  return `Difference of two sides, ${sidesText(tree.diff.whole)}. ${changes}`;
}
