// Models of one run may have layers of the same path. Where they do, lists write `model/path` and the search
// finds that, too; the rule is that of the summary, see `_display_names` in aggregate.py.

// Adds the name of the outermost layer around each node, -1 outside of all, and whether lists need it.
function noteModels(tree) {
  const layer = tree.kinds.indexOf("layer");
  const roots = new Int32Array(tree.count);
  for (let node = 0; node < tree.count; node++) {
    const up = tree.parent[node];
    const inherited = up < 0 ? -1 : roots[up];
    roots[node] = inherited < 0 && tree.kind[node] === layer ? tree.name[node] : inherited;
  }
  tree.roots = roots;
  tree.namesModels = needModels(tree, layer);
  return tree;
}

function needModels(tree, layer) {
  const { names, name, roots } = tree;
  const used = new Set(roots);
  used.delete(-1);
  if (used.size < 2) return false;
  const pairs = new Map();
  for (let node = 0; node < tree.count; node++) {
    if (tree.kind[node] === layer) pairs.set(roots[node] * names.length + name[node], node);
  }
  const nodes = [...pairs.values()];
  // Roots without layers of their own, such as a loss beside the model, make no name ambiguous.
  const prefixing = new Set(nodes.filter((node) => underRoot(tree, node) !== names[name[node]]).map((node) => roots[node]));
  return prefixing.size > 1 || new Set(nodes.map((node) => names[name[node]])).size < nodes.length;
}

// A layer that is called directly, outside its model, is its own root: its path says so already.
function underRoot(tree, node) {
  const name = tree.names[tree.name[node]];
  const root = tree.names[tree.roots[node]];
  return name === root || name.startsWith(`${root}.`) ? name : `${root}/${name}`;
}

// Whether a list writes more of this node than its name.
function hasModelName(tree, node) {
  return tree.namesModels && kindName(tree, node) === "layer";
}

// What a title writes of a node of a list: as `listedName`, with nothing left out.
function fullListedName(tree, node) {
  return hasModelName(tree, node) ? underRoot(tree, node) : fullName(tree, node);
}

// Equal names of one kind are one row of a list, those of layers for each model; from numbers, to be quick.
function rowKey({ names, kinds }, model, name, kind) {
  return (model * names.length + name) * kinds.length + kind;
}

// The model that a row of this node is for; 0 where a row is for all.
function rowModel(tree, node) {
  return kindName(tree, node) === "layer" ? tree.roots[node] + 1 : 0;
}

function listedName(tree, node) {
  return hasModelName(tree, node) ? underRoot(tree, node) : shortName(tree, node);
}

// A test of nodes for what lists write of them beside their names.
function modelNameTest(tree, test) {
  if (!tree.namesModels) return () => false;
  const known = new Map();
  return (node) => {
    if (!hasModelName(tree, node)) return false;
    const key = tree.roots[node] * tree.names.length + tree.name[node];
    if (!known.has(key)) known.set(key, test(underRoot(tree, node)));
    return known.get(key);
  };
}
