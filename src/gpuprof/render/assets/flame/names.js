// How a name is written where there is no room for all of it. Each kind of name is recognized by another part: a layer
// by the end of its path, an operator by what follows its namespace, a kernel by the label that the page carries for it.

export const BACKWARD_PREFIX = "autograd::engine::evaluate_function: ";
const PART_LIMIT = 8; // parts of a path that a name may shorten to

// Every backward call starts with the same 37 characters, which would fill the cell without identifying it.
export function withoutPrefix(name) {
  return name.startsWith(BACKWARD_PREFIX) ? name.slice(BACKWARD_PREFIX.length) : name;
}

// A name that is empty, or of blanks alone, would be an empty cell.
export function quotedIfBlank(name) {
  return name.trim() ? name : `"${name}"`;
}

// The ways to write a name, from the whole to the shortest that still identifies it. A kernel is written as its label:
// its full name, a page of template arguments, is in tooltips and details.
export function nameForms(name, kind, label = name) {
  if (kind === "gc") return label === name ? [name] : [label, name];
  if (kind === "kernel") return labelForms(label);
  if (kind === "layer") return pathForms(name);
  if (kind === "python") return functionForms(name);
  return /^\w+(::\w+)+$/.test(name) ? [name, name.slice(name.lastIndexOf("::") + 2)] : [name];
}

// layers.0.mlp, …0.mlp, …mlp, mlp; of repeated layers layers.*.mlp x4, …*.mlp x4 and so on
function pathForms(name) {
  const [, path, count = ""] = /^([\w*]+(?:\.[\w*]+)+)( x\d+)?$/.exec(name) ?? [];
  if (!path) return [name];
  const parts = path.split(".").slice(-PART_LIMIT);
  const tails = parts.slice(1).map((_, i) => `…${parts.slice(i + 1).join(".")}`);
  const last = parts.slice(-1).filter((part) => /[^\d*]/.test(part)); // a number alone names nothing
  return [name, ...[...tails, ...last].map((form) => form + count)];
}

// train (train.py:12), train; what a module itself runs is named by its file alone
function functionForms(name) {
  const at = name.lastIndexOf(" (");
  if (at <= 0) return [name];
  if (!name.startsWith("<module>")) return [name, name.slice(0, at)];
  const file = name.slice(at + 2, -1).replace(/:\d+$/, "");
  const forms = [name, file];
  for (let slash = file.indexOf("/"); slash >= 0; slash = file.indexOf("/", slash + 1))
    forms.push(`…${file.slice(slash)}`);
  return [...forms.slice(0, PART_LIMIT), file.slice(file.lastIndexOf("/") + 1)];
}

// vectorized_elementwise_kernel<GeluFunctor>, vectorized_elementwise_kernel
function labelForms(label) {
  const open = label.indexOf("<");
  return open > 0 ? [label, label.slice(0, open)] : [label];
}
