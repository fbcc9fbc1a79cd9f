// The call tree that the page carries.

import { readJson, takeColumns } from "../kit/columns.js";
import { noteModels } from "./nodes.js";

const COLUMN_TYPES = { float64: Float64Array, float32: Float32Array, int32: Int32Array, uint8: Uint8Array };

function splitColumns(buffer, count, specs) {
  const columns = {};
  let offset = 0;
  for (const [name, type] of specs) {
    columns[name] = new COLUMN_TYPES[type](buffer, offset, count);
    offset += columns[name].byteLength;
  }
  return columns;
}

// Two columns travel as differences, see `_columns` in flamegraph.py.
function restoreParent(up) {
  return up.map((distance, node) => (distance ? node - distance : -1));
}

export function restoreTotal(own, inside) {
  return own.map((ns, node) => ns + inside[node]);
}

// The tree as parallel arrays in pre-order: parent, kind, name, calls, threads, and those of its views.
export async function loadTree() {
  const head = readJson("head");
  const columns = splitColumns(await takeColumns("columns", head.gzip), head.count, head.columns);
  const { count, kinds, names, views, first, colourings, states, calls: recorded, oldCalls: recordedOld } = head;
  const { kind, name, calls, threads } = columns;
  const parent = restoreParent(columns.up);
  // `views` are ways to weigh the cells, see weights.js; `states` name the verdicts of a difference. `recorded` are
  // the calls of the run, since the tree may show a pair of them as one; `recordedOld` is null for one run.
  const facts = { count, kinds, names, views, first, colourings, states, recorded, recordedOld };
  return noteModels({ ...facts, columns, kind, name, calls, threads, parent });
}
