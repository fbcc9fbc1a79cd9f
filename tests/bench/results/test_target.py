# SPDX-License-Identifier: Apache-2.0
"""Targets, the search for the largest batch, the saturation point."""

from __future__ import annotations

from typing import Any

import pytest
from batches import batch_of
from refusals import refused

from gpuprof.bench import benchmark_run
from gpuprof.bench.benchmark_run import Benchmark, Request
from gpuprof.bench.config import JobSettings, SystemSpec
from gpuprof.bench.measure.scaling import ProbeOutcome, largest_batch, saturation_point
from gpuprof.bench.results.session import BenchFinding, SessionResult
from gpuprof.bench.results.target import parse_target
from gpuprof.bench.results.text import finding_notes, notes_of
from gpuprof.errors import BenchmarkError


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("p50<20ms", "met"),
        ("p50<5ms", "missed"),
        ("mean < 11 ms", "met"),
        ("mean < 9 ms", "missed"),
        ("max<11ms", "met"),
        ("max<=0.001s", "missed"),
        ("p99<20ms", "inconclusive"),
        ("p99.9<5ms", "missed"),
        ("p99.9<20ms", "inconclusive"),
    ],
)
def test_a_target_is_compared_with_the_interval(text: str, verdict: str) -> None:
    result = batch_of([10.0] * 30, [10.0] * 30).result
    assert parse_target(text).verdict(result) == verdict


@pytest.mark.parametrize(
    ("text", "share"), [("p99.9<1s", 0.999), ("p99.999 < 1s", 0.99999), ("p5<1s", 0.05), ("max<1s", None)]
)
def test_a_target_is_of_any_quantile(text: str, share: float | None) -> None:
    assert parse_target(text).share == share


def test_the_quantile_of_a_target_has_an_interval() -> None:
    calls = batch_of([10.0] * 9_900 + [30.0] * 100).result
    assert parse_target("p99.9<20ms").verdict(calls) == "missed"
    assert parse_target("p99.9<40ms").verdict(calls) == "met"
    assert parse_target("p98.5<20ms").verdict(calls) == "met"


def test_a_mean_on_the_limit_is_open() -> None:
    result = batch_of([9.8] * 30, [10.1] * 30, [10.2] * 30).result
    assert parse_target("mean<10ms").verdict(result) == "inconclusive"
    assert parse_target("mean<20ms").verdict(result) == "met"


def test_too_few_samples_for_an_interval_may_be_enough_to_miss() -> None:
    target = parse_target("p99<20ms")
    assert target.verdict(batch_of([10.0] * 30).result) == "inconclusive"
    # One of 30 samples beyond is likely enough where p99 is below: 26%; three are not.
    assert target.verdict(batch_of([10.0] * 29 + [21.0]).result) == "inconclusive"
    assert target.verdict(batch_of([10.0] * 27 + [21.0] * 3).result) == "missed"


class PlayedSession:
    """A session whose process runs give `result_of(batch size, process run)`: milliseconds, or an error."""

    result_of: Any = None

    def __init__(self, spec: SystemSpec, job: JobSettings, watch: Any = None) -> None:
        self.result = SessionResult(spec, job)

    def run(self, *, runs: int = 1, first: int = 1, **_limits: Any) -> SessionResult:
        for size in self.result.settings.batch_sizes:
            told = [PlayedSession.result_of(size, run) for run in range(first, first + runs)]
            failed = next((each for each in told if isinstance(each, Exception)), None)
            if failed is not None:
                self.result.failure = failed
                return self.result
            earlier = self.result.batch(size)
            found = earlier or batch_of(batch_size=size)
            found.launches += [*batch_of(*([each] * 60 for each in told)).launches]
            if earlier is None:
                self.result.batches.append(found)
        return self.result


def search_with(result_of: Any, monkeypatch: pytest.MonkeyPatch, slo: str = "p50<20ms") -> BenchFinding:
    monkeypatch.setattr(PlayedSession, "result_of", staticmethod(result_of))
    monkeypatch.setattr(benchmark_run, "Session", PlayedSession)
    job = JobSettings((1,))
    request = Request(SystemSpec("m"), job, runs=3, target=parse_target(slo), find_largest=True)
    return Benchmark(request).run()


def test_a_size_near_the_limit_is_judged_by_process_runs_and_stays_open_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: dict[int, int] = {}

    def result_of(size: int, run: int) -> float:
        runs[size] = max(run, runs.get(size, 0))
        # Launches differ by 5%: one of them is "met" with 8 samples, the next one "missed".
        return size * 2.5 * (0.96, 1.05, 0.99, 1.02, 0.97)[run - 1]

    found = search_with(result_of, monkeypatch)
    assert found.largest is not None
    assert found.largest.outcomes[8] == "open"
    assert (found.largest.batch_size, found.largest.why) == (7, "open")
    assert found.largest.open_sizes == [8]
    assert (runs[1], runs[4], runs[8], runs[16]) == (3, 1, 5, 1)
    (note,) = [line for line in finding_notes(found) if line.startswith("largest")]
    assert note.startswith("largest batch size: 7 (whether larger ones meet the target is open); open: 8,")
    assert found.verdicts[7] == "met"


def test_a_size_that_crashes_ends_the_search_and_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def result_of(size: int, run: int) -> Any:
        return BenchmarkError("crashed with signal SIGSEGV") if size >= 8 else 1.0

    found = search_with(result_of, monkeypatch)
    assert found.largest is not None
    assert (found.largest.batch_size, found.largest.why) == (7, "failed")
    assert [each.batch_size for each in found.session.batches] == [1, 7]
    assert "SIGSEGV" in str(found.session.failure)


def test_a_model_that_never_works_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def result_of(size: int, run: int) -> Any:
        tried.append(size)
        return BenchmarkError("raised ValueError")

    assert "ValueError" in str(search_with(result_of, monkeypatch).session.failure)
    assert tried == [1]


@pytest.mark.parametrize(
    "text",
    [
        "p99",
        "p100<1ms",
        "p0<1ms",
        "p0.0<1ms",
        "p-1<1s",
        "p99.1234567<1s",
        "p99<0ms",
        "p99<20",
        "p99>20ms",
        "p99<20min",
    ],
)
def test_targets_that_are_none(text: str) -> None:
    with refused(BenchmarkError, "invalid_target"):
        parse_target(text)


def searched(allowed: Any, fits: int = 1 << 30) -> tuple[int | None, list[int]]:
    tried: list[int] = []

    def probe(size: int) -> ProbeOutcome:
        tried.append(size)
        return "does not fit" if size > fits else "ok" if allowed(size) else "missed"

    found = largest_batch(probe, most=256)
    assert len(tried) == len(set(tried))
    return found.batch_size, tried


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 63, 100, 255, 256])
def test_the_largest_batch_of_a_monotone_latency(limit: int) -> None:
    found, tried = searched(lambda size: size <= limit)
    assert found == limit
    assert len(tried) <= 24


def test_the_largest_batch_where_multiples_of_8_are_faster() -> None:
    def fast(size: int) -> bool:
        return size <= 24 if size % 8 == 0 else size <= 17

    assert searched(fast)[0] == 24


def test_a_slow_size_on_the_way_does_not_end_the_search() -> None:
    assert searched(lambda size: size != 4 and size <= 20)[0] == 20


def test_memory_ends_the_search_and_nothing_beyond_is_tried() -> None:
    found, tried = searched(lambda size: True, fits=37)
    assert found == 37
    assert max(tried) == 64
    assert searched(lambda size: True, fits=0) == (None, [1])
    assert searched(lambda size: False)[0] is None


def test_the_saturation_point_is_the_smallest_size_near_the_best() -> None:
    assert saturation_point({1: 10, 2: 19, 4: 37, 8: 60, 16: 64, 32: 62}) == 8
    assert saturation_point({1: 10, 2: 19}) is None


def test_the_largest_size_measured_is_no_saturation_point() -> None:
    assert saturation_point({1: 10, 2: 19, 4: 37, 8: 60}) is None
    batches = [batch_of([1.0] * 60, batch_size=size) for size in (1, 2, 4)]
    assert notes_on_saturation(batches) == [
        "saturation point: none within the sizes measured: batch size 4 still gives more"
    ]
    assert notes_on_saturation(batches[:2]) == []


def notes_on_saturation(batches: list[Any]) -> list[str]:
    notes = notes_of(SessionResult(SystemSpec("model"), JobSettings(), batches))
    return [note for note in notes if note.startswith("saturation point")]
