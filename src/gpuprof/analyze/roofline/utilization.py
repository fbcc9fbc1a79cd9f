# SPDX-License-Identifier: Apache-2.0
"""The ceilings of a run by device, and their utilization by an operator in the time that it took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuprof.analyze.ceilings.ceiling import ALL_CORES, GPU, ONE_CORE, Ceiling, Drift, best_part
from gpuprof.analyze.roofline.counted import CountedRow
from gpuprof.analyze.roofline.labels import ABOVE_CEILING, Resource
from gpuprof.errors import RunError
from gpuprof.record.work.rows import Reuse

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

DRAM = "dram"
FAULT_IS_HUGE_FROM_BYTES = 1 << 16
# PyTorch's names of types, and those of the ceilings. What is missing has no ceiling.
_TYPES = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "int8": "int8",
    "uint8": "int8",
    "qint8": "int8",
    "quint8": "int8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "complex64": "fp32",
    "complex128": "fp64",
}


@dataclass(frozen=True, slots=True)
class Level:
    """One level of memory: what it holds, in bytes (None: everything), and its bandwidth."""

    name: str
    holds_bytes: int | None
    ceiling: Ceiling


# The uncertainty assumed for a theoretical ceiling: a GPU reaches half to nearly all of it.
_THEORETICAL_UNCERTAINTY = 0.5


class Machine:
    """Ceilings of the threads that a run used: those of one core where it used one thread; or of one GPU.

    `tf32` is for a GPU whether products ("matmul") and convolutions of fp32 numbers may use TF32.
    """

    def __init__(
        self,
        rows: Sequence[Ceiling],
        *,
        threads: int | None = None,
        caches: Sequence[dict[str, Any]] = (),
        drifts: Sequence[Drift] = (),
        gpu: str | None = None,
        name: str | None = None,
        tf32: Mapping[str, bool | None] | None = None,
    ) -> None:
        has_one_core = any(row.device == ONE_CORE for row in rows)
        self.device = gpu or (ONE_CORE if threads == 1 and has_one_core else ALL_CORES)
        self.name = name
        self.tf32 = dict(tf32 or {})
        self._rows = {row.key: row for row in rows}
        self._drifts = {(drift.device, drift.resource, drift.dtype): drift.change for drift in drifts}
        self.levels = self._levels(caches)
        self.write_traffic = self._write_traffic()

    @property
    def is_gpu(self) -> bool:
        """Whether these are the ceilings of a GPU."""
        return self.device.startswith(GPU)

    def find(self, resource: str, dtype: str | None = None) -> Ceiling | None:
        """Return a ceiling of the device, of one core that of all where there is no other."""
        own = self._rows.get((self.device, resource, dtype))
        return own or (None if self.is_gpu else self._rows.get((ALL_CORES, resource, dtype)))

    def uncertainty(self, ceiling: Ceiling) -> float:
        """Return how far a ceiling may be off."""
        part = best_part(ceiling, self._rows.values())
        is_theoretical = part is not None and part.is_theoretical
        return _THEORETICAL_UNCERTAINTY if is_theoretical else ceiling.spread or 0.0

    def peak(self, dtype: str | None) -> Ceiling | None:
        """Return what can be calculated in a type of PyTorch; None where that was not measured."""
        if dtype is None:
            return None
        return self.find("compute", _TYPES.get(dtype, dtype))

    def fault_ns(self, fault_bytes: float) -> float | None:
        """Return what a page fault costs that hands out so many bytes."""
        small, huge = self.find("page_fault"), self.find("page_fault.huge")
        row = huge if huge is not None and fault_bytes >= FAULT_IS_HUGE_FROM_BYTES else small or huge
        return None if row is None else row.value

    def drift(self, ceiling: Ceiling) -> float:
        """Return the drift of a ceiling around the recording: the largest change of its best measurement."""
        best = best_part(ceiling, self._rows.values())
        resources = {ceiling.resource} if best is None else {ceiling.resource, best.resource}
        changes = [
            change
            for (device, resource, dtype), change in self._drifts.items()
            if (device, dtype) == (ceiling.device, ceiling.dtype) and resource in resources
        ]
        return max(changes, key=abs, default=0.0)

    def _levels(self, caches: Sequence[dict[str, Any]]) -> list[Level]:
        """Return the levels with a bandwidth, the nearest first; memory itself is the last."""
        size = "one_core_bytes" if self.device == ONE_CORE else "bytes"
        levels = []
        for cache in sorted(caches, key=lambda cache: int(cache["level"])):
            ceiling = self.find(f"memory.l{cache['level']}")
            if ceiling is not None:
                levels.append(Level(f"l{cache['level']}", int(cache[size]), ceiling))
        dram = self.find(f"memory.{DRAM}")
        return [*levels, *([Level(DRAM, None, dram)] if dram is not None else [])]

    def _write_traffic(self) -> float:
        """Return the bytes that move when one byte is written with an ordinary store.

        Between 1 and 2: a store may read the line first. It is what makes a plain copy, whose bytes
        are half reads and half writes, reach the ceiling. Where non-temporal stores were measured, the
        rate of the plain copy includes an assumed write-allocate.
        """
        dram, copy = self.find(f"memory.{DRAM}"), self.find(f"memory.{DRAM}.copy")
        if dram is None or copy is None:
            return 1.0
        assumed = 1.0 if self.find(f"memory.{DRAM}.triad_non_temporal") is None else 1.5
        return min(2.0, max(1.0, 2 * dram.value / (copy.value / assumed) - 1))


@dataclass(frozen=True)
class Machines:
    """The host, and the GPUs by name; a GPU without ceilings has an empty machine."""

    host: Machine
    gpus: dict[str, Machine]

    def of(self, device: str | None) -> Machine:
        """Return the ceilings of a device; None is the host."""
        if device is None:
            return self.host
        return self.gpus.get(device) or Machine((), gpu=device)


def load_machines(folder: RunFolder) -> Machines:
    """Return the run's ceilings. Raises RunError where it holds none."""
    columns = "device, resource, dtype, value, unit, spread, method"
    rows = [Ceiling(*row) for row in folder.sql("FROM ceilings").select(columns).fetchall()]
    facts = folder.meta.get("ceilings") or {}
    if not any(row.is_best for row in rows):
        notes = "; ".join(map(str, facts.get("notes", []))) or "they were not measured"
        raise RunError(
            "no_ceilings",
            f"{folder.path} has no ceilings ({notes})",
            hint="record it again while no other recording runs",
        )
    work = folder.meta["work"]
    drifts = [Drift(**drift) for drift in facts.get("drift", [])]
    host = Machine(rows, threads=work.get("threads"), caches=work.get("caches") or (), drifts=drifts)
    tf32 = (work.get("gpu") or {}).get("tf32")
    gpus = {gpu["device"]: _gpu(gpu, rows, drifts, tf32) for gpu in facts.get("gpus") or ()}
    return Machines(host, gpus)


def _gpu(gpu: dict[str, Any], rows: list[Ceiling], drifts: list[Drift], tf32: Any) -> Machine:
    size = int(gpu.get("l2_cache_bytes") or 0)
    caches = [{"level": 2, "bytes": size, "one_core_bytes": size}] if size else []
    return Machine(rows, caches=caches, drifts=drifts, gpu=gpu["device"], name=gpu.get("gpu"), tf32=tf32)


# ---- utilization -----------------------------------------------------------------------------

# A cache that is shared, or does not replace in strict order, certainly holds less than its size, and has
# certainly lost only what is far beyond its size.
_CERTAINLY_HELD = 0.5
_CERTAINLY_LOST = 2


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a level of memory must deliver or take, and the least time that this needs."""

    level: Level
    bytes: float
    least_ns: float
    certain: float  # of the bytes, those that no nearer level can have
    source: str = ""  # "measured" by counters, or "ideal", where the run has counters


@dataclass(frozen=True, slots=True)
class Utilization:
    """The least times that each resource needs, in ns; None where work or ceiling is unknown.

    `traffic` is of the level that the memory time is of; `uncertain_bytes` the fraction of the bytes whose
    place in the caches is uncertain. Where `is_peak_certain` is not set, it is unknown whether the operator
    may use TF32, and the peak is the higher one.
    """

    compute_ns: float | None
    memory_ns: float | None
    latency_ns: float | None
    fault_ns: float | None
    peak: Ceiling | None
    traffic: Traffic | None
    uncertain_bytes: float
    is_peak_certain: bool = True
    operations: float | None = None  # of the tensor cores, as measured; None: what was counted

    def fractions(self, time_ns: float) -> dict[Resource, float | None]:
        """Return each least time over the time taken; all but that of the FLOPs are at most 1."""

        def share(least_ns: float | None, most: float = float("inf")) -> float | None:
            return None if least_ns is None or time_ns <= 0 else min(most, least_ns / time_ns)

        return {
            Resource.COMPUTE: share(self.compute_ns),
            # A faster rate than the measured ceiling becomes the ceiling.
            Resource.MEMORY: share(self.memory_ns, 1.0),
            Resource.LATENCY: share(self.latency_ns, 1.0),
            Resource.PAGE_FAULTS: share(self.fault_ns, 1.0),
        }


def utilization_of(row: CountedRow, machine: Machine, time_ns: float, launches: float = 1) -> Utilization:
    """Return the least times of an operator; on a GPU it launched `launches` kernels."""
    peak, is_peak_certain = _peak(row, machine)
    launch = machine.find("launch")
    traffic = _slowest(row, machine, time_ns)
    operations = (row.measured and row.measured.tensor_operations) or None
    compute_ns: float | None = 0.0 if row.flops == 0 else None
    if (work := operations or row.flops) and peak is not None:
        compute_ns = work / peak.value * 1e9
    memory_ns = None if traffic is None else traffic.least_ns
    if row.bytes == 0:
        memory_ns = 0.0
    return Utilization(
        compute_ns,
        memory_ns,
        None if launch is None else launch.value * launches,
        _fault_ns(row, machine),
        peak,
        traffic,
        0.0 if traffic is not None and traffic.source == "measured" else _uncertain(row, machine),
        is_peak_certain,
        operations,
    )


# Operators of cuDNN, which has a TF32 switch of its own.
_BY_CUDNN = ("convolution", "cudnn")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "_addmm_activation")


def _peak(row: CountedRow, machine: Machine) -> tuple[Ceiling | None, bool]:
    """Return the peak of an operator, and whether it is certain."""
    own, shortened = machine.peak(row.dtype), machine.find("compute", "tf32")
    kind = _tf32_kind(row.operator)
    if shortened is None or kind is None or not may_use_tf32(row, machine):
        return own, True
    allowed = machine.tf32.get(kind)
    if allowed is False:
        return own, True
    better = shortened if own is None or shortened.value > own.value else own
    return better, allowed is True


def may_use_tf32(row: CountedRow, machine: Machine) -> bool:
    """Return whether PyTorch has a switch for TF32 in this operator."""
    return machine.is_gpu and row.dtype == "float32" and _tf32_kind(row.operator) is not None


def _tf32_kind(operator: str) -> str | None:
    name = operator.rsplit("::", maxsplit=1)[-1]
    if any(part in name for part in _BY_CUDNN):
        return "convolution"
    return "matmul" if name in _PRODUCTS or "attention" in name else None


def _slowest(row: CountedRow, machine: Machine, time_ns: float) -> Traffic | None:
    """Return the traffic of the level that needs the longest.

    Where that is longer than the measured time, the bytes came from a nearer level, unless they are far
    more than it holds.
    """
    found = [traffic for traffic in _levels(row, machine) if traffic.bytes > 0]
    possible = [
        traffic
        for traffic in found
        if traffic.least_ns <= ABOVE_CEILING * time_ns or traffic.certain >= traffic.bytes / 2
    ]
    if possible:
        return max(possible, key=lambda traffic: traffic.least_ns)
    return min(found, key=lambda traffic: traffic.least_ns, default=None)


def _levels(row: CountedRow, machine: Machine) -> Iterable[Traffic]:
    nearer = 0
    for level in machine.levels:
        write_traffic = machine.write_traffic if level.holds_bytes is None else 1.0
        moved = _beyond(row, nearer, write_traffic)
        certain = (
            _beyond(row, _CERTAINLY_LOST * nearer, write_traffic, lost_bytes=nearer) if nearer else moved
        )
        source = "" if row.measured is None else "ideal"
        if level.holds_bytes is None and row.measured is not None and row.measured.dram_bytes is not None:
            moved = certain = row.measured.dram_bytes
            source = "measured"
        yield Traffic(level, moved, moved / level.ceiling.value * 1e9, certain, source)
        nearer = level.holds_bytes or nearer


def _beyond(row: CountedRow, held_bytes: int, write_traffic: float, lost_bytes: int = 0) -> float:
    """Return the bytes that a cache of that size does not have, and so what the level after it moves.

    Memory that was not touched before counts if it is more than `lost_bytes` at once.
    """
    if not row.reuse:
        return float(row.bytes or 0) if (row.bytes or 0) > held_bytes else 0.0
    return sum(
        part.bytes * (write_traffic if part.written else 1.0)
        for part in row.reuse
        if held_bytes == 0 or _is_beyond(part, held_bytes, lost_bytes)
    )


def _is_beyond(part: Reuse, held_bytes: int, lost_bytes: int) -> bool:
    if part.distance_bytes is None:
        return part.bytes > lost_bytes
    return part.distance_bytes > held_bytes


def _uncertain(row: CountedRow, machine: Machine) -> float:
    """Return the fraction of bytes that nearly fill the last cache: they may be in it or not."""
    held = [level.holds_bytes for level in machine.levels if level.holds_bytes is not None]
    total = sum(part.bytes for part in row.reuse)
    if not held or not total:
        return 0.0
    near = (
        part.bytes
        for part in row.reuse
        if part.distance_bytes is not None
        and _CERTAINLY_HELD * held[-1] < part.distance_bytes <= 2 * held[-1]
    )
    return sum(near) / total


def _fault_ns(row: CountedRow, machine: Machine) -> float | None:
    if row.page_faults is None or machine.is_gpu:
        return None
    if row.page_faults == 0:
        return 0.0
    written = sum(part.bytes for part in row.reuse if part.written)
    cost = machine.fault_ns(written / row.page_faults)
    return None if cost is None else row.page_faults * cost
