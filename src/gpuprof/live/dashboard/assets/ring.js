// The last points of some columns. Its memory is fixed: an old point makes room for a new one.

export function newRing(names, capacity) {
  const columns = Object.fromEntries(names.map((name) => [name, new Float64Array(capacity).fill(NaN)]));
  return { names, capacity, columns, length: 0, next: 0 };
}

// A column that a point lacks, or has as null, is a gap.
export function pushPoint(ring, point) {
  for (const name of ring.names) ring.columns[name][ring.next] = point[name] ?? NaN;
  ring.next = (ring.next + 1) % ring.capacity;
  ring.length = Math.min(ring.length + 1, ring.capacity);
}

// The place of the point `index`, counted from the oldest.
export function placeOf(ring, index) {
  return (ring.next - ring.length + index + ring.capacity) % ring.capacity;
}

export function valueAt(ring, name, index) {
  return ring.columns[name][placeOf(ring, index)];
}

export function lastOf(ring, name) {
  return ring.length === 0 ? NaN : valueAt(ring, name, ring.length - 1);
}
