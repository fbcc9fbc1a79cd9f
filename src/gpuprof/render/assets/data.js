// Decoding. The page carries the tree as columns, gzipped where there are many: text would be ten
// times as large, and parsing it would be most of the time until the picture stands.

const COLUMN_TYPES = {
  float64: Float64Array, float32: Float32Array, int32: Int32Array, uint8: Uint8Array,
};

function bytesFromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

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

function restoreTotal(own, inside) {
  return own.map((ns, node) => ns + inside[node]);
}

// The tree as parallel arrays in pre-order: parent, kind, name, calls, threads, and those of its views.
async function loadTree() {
  const head = JSON.parse(document.getElementById("head").textContent);
  const packed = document.getElementById("columns");
  const bytes = bytesFromBase64(packed.textContent);
  // Only a large page waits here: a small one goes on at once and is ready by its load event.
  const buffer = head.gzip ? await inflate(bytes) : bytes.buffer;
  const columns = splitColumns(buffer, head.count, head.columns);
  packed.remove();  // megabytes of text that nobody needs again
  return noteModels({
    count: head.count,
    kinds: head.kinds,
    names: head.names,
    columns,
    views: head.views,        // ways to weigh the cells, see weights.js
    first: head.first,
    colourings: head.colourings,
    states: head.states,      // names of what a difference says of a node
    recorded: head.calls,     // calls of the run; the tree may show a pair of them as one
    recordedOld: head.oldCalls,  // of the older side, null on the page of one run
    kind: columns.kind,
    name: columns.name,
    calls: columns.calls,
    threads: columns.threads,
    parent: restoreParent(columns.up),
  });
}
