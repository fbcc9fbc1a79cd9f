# SPDX-License-Identifier: Apache-2.0
"""What measuring one configuration in one process gave: raw samples, and how they came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from gpuprof.bench.config import Settings
from gpuprof.bench.failures import Failure
from gpuprof.bench.measure.host import MachineUse
from gpuprof.bench.measure.streaming import DataLoading
from gpuprof.bench.measure.warmup import Warmup

Nanoseconds = np.ndarray[Any, np.dtype[np.int64]]
StoppedBy = Literal[
    "precision", "time limit", "iterations", "most samples", "end of data", "failure", "interrupted"
]
ENDED_EARLY: tuple[StoppedBy, ...] = ("failure", "interrupted")


@dataclass(frozen=True, slots=True)
class Measurement:
    """Raw samples in the order of their making; none is left out.

    A sample is `samples_ns` of `calls_per_sample` calls, until they were done; `enqueue_ns` is until they had
    returned, and is None where a call is done when it returns. `timer_ns` is what the same loop reads for a
    call that does nothing: it is part of each sample and is not taken off. `stop_values` are the figures that
    decided it: `width` of the interval of `quantile`, `limit_s`, `iterations`, `samples`. `gaps_ns` is the
    time before each sample, since the end of the one before it; None in results of earlier versions and of
    process runs that were killed. `loading` is what a loader took, None where nothing was streamed.
    """

    settings: Settings
    samples_ns: Nanoseconds
    enqueue_ns: Nanoseconds | None
    calls_per_sample: int
    warmup: Warmup | None
    stopped_by: StoppedBy
    failure: Failure | None
    timer_ns: float
    elapsed_s: float
    machine: MachineUse | None
    stop_values: Mapping[str, Any] = field(default_factory=dict)
    gaps_ns: Nanoseconds | None = None
    loading: DataLoading | None = None

    @property
    def started_s(self) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        """The start of each sample in seconds since the warm-up ended; None where it is unknown."""
        if self.gaps_ns is None:
            return None
        return (np.cumsum(self.gaps_ns + self.samples_ns) - self.samples_ns) / 1e9

    @property
    def samples(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Seconds of a call: one value a call, or in throughput mode the mean of each window."""
        return self.samples_ns / (1e9 * self.calls_per_sample)

    @property
    def enqueue_share(self) -> float | None:
        """The median fraction of a call's time after which it had returned; None where that is all of it."""
        if self.enqueue_ns is None or not len(self.samples_ns):
            return None
        wall = float(np.median(self.samples_ns))
        return float(np.median(self.enqueue_ns)) / wall if wall > 0 else None

    @property
    def enqueue_s(self) -> float | None:
        """The median seconds until a call had returned; None where that is all of it."""
        if self.enqueue_ns is None or not len(self.enqueue_ns):
            return None
        return float(np.median(self.enqueue_ns)) / (1e9 * self.calls_per_sample)

    @property
    def calls(self) -> int:
        """The calls that were measured."""
        return len(self.samples_ns) * self.calls_per_sample

    @property
    def is_complete(self) -> bool:
        """Whether there are samples, and nothing ended the measurement before its time."""
        return len(self.samples_ns) > 0 and self.stopped_by not in ENDED_EARLY

    @property
    def median_s(self) -> float:
        """The median seconds of a call."""
        return float(np.median(self.samples))
