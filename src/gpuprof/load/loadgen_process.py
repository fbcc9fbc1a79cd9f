# SPDX-License-Identifier: Apache-2.0
"""The process in which LoadGen runs: `python -m gpuprof.load.loadgen_process`, with a job on standard input.

LoadGen ends a process in several ways: an exception in a callback is a segmentation fault later, a missing
log folder aborts at exit, and a missing response waits without end. So nothing else is in this process, its
callbacks put samples into a queue and raise nothing, and a model that fails ends the process with a code.
"""

from __future__ import annotations

import json
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.failures import reason_of
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.serialization import from_plain
from gpuprof.errors import GpuprofError

EXIT_FAILED = 3
FAILURE_FILE = "failure.json"
_AUDIT_FILE = "gpuprof-no-audit.config"
_CALL_IT = "call the model once yourself to see why"
_CALLS_OF_RATE, _LEAST_S, _RATE_S, _ABOVE = 20, 0.5, 2.0, 1.2
# LoadGen cuts seeds to 32 bits.
_SCENARIOS = {
    "single-stream": "SingleStream",
    "multi-stream": "MultiStream",
    "server": "Server",
    "offline": "Offline",
}


@dataclass(frozen=True, slots=True)
class LoadgenJob:
    """What the process runs. `folder` is an empty folder for LoadGen's logs, which exists.

    A `rate` of 0 is measured.
    """

    spec: SystemSpec
    scenario: str
    folder: str
    duration_s: float
    least_queries: int
    rate: float
    latency_bound_s: float
    batch_size: int
    seed: int
    trace: bool


def main() -> int:
    """Run the job; a failure is a file in the folder and an exit code."""
    job = from_plain(json.loads(sys.stdin.read()), LoadgenJob, "the job")
    try:
        _run(job)
    except GpuprofError as error:
        _fail(job, error.message, error.hint)
    except Exception as error:
        _fail(job, f"LoadGen failed: {reason_of(error)}", _CALL_IT)
    # LoadGen's threads and the framework may crash while they end.
    sys.stdout.flush()
    os._exit(0)


def _fail(job: LoadgenJob, message: str, hint: str) -> None:
    """Write why, and end the process at once: LoadGen would wait for its responses."""
    path = os.path.join(job.folder, FAILURE_FILE)  # noqa: PTH118 - no import while a thread fails
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump({"message": message, "hint": hint}, file)
    os._exit(EXIT_FAILED)


def _run(job: LoadgenJob) -> None:
    import mlperf_loadgen

    samples = samples_of_call(job)
    system = make_system(job.spec)
    system.import_framework()
    system.load()
    system.prepare(samples)
    for _ in range(2):  # the first calls compile and allocate
        system.run()
    system.synchronize()
    work: queue.SimpleQueue[Sequence[Any]] = queue.SimpleQueue()

    def call() -> None:
        system.run()
        system.synchronize()

    if not job.rate:
        job = replace(job, rate=_measured_rate(call, samples if job.scenario == "offline" else 1))
    worker = threading.Thread(target=_serve, args=(job, work, samples, call, mlperf_loadgen), daemon=True)
    worker.start()
    count = max(samples, 1_024)
    target = mlperf_loadgen.ConstructSUT(work.put, _nothing)
    library = mlperf_loadgen.ConstructQSL(count, count, _nothing, _nothing)
    mlperf_loadgen.StartTestWithLogSettings(
        target, library, settings_of(job, mlperf_loadgen), _logs(job, mlperf_loadgen), _AUDIT_FILE
    )


def _measured_rate(call: Callable[[], None], samples: int) -> float:
    """Return more samples per second than the fastest of some calls gives: a rate too low ends too early."""
    fastest_s, begin_s, calls = math.inf, time.monotonic(), 0
    now_s = begin_s
    # Long enough that not every call meets the time slice of another program.
    while (calls < _CALLS_OF_RATE or now_s - begin_s < _LEAST_S) and now_s - begin_s <= _RATE_S:
        sent_s = time.monotonic()
        call()
        now_s = time.monotonic()
        fastest_s = min(fastest_s, now_s - sent_s)
        calls += 1
    return _ABOVE * samples / max(fastest_s, 1e-6)


def _nothing(*_samples: object) -> None:
    """Do nothing: inputs are in memory, and queries are not held back."""


def samples_of_call(job: LoadgenJob) -> int:
    """Return how many samples one call of the model computes."""
    if job.scenario == "offline":
        return job.batch_size
    return 8 if job.scenario == "multi-stream" else 1


def _serve(
    job: LoadgenJob, work: queue.SimpleQueue[Sequence[Any]], samples: int, call: Callable[[], None], api: Any
) -> None:
    """Compute queries, in calls of `samples`, and respond; the responses have no data."""
    try:
        while True:
            for part in _parts(work.get(), samples):
                call()
                api.QuerySamplesComplete([api.QuerySampleResponse(each.id, 0, 0) for each in part])
    except BaseException as error:
        _fail(job, f"the model failed ({reason_of(error)})", _CALL_IT)


def _parts(query: Sequence[Any], samples: int) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(query), samples):
        yield query[begin : begin + samples]


def settings_of(job: LoadgenJob, api: Any) -> Any:
    """Return LoadGen's settings of a job."""
    found = api.TestSettings()
    found.scenario = getattr(api.TestScenario, _SCENARIOS[job.scenario])
    found.mode = api.TestMode.PerformanceOnly
    found.min_duration_ms = int(job.duration_s * 1e3)
    found.min_query_count = job.least_queries
    found.server_target_qps = job.rate
    found.server_target_latency_ns = int(job.latency_bound_s * 1e9)
    found.server_num_issue_query_threads = 0
    found.offline_expected_qps = job.rate
    # LoadGen makes as many queries as fit into the duration at this latency.
    found.single_stream_expected_latency_ns = int(1e9 / job.rate)
    found.multi_stream_expected_latency_ns = int(1e9 / job.rate)
    found.multi_stream_samples_per_query = 8
    found.qsl_rng_seed = found.sample_index_rng_seed = found.schedule_rng_seed = job.seed
    return found


def _logs(job: LoadgenJob, api: Any) -> Any:
    output = api.LogOutputSettings()
    output.outdir = job.folder
    output.copy_summary_to_stdout = False
    found = api.LogSettings()
    found.log_output = output
    found.enable_trace = job.trace
    return found


if __name__ == "__main__":
    sys.exit(main())
