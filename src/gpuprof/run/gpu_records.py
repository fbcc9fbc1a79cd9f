# SPDX-License-Identifier: Apache-2.0
"""The files of GPU records that a recording leaves, read in batches.

A file is a head and then records of one size, appended while the program runs: one that ends in the middle
of a record was cut off by a kill or a full disk, and the records before the cut are intact.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpuprof.run.damage import Damage, DamageCode

MAGIC = b"GPUPROFG"
VERSION = 1
HEAD = struct.Struct("<8sIIIIQ32x")  # magic, version, record bytes, process, its parent, process key

KERNEL, COPY, FILL, SYNCHRONIZATION, LAYER = 1, 2, 3, 4, 5
GRAPH, EVENT, CALL = 6, 7, 8  # a graph's replay as a whole; a CUDA event's record, without times; a call

# As the recorder writes them; times on the monotonic clock. Ones in every bit mean: not known.
RECORD = np.dtype(
    [
        *((name, "<i8") for name in ("start_ns", "end_ns")),
        *((name, "<u8") for name in ("graph_node_id", "bytes")),
        *((name, "<u4") for name in ("kind", "correlation_id", "name", "device", "context", "stream")),
        *((name, "<u4") for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")),
        *((name, "<u4") for name in ("registers", "static_shared_bytes", "dynamic_shared_bytes", "graph_id")),
        *((name, "<u4") for name in ("source_kind", "destination_kind", "detail")),
        # Files of versions before these have zeros here, which mean: not known.
        ("thread", "<u4"),
        ("event_sync_id", "<u8"),
        ("event_id", "<u4"),
        ("reserved", "<u4"),
    ]
)
UNKNOWN = 0xFFFFFFFF
UNKNOWN_LONG = 0xFFFFFFFFFFFFFFFF
NO_TIME = -(1 << 62)  # as the decoder writes it, in links too

Records = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class GpuFile:
    """One process's GPU records; `damage` is what of the file could not be read, or None."""

    path: Path
    process_id: int
    process_key: int
    record_count: int
    damage: Damage | None

    def batches(self, rows: int) -> Iterator[Records]:
        """Yield the records, at most `rows` at a time."""
        for first in range(0, self.record_count, rows):
            count = min(rows, self.record_count - first)
            yield np.fromfile(self.path, RECORD, count, offset=HEAD.size + first * RECORD.itemsize)


def find_files(segments: Path) -> tuple[list[GpuFile], list[Damage]]:
    """Return the files of GPU records in a recording's folder, and their damage."""
    files, damage = [], []
    for path in sorted(segments.glob("*.gpu")):
        try:
            file = _open(path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            damage.append(Damage(DamageCode.GPU_FILE, str(path), values={"error": str(reason)}))
            continue
        files.append(file)
        if file.damage is not None:
            damage.append(file.damage)
    return files, damage


def _open(path: Path) -> GpuFile:
    with path.open("rb") as stream:
        head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        raise ValueError("shorter than its head")
    magic, version, record_bytes, process_id, _parent, process_key = HEAD.unpack(head)
    if (magic, version, record_bytes) != (MAGIC, VERSION, RECORD.itemsize):
        raise ValueError("its head is damaged")
    body = path.stat().st_size - HEAD.size
    rest = body % RECORD.itemsize
    damage = Damage(DamageCode.RECORD_CUT, str(path)) if rest else None
    return GpuFile(path, process_id, process_key, body // RECORD.itemsize, damage)
