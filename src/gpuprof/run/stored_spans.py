# SPDX-License-Identifier: Apache-2.0
"""The spans of a recording between its decoder and its tables: in a file, as soon as they are many."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_IN_MEMORY = 1 << 20  # bytes of a column


class StoredSpans(Mapping[str, "npt.NDArray[Any]"]):
    """Columns of spans, taken in batch by batch. Each look at a column reads it again.

    Their files in `folder` have no name; they end with the `with` block, or with the process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._types: dict[str, np.dtype[Any]] = {}
        self._batches: list[tuple[int, int]] = []  # process and spans

    def append(self, process_id: int, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take in spans of a process. Raises OSError of the disk."""
        if not self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
        for name, column in columns.items():
            if name not in self._files:
                self._files[name] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 (closed by `__exit__`)
                    _IN_MEMORY, dir=str(self._folder)
                )
                self._types[name] = column.dtype
            self._files[name].write(column.data)
        self._batches.append((process_id, len(columns["span_id"])))

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        import numpy as np

        if name == "process_id" or not self._batches:
            processes, counts = zip(*self._batches, strict=True) if self._batches else ((), ())
            return np.repeat(np.array(processes, dtype=np.int64), np.array(counts, dtype=np.int64))
        self._files[name].seek(0)
        return self._read(name, sum(count for _, count in self._batches))

    def __iter__(self) -> Iterator[str]:
        return iter([*self._files, "process_id"])

    def __len__(self) -> int:
        return len(self._files) + 1

    def batches(self, path_ids: npt.NDArray[Any] | None) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield the columns of each batch again, with other paths if there are any."""
        import numpy as np

        for file in self._files.values():
            file.seek(0)
        first = 0
        for process_id, count in self._batches:
            columns = {name: self._read(name, count) for name in self._files}
            columns["process_id"] = np.full(count, process_id, dtype=np.int64)
            if path_ids is not None:
                columns["path_id"] = path_ids[first : first + count]
            first += count
            yield columns

    def _read(self, name: str, count: int) -> npt.NDArray[Any]:
        import numpy as np

        kind = self._types[name]
        return np.frombuffer(self._files[name].read(count * kind.itemsize), dtype=kind)

    def __enter__(self) -> StoredSpans:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the files."""
        for file in self._files.values():
            file.close()
