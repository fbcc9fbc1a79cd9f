# SPDX-License-Identifier: Apache-2.0
"""LoadGen, the load generator of MLPerf inference, run on a model in a process of its own.

What it reports is its own: the texts of its summary are kept as files, and the figures are those of its
detail log, which is one JSON object a line. A run of ours is not a submission, so it is called MLPerf-style.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.failures import FailedRunError, TimeLimitError
from gpuprof.bench.serialization import encode
from gpuprof.errors import BenchmarkError, UnavailableError
from gpuprof.load.loadgen_process import EXIT_FAILED, FAILURE_FILE, LoadgenJob
from gpuprof.load.mlperf import RULES, MlperfScenario, Queries
from gpuprof.record.helper_process import module_command

if TYPE_CHECKING:
    from gpuprof.bench.config import SystemSpec

_MODULE = "mlperf_loadgen"
_DETAIL, _SUMMARY, _TRACE = "mlperf_log_detail.txt", "mlperf_log_summary.txt", "mlperf_log_trace.json"
_LINE = ":::MLLOG "
_MOST_SEED = 2**32
_STARTUP_S = 120.0
# A server that is overloaded drains its queue after the last arrival.
_DRAIN = 4.0
_LARGEST_BATCH = 1_024
_RUN_AGAIN = "free disk space, and run the load again"
_LAST_OUTPUT = 300  # characters of what a process that failed printed


@dataclass(frozen=True, slots=True)
class LoadgenSettings:
    """How LoadGen runs. The defaults are the rules of MLPerf inference.

    `rate` is queries a second: the target of server, the expected samples a second of offline, and one over
    the expected latency of a query of the streams; None measures the last two with a few calls before.
    LoadGen makes so many queries that they last for the duration at this rate; a rate that is too low makes
    the run too short. `time_limit_s` None depends on the duration.
    """

    scenario: MlperfScenario
    rate: float | None
    duration_s: float = 600.0
    least_queries: int = 1
    latency_bound_s: float | None = None
    batch_size: int = 1
    seed: int = 0
    trace: bool = False
    time_limit_s: float | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def limit_s(self) -> float:
        """How long the process may take."""
        return self.time_limit_s or _STARTUP_S + _DRAIN * self.duration_s


def _check(settings: LoadgenSettings) -> None:
    """Refuse what LoadGen takes and then hangs, runs at another rate, or changes. Raises BenchmarkError."""
    if settings.rate is None and settings.scenario is MlperfScenario.SERVER:
        raise BenchmarkError(
            "invalid_loadgen_setting", "the server scenario of LoadGen needs a rate", hint="add --rate 20"
        )
    for name, given in (("rate", settings.rate), ("duration", settings.duration_s)):
        if given is not None and not 0 < given < math.inf:
            raise BenchmarkError(
                "invalid_loadgen_setting", f"{name} {given} of LoadGen", hint=f"give a {name} above 0"
            )
    if not 0 <= settings.seed < _MOST_SEED:
        raise BenchmarkError(
            "invalid_loadgen_setting",
            f"seed {settings.seed}: LoadGen cuts seeds to 32 bits",
            hint=f"give a seed from 0 to {_MOST_SEED - 1}",
        )
    if settings.least_queries < 1 or not 1 <= settings.batch_size <= _LARGEST_BATCH:
        raise BenchmarkError(
            "invalid_loadgen_setting",
            f"{settings.least_queries} queries in batches of {settings.batch_size}",
            hint=f"give at least one query, and a batch size from 1 to {_LARGEST_BATCH}",
        )
    bound = settings.latency_bound_s
    if settings.scenario is MlperfScenario.SERVER and (bound is None or not 0 < bound < math.inf):
        raise BenchmarkError(
            "no_latency_bound",
            "the server scenario of LoadGen needs a latency bound",
            hint="add --slo 'p99<20ms'",
        )


@dataclass(frozen=True, slots=True)
class LoadgenResult:
    """What LoadGen reports of a run: whether it is valid, which rules were met, and its figures.

    `figures` are the values of its detail log by their keys, such as `result_99.00_percentile_latency_ns`.
    `errors` and `warnings` are its own messages. `folder` has its logs.
    """

    settings: LoadgenSettings
    is_valid: bool
    latency_constraint_met: bool
    duration_met: bool
    queries_met: bool
    early_stopping_met: bool
    queries: int
    figures: Mapping[str, Any]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    folder: Path

    @property
    def summary(self) -> str:
        """LoadGen's own summary, for people."""
        return (self.folder / _SUMMARY).read_text(encoding="utf-8", errors="replace")

    @property
    def percentile_s(self) -> float | None:
        """The percentile of the rules; None for offline."""
        quantile = RULES[self.settings.scenario].quantile
        if quantile is None:
            return None
        unit = "per_query_latency" if self.settings.scenario is MlperfScenario.MULTI_STREAM else "latency"
        found = self.figures.get(f"result_{100 * quantile:.2f}_percentile_{unit}_ns")
        return None if found is None else float(found) / 1e9

    def traced_queries(self) -> Queries:
        """Return each query with the times that LoadGen took. Raises BenchmarkError without a trace."""
        return read_trace(self.folder, per_sample=self.settings.scenario is MlperfScenario.OFFLINE)


def require_loadgen() -> None:
    """Raise UnavailableError where LoadGen is not installed or has no wheel."""
    if importlib.util.find_spec(_MODULE) is None:
        raise UnavailableError(
            "not_installed",
            "LoadGen is not installed",
            hint="pip install 'gpuprof-native[load]' (CPython 3.10 to 3.13, Linux on x86-64)",
        )


def run_loadgen(spec: SystemSpec, settings: LoadgenSettings, folder: Path) -> LoadgenResult:
    """Run LoadGen on a model in a process of its own, and keep its logs in `folder`, which must be empty.

    Raises UnavailableError without LoadGen, BenchmarkError for a folder with files (LoadGen overwrites its
    logs), FailedRunError if the model fails, and TimeLimitError if responses are missing or the queue of an
    overloaded server does not drain in time.
    """
    require_loadgen()
    _make_folder(folder)
    job = LoadgenJob(
        spec=spec,
        scenario=str(settings.scenario),
        folder=str(folder.resolve()),
        duration_s=settings.duration_s,
        least_queries=settings.least_queries,
        rate=settings.rate or 0.0,
        latency_bound_s=settings.latency_bound_s or 0.0,
        batch_size=settings.batch_size,
        seed=settings.seed,
        trace=settings.trace,
    )
    code, printed = _in_process(job, settings.limit_s)
    if code:
        raise _failure(folder, code, printed)
    return _result(settings, folder)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise BenchmarkError(
            "cannot_write", f"{folder}: it cannot be made ({error.strerror})", hint="use another folder"
        ) from error
    if not is_empty:
        raise BenchmarkError(
            "folder_not_empty", f"{folder}: LoadGen would overwrite logs there", hint="name a new folder"
        )


def _in_process(job: LoadgenJob, limit_s: float) -> tuple[int, str]:
    """Run the process in a group of its own, and end the group if it takes too long or is interrupted."""
    command = module_command("gpuprof.load.loadgen_process")
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # an interrupt in LoadGen's callback would crash it
    )
    try:
        _, printed = process.communicate(encode(job), timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise TimeLimitError(
            f"LoadGen took more than {limit_s:.0f} s: responses are missing, or the model is overloaded",
            hint="use a lower rate",
        ) from None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, printed.decode("utf-8", "replace")


def _failure(folder: Path, code: int, printed: str) -> FailedRunError:
    if code == EXIT_FAILED:
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = json.loads((folder / FAILURE_FILE).read_text(encoding="utf-8"))
            return FailedRunError(found["message"], hint=found["hint"])
    last = " ".join(printed.split())[-_LAST_OUTPUT:]
    return FailedRunError(
        f"the process of LoadGen ended with code {code} ({last})", hint="call the model once yourself"
    )


def _result(settings: LoadgenSettings, folder: Path) -> LoadgenResult:
    messages = [*_messages(folder / _DETAIL)]
    figures = {each["key"]: each["value"] for each in messages}
    if "result_validity" not in figures:
        raise FailedRunError(f"{folder / _DETAIL}: LoadGen wrote no result", hint=_RUN_AGAIN)
    return LoadgenResult(
        settings=settings,
        is_valid=figures["result_validity"] == "VALID",
        latency_constraint_met=bool(figures.get("result_perf_constraints_met", True)),
        duration_met=bool(figures["result_min_duration_met"]),
        queries_met=bool(figures["result_min_queries_met"]),
        early_stopping_met=bool(figures.get("early_stopping_met", True)),
        queries=int(figures.get("result_query_count", figures.get("generated_query_count", 0))),
        figures={name: value for name, value in figures.items() if name.startswith("result_")},
        errors=_texts(messages, "is_error"),
        warnings=_texts(messages, "is_warning"),
        folder=folder,
    )


def _texts(messages: list[dict[str, Any]], kind: str) -> tuple[str, ...]:
    return tuple(str(each["value"]) for each in messages if each.get("metadata", {}).get(kind))


def _messages(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of the detail log. Raises FailedRunError."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise FailedRunError(f"{path}: LoadGen wrote no log ({error.strerror})", hint=_RUN_AGAIN) from error
    for line in lines:
        if line.startswith(_LINE):
            with contextlib.suppress(ValueError):
                yield json.loads(line.removeprefix(_LINE))


def read_trace(folder: Path, *, per_sample: bool = False) -> Queries:
    """Return the queries of LoadGen's trace, in the order of their plan. Raises BenchmarkError without one.

    Each sample has its scheduled time in microseconds, and its start and end in nanoseconds after that. A
    query ends with its last sample; with `per_sample` each sample is a row, since offline is one query.
    """
    try:
        lines = (folder / _TRACE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    rows: dict[int, list[int]] = {}
    for sample in _traced_samples(lines):
        planned = round(sample["ts"] * 1e3)
        values = sample["args"]
        row = [planned, planned + values["issue_start_ns"], planned + values["complete_ns"]]
        known = rows.setdefault(values["sample_seq" if per_sample else "query_seq"], row)
        known[2] = max(known[2], row[2])
    if not rows:
        raise BenchmarkError(
            "no_trace", f"{folder}: there is no trace of LoadGen", hint="run it with trace=True"
        )
    columns = np.array([rows[query] for query in sorted(rows)], dtype=np.int64).reshape(-1, 3)
    return Queries(columns[:, 0], columns[:, 1], columns[:, 2], np.ones(len(columns), dtype=np.int64))


def _traced_samples(lines: list[str]) -> Iterator[dict[str, Any]]:
    # The file is not JSON (keys of some lines are quoted twice), but the lines of samples are.
    for line in lines:
        if line.startswith('{"name":"Sample"') and '"args"' in line:
            with contextlib.suppress(ValueError):
                yield json.loads(line.rstrip().rstrip(","))
