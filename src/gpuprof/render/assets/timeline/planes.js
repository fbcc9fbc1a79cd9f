// Columns of numbers as they travel, see `planes` and `zigzag` in timeline_columns.py.

// Byte planes, the lowest first, as numbers. Three of them are integers in one pass; what is above is rare.
export function joinPlanes(bytes, count, into) {
  const planes = count ? bytes.length / count : 0;
  const second = planes > 1 ? count : -1;
  const third = planes > 2 ? 2 * count : -1;
  for (let i = 0; i < count; i++) {
    let value = bytes[i];
    if (second > 0) value |= bytes[second + i] << 8;
    if (third > 0) value |= bytes[third + i] << 16;
    into[i] = value;
  }
  for (let plane = 3; plane < planes; plane++) {
    const unit = 256 ** plane;
    const at = plane * count;
    for (let i = 0; i < count; i++) if (bytes[at + i]) into[i] += bytes[at + i] * unit;
  }
  return into;
}

// The sign is the lowest bit. In place.
export function unzigzag(values) {
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (value <= 0x7fffffff) values[i] = (value >>> 1) ^ -(value & 1);
    else values[i] = value % 2 ? -(value + 1) / 2 : value / 2;
  }
  return values;
}
