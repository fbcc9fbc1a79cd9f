# SPDX-License-Identifier: Apache-2.0
"""What one launch does, inside its process: load, prepare, answer, check, measure; for each batch size in turn.

The events it sends, in order: `imported`, `loaded`, then for each batch size `preparing`, `prepared`,
`answered`, `progress` now and then, and `measured`. Times are of the monotonic clock.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpuprof.bench.checks import InputGuard, answer, check_outputs
from gpuprof.bench.energy import measure_energy
from gpuprof.bench.memory import limit_host_memory
from gpuprof.bench.spec import SystemSpec
from gpuprof.bench.systems import make_system
from gpuprof.bench.systems.common import FrameworkSystem
from gpuprof.bench.usage import UsageMeter


class Send(Protocol):
    """Where events go."""

    def __call__(self, event: str, **values: Any) -> None:
        """Take one event."""
        ...


@dataclass(frozen=True, slots=True)
class JobSettings:
    """How one launch measures. None is the measuring core's own choice."""

    batch_sizes: tuple[int, ...] = (1,)
    warmup: int | None = None
    iterations: int | None = None
    duration_s: float | None = None
    memory_budget_bytes: int | None = None
    profile: str | None = None
    only_first_answer: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dataclasses.asdict(self)


def run_job(values: Mapping[str, Any], send: Send) -> None:
    """Do what `JobSettings` and `SystemSpec` say; raises GpuprofError."""
    spec = SystemSpec.from_dict(values["spec"])
    plain = values["settings"]
    settings = JobSettings(**{**plain, "batch_sizes": tuple(plain["batch_sizes"])})
    system = make_system(spec)
    system.import_framework()
    send("imported")
    measure_system(system, settings, send)


def measure_system(system: FrameworkSystem, settings: JobSettings, send: Send) -> None:
    """Load a system and measure each batch size; in the process of a job, or in the caller's."""
    try:
        system.load()
        limit = limit_host_memory(settings.memory_budget_bytes) if settings.memory_budget_bytes else None
        send("loaded", memory_limit_bytes=limit)
        for batch_size in settings.batch_sizes:
            _measure_batch(system, batch_size, settings, send)
            if settings.only_first_answer:
                return
        if settings.profile is not None:
            _profile(system, Path(settings.profile), send)
    finally:
        system.close()


def _measure_batch(system: FrameworkSystem, batch_size: int, settings: JobSettings, send: Send) -> None:
    send("preparing", batch_size=batch_size)
    begin_ns = time.monotonic_ns()
    system.prepare(batch_size)
    guard = InputGuard(system)
    prepared_ns = time.monotonic_ns()
    send("prepared", batch_size=batch_size)
    outputs = answer(system)
    answered_ns = time.monotonic_ns()
    send("answered", batch_size=batch_size, description=dataclasses.asdict(system.describe()))
    check_outputs(system, outputs)
    guard.check()
    del outputs
    if settings.only_first_answer:
        return
    meter = UsageMeter()
    measured = _measure(system, settings, send)
    usage = meter.read()
    guard.check()
    memory = system.memory()
    energy = measure_energy(lambda: _calls(system)) if system.device_type == "cuda" else None
    send(
        "measured",
        batch_size=batch_size,
        prepare_s=(prepared_ns - begin_ns) / 1e9,
        first_call_s=(answered_ns - prepared_ns) / 1e9,
        memory=dataclasses.asdict(memory),
        usage=dataclasses.asdict(usage),
        energy=None if energy is None else dataclasses.asdict(energy),
        **measured,
    )


def _calls(system: FrameworkSystem) -> int:
    system.run()
    system.synchronize()
    return system.batch_size


def _measure(system: FrameworkSystem, settings: JobSettings, send: Send) -> dict[str, Any]:
    samples = []
    for _ in range(settings.warmup or 0):
        _calls(system)
    for _ in range(settings.iterations or 10):
        begin = time.perf_counter()
        _calls(system)
        samples.append(time.perf_counter() - begin)
    return {"samples_s": samples}


def _profile(system: FrameworkSystem, path: Path, send: Send) -> None:
    """Record some calls of the last batch size as a run, beside the measured ones and not among them."""
    from gpuprof.bench.profile_run import record_run

    record_run(system, path)
    send("profiled", path=str(path))
