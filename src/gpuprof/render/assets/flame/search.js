// Search over names. Names are few even where nodes are many, so each name is tested once.

import { counted, formatFraction } from "../kit/format.js";
import { compileQuery } from "../kit/search.js";
import { withoutPrefix } from "./names.js";
import { modelNameTest } from "./nodes.js";

export const NO_SEARCH = { text: "", marks: null, count: 0, calls: 0, ns: 0, share: 0, invalid: false };

// `marks` has a 1 for each matching node. `ns` counts a match inside another match once. A process is no call.
export function searchTree(tree, text) {
  if (!text) return NO_SEARCH;
  const test = compileQuery(text);
  if (!test) return { ...NO_SEARCH, text, invalid: true };
  const names = tree.names.map((name) => test(name) || test(withoutPrefix(name)));
  const isListedSo = modelNameTest(tree, test);
  const process = tree.kinds.indexOf("process");
  const marks = new Uint8Array(tree.count);
  let count = 0;
  let calls = 0;
  let ns = 0;
  let covered = 0; // nodes below this index are inside the last outermost match
  for (let node = 0; node < tree.count; node++) {
    if (!names[tree.name[node]] && !isListedSo(node)) continue;
    marks[node] = 1;
    count++;
    if (tree.kind[node] !== process) calls += tree.calls[node];
    if (node < covered) continue;
    covered = tree.end[node];
    ns += tree.width[node];
  }
  return { text, marks, count, calls, ns, share: tree.whole > 0 ? ns / tree.whole : 0, invalid: false };
}

export function foundText(found, tree) {
  if (!found.text) return "";
  if (found.invalid) return "not a regular expression";
  if (!found.count) return "no match";
  const parts = [counted(found.count, "cell")];
  if (found.calls) parts.push(counted(found.calls, "call"));
  return `${parts.join(", ")}, ${formatFraction(found.ns, tree.whole)} of the ${tree.time}`;
}
