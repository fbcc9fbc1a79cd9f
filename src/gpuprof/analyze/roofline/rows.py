# SPDX-License-Identifier: Apache-2.0
"""The roofline of a run as typed rows, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from gpuprof.analyze.ceilings.ceiling import GPU, Ceiling
from gpuprof.analyze.roofline.evidence import Evidence, NoLabel, RooflineAdvice, RooflineNote
from gpuprof.analyze.roofline.labels import Bound, Resource
from gpuprof.analyze.roofline.text import advice_text, bound_text, evidence_text, note_text, reason_text
from gpuprof.record.work.rows import Exactness

_NOT_IN_JSON = ("what", "members")  # which has one row a layer

RooflineKind = Literal["layer", "operator", "kernel"]


@dataclass(frozen=True, slots=True)
class RooflineRow:
    """One operator of one layer, one layer with its own operators, or one kernel.

    Calls of an operator with equal work in one layer, as in a loop, are one row; where the work varies a lot,
    it is the mean. `time_ns` is the median time of a call (of a layer: of one pass through the model),
    `total_ns` all its calls together, `time_share` that over the time inside recorded calls. `flops` and
    `bytes` (ideal ones, docs/work.md) are of one call. `bound` is the bottleneck; `nearest` the resource with
    the largest utilization, `roof` its ceiling ("compute fp32", "memory.l3", "launch") and `roof_share` the
    utilization of that ceiling: 1 is at the ceiling. All three are None where `bound` is unknown. `used` is
    the utilization of every resource, None where unknown. `memory_bytes` is the traffic at the level of
    memory that `used` is of. `confidence` is 0 to 1 (docs/roofline.md). `evidence` has the figures, `advice`
    what to try for the most important findings, else None; their text is in `evidence_text` and
    `advice_text`. `device` is "cpu" or "cpu.core", whose times are the host's, or a GPU such as "cuda:0",
    where the time of a call is that of its kernels, and `time_share` is over all the GPU's time; `launches`
    is how many kernels, copies and fills a call has there, None on the host. A row of kind "kernel" has the
    work of its operator where that launched nothing else. Its `name` has a label of the kernel; `kernel` is
    the full name, None for other rows. `what` is the part of the name before the layer, "" for a layer.
    `group` is the group of repeated layers that the layer is in, None for none. `members` is the number of
    layers in a row of a group, see `folded`.
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
    evidence: Evidence
    advice: RooflineAdvice | None = None
    device: str = "cpu"
    launches: float | None = None
    kernel: str | None = None
    what: str = ""
    group: str | None = None
    members: int = 1

    @property
    def shown_name(self) -> str:
        """The name, with the number of layers of a group."""
        return self.name if self.members == 1 else f"{self.name} x{self.members}"

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
        """The bottleneck as text: with the level of memory, or the nearest resource where underutilized."""
        return bound_text(self.bound, self.nearest, self.memory_level)

    @property
    def evidence_text(self) -> str:
        """The figures that the label rests on, or why there is none, in one line."""
        return evidence_text(self.evidence)

    @property
    def advice_text(self) -> str | None:
        """What to try, in one sentence without its full stop."""
        return None if self.advice is None else advice_text(self.advice)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; evidence and advice as text."""
        values = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in _NOT_IN_JSON
        }
        return {
            **values,
            "used": dict(self.used),
            "evidence": self.evidence_text,
            "advice": self.advice_text,
            "intensity": self.intensity,
            "flops_per_s": self.flops_per_s,
            "bytes_per_s": self.bytes_per_s,
        }


def folded(rows: Iterable[RooflineRow]) -> tuple[RooflineRow, ...]:
    """Return the rows with one for those of a layer, or group of layers, that have the same bottleneck.

    It has the calls and the time of all of them, such as those of other sizes of an operator's inputs;
    everything else is that of the longest one.
    """
    groups: dict[Hashable, list[RooflineRow]] = {}
    for row in rows:
        level = row.memory_level if row.bound == Bound.MEMORY else None
        layer = (row.root, row.layer) if row.group is None else row.group
        same = (layer, row.device, row.phase, row.dtype, row.what, row.kernel, row.bound, level)
        groups.setdefault(same, []).append(row)
    found = [_of_group(members) if len(members) > 1 else members[0] for members in groups.values()]
    return tuple(sorted(found, key=lambda row: -row.total_ns))


def _of_group(members: Sequence[RooflineRow]) -> RooflineRow:
    longest = max(members, key=lambda row: row.total_ns)
    shares = [row.time_share for row in members if row.time_share is not None]
    return replace(
        longest,
        name=_name_of_group(longest),
        calls=sum(row.calls for row in members),
        total_ns=sum(row.total_ns for row in members),
        time_share=sum(shares) if shares else None,
        advice=next((row.advice for row in members if row.advice is not None), None),
        members=len({row.layer for row in members}),
    )


def _name_of_group(row: RooflineRow) -> str:
    if row.group is None:
        return row.name
    return f"{row.what} @ {row.group}" if row.what else row.group


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Timed operators without a label, and why."""

    operator: str
    layer: str
    calls: int
    total_ns: int
    time_share: float | None
    reason: NoLabel
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class RooflineDevice:
    """A device that operators ran on: its time in recorded calls (of a GPU all time), the labeled part."""

    device: str
    name: str | None
    total_ns: int
    matched_share: float | None


@dataclass(frozen=True)
class RooflineData:
    """The bottleneck of each layer and operator of a run.

    `operators` and `layers` are ordered by their time, the largest first. `unmatched` are timed operators
    without counted work, or with an unknown bottleneck. `ceilings` are those that were used. `matched_share`
    is the fraction of `total_ns`, the time in recorded calls, in operators with a label. `devices` are those
    that operators ran on, GPUs first; `device`, `total_ns` and `matched_share` are those of the first one.
    """

    operators: tuple[RooflineRow, ...]
    layers: tuple[RooflineRow, ...]
    unmatched: tuple[Unmatched, ...]
    ceilings: tuple[Ceiling, ...]
    device: str
    total_ns: int
    matched_share: float | None
    notes: tuple[RooflineNote, ...] = field(default=())
    kernels: tuple[RooflineRow, ...] = field(default=())
    devices: tuple[RooflineDevice, ...] = field(default=())

    def rows(self, by: RooflineKind = "operator") -> tuple[RooflineRow, ...]:
        """Return the rows by "operator", "layer" or "kernel"; without a GPU there are no kernels."""
        return {"operator": self.operators, "layer": self.layers, "kernel": self.kernels}[by]

    @property
    def labeled_share(self) -> float | None:
        """The fraction of the time of all operators, on all devices, that has a label; None without any."""
        labeled_ns = sum(row.total_ns for row in self.operators if row.bound != Bound.UNKNOWN)
        total_ns = labeled_ns + sum(row.total_ns for row in self.unmatched)
        return labeled_ns / total_ns if total_ns else None

    @property
    def ran_on(self) -> tuple[RooflineDevice, ...]:
        """The devices that operators ran on; at least one."""
        return self.devices or (RooflineDevice(self.device, None, self.total_ns, self.matched_share),)

    def ceilings_of(self, device: str) -> tuple[Ceiling, ...]:
        """Return the ceilings that rows of a device are compared with."""
        if device.startswith(GPU):
            return tuple(ceiling for ceiling in self.ceilings if ceiling.device == device)
        return tuple(ceiling for ceiling in self.ceilings if not ceiling.device.startswith(GPU))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "operators": [row.as_dict() for row in self.operators],
            "layers": [row.as_dict() for row in self.layers],
            "kernels": [row.as_dict() for row in self.kernels],
            "unmatched": [{**asdict(row), "reason": reason_text(row.reason)} for row in self.unmatched],
            "ceilings": [asdict(row) for row in self.ceilings],
            "device": self.device,
            "devices": [asdict(device) for device in self.devices],
            "total_ns": self.total_ns,
            "matched_share": self.matched_share,
            "labeled_share": self.labeled_share,
            "notes": list(map(note_text, self.notes)),
        }
