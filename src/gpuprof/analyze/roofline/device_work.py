# SPDX-License-Identifier: Apache-2.0
"""What ran on GPUs, by the span that launched it, and how long one call of an operator took there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof.analyze.ceilings.ceiling import GPU

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel, or one copy or fill.

    `replay` numbers the launch of the CUDA graph that it is part of. `gap_ns` is how long its stream had
    nothing to do before it, `late_ns` how long after the stream had come to its end it was launched (below 0:
    before); None where nothing ran on the stream before, or nobody knows, as in a graph. `crosses` says that
    it copies between the host and a device.
    """

    name: str
    device: str
    start_ns: int
    duration_ns: int
    replay: int | None = None
    gap_ns: int | None = None
    late_ns: int | None = None
    crosses: bool = False


@dataclass(frozen=True, slots=True)
class Execution:
    """All that one call of an operator had done on one device, or one replay of what was captured of it."""

    device: str
    pieces: tuple[Piece, ...]

    @property
    def time_ns(self) -> int:
        """The time of its kernels: what runs beside each other counts twice."""
        return sum(piece.duration_ns for piece in self.pieces)

    @property
    def crosses(self) -> bool:
        """Whether it copies between the host and a device."""
        return any(piece.crosses for piece in self.pieces)


def executions_of(pieces: Iterable[Piece]) -> list[Execution]:
    """Return what a call of an operator had done, by device: once, or once for each replay of its graph."""
    groups: dict[tuple[str, int | None], list[Piece]] = defaultdict(list)
    for piece in pieces:
        groups[piece.device, piece.replay].append(piece)
    return [Execution(device, tuple(members)) for (device, _), members in groups.items()]


# The end of what a stream did before is the latest one: kernels of other contexts and graphs overlap.
_PIECES = """
    WITH device_work AS ({parts}), placed AS (
        SELECT *, max(start_ns + duration_ns) OVER (
            PARTITION BY device, context, stream ORDER BY start_ns, correlation_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS free_ns
        FROM device_work WHERE process_id = {process_id})
    SELECT span_id, name, device, start_ns, duration_ns,
           CASE WHEN graph_id IS NOT NULL THEN correlation_id END AS replay,
           CASE WHEN graph_id IS NULL THEN start_ns - free_ns END AS gap_ns,
           CASE WHEN graph_id IS NULL THEN launch_ns - free_ns END AS late_ns, crosses
    FROM placed ORDER BY start_ns
"""
_SHARED = (
    "span_id, process_id, device, context, stream, start_ns, duration_ns, launch_ns, correlation_id, graph_id"
)
_ON_DEVICE = "('device', 'array', 'managed', 'device static', 'managed static')"
_PARTS = {
    "kernels": f"SELECT name, {_SHARED}, false AS crosses FROM kernels",  # noqa: S608 - constants
    "transfers": f"""
        SELECT concat_ws(' ', kind, src, CASE WHEN kind = 'copy' THEN 'to' END, dst) AS name, {_SHARED},
               kind = 'copy' AND NOT coalesce(src IN {_ON_DEVICE} AND dst IN {_ON_DEVICE}, false) AS crosses
        FROM transfers""",  # noqa: S608 - constants
}


def load_pieces(folder: RunFolder, process_id: int) -> list[tuple[int | None, Piece]]:
    """Return what ran on GPUs for a process, with the span that launched it, in the order of time."""
    parts = [_PARTS[table] for table in _PARTS if table in folder.tables]
    if not parts:
        return []
    query = _PIECES.format(parts=" UNION ALL ".join(parts), process_id=int(process_id))
    return [
        (span_id, Piece(name, f"{GPU}:{device or 0}", *rest))
        for span_id, name, device, *rest in folder.sql(query).fetchall()
    ]


@dataclass(frozen=True, slots=True)
class HostDelay:
    """How often a stream had nothing to do because the host launched too late, of how often that is known."""

    late: int
    known: int

    @property
    def is_usual(self) -> bool:
        """Whether it is so for half of the calls or more."""
        return self.late > 0 and 2 * self.late >= self.known


def host_delay(executions: Sequence[Execution], floor_ns: float, period_ns: float) -> HostDelay:
    """Look at the gap before the first piece of each execution.

    A gap is one that is longer than what an empty kernel takes from one to the next. The host was late where
    the launch had not gone through, which takes `period_ns`, when the stream had come to its end.
    """
    firsts = [min(each.pieces, key=lambda piece: piece.start_ns) for each in executions]
    known = [
        (piece.gap_ns, piece.late_ns)
        for piece in firsts
        if piece.gap_ns is not None and piece.late_ns is not None
    ]
    late = sum(gap_ns > floor_ns and late_ns + period_ns > 0 for gap_ns, late_ns in known)
    return HostDelay(late, len(known))
