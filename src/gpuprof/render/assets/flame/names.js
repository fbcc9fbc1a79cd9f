// How a name is written where there is no room for all of it. Each kind of name is recognized by another part: a layer
// by the end of its path, an operator by what follows its namespace, a kernel by the name of its template and of its
// first arguments.

export const BACKWARD_PREFIX = "autograd::engine::evaluate_function: ";
const PART_LIMIT = 8; // parts of a path, or arguments of a template, that a label may shorten to
const WRAPPER_LENGTH = 10; // a template whose name is shorter does not identify a kernel

// Every backward call starts with the same 37 characters, which would fill the cell without identifying it.
export function withoutPrefix(name) {
  return name.startsWith(BACKWARD_PREFIX) ? name.slice(BACKWARD_PREFIX.length) : name;
}

// A name that is empty, or of blanks alone, would be an empty cell.
export function quotedIfBlank(name) {
  return name.trim() ? name : `"${name}"`;
}

// The ways to write a name, from the whole to the shortest that still identifies it.
export function nameForms(name, kind) {
  if (kind === "layer") return pathForms(name);
  if (kind === "kernel") return signatureForms(name);
  if (kind === "python") return functionForms(name);
  return /^\w+(::\w+)+$/.test(name) ? [name, name.slice(name.lastIndexOf("::") + 2)] : [name];
}

// layers.0.mlp, …0.mlp, …mlp, mlp
function pathForms(name) {
  if (!/^\w+(\.\w+)+$/.test(name)) return [name];
  const parts = name.split(".").slice(-PART_LIMIT);
  const tails = parts.slice(1).map((_, i) => `…${parts.slice(i + 1).join(".")}`);
  return [name, ...tails, ...parts.slice(-1).filter((part) => /\D/.test(part))]; // a number alone names nothing
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

// A C++ kernel: its signature, then with fewer of the template's arguments, then its name alone.
function signatureForms(name) {
  const signatures = signaturesOf(name);
  const folded = withFolded(signatures.at(-1), 2);
  return [...new Set([...signatures, folded, ...withFewerArguments(folded)])];
}

// The signature whole, without result and parameters, without namespaces, and with what is deep in the
// template's arguments folded: the number of a lambda identifies nothing.
export function signaturesOf(name) {
  if (!/[<(]/.test(name)) return [name];
  const bare = withoutParameters(name).replace(/> (?=>)/g, ">");
  const local = bare.replace(/(?:\b(?!const\b)[A-Za-z_]\w*::|\(anonymous namespace\)::)+/g, "");
  const plain = local.replace(/::operator\(\)\(\)(?: const)?|::\{lambda\([^{}]*\)#\d+\}/g, "");
  return [...new Set([name, bare, local, withFolded(plain, 3)])];
}

// Calls `visit(character, index, depth)`; a bracket has the depth outside of it. Stops at true. An arrow
// or a comparison in parentheses closes nothing.
function walkBrackets(text, visit) {
  const open = [];
  for (let i = 0; i < text.length; i++) {
    const character = text[i];
    if (character === ")") open.length = Math.max(0, open.lastIndexOf("("));
    if (character === ">" && text[i - 1] !== "-" && open.at(-1) === "<") open.pop();
    if (visit(character, i, open.length)) return;
    if (character === "<" || character === "(") open.push(character);
  }
}

function withoutParameters(name) {
  let from = 0;
  let to = name.length;
  walkBrackets(name, (character, i, depth) => {
    if (depth > 0) return false;
    if (character === " " && name[i - 1] !== ",") from = i + 1; // what stood before is the result's type
    if (character !== "(" || name.startsWith("(anonymous namespace)", i)) return false;
    if (/operator$/.test(name.slice(0, i))) return false;
    to = i;
    return true;
  });
  return name.slice(from, to).trim() || name;
}

// f<4, add<float>, k(int)> becomes f<4, add<…>, k>: brackets inside `deepest` others are emptied, and
// parameters of functions in the arguments left out.
function withFolded(text, deepest) {
  let result = "";
  let parameters = 0; // depth of the "(" that is being left out, or 0
  walkBrackets(text, (character, i, depth) => {
    if (!parameters && character === "(" && depth > 0) {
      parameters = depth;
      if (!/\w/.test(text[i - 1])) result += "(…)"; // an expression
    }
    const isIn = parameters > 0;
    if (isIn && character === ")" && depth === parameters) parameters = 0;
    if (isIn) return;
    if (depth < deepest) result += character;
    else if (!result.endsWith("…")) result += "…";
  });
  return result;
}

// f<4, add<…>, k> becomes f<4, add<…>, …>, then f<4, …>, then f<…>, then f.
function withFewerArguments(folded) {
  const open = folded.indexOf("<");
  const close = folded.lastIndexOf(">");
  if (open < 1 || close < open) return [];
  const commas = [];
  walkBrackets(folded, (character, i, depth) => {
    if (character === "," && depth === 1 && i > open && i < close) commas.push(i);
  });
  const ends = commas.slice(0, PART_LIMIT).reverse();
  const end = folded.slice(close);
  const shorter = ends.map((at) => `${folded.slice(0, at)}, …${end}`);
  // Of Kernel2<sgemm_128x64> the argument is the name.
  if (open < WRAPPER_LENGTH) return [...shorter, folded.slice(open + 1, close)];
  return [...shorter, `${folded.slice(0, open)}<…${end}`, folded.slice(0, open)];
}
