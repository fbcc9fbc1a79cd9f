// What changed between two sides. A cell is as wide as the mean of both, so that what is new and what is gone
// has a place, too. What stands is coloured; what may be chance is grey.

const CHANGE_MODES = [
  { key: "total", label: "Colour: change of total" },
  { key: "own", label: "Colour: change of own time" },
];
const STRENGTHS = [0.05, 0.2];  // of a change, as a share of the old time: from here on a stronger colour
const STRENGTH_TEXTS = ["by less than 5%", "by 5% to 20%", "by 20% and more"];
const CHANGE_TEXTS = {
  slower: "slower", faster: "faster", same: "no difference beyond chance",
  new: "new", gone: "gone", unknown: "not judged: too few calls",
};
const TOO_SMALL = "too small to be judged";
const MANYFOLD = 10;  // from here on a ratio is told as such, not in per cent
// A sign before the name, so that nothing rests on the colour alone.
const CHANGE_MARKS = { slower: "▲", faster: "▼", new: "+", gone: "−" };
const HATCHED = ["new", "gone", "unknown"];
const STANDING = ["slower", "faster", "new", "gone"];

function readDifference(column) {
  const side = (name) => ({
    old: column(`${name}.old`), new: column(`${name}.new`),
    low: column(`${name}.low`), high: column(`${name}.high`), state: column(`${name}.state`),
  });
  const own = side("own");
  const sum = (values) => values.reduce((all, value) => all + value, 0);
  const whole = { old: sum(own.old), new: sum(own.new) };
  return { total: side("total"), own, callsOld: column("calls.old"), callsNew: column("calls.new"), whole };
}

function meanOfSides({ old, new: now }) {
  return Float64Array.from(old, (ns, node) => (ns + now[node]) / 2);
}

function stateOf(app, node) {
  const { tree } = app;
  const change = tree.diff?.[app.colour];
  return change ? tree.states[change.state[node]] : "";
}

function stateName(app, node) {
  return stateOf(app, node);
}

function changeMark(app, node) {
  return CHANGE_MARKS[stateOf(app, node)] ?? "";
}

// ---- colours ----

function readChangeColours(read) {
  const shades = (name) => [0, 1, 2].map((strength) => read(`${name}-${strength}`));
  return {
    slower: shades("slower"), faster: shades("faster"), same: [read("same")],
    new: [read("new")], gone: [read("gone")], unknown: [read("unjudged")], hatch: read("hatch"),
  };
}

function changeColour(app, node) {
  const change = app.tree.diff[app.colour];
  const shades = app.palette.change[stateOf(app, node)];
  return shades.length === 1 ? shades[0] : shades[strengthOf(change, node)];
}

function strengthOf(change, node) {
  const ratio = Math.abs(change.new[node] - change.old[node]) / change.old[node];
  return STRENGTHS.filter((from) => ratio >= from).length;
}

function paintHatch(app, context, cell, x, y, width) {
  if (!app.tree.diff || cell.marked || cell.hidden > 1 || width < 3) return;
  const state = stateOf(app, cell.node);
  if (!HATCHED.includes(state)) return;
  context.fillStyle = hatchOf(app, context, state);
  context.fillRect(x, y, width, ROW_HEIGHT - 1);
}

// New: stripes that rise. Gone: stripes that fall. Not judged: dots.
function hatchOf(app, context, state) {
  const { hatches, change } = app.palette;
  if (!hatches.has(state)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.strokeStyle = pen.fillStyle = change.hatch;
    if (state === "unknown") {
      pen.fillRect(1, 1, 1, 1);
      pen.fillRect(5, 5, 1, 1);
    } else {
      if (state === "gone") pen.setTransform(-1, 0, 0, 1, 8, 0);
      for (const [x, y] of [[-4, 4], [0, 8], [4, 12]]) {
        pen.moveTo(x, y);
        pen.lineTo(x + 8, y - 8);
      }
      pen.stroke();
    }
    hatches.set(state, context.createPattern(tile, "repeat"));
  }
  return hatches.get(state);
}

function changeLegend(app) {
  const { tree, palette } = app;
  const change = tree.diff[app.colour];
  const counts = new Map();
  for (let node = 0; node < tree.count; node++) {
    if (!(tree.width[node] > 0)) continue;
    const name = tree.states[change.state[node]];
    const key = palette.change[name].length > 1 ? `${name}/${strengthOf(change, node)}` : `${name}/0`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return Object.keys(CHANGE_TEXTS).flatMap((name) => palette.change[name].map((colour, strength) => (
    legendEntry(name, strength, colour, palette.change[name].length > 1, counts.get(`${name}/${strength}`))
  ))).filter(({ count }) => count);
}

function legendEntry(name, strength, colour, hasStrengths, count) {
  const words = [CHANGE_MARKS[name], CHANGE_TEXTS[name], hasStrengths && STRENGTH_TEXTS[strength]].filter(Boolean);
  return {
    text: words.join(" "),
    share: count ? counted(count, "cell") : "",
    count,
    colour,
    style: colour,
    hatch: HATCHED.includes(name) ? name : "",
  };
}

// ---- figures ----

function formatChange(ns) {
  return ns > 0 ? `+${formatTime(ns)}` : ns < 0 ? `−${formatTime(-ns)}` : formatTime(0);
}

function formatRatio(old, now) {
  if (!(old > 0)) return now > 0 ? "new" : "–";
  if (now / old >= MANYFOLD) return `${formatCount(Math.round(now / old))}×`;
  const percent = (100 * (now - old)) / old;
  return `${percent > 0 ? "+" : percent < 0 ? "−" : ""}${NUMBERS[1].format(Math.abs(percent))}%`;
}

function sidesText({ old, new: now }) {
  return `${formatTime(old)} → ${formatTime(now)}`;
}

function changeFigures(tree, node) {
  const { old, new: now } = tree.diff.total;
  const ratio = formatRatio(old[node], now[node]);
  return [`${sidesText({ old: old[node], new: now[node] })} · ${ratio}`, ratio];
}

function differenceFacts(tree, node) {
  const { total, own, callsOld, callsNew } = tree.diff;
  const facts = [];
  for (const [title, change] of [["Total", total], ["Own", own]]) {
    const [old, now] = [change.old[node], change.new[node]];
    facts.push([title, `${sidesText({ old, new: now })}, ${formatChange(now - old)} (${formatRatio(old, now)})`]);
    facts.push([`${title} interval`, intervalText(change, node)]);
    facts.push([`${title} verdict`, CHANGE_TEXTS[judgedState(tree, change, node)] ?? TOO_SMALL]);
  }
  facts.push(["Calls", `${formatCount(callsOld[node])} → ${formatCount(callsNew[node])}`]);
  return facts;
}

// What takes too little of the whole takes no part in the tests: that is no difference, but none that was judged.
function judgedState(tree, change, node) {
  const state = tree.states[change.state[node]];
  return state === "same" && !hasInterval(change, node) ? "small" : state;
}

function hasInterval({ low, high }, node) {
  return low[node] <= high[node];
}

function intervalText(change, node) {
  const { low, high } = change;
  if (!hasInterval(change, node)) return "unavailable";
  return `${formatChange(low[node])} to ${formatChange(high[node])}`;
}

// ---- the table and the cards ----

function newChange() {
  return { old: 0, new: 0, callsOld: 0, callsNew: 0, largest: -1, states: new Map() };
}

// The node that the group leads to is the one that changed most, of those whose change stands first.
function addChange(tree, group, node) {
  const { own, callsOld, callsNew } = tree.diff;
  const { change } = group;
  const state = judgedState(tree, own, node);
  change.old += own.old[node];
  change.new += own.new[node];
  change.callsOld += callsOld[node];
  change.callsNew += callsNew[node];
  change.states.set(state, (change.states.get(state) ?? 0) + 1);
  const size = Math.abs(own.new[node] - own.old[node]) + (STANDING.includes(state) ? tree.whole + 1 : 0);
  if (size <= change.largest) return;
  change.largest = size;
  group.node = node;
}

function changeOf(group) {
  return group.change.new - group.change.old;
}

function ratioOf({ change }) {
  return change.old > 0 ? (change.new - change.old) / change.old : Infinity;
}

function verdictText(group) {
  const { states } = group.change;
  const all = [...states.values()].reduce((sum, count) => sum + count, 0);
  const parts = STANDING.filter((name) => states.has(name)).map((name) => `${states.get(name)} ${name}`);
  if (!parts.length) return states.has("same") ? "no difference" : states.has("unknown") ? "not judged" : "too small";
  return all === 1 ? parts[0].slice(2) : `${parts.join(", ")} of ${all}`;
}

const DIFFERENCE_COLUMNS = [
  { title: "Name", key: (tree, group) => group.text, words: true },
  { title: "Kind", key: (tree, group) => kindName(tree, group.node), words: true },
  { title: "Change", key: (tree, group) => Math.abs(changeOf(group)) },
  { title: "Verdict", key: (tree, group) => verdictText(group), words: true },
  { title: "Before", key: (tree, group) => group.change.old },
  { title: "Now", key: (tree, group) => group.change.new },
  { title: "Ratio", key: (tree, group) => ratioOf(group) },
  { title: "Where most", key: (tree, group) => pathText(tree, group.node), words: true },
];
const BY_CHANGE = 2;

function differenceRow(app, group) {
  const { tree } = app;
  const { change } = group;
  const row = newElement("tr");
  const kind = kindName(tree, group.node);
  row.append(
    nameCell(tree, group, kind),
    newElement("td", kind, "words kind"),
    newElement("td", formatChange(changeOf(group))),
    newElement("td", verdictText(group), "words"),
    newElement("td", formatTime(change.old)),
    newElement("td", formatTime(change.new)),
    newElement("td", formatRatio(change.old, change.new)),
    pathCell(app, group.node));
  return row;
}

// Names of which at least one cell changed beyond chance, the largest change first.
function changedGroups(groups) {
  return groups.filter(({ change }) => STANDING.some((name) => change.states.has(name)) && change.largest > 0)
    .filter((group) => changeOf(group) !== 0)
    .sort((a, b) => Math.abs(changeOf(b)) - Math.abs(changeOf(a)));
}

function buildChangeCards(app, groups) {
  const cards = changedGroups(groups).slice(0, CARDS).map((group) => {
    const button = newElement("button");
    const name = newElement("span", undefined, "name");
    setBreakable(name, group.text);
    button.type = "button";
    button.title = `Highlight ${fullListedName(app.tree, group.node)}`;
    button.append(
      name,
      newElement("span", formatChange(changeOf(group)), "share"), " ",
      newElement("span", `${formatRatio(group.change.old, group.change.new)}, ${verdictText(group)}`, "verdict"));
    button.addEventListener("click", () => toggleSearch(app, exactQuery(listedName(app.tree, group.node))));
    const item = newElement("li");
    item.append(button);
    return item;
  });
  const none = newElement("li", "No difference beyond chance.", "none");
  document.getElementById("hot").replaceChildren(...(cards.length ? cards : [none]));
}

function describeChange(app, groups) {
  const largest = changedGroups(groups).slice(0, 3).map((group) =>
    `${group.text} ${formatChange(changeOf(group))} (${verdictText(group)})`);
  document.getElementById("summary").textContent =
    `Difference of two sides, ${sidesText(app.tree.diff.whole)}. `
    + (largest.length ? `Largest changes of own time: ${largest.join(", ")}. ` : "No difference beyond chance. ")
    + "Arrow keys select, Enter zooms, Escape zooms out, slash searches. A table with the same data follows.";
  app.canvas.setAttribute("aria-label", `Flame graph of the difference: ${document.title}`);
}
