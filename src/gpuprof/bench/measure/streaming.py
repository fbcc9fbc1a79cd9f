# SPDX-License-Identifier: Apache-2.0
"""Streamed inputs: each measured call gets the next batch of a loader, and loading it is timed apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpuprof.bench.failures import reason_of
from gpuprof.errors import BenchmarkError, GpuprofError


class EndOfDataError(Exception):
    """An iterator has no further batch, and cannot begin again."""


class StreamedSystem(Protocol):
    """A system whose inputs come from a loader."""

    def next_inputs(self) -> int:
        """Load the inputs of the next call; return how many samples they are. Raises EndOfDataError."""
        ...


@dataclass(frozen=True, slots=True)
class DataLoading:
    """What the loader did for the measured calls.

    `loading_ns` has a value for each call: getting its batch and placing it on the device. `passes` is how
    often the data was read to its end, None where the loader does not report it; `has_ended` is whether it
    ended there, since it is an iterator of one pass.
    """

    loading_ns: np.ndarray[Any, np.dtype[np.int64]]
    samples: int
    passes: int | None
    has_ended: bool

    @property
    def loading_s(self) -> float | None:
        """The median seconds of loading a batch; None without any."""
        return float(np.median(self.loading_ns)) / 1e9 if len(self.loading_ns) else None

    def fraction_of(self, elapsed_s: float) -> float | None:
        """Return the fraction of the wall time in which the model waited for its inputs."""
        return float(self.loading_ns.sum()) / 1e9 / elapsed_s if elapsed_s > 0 else None


class InputStream:
    """Loads the inputs of each call once `is_on`; the calls of the warm-up repeat the first batch."""

    def __init__(self, system: StreamedSystem, clock: Callable[[], int]) -> None:
        self._system, self._clock = system, clock
        self._loading_ns: list[int] = []
        self._samples = 0
        self._has_ended = False
        self.is_on = False

    def __call__(self) -> None:
        """Load the next batch. Raises EndOfDataError, and BenchmarkError for what the loader raises."""
        if not self.is_on:
            return
        begin = self._clock()
        try:
            samples = self._system.next_inputs()
        except EndOfDataError:
            self._has_ended = True
            raise
        except GpuprofError:
            raise
        except Exception as error:
            raise BenchmarkError(
                "loader_failed",
                f"the data loader raised {reason_of(error)} after {len(self._loading_ns):,} batches",
                hint="correct the loader, or remove the sample that it cannot read",
            ) from error
        self._loading_ns.append(self._clock() - begin)
        self._samples += samples

    def report(self, calls: int) -> DataLoading:
        """Return what was loaded for so many calls: the batch of a call that failed is left out."""
        return DataLoading(
            np.array(self._loading_ns[:calls], dtype=np.int64),
            self._samples,
            getattr(self._system, "passes", None),
            self._has_ended,
        )
