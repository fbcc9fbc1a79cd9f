# SPDX-License-Identifier: Apache-2.0
"""What measuring one configuration in one process gave: raw samples, and how they came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpuprof.bench.config import Settings
from gpuprof.bench.measure.host import MachineUse
from gpuprof.bench.measure.warmup import Warmup

if TYPE_CHECKING:
    import numpy.typing as npt


StoppedBy = Literal["precision", "time limit", "iterations", "most samples", "failure", "interrupted"]
ENDED_EARLY: tuple[StoppedBy, ...] = ("failure", "interrupted")


@dataclass(frozen=True, slots=True)
class Measurement:
    """Raw samples in the order of their making; none is left out.

    A sample is `wall_ns` of `calls_per_sample` calls, until they were done; `enqueue_ns` is until they had
    returned, and is None where a call is done when it returns. `timer_ns` is what the same loop reads for a
    call that does nothing: it is part of each sample and is not taken off.
    """

    settings: Settings
    wall_ns: npt.NDArray[np.int64]
    enqueue_ns: npt.NDArray[np.int64] | None
    calls_per_sample: int
    warmup: Warmup | None
    stopped_by: StoppedBy
    stop_reason: str
    failure: str | None
    timer_ns: float
    elapsed_s: float
    machine: MachineUse | None
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> npt.NDArray[np.float64]:
        """Seconds of a call: one value a call, or in throughput mode the mean of each window."""
        return self.wall_ns / (1e9 * self.calls_per_sample)

    @property
    def enqueue_share(self) -> float | None:
        """The median share of a call's time after which it had returned; None where that is all of it."""
        if self.enqueue_ns is None or not len(self.wall_ns):
            return None
        wall = float(np.median(self.wall_ns))
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
        return len(self.wall_ns) * self.calls_per_sample

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, all samples among it."""
        return {
            "settings": self.settings.to_dict(),
            "samples_ns": self.wall_ns.tolist(),
            "enqueue_ns": None if self.enqueue_ns is None else self.enqueue_ns.tolist(),
            "calls_per_sample": self.calls_per_sample,
            "warmup": None if self.warmup is None else self.warmup.to_dict(),
            "stopped_by": self.stopped_by,
            "stop_reason": self.stop_reason,
            "failure": self.failure,
            "timer_ns": self.timer_ns,
            "elapsed_s": self.elapsed_s,
            "machine": None if self.machine is None else self.machine.to_dict(),
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """Return what `to_dict()` described."""
        enqueue = data["enqueue_ns"]
        return cls(
            settings=Settings.from_dict(data["settings"]),
            wall_ns=np.asarray(data["samples_ns"], dtype=np.int64),
            enqueue_ns=None if enqueue is None else np.asarray(enqueue, dtype=np.int64),
            calls_per_sample=data["calls_per_sample"],
            warmup=None if data["warmup"] is None else Warmup.from_dict(data["warmup"]),
            stopped_by=data["stopped_by"],
            stop_reason=data["stop_reason"],
            failure=data["failure"],
            timer_ns=data["timer_ns"],
            elapsed_s=data["elapsed_s"],
            machine=None if data["machine"] is None else MachineUse.from_dict(data["machine"]),
            notes=tuple(data["notes"]),
        )
