# SPDX-License-Identifier: Apache-2.0
"""Measuring one configuration in this process: warm up, sample until it is enough, keep everything."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.config import Settings
from gpuprof.bench.failures import Failure, FailureCode, failure_of, is_out_of_memory
from gpuprof.bench.measure.callable import CallableSystem
from gpuprof.bench.measure.host import read_state, use_between
from gpuprof.bench.measure.measurement import Measurement, StoppedBy
from gpuprof.bench.measure.outputs import find_not_finite
from gpuprof.bench.measure.streaming import EndOfDataError, InputStream
from gpuprof.bench.measure.timer import Call, CallTimer, Clock, cache_flusher, null_call_ns
from gpuprof.bench.measure.warmup import WarmupRun
from gpuprof.errors import BenchmarkError, GpuprofError
from gpuprof.stats.quantiles import quantile_so_far, samples_needed

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats


@dataclass(frozen=True, slots=True)
class _Stop:
    """What ended a measurement, and the figures that decided it."""

    by: StoppedBy
    values: Mapping[str, Any] = field(default_factory=dict)


SampleProgress = Callable[[list[int], list[int] | None, int], None]

DURATION_S = 10.0
_HERE = Path(__file__).parent
_LEAST_SAMPLES = 50
_LEAST_NS = 250_000_000
_MOST_SAMPLES = 1_000_000
_WINDOW_NS = 20_000_000
_FEWEST_WINDOWS = 30
_GROWTH = 1.25
_CHUNK_NS = 50_000_000
_MOST_IN_CHUNK = 50_000
# Objects that the collector would have looked at, had it been on.
_GARBAGE = 50_000


def measure(
    system: Any,
    settings: Settings | None = None,
    *,
    clock: Clock = time.perf_counter_ns,
    flush: Call | None = None,
    progress: SampleProgress | None = None,
    warming: Callable[[int], None] | None = None,
) -> Measurement:
    """Measure a loaded and prepared system, or a callable without arguments.

    What is measured before a call fails, or before Ctrl-C, is kept: see `failure` and `stopped_by`.
    `clock` returns nanoseconds. `flush` empties the caches for cold calls, and is needed where the system is
    not on a CPU. `progress` gets new samples now and then, outside the timed part, and `warming` before that
    how many calls have warmed up.
    """
    return MeasuringLoop(system, settings or Settings(), clock, flush, progress, warming).run()


class MeasuringLoop:
    """One measurement while it is made; see `measure`. `error` is what a call raised."""

    def __init__(
        self,
        system: Any,
        settings: Settings,
        clock: Clock = time.perf_counter_ns,
        flush: Call | None = None,
        progress: SampleProgress | None = None,
        warming: Callable[[int], None] | None = None,
    ) -> None:
        if not hasattr(system, "run"):
            system = CallableSystem(system)
        self._settings = settings
        self._clock = clock
        self._progress = progress
        self._warming = warming
        self._stream = InputStream(system, clock) if settings.stream else None
        before = flush or _flusher(system) if settings.caches == "cold" else None
        self._timer = CallTimer(system.run, _waiting(system), clock, _one_after_other(self._stream, before))
        self._wall: list[int] = []
        self._enqueue: list[int] = []
        self._gaps: list[int] = []
        self._calls_per_sample = settings.window_calls or 1
        self._stop = _Stop("failure")
        self._failure: Failure | None = None
        self.error: Exception | None = None
        self._began = self._ended = self._last_end = clock()
        self._next_check = max(_LEAST_SAMPLES, samples_needed(settings.quantile))

    def run(self) -> Measurement:
        """Warm up and measure. What a call raises ends it; so does an interrupt."""
        settings, timer = self._settings, self._timer
        timer_ns = null_call_ns(timer)
        limit_s, warming = settings.warmup_limit_s, self._warming
        warmup = WarmupRun(timer, calls=settings.warmup, limit_s=limit_s, progress=warming)
        state = read_state()
        try:
            with _collector(on=settings.collect_garbage):
                self._check_outputs("before")
                warmup.run()
                self._calls_per_sample = self._window(warmup.usual_ns)
                state = read_state()
                self._sample(warmup.usual_ns * self._calls_per_sample)
                self._check_outputs("after")
        except KeyboardInterrupt:
            self._stop = _Stop("interrupted", {"samples": len(self._wall)})
        except Exception as error:
            self.error, self._failure = error, _failure(error, len(self._wall))
            self._stop = _Stop("failure")
        return Measurement(
            settings=settings,
            samples_ns=np.array(self._wall, dtype=np.int64),
            enqueue_ns=None if timer.synchronize is None else np.array(self._enqueue, dtype=np.int64),
            calls_per_sample=self._calls_per_sample,
            warmup=warmup.report(),
            stopped_by=self._stop.by,
            failure=self._failure,
            timer_ns=timer_ns,
            elapsed_s=(self._ended - self._began) / 1e9,
            machine=use_between(state, read_state()),
            stop_values=self._stop.values,
            gaps_ns=np.array(self._gaps, dtype=np.int64),
            loading=None if self._stream is None else self._stream.report(len(self._wall)),
        )

    @property
    def began_ns(self) -> int:
        """When the warm-up ended, on the loop's clock."""
        return self._began

    def _check_outputs(self, when: str) -> None:
        if not self._settings.check_outputs:
            return
        outputs = self._timer.run()
        if self._timer.synchronize is not None:
            self._timer.synchronize()
        found = find_not_finite(outputs)
        if found is not None:
            raise BenchmarkError(
                "invalid_sample",
                f"{found} of a call {when} the measurement: its time is not valid",
                hint="correct the model or its inputs",
            )

    def _window(self, usual_ns: float) -> int:
        settings = self._settings
        if settings.mode == "latency":
            return 1
        fitting = settings.window_calls or max(2, round(_WINDOW_NS / max(usual_ns, 1.0)))
        if settings.iterations is not None and settings.window_calls is None:
            fitting = max(1, min(fitting, settings.iterations // _FEWEST_WINDOWS))
        return fitting

    def _sample(self, sample_ns: float) -> None:
        self._began = self._ended = self._last_end = self._clock()
        if self._stream is not None:
            self._stream.is_on = True
        stop = None
        while stop is None:
            try:
                self._take(sample_ns)
            except EndOfDataError:
                stop = self._at_end_of_data()
                break
            sample_ns = float(np.median(self._wall[-100:])) + float(np.median(self._gaps[-100:]))
            stop = self._enough()
        self._stop = stop

    def _at_end_of_data(self) -> _Stop:
        if not self._wall:
            raise BenchmarkError(
                "no_samples",
                "the data loader has one batch, which the warm-up takes",
                hint="let the loader give more batches",
            )
        return _Stop("end of data", {"batches": len(self._wall)})

    def _take(self, sample_ns: float) -> None:
        # The time of a sample is unknown without a warm-up, which does not load data either.
        is_known = self._wall or (sample_ns and self._stream is None)
        fitting = _CHUNK_NS / max(sample_ns, 1.0) if is_known else 1
        count = int(min(fitting, _MOST_IN_CHUNK, self._wanted() - len(self._wall)))
        timer, begin = self._timer, self._clock()
        try:
            timer.take(max(1, count), self._calls_per_sample)
        finally:
            self._wall += timer.wall_ns
            self._add_gaps(timer.gap_ns, begin)
            if timer.synchronize is not None:
                self._enqueue += timer.enqueue_ns
            self._ended = self._clock()
        if self._progress is not None:
            waits = timer.synchronize is not None
            self._progress(timer.wall_ns, timer.enqueue_ns if waits else None, self._calls_per_sample)
        if not self._settings.collect_garbage and gc.get_count()[0] > _GARBAGE:
            gc.collect()

    def _add_gaps(self, gaps_ns: list[int], begin_ns: int) -> None:
        """Add the gaps of new samples; the first one also has what passed since the last sample before."""
        if gaps_ns:
            self._gaps += [gaps_ns[0] + begin_ns - self._last_end, *gaps_ns[1:]]
            self._last_end = begin_ns + sum(gaps_ns) + sum(self._timer.wall_ns)

    def _wanted(self) -> int:
        iterations = self._settings.iterations
        return _MOST_SAMPLES if iterations is None else -(-iterations // self._calls_per_sample)

    def _enough(self) -> _Stop | None:
        settings, count = self._settings, len(self._wall)
        elapsed_ns = self._ended - self._began
        if settings.iterations is not None and count >= self._wanted():
            return _Stop("iterations", {"iterations": settings.iterations})
        if settings.iterations is None and elapsed_ns >= _LEAST_NS and count >= self._next_check:
            self._next_check = int(count * _GROWTH) + 1
            if (width := self._width()) is not None and width <= settings.precision:
                return _Stop("precision", {"quantile": settings.quantile, "width": width})
        limit_s = settings.duration_s or (DURATION_S if settings.iterations is None else None)
        if limit_s is not None and elapsed_ns >= limit_s * 1e9:
            return _Stop("time limit", self._at_limit(limit_s))
        if count >= _MOST_SAMPLES:
            return _Stop("most samples", {"samples": _MOST_SAMPLES})
        return None

    def _width(self) -> float | None:
        found = quantile_so_far(_seconds(self._wall, self._calls_per_sample), self._settings.quantile)
        return None if found is None else found.relative_width

    def _at_limit(self, limit_s: float) -> dict[str, Any]:
        settings = self._settings
        if settings.iterations is not None:
            return {"limit_s": limit_s, "iterations": settings.iterations}
        return {"limit_s": limit_s, "quantile": settings.quantile, "width": self._width()}


def _seconds(wall_ns: list[int], calls: int) -> Floats:
    return np.array(wall_ns, dtype=np.float64) / (1e9 * calls)


def _one_after_other(first: Call | None, second: Call | None) -> Call | None:
    """Return what makes both calls; one of them, or None, where there are not two."""
    if first is None or second is None:
        return first or second

    def both() -> None:
        first()
        second()

    return both


def _waiting(system: Any) -> Call | None:
    waiting = getattr(system, "waiting", None)
    found: Call | None = waiting() if callable(waiting) else system.synchronize
    return found


def _flusher(system: Any) -> Call:
    device_type = system.describe().device_type
    if device_type != "cpu":
        raise BenchmarkError(
            "cold_device",
            f"the caches of {device_type} cannot be flushed for cold calls",
            hint="use caches='warm' (--caches warm)",
        )
    return cache_flusher()


def _failure(error: Exception, samples: int) -> Failure:
    """Return what was raised, where in the caller's code, and how far the measurement was."""
    if isinstance(error, GpuprofError):
        return failure_of(error)
    code = FailureCode.OUT_OF_MEMORY if is_out_of_memory(error) else FailureCode.FAILED
    what = next(iter(str(error).strip().splitlines()), "no message")
    trace = error.__traceback__
    place = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if Path(file).parent != _HERE:
            place = f" at {file}:{trace.tb_lineno}"
        trace = trace.tb_next
    message = f"the call raised {type(error).__name__}: {what}{place}, after {samples:,} samples"
    is_memory = code is FailureCode.OUT_OF_MEMORY
    return Failure(
        code, message, "use smaller inputs" if is_memory else "call it with the same inputs to see why"
    )


@contextmanager
def _collector(*, on: bool) -> Iterator[None]:
    """Keep Python's garbage collector out of the timed part, unless it is wanted there."""
    was_on = gc.isenabled()
    gc.collect()
    if on:
        gc.enable()
    else:
        gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
        else:
            gc.disable()
