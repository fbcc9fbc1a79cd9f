// Search over names. Names are few even where nodes are many, so each name is tested once.

// A test for names, or null where the text is not a regular expression that can be read.
function compileQuery(text) {
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

const NO_SEARCH = { text: "", marks: null, count: 0, ns: 0, share: 0, invalid: false };

// `marks` has a 1 for each matching node. `ns` counts a match inside another match once.
function searchTree(tree, text) {
  if (!text) return NO_SEARCH;
  const test = compileQuery(text);
  if (!test) return { ...NO_SEARCH, text, invalid: true };
  const hits = tree.names.map(test);
  const marks = new Uint8Array(tree.count);
  let count = 0;
  let ns = 0;
  let covered = 0;  // nodes below this index are inside the last outermost match
  for (let node = 0; node < tree.count; node++) {
    if (!hits[tree.name[node]]) continue;
    marks[node] = 1;
    count++;
    if (node < covered) continue;
    covered = tree.end[node];
    ns += tree.width[node];
  }
  return { text, marks, count, ns, share: tree.whole > 0 ? ns / tree.whole : 0, invalid: false };
}
