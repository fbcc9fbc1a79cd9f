# SPDX-License-Identifier: Apache-2.0
"""Waits apart from the rest of samples, of threads whose waits are known to the nanosecond."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.run.call_sites import CallSite
from gpuprof.run.sample_waits import SamplePart, Waits, divided

INTERVAL_NS = 1_000_000
SLEEP, COMPUTE = CallSite("p.py", 1, 1, 0, 9), CallSite("p.py", 2, 2, 0, 9)
FRAMES = {SLEEP: (1,), COMPUTE: (2,)}
CALLED = {SLEEP: 11, COMPUTE: 12}
Sampled = list[tuple[SamplePart, CallSite]]


def samples_of(phases: list[tuple[CallSite, int]], interval_ns: int = INTERVAL_NS) -> Sampled:
    """Return the samples of a thread that sleeps and computes in turns, as the native sampler writes them."""
    found: Sampled = []
    ends = list(itertools.accumulate(duration_ns for _, duration_ns in phases))
    ran = list(itertools.accumulate(duration_ns * (site is COMPUTE) for site, duration_ns in phases))
    written_ns = idle_ns = used_ns = 0
    at, site = 0, phases[0][0]
    for now_ns in range(interval_ns, ends[-1], interval_ns):
        while ends[at] <= now_ns:
            at += 1
        begin_ns, before = (ends[at - 1], ran[at - 1]) if at else (0, 0)
        cpu_ns = before + (now_ns - begin_ns if phases[at][0] is COMPUTE else 0)
        if cpu_ns == used_ns and found:
            idle_ns = now_ns
            continue
        if idle_ns > written_ns:
            found.append((SamplePart(idle_ns, idle_ns - written_ns, 0, 0, 1, FRAMES[site]), site))
            written_ns = idle_ns
        site = phases[at][0]
        found.append((SamplePart(now_ns, now_ns - written_ns, cpu_ns - used_ns, 0, 1, FRAMES[site]), site))
        written_ns, used_ns = now_ns, cpu_ns
    return found


def divide(samples: Sampled, interval_ns: int = INTERVAL_NS) -> Iterator[SamplePart]:
    only = [sample for sample, _ in samples]
    t_ns, duration_ns, cpu_ns, queued_ns = list(zip(*only, strict=True))[:4]
    waits = Waits(interval_ns, t_ns, duration_ns, cpu_ns, queued_ns)
    return divided(only, [site for _, site in samples], waits, CALLED.get)


@pytest.mark.parametrize(
    ("sleep_ns", "compute_ns", "tolerance"),
    [(2_060_000, 870_000, 0.02), (5_300_000, 310_000, 0.02), (1_300_000, 871_000, 0.05)],
)
def test_a_thread_that_sleeps_and_computes_in_turns(sleep_ns: int, compute_ns: int, tolerance: float) -> None:
    times: dict[tuple[int, ...], int] = {}
    for each in divide(samples_of([(SLEEP, sleep_ns), (COMPUTE, compute_ns)] * 2_000)):
        times[each.frames] = times.get(each.frames, 0) + each.duration_ns
    asleep = times.get((*FRAMES[SLEEP], CALLED[SLEEP]), 0) / (2_000 * sleep_ns)
    assert asleep == pytest.approx(1.0, abs=tolerance)
    assert times.get((*FRAMES[COMPUTE], CALLED[COMPUTE]), 0) < 0.1 * 2_000 * compute_ns


PHASES = st.lists(
    st.tuples(st.sampled_from([SLEEP, COMPUTE]), st.integers(1, 5_000_000)), min_size=3, max_size=50
)


@given(PHASES)
def test_no_time_is_lost(phases: list[tuple[CallSite, int]]) -> None:
    samples = samples_of([*phases, (COMPUTE, 2 * INTERVAL_NS)])
    found = list(divide(samples))
    for name in ("duration_ns", "cpu_ns", "queued_ns"):
        assert sum(getattr(each, name) for each in found) == sum(getattr(each, name) for each, _ in samples)
    assert all(each.duration_ns > 0 for each in found)
    ends = [each.t_ns for each in found]
    assert [each.t_ns - each.duration_ns for each in found[1:]] == ends[:-1]


def test_time_in_the_queue_of_a_processor_is_no_wait() -> None:
    queued = [
        (SamplePart(1_000_000 * (at + 1), 1_000_000, 400_000, 600_000, 1, (2,)), COMPUTE) for at in range(4)
    ]
    assert list(divide(queued)) == [sample for sample, _ in queued]


def test_a_wait_is_not_given_to_a_call_before_a_gap() -> None:
    idle = SamplePart(2_000_000, 1_000_000, 0, 0, 1, (1,))
    later = SamplePart(9_000_000, 1_000_000, 200_000, 0, 1, (2,))
    found = list(divide([(idle, SLEEP), (later, COMPUTE)]))
    assert [each.frames for each in found] == [(1, 11), (2, 12)]
