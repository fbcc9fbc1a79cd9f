// Columns of numbers that a page carries: base64, gzipped where there are many. Text would be ten times as large,
// and parsing it would take most of the time until the picture is shown.

import { byId } from "./elements.js";

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

export function readJson(id) {
  return JSON.parse(byId(id).textContent);
}

// The bytes in the element `id`, which is removed: megabytes of text that are not read again. Only a large page
// waits here: a small one goes on at once and is ready by its load event.
export async function takeColumns(id, isGzip) {
  const bytes = bytesFromBase64(byId(id).textContent);
  byId(id).remove();
  return isGzip ? inflate(bytes) : bytes.buffer;
}
