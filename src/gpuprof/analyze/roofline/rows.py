# SPDX-License-Identifier: Apache-2.0
"""The roofline of a run as typed rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gpuprof.analyze.ceilings.ceiling import GPU, Ceiling
from gpuprof.analyze.roofline.labels import Bound, Resource
from gpuprof.record.work.rows import Exactness

RooflineKind = Literal["layer", "operator", "kernel"]


@dataclass(frozen=True, slots=True)
class RooflineRow:
    """One operator of one layer, or one layer with its own operators.

    `time_ns` is the median time of a call (of a layer: of one pass through the model), `total_ns` all its
    calls together, `time_share` that over the time inside recorded calls. `flops` and `bytes` (ideal ones,
    docs/work.md) are of one call. `bound` is what binds; `nearest` the resource of which the largest share is
    used, also where it does not bind, and `roof` its ceiling ("compute fp32", "memory.l3", "launch").
    `roof_share` is the share that is used of that roof: 1 is at the roof. All three are None where `bound` is
    "unknown". `used` has the share for every resource, None where it is not known. `memory_bytes` is the
    traffic at the level of memory that `used` is of. `confidence` is 0 to 1 (docs/roofline.md). `evidence` is
    one line; `advice` one sentence for the findings that matter most, else None. `device` is what it ran on:
    "cpu" or "cpu.core", whose times are the host's, or a GPU such as "cuda:0", where the time of a call is
    that of its kernels, and `time_share` is over all the GPU's time; `launches` is how many kernels, copies
    and fills a call has there, None on the host. A row of kind "kernel" has the work of its operator where
    that had no other.
    """

    kind: RooflineKind
    name: str
    root: str
    layer: str
    operator: str | None
    ordinal: int | None
    phase: str | None
    dtype: str | None
    calls: int
    time_ns: float
    total_ns: int
    time_share: float | None
    timing_spread: float | None
    flops: int | None
    bytes: int | None
    exactness: Exactness
    bound: Bound
    nearest: Resource | None
    roof: str | None
    roof_share: float | None
    used: dict[Resource, float | None]
    memory_level: str | None
    memory_bytes: float | None
    confidence: float
    evidence: str
    advice: str | None = None
    device: str = "cpu"
    launches: float | None = None

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def flops_per_s(self) -> float | None:
        """What was reached."""
        return None if self.flops is None or self.time_ns <= 0 else self.flops / self.time_ns * 1e9

    @property
    def bytes_per_s(self) -> float | None:
        """What was reached, of ideal bytes."""
        return None if self.bytes is None or self.time_ns <= 0 else self.bytes / self.time_ns * 1e9

    @property
    def bound_text(self) -> str:
        """What binds, in a word or two: with the level of memory, or the nearest roof where nothing does."""
        if self.bound == "memory":
            return f"memory ({self.memory_level})"
        if self.bound == "under-utilised":
            return f"under-utilised ({self.nearest})"
        return self.bound

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rates = {
            "intensity": self.intensity,
            "flops_per_s": self.flops_per_s,
            "bytes_per_s": self.bytes_per_s,
        }
        return {**asdict(self), **rates}


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Timed operators without a label: `reason` says why nothing is known of their work."""

    operator: str
    layer: str
    calls: int
    total_ns: int
    time_share: float | None
    reason: str
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class RooflineDevice:
    """What operators ran on: the time in recorded calls, on a GPU all its time, and the labelled share."""

    device: str
    name: str | None
    total_ns: int
    matched_share: float | None


@dataclass(frozen=True)
class Roofline:
    """What binds each layer and operator of a run; `print` shows it.

    `operators` and `layers` are ordered by their time, the largest first. `unmatched` are timed operators
    that nothing was counted for, or whose bound is unknown. `ceilings` are the roofs that were used.
    `matched_share` is the share of `total_ns`, the time in recorded calls, in operators with a label.
    `devices` are what operators ran on, GPUs first; `device`, `total_ns` and `matched_share` are those of the
    first one.
    """

    operators: tuple[RooflineRow, ...]
    layers: tuple[RooflineRow, ...]
    unmatched: tuple[Unmatched, ...]
    ceilings: tuple[Ceiling, ...]
    device: str
    total_ns: int
    matched_share: float | None
    notes: tuple[str, ...] = field(default=())
    kernels: tuple[RooflineRow, ...] = field(default=())
    devices: tuple[RooflineDevice, ...] = field(default=())

    def rows(self, by: RooflineKind = "operator") -> tuple[RooflineRow, ...]:
        """Return the rows by "operator", "layer" or "kernel"; without a GPU there are no kernels."""
        return {"operator": self.operators, "layer": self.layers, "kernel": self.kernels}[by]

    @property
    def ran_on(self) -> tuple[RooflineDevice, ...]:
        """What operators ran on; at least one."""
        return self.devices or (RooflineDevice(self.device, None, self.total_ns, self.matched_share),)

    def roofs_of(self, device: str) -> tuple[Ceiling, ...]:
        """Return the roofs that rows of a device are held against."""
        if device.startswith(GPU):
            return tuple(ceiling for ceiling in self.ceilings if ceiling.device == device)
        return tuple(ceiling for ceiling in self.ceilings if not ceiling.device.startswith(GPU))

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, by: RooflineKind = "operator", top: int | None = None, width: int = 100) -> str:
        """Return the table, the advice and the notes as plain text; `top` None shows what matters."""
        from gpuprof.analyze.roofline.text import roofline_text

        return roofline_text(self, by, top, width)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "operators": [row.as_dict() for row in self.operators],
            "layers": [row.as_dict() for row in self.layers],
            "kernels": [row.as_dict() for row in self.kernels],
            "unmatched": [asdict(row) for row in self.unmatched],
            "ceilings": [asdict(row) for row in self.ceilings],
            "device": self.device,
            "devices": [asdict(device) for device in self.devices],
            "total_ns": self.total_ns,
            "matched_share": self.matched_share,
            "notes": list(self.notes),
        }
