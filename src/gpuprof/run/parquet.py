# SPDX-License-Identifier: Apache-2.0
"""Small Parquet files, written without DuckDB, whose import takes longer than many a program.

The format is that of parquet.apache.org/docs/file-format: `PAR1`, one page a column, the metadata in Thrift's
compact protocol, its length, `PAR1`. Values are plain, and pages compressed with gzip where that is shorter.
Columns have the types that DuckDB gives to those of the same name, and all may be null.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MAGIC = b"PAR1"
_CREATED_BY = b"gpuprof"
_GZIP_WINDOW = zlib.MAX_WBITS | 16
_LIST = "[]"

# Of the format's enumerations.
_PLAIN, _RLE = 0, 3
_UNCOMPRESSED, _GZIP = 0, 2
_REQUIRED, _OPTIONAL, _REPEATED = 0, 1, 2
_LIST_TYPE = 3
_DATA_PAGE = 0

# Of Thrift's compact protocol.
_I32, _I64, _BINARY, _LIST_OF, _STRUCT = 5, 6, 8, 9, 12


class _Type(NamedTuple):
    physical: int
    converted: int | None
    encode: Callable[[list[Any]], bytes]


def _packed(code: str) -> Callable[[list[Any]], bytes]:
    return lambda values: struct.pack(f"<{len(values)}{code}", *values)


def _texts(values: list[Any]) -> bytes:
    encoded = [text.encode("utf-8", "backslashreplace") for text in values]
    return b"".join(part for text in encoded for part in (struct.pack("<I", len(text)), text))


def _booleans(values: list[Any]) -> bytes:
    bits = sum(1 << place for place, value in enumerate(values) if value)
    return bits.to_bytes(-(-len(values) // 8), "little")


_TYPES = {
    "BOOLEAN": _Type(0, None, _booleans),
    "INTEGER": _Type(1, 17, _packed("i")),
    "UINTEGER": _Type(1, 13, _packed("I")),
    "BIGINT": _Type(2, 18, _packed("q")),
    "UBIGINT": _Type(2, 14, _packed("Q")),
    "DOUBLE": _Type(5, None, _packed("d")),
    "VARCHAR": _Type(6, 0, _texts),
}


def write_rows(path: Path, types: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
    """Write `rows` as a file. `types` are DuckDB's by column, also lists of them such as `VARCHAR[]`.

    A null is None. Raises OSError of the disk.
    """
    content = bytearray(MAGIC)
    chunks = []
    for place, (name, declared) in enumerate(types.items() if rows else ()):
        chunks.append(_chunk(content, name, declared, [row[place] for row in rows]))
    groups = [_struct((1, _list(_STRUCT, chunks)), (2, _i64(len(content))), (3, _i64(len(rows))))]
    metadata = _struct(
        (1, _i32(1)),
        (2, _list(_STRUCT, [_root(len(types)), *_schema(types)])),
        (3, _i64(len(rows))),
        (4, _list(_STRUCT, groups if rows else [])),
        (6, _binary(_CREATED_BY)),
    )
    path.write_bytes(content + metadata + struct.pack("<I", len(metadata)) + MAGIC)


def _chunk(content: bytearray, name: str, declared: str, values: list[Any]) -> bytes:
    """Append the page of one column, and return its metadata."""
    is_list = declared.endswith(_LIST)
    kind = _TYPES[declared.removesuffix(_LIST)]
    repetitions, definitions, present = _levels(values) if is_list else _null_levels(values)
    levels = _runs(repetitions) + _runs(definitions) if is_list else _runs(definitions)
    page = levels + kind.encode(present)
    packed = _gzip(page)
    codec, body = (_GZIP, packed) if len(packed) < len(page) else (_UNCOMPRESSED, page)
    data_header = _struct((1, _i32(len(definitions))), (2, _i32(_PLAIN)), (3, _i32(_RLE)), (4, _i32(_RLE)))
    header = _struct(
        (1, _i32(_DATA_PAGE)), (2, _i32(len(page))), (3, _i32(len(body))), (5, (_STRUCT, data_header))
    )
    offset = len(content)
    content += header + body
    path = (name, "list", "element") if is_list else (name,)
    metadata = _struct(
        (1, _i32(kind.physical)),
        (2, _list(_I32, [_zigzag(_PLAIN), _zigzag(_RLE)])),
        (3, _list(_BINARY, [_sized(part.encode()) for part in path])),
        (4, _i32(codec)),
        (5, _i64(len(definitions))),
        (6, _i64(len(header) + len(page))),
        (7, _i64(len(header) + len(body))),
        (9, _i64(offset)),
    )
    return _struct((2, _i64(offset)), (3, (_STRUCT, metadata)))


def _gzip(content: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP_WINDOW)
    return packer.compress(content) + packer.flush()


# ---- levels: which values are null, and where lists begin ------------------------------------


def _null_levels(values: list[Any]) -> tuple[list[int], list[int], list[Any]]:
    return [], [int(value is not None) for value in values], [each for each in values if each is not None]


def _levels(lists: list[Any]) -> tuple[list[int], list[int], list[Any]]:
    """Return the levels of lists: a null, an empty list, a null in it, and a value in it are 0, 1, 2, 3."""
    repetitions: list[int] = []
    definitions: list[int] = []
    present: list[Any] = []
    for values in lists:
        if not values:
            repetitions.append(0)
            definitions.append(0 if values is None else 1)
            continue
        repetitions += [0, *[1] * (len(values) - 1)]
        definitions += [2 if value is None else 3 for value in values]
        present += [value for value in values if value is not None]
    return repetitions, definitions, present


def _runs(levels: list[int]) -> bytes:
    """Return levels of at most 8 bits as runs of equal ones, with their length in bytes before them."""
    runs = [(level, len(list(same))) for level, same in itertools.groupby(levels)]
    encoded = b"".join(_varint(count << 1) + bytes([level]) for level, count in runs)
    return struct.pack("<I", len(encoded)) + encoded


# ---- the schema ------------------------------------------------------------------------------


def _root(children: int) -> bytes:
    return _struct((3, _i32(_REQUIRED)), (4, _binary(b"schema")), (5, _i32(children)))


def _schema(types: Mapping[str, str]) -> Iterable[bytes]:
    for name, declared in types.items():
        kind = _TYPES[declared.removesuffix(_LIST)]
        if not declared.endswith(_LIST):
            yield _leaf(name, kind)
            continue
        yield _struct((3, _i32(_OPTIONAL)), (4, _binary(name.encode())), (5, _i32(1)), (6, _i32(_LIST_TYPE)))
        yield _struct((3, _i32(_REPEATED)), (4, _binary(b"list")), (5, _i32(1)))
        yield _leaf("element", kind)


def _leaf(name: str, kind: _Type) -> bytes:
    converted = () if kind.converted is None else ((6, _i32(kind.converted)),)
    return _struct((1, _i32(kind.physical)), (3, _i32(_OPTIONAL)), (4, _binary(name.encode())), *converted)


# ---- Thrift's compact protocol: a value is its type and its bytes ----------------------------

_Value = tuple[int, bytes]


def _struct(*fields: tuple[int, _Value]) -> bytes:
    """Return a structure of fields, each with its number, in order."""
    parts = []
    last = 0
    for number, (kind, encoded) in fields:
        parts.append(bytes([(number - last) << 4 | kind]) + encoded)
        last = number
    return b"".join(parts) + b"\0"


def _list(kind: int, items: Sequence[bytes]) -> _Value:
    count = len(items)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + _varint(count)
    return _LIST_OF, head + b"".join(items)


def _i32(value: int) -> _Value:
    return _I32, _zigzag(value)


def _i64(value: int) -> _Value:
    return _I64, _zigzag(value)


def _binary(value: bytes) -> _Value:
    return _BINARY, _sized(value)


def _sized(value: bytes) -> bytes:
    return _varint(len(value)) + value


def _zigzag(value: int) -> bytes:
    return _varint(value << 1)  # nothing here is negative


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
