# SPDX-License-Identifier: Apache-2.0
"""Start-up: from the start of a process to its first inference, cold and warm, in parts.

Cold means that the files of the framework and of the model are not in the system's page cache (as far as the
system lets go of them: pages that other processes map stay) and that compilers find no cache of theirs. A
process is started twice: the first time cold, the second time with what the first one left.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gpuprof.bench.config import JobSettings, SystemSpec
from gpuprof.bench.frameworks import FRAMEWORKS, framework_name, system_class
from gpuprof.bench.models.sources import parse_model
from gpuprof.bench.number_text import time_text
from gpuprof.bench.ready_times import verdict_of
from gpuprof.bench.results.session import Startup
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.bench.workers.events import Event, State
from gpuprof.bench.workers.job import MeasureJob
from gpuprof.bench.workers.process import run_process
from gpuprof.errors import BenchmarkError
from gpuprof.text.table import Column, text_table

# Where compilers keep what they made, by the variables that move it.
_CACHE_VARIABLES = (
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "JAX_COMPILATION_CACHE_DIR",
    "CUDA_CACHE_PATH",
)
PART_NAMES = {
    "interpreter_s": "interpreter",
    "import_s": "import of the framework",
    "load_s": "load",
    "compile_s": "inputs and compiling",
    "first_run_s": "first inference",
    "total_s": "total",
}
_MARKS = (State.STARTED, State.UP, State.IMPORTED, State.LOADED, State.PREPARED, State.DESCRIBED)


def startup_of(first_ns: Mapping[State, int]) -> Startup | None:
    """Return the parts from when each state was first reached; None where no inference was made."""
    if any(state not in first_ns for state in _MARKS):
        return None
    marks = [first_ns[state] for state in _MARKS]
    return Startup(*((end - begin) / 1e9 for begin, end in itertools.pairwise(marks)))


@dataclass(frozen=True, slots=True)
class StartupTimes:
    """A cold start and several warm ones; a start is None where no inference was made."""

    cold: Startup | None
    warm: tuple[Startup, ...]

    def verdict(self, limit_s: float) -> TargetVerdict:
        """Return whether the median of the warm starts is below a limit."""
        return verdict_of([each.total_s for each in self.warm], limit_s)

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        return {
            "cold": None if self.cold is None else self.cold.to_dict(),
            "warm": [each.to_dict() for each in self.warm],
        }

    def __str__(self) -> str:
        runs = f"warm, median of {len(self.warm)}" if len(self.warm) > 1 else "warm"
        cold = {} if self.cold is None else self.cold.to_dict()
        warm = [each.to_dict() for each in self.warm]
        rows = []
        for name in warm[0]:
            values = [each[name] for each in warm]
            span = f"{time_text(min(values))} to {time_text(max(values))}"
            rows.append([PART_NAMES[name], time_text(cold.get(name)), time_text(median(values)), span])
        columns = [Column("part", right=False), Column("cold"), Column(runs), Column("warm, range")]
        return text_table(columns, rows)


def measure_startups(spec: SystemSpec, *, runs: int, time_limit_s: float = 600.0) -> StartupTimes:
    """Start a system once cold, then `runs` times warm, in fresh processes. Raises GpuprofError."""
    with _cache_folders() as environment:
        forget_files(files_of(spec))
        starts = [_start(spec, 1, time_limit_s, environment) for _ in range(runs + 1)]
    warm = tuple(each for each in starts[1:] if each is not None)
    if not warm:
        raise BenchmarkError("no_inference", f"{spec.model} made no inference", hint="see gpuprof bench")
    return StartupTimes(starts[0], warm)


def measure_startup(
    spec: SystemSpec, *, batch_size: int = 1, time_limit_s: float = 600.0
) -> dict[str, Startup | None]:
    """Start the system twice in fresh processes: `cold`, then `warm`. Raises GpuprofError."""
    found: dict[str, Startup | None] = {}
    with _cache_folders() as environment:
        forget_files(files_of(spec))
        for state in ("cold", "warm"):
            found[state] = _start(spec, batch_size, time_limit_s, environment)
    return found


@contextlib.contextmanager
def _cache_folders() -> Iterator[dict[str, str]]:
    """Yield the variables that give compilers empty caches, which exist in the block."""
    with tempfile.TemporaryDirectory(prefix="gpuprof-startup-") as caches:
        yield {name: str(Path(caches, name)) for name in _CACHE_VARIABLES}


def _start(
    spec: SystemSpec, batch_size: int, time_limit_s: float, environment: Mapping[str, str]
) -> Startup | None:
    job = MeasureJob(spec, JobSettings(batch_sizes=(batch_size,), only_first_answer=True))
    first_ns: dict[State, int] = {}

    def take(event: Event) -> None:
        first_ns.setdefault(event.state, event.t_ns)

    run_process(job, time_limit_s=time_limit_s, on_event=take, environment=environment)
    return startup_of(first_ns)


def files_of(spec: SystemSpec) -> Iterator[Path]:
    """Yield the files that a start reads: those of the framework's package, and the model's."""
    if spec.combination is not None:
        for part in spec.combination.parts:
            yield from files_of(part)
        return
    source = parse_model(spec.model, trust_pickle=spec.trust_pickle)
    if source.path is not None:
        yield source.path
    framework = framework_name(spec.framework)
    for name in [framework] if framework in FRAMEWORKS else ["pytorch"]:
        package = system_class(name).package
        found = importlib.util.find_spec(package[0]) if package is not None else None
        for folder in (found.submodule_search_locations or []) if found is not None else []:
            yield from (path for path in Path(folder).rglob("*") if path.is_file())


def forget_files(files: Iterator[Path]) -> int:
    """Ask the system to drop files from its page cache; returns how many it was asked for."""
    if not hasattr(os, "posix_fadvise"):
        return 0
    asked = 0
    for path in files:
        with contextlib.suppress(OSError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            asked += 1
    return asked
