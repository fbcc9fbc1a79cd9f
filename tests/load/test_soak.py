# SPDX-License-Identifier: Apache-2.0
"""Leaks, drift and throttling that were planted, and series that have none."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.load.leaks import (
    FEWEST_READINGS,
    LeakReport,
    MemoryLevels,
    Meter,
    SoakVerdict,
    leaks_of,
    malloc_bytes,
    overall,
    read_memory,
    trim_memory,
)
from gpuprof.load.soak import drift_of, soak_report
from gpuprof.load.throttling import ThrottleCause, ThrottleMeters, ThrottleReading, throttling_of
from gpuprof.record.processor import quota_throttled_ns

READINGS, EACH = 40, 1_000
REQUESTS = np.arange(READINGS) * float(EACH)


def correlated(generator: Any, strength: float, deviation: float, count: int = READINGS) -> Any:
    """Return a first-order autoregressive series."""
    found = [generator.normal(0, deviation)]
    for noise in generator.normal(0, deviation * math.sqrt(1 - strength**2), count - 1):
        found.append(strength * found[-1] + noise)
    return np.array(found)


def pages(generator: Any) -> Any:
    return correlated(generator, 0.7, 8_192)


def steps(generator: Any) -> Any:
    return np.repeat(generator.choice(4, READINGS // 4) * 16_384.0, 4)


def warm_up(generator: Any) -> Any:
    return 2e7 * (1 - np.exp(-REQUESTS / 2_000)) + pages(generator)


def random_walk(generator: Any) -> Any:
    return np.cumsum(generator.normal(0, 10_000, READINGS))


def verdicts(leak: float, noise: Callable[[Any], Any], meter: Meter = Meter.RSS) -> Counter[SoakVerdict]:
    generator = np.random.default_rng(7)
    return Counter(found_by(meter, 5e8 + leak * REQUESTS + noise(generator)).verdict for _ in range(100))


def found_by(meter: Meter, values: Sequence[float]) -> LeakReport:
    return leaks_of([MemoryLevels(EACH * n, {meter: int(value)}) for n, value in enumerate(values)])


@pytest.mark.parametrize("leak", [16, 64, 4_096])
@pytest.mark.parametrize("noise", [pages, warm_up])
def test_a_planted_leak_is_found_in_simulations(leak: int, noise: Callable[[Any], Any]) -> None:
    found = verdicts(leak, noise)
    assert found[SoakVerdict.YES] >= 80
    # Growth that flattens by chance is open; but is never "no".
    assert found[SoakVerdict.NO] == 0


@pytest.mark.parametrize("noise", [pages, steps, warm_up, random_walk])
def test_no_leak_is_no_leak_in_simulations(noise: Callable[[Any], Any]) -> None:
    assert verdicts(0, noise)[SoakVerdict.YES] <= 3


def test_a_warm_up_that_ends_is_no_leak_in_simulations() -> None:
    assert verdicts(0, warm_up)[SoakVerdict.NO] >= 80


def test_growth_that_flattens_is_open() -> None:
    found = found_by(Meter.MALLOC, 1e7 * (1 - np.exp(-REQUESTS / 15_000)))
    assert found.verdict is SoakVerdict.OPEN
    (growth,) = [each for each in found.meters if each.meter is Meter.MALLOC]
    assert growth.reason.code == "flattens"


def test_the_growth_is_the_planted_one() -> None:
    found = found_by(Meter.PYTHON_BLOCKS, 1_000 + REQUESTS)
    (growth,) = [each for each in found.meters if each.meter is Meter.PYTHON_BLOCKS]
    assert (growth.value, growth.unit, growth.verdict) == (pytest.approx(1), "blocks", SoakVerdict.YES)
    others = {each.verdict for each in found.meters if each.meter is not Meter.PYTHON_BLOCKS}
    assert others == {SoakVerdict.UNAVAILABLE}


def test_a_short_test_is_inconclusive() -> None:
    found = found_by(Meter.RSS, 1e6 * np.arange(FEWEST_READINGS - 1))
    assert found.verdict is SoakVerdict.INCONCLUSIVE
    assert overall([SoakVerdict.UNAVAILABLE]) is SoakVerdict.UNAVAILABLE
    assert overall([SoakVerdict.NO, SoakVerdict.INCONCLUSIVE]) is SoakVerdict.INCONCLUSIVE


def test_the_test_itself_leaves_no_blocks() -> None:
    """CPython keeps names that C code looks up, which are a leak where a cycle has few requests."""

    def rest() -> None:
        np.cumsum(np.ones(3))
        Path(__file__).read_bytes()
        trim_memory()

    def blocks() -> int:
        return read_memory(0).values[Meter.PYTHON_BLOCKS] or 0

    gc.freeze()  # a collection of what other tests keep takes seconds
    try:
        for _ in range(20):
            rest()
        before = blocks()
        for _ in range(100):
            rest()
        assert blocks() - before < 20
    finally:
        gc.unfreeze()


@pytest.mark.slow
@pytest.mark.parametrize(("size", "meter"), [(64, Meter.PYTHON_BLOCKS), (4_096, Meter.MALLOC)])
def test_a_real_leak_is_found_by_its_meter(size: int, meter: Meter) -> None:
    if meter is Meter.MALLOC and malloc_bytes() is None:
        pytest.skip("the C library has no mallinfo2")
    kept: list[bytes] = []
    readings = []
    for number in range(FEWEST_READINGS + 6):
        kept += [bytes(size) for _ in range(500)]
        trim_memory()
        readings.append(read_memory(500 * number))
    found = {each.meter: each for each in leaks_of(readings).meters}
    assert found[meter].verdict is SoakVerdict.YES
    expected = 1.0 if meter is Meter.PYTHON_BLOCKS else size
    assert found[meter].value == pytest.approx(expected, rel=0.15)


# --- drift ----------------------------------------------------------------------------------------


def services(change_a_minute: float, generator: Any, count: int = 60_000) -> tuple[Any, Any]:
    """Return ends and services of 10 minutes, with noise of each request and of each second."""
    ends = np.linspace(0, 600, count)
    of_seconds = np.repeat(correlated(generator, 0.8, 0.002, 600), count // 600)
    return ends, 0.005 * np.exp(change_a_minute * ends / 60 + generator.normal(0, 0.03, count) + of_seconds)


def drifts(change_a_minute: float) -> Counter[SoakVerdict]:
    generator = np.random.default_rng(1)
    return Counter(drift_of(*services(change_a_minute, generator)).verdict for _ in range(40))


def test_a_tenth_of_a_percent_a_minute_is_found_in_simulations() -> None:
    assert drifts(0.001)[SoakVerdict.YES] >= 36


@pytest.mark.parametrize("change", [0.0, -0.001])
def test_steady_or_faster_service_is_no_drift_in_simulations(change: float) -> None:
    found = drifts(change)
    assert found[SoakVerdict.YES] <= 3
    assert found[SoakVerdict.NO] >= 20


@pytest.mark.parametrize(
    ("seconds", "verdict", "code"),
    [
        (10, SoakVerdict.INCONCLUSIVE, "slower_in_short_test"),
        (74, SoakVerdict.INCONCLUSIVE, "slower_in_short_test"),
        (76, SoakVerdict.YES, "slower_over_time"),
    ],
)
def test_slower_service_needs_a_minute_after_the_warm_up(
    seconds: int, verdict: SoakVerdict, code: str
) -> None:
    # 10% slower from the begin to the end, with noise of 1% of each request.
    ends = np.linspace(0, seconds, 8_000)
    noise = np.random.default_rng(0).normal(0, 0.01, len(ends))
    found = drift_of(ends, 0.005 * np.exp(0.1 * ends / seconds + noise))
    assert (found.verdict, found.reason.code) == (verdict, code)
    assert found.low is not None
    assert found.low > 0


def test_steady_service_of_a_short_test_stays_without_drift() -> None:
    ends = np.linspace(0, 10, 8_000)
    assert drift_of(ends, np.full(len(ends), 0.005)).verdict is SoakVerdict.NO


def test_a_sudden_change_has_its_time() -> None:
    ends, times = services(0.0, np.random.default_rng(0))
    times[ends > 400] *= 1.1
    found = drift_of(ends, times)
    assert [round(each, -1) for each in found.changes_s] == [400]
    short = drift_of(ends[:50], times[:50])
    assert (short.verdict, short.reason.code) == (SoakVerdict.INCONCLUSIVE, "short_series")


# --- throttling -----------------------------------------------------------------------------------

SECOND = 10**9


def readings(throttled: Sequence[bool], cause: ThrottleCause) -> Iterator[ThrottleReading]:
    lost = 0
    for number, each in enumerate([False, *throttled]):
        lost += 200_000_000 if each else 0
        yield ThrottleReading(number * SECOND, {cause: lost}, clock_mhz=2_000.0)


def judged(throttled: Sequence[bool], slower: float, cause: ThrottleCause = ThrottleCause.GPU_THERMAL) -> Any:
    generator = np.random.default_rng(2)
    ends = np.arange(0, len(throttled) * SECOND, SECOND // 50).astype(np.float64)
    factor = np.where(np.repeat(throttled, 50), 1 + slower, 1.0)
    times = 0.01 * factor * np.exp(generator.normal(0, 0.02, len(ends)))
    found = throttling_of([*readings(throttled, cause)], ends, times)
    return next(each for each in found if each.cause is cause)


HALF = [False] * 20 + [True] * 20


def test_throttling_needs_the_counter_and_a_slower_service() -> None:
    slow = judged(HALF, 0.2)
    assert (slow.verdict, slow.throttled_fraction) == (SoakVerdict.YES, 0.5)
    assert slow.low < 0.2 < slow.high
    harmless = judged(HALF, 0.0)
    assert (harmless.verdict, harmless.reason.code) == (SoakVerdict.NO, "throttled_harmless")
    other = judged([False] * 40, 0.0)
    assert (other.verdict, other.reason.code) == (SoakVerdict.NO, "not_throttled")


def test_throttling_throughout_leaves_nothing_to_compare_with() -> None:
    found = judged([False] * 2 + [True] * 38, 0.2)
    assert (found.verdict, found.reason.code) == (SoakVerdict.INCONCLUSIVE, "throttled_throughout")


def test_a_clock_that_falls_and_a_counter_that_is_missing() -> None:
    clocks = [3_000.0] * 21 + [2_000.0] * 20
    given = [ThrottleReading(number * SECOND, {}, clock) for number, clock in enumerate(clocks)]
    ends = np.arange(0, 40 * SECOND, SECOND // 50).astype(np.float64)
    times = np.where(ends < 20 * SECOND, 0.010, 0.015)
    found = {each.cause: each for each in throttling_of(given, ends, times)}
    assert found[ThrottleCause.CPU_CLOCK].verdict is SoakVerdict.YES
    assert found[ThrottleCause.STEAL].verdict is SoakVerdict.UNAVAILABLE


def test_false_alarms_of_throttling_are_rare_in_simulations() -> None:
    generator = np.random.default_rng(4)
    alarms = 0
    for _ in range(100):
        flags = generator.random(40) < 0.5
        ends = np.arange(0, 40 * SECOND, SECOND // 50).astype(np.float64)
        times = 0.01 * np.exp(generator.normal(0, 0.05, len(ends)))
        found = throttling_of([*readings(flags.tolist(), ThrottleCause.GPU_POWER)], ends, times)
        alarms += any(each.verdict is SoakVerdict.YES for each in found)
    assert alarms <= 3


@pytest.mark.parametrize(
    ("file", "content", "group"),
    [
        ("sys/fs/cgroup/work/cpu.stat", "usage_usec 9\nthrottled_usec 1234\n", "0::/work"),
        ("sys/fs/cgroup/cpu/work/cpu.stat", "nr_throttled 1\nthrottled_time 1234000\n", "4:cpu:/work"),
    ],
)
def test_the_time_without_quota_is_read(tmp_path: Path, file: str, content: str, group: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(content)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    assert quota_throttled_ns(tmp_path) == 1_234_000
    assert quota_throttled_ns(tmp_path / "sys") is None


def test_a_report_of_real_readings() -> None:
    meters = ThrottleMeters()
    first, second = meters.read(), meters.read()
    ends, times = services(0.0, np.random.default_rng(0), 6_000)
    found = soak_report([read_memory(0)], [first, second], ends * 1e9, times)
    assert found.leaks.verdict is SoakVerdict.INCONCLUSIVE
    assert len(found.throttling) == len(ThrottleCause)
