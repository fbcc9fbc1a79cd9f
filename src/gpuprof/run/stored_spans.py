# SPDX-License-Identifier: Apache-2.0
"""Spans between the decoder and the tables, in files: their paths are known after all stacks were placed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

AT_ONCE = 1 << 15  # spans that are read together
_ABSENT = -1  # the duration at the place of an id that no span has
_NEAR = 1 << 12  # places between two spans that are still written together


class IdRange(NamedTuple):
    """Ids from `begin` to before `end`."""

    begin: int
    end: int


class StoredSpans:
    """Columns of spans, each at the place of its id.

    Ids count from 0 and belong to one thread after the other; a thread's are in the order of the begin of
    its spans, outer ones first. Batches come in the order in which spans end. The files in `folder` have no
    name; they end with the `with` block, or with the process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._types: dict[str, np.dtype[Any]] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._ranges: list[list[IdRange]] = []  # by thread
        self._end = 0

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        """Process and thread by the thread's number."""
        return list(self._numbers)

    def append(self, process_id: int, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take in spans of a process. Raises OSError of the disk."""
        import numpy as np

        ids = columns["span_id"]
        thread = self._thread_numbers(process_id, columns["thread_id"])
        stored = {name: column for name, column in columns.items() if name not in ("span_id", "thread_id")}
        stored["thread"] = thread
        first = self._end
        self._end = max(first, int(ids.max()) + 1)
        is_new = ids >= first
        place = ids[is_new] - first
        late = np.flatnonzero(~is_new)
        late = late[np.argsort(ids[late])]
        for name, column in stored.items():
            block = np.full(self._end - first, _ABSENT if name == "duration_ns" else 0, dtype=column.dtype)
            block[place] = column[is_new]
            self._write(name, first, block)
            self._write_late(name, ids[late], column[late])
        for number in np.unique(thread).tolist():
            self._extend(self._ranges[number], ids[thread == number], first)

    def _thread_numbers(self, process_id: int, thread_ids: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
        import numpy as np

        distinct, inverse = np.unique(thread_ids, return_inverse=True)
        numbers = []
        for thread_id in distinct.tolist():
            key = process_id, thread_id
            if key not in self._numbers:
                self._numbers[key] = len(self._ranges)
                self._ranges.append([])
            numbers.append(self._numbers[key])
        return np.array(numbers, dtype=np.uint32)[inverse]

    def _write_late(self, name: str, ids: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """Write values of spans that began before those of an earlier batch ended."""
        import numpy as np

        gaps = np.flatnonzero(np.diff(ids) > _NEAR) + 1
        for near, own in zip(np.split(ids, gaps), np.split(values, gaps), strict=True):
            if not len(near):
                continue
            begin = int(near[0])
            block = self.column(name, begin, int(near[-1]) + 1).copy()
            block[near - begin] = own
            self._write(name, begin, block)

    @staticmethod
    def _extend(ranges: list[IdRange], ids: npt.NDArray[Any], first: int) -> None:
        """Have the ranges of a thread contain these ids; those below `first` may lie next to one."""
        new, late = ids[ids >= first], ids[ids < first]
        if len(new):
            found = IdRange(int(new.min()), int(new.max()) + 1)
            if ranges and ranges[-1].end == first == found.begin:
                ranges[-1] = IdRange(ranges[-1].begin, found.end)
            else:
                ranges.append(found)
        for each in late.tolist():
            at = min(
                range(len(ranges)),
                key=lambda at: max(ranges[at].begin - each, each + 1 - ranges[at].end, 0),
                default=None,
            )
            if at is None:
                ranges.append(IdRange(each, each + 1))
            else:
                ranges[at] = IdRange(min(ranges[at].begin, each), max(ranges[at].end, each + 1))

    # ---- reading

    def of_thread(self, number: int, names: Sequence[str]) -> Iterator[Columns]:
        """Yield columns of a thread's spans in the order of their begin, and their span_id."""
        ranges = self._ranges[number]
        if len(ranges) > 1:
            # The system gave a thread's id twice, or the process stopped and began to record.
            ranges = sorted(ranges, key=lambda each: self._first_start(each, number))
        for part in (part for each in ranges for part in _parts(each)):
            columns = self._present(part, [*names, "thread"])
            own = columns["thread"] == number
            if own.any():
                yield {name: column if own.all() else column[own] for name, column in columns.items()}

    def _first_start(self, of: IdRange, number: int) -> int:
        for part in _parts(of):
            columns = self._present(part, ["thread", "start_ns"])
            starts = columns["start_ns"][columns["thread"] == number]
            if len(starts):
                return int(starts[0])
        return 0

    def chunks(self) -> Iterator[Columns]:
        """Yield the columns of all spans in the order of their ids, with `thread`, a place in `threads`."""
        names = list(self._files)
        for part in _parts(IdRange(0, self._end)):
            columns = self._present(part, names)
            if len(columns["span_id"]):
                yield columns

    def rows_of(self, chunk: Columns) -> Iterator[Columns]:
        """Yield a chunk with process_id and thread_id in place of its threads, of one process at a time."""
        import numpy as np

        processes, threads = np.array(self.threads, dtype=np.int64).reshape(-1, 2).T
        columns = {name: column for name, column in chunk.items() if name != "thread"}
        columns["process_id"], columns["thread_id"] = processes[chunk["thread"]], threads[chunk["thread"]]
        changes = np.flatnonzero(np.diff(columns["process_id"])) + 1
        for begin, end in zip([0, *changes], [*changes, len(chunk["thread"])], strict=True):
            yield {name: column[begin:end] for name, column in columns.items()}

    def _present(self, part: IdRange, names: Sequence[str]) -> Columns:
        import numpy as np

        duration = self.column("duration_ns", part.begin, part.end)
        own = np.flatnonzero(duration >= 0)
        columns = {"span_id": own + part.begin, "duration_ns": duration[own]}
        for name in names:
            if name not in columns:
                columns[name] = self.column(name, part.begin, part.end)[own]
        return columns

    def column(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        """Return a column at the places of these ids."""
        import numpy as np

        size = self._types[name].itemsize
        content = os.pread(self._files[name].fileno(), size * (end - begin), size * begin)
        return np.frombuffer(content, dtype=self._types[name])

    # ---- files

    def _write(self, name: str, begin: int, block: npt.NDArray[Any]) -> None:
        if name not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files[name] = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (see `__exit__`)
            self._types[name] = block.dtype
        if not len(block):
            return
        view, at = block.astype(self._types[name], copy=False).data.cast("B"), begin * block.itemsize
        while len(view):
            written = os.pwrite(self._files[name].fileno(), view, at)
            view, at = view[written:], at + written

    def __enter__(self) -> StoredSpans:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the files."""
        for file in self._files.values():
            file.close()


def _parts(of: IdRange) -> Iterator[IdRange]:
    return (IdRange(at, min(at + AT_ONCE, of.end)) for at in range(of.begin, of.end, AT_ONCE))
