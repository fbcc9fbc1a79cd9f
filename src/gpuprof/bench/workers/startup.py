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
from pathlib import Path

from gpuprof.bench.config import JobSettings, SystemSpec
from gpuprof.bench.frameworks import FRAMEWORKS, framework_name, system_class
from gpuprof.bench.models.sources import parse_model
from gpuprof.bench.results.session import Startup
from gpuprof.bench.workers.events import Event, State
from gpuprof.bench.workers.job import MeasureJob
from gpuprof.bench.workers.process import run_process

# Where compilers keep what they made, by the variables that move it.
_CACHE_VARIABLES = (
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "JAX_COMPILATION_CACHE_DIR",
    "CUDA_CACHE_PATH",
)
_MARKS = (State.STARTED, State.UP, State.IMPORTED, State.LOADED, State.PREPARED, State.DESCRIBED)


def startup_of(first_ns: Mapping[State, int]) -> Startup | None:
    """Return the parts from when each state was first reached; None where no inference was made."""
    if any(state not in first_ns for state in _MARKS):
        return None
    marks = [first_ns[state] for state in _MARKS]
    return Startup(*((end - begin) / 1e9 for begin, end in itertools.pairwise(marks)))


def measure_startup(
    spec: SystemSpec, *, batch_size: int = 1, time_limit_s: float = 600.0
) -> dict[str, Startup | None]:
    """Start the system twice in fresh processes: `cold`, then `warm`. Raises GpuprofError."""
    found: dict[str, Startup | None] = {}
    with tempfile.TemporaryDirectory(prefix="gpuprof-startup-") as caches:
        environment = {name: str(Path(caches, name)) for name in _CACHE_VARIABLES}
        forget_files(files_of(spec))
        for state in ("cold", "warm"):
            found[state] = _start(spec, batch_size, time_limit_s, environment)
    return found


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
