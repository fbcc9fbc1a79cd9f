# SPDX-License-Identifier: Apache-2.0
"""Labels, from numbers made by hand: each class, its borders, and what lowers the confidence."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from roofline_rows import counted, far, machine, near

from gpuprof.analyze.ceilings.ceiling import Ceiling, Drift
from gpuprof.analyze.roofline.device_activity import HostDelay
from gpuprof.analyze.roofline.evidence import CallFigures, advice, evidence_of
from gpuprof.analyze.roofline.labels import Bound, Doubts, Label, Resource, confidence, label
from gpuprof.analyze.roofline.operators import ceiling_name
from gpuprof.analyze.roofline.text import advice_text, evidence_text
from gpuprof.analyze.roofline.utilization import Machine, Utilization, utilization_of

RESOURCES = ("compute", "memory", "latency", "page faults")


def utilizations(**values: float | None) -> dict[Any, float | None]:
    return {"compute": 0.0, "memory": 0.0, "latency": 0.0, "page faults": 0.0, **values}


# ---- classes and borders ---------------------------------------------------------------------


@pytest.mark.parametrize("resource", RESOURCES)
def test_the_largest_utilization_is_the_bottleneck(resource: Any) -> None:
    found = label({**utilizations(), resource: 0.8})
    assert (found.bound, found.nearest, found.used) == (resource, resource, 0.8)


@pytest.mark.parametrize(
    ("first", "second", "bound"),
    [
        (0.6, 0.48, "compute"),  # exactly 0.6, and exactly 1.25 times the next
        (0.6, 0.4801, "no dominant bottleneck"),
        (0.5999, 0.0, "underutilized"),
        (0.5999, 0.5, "underutilized"),
        (0.9, 0.72, "compute"),
        (0.9, 0.73, "no dominant bottleneck"),
        (0.7, 0.65, "no dominant bottleneck"),
        (0.65, 0.55, "no dominant bottleneck"),  # closer than 1.25, though the next is below 0.6
        (1.04, 0.1, "compute"),
    ],
)
def test_the_borders_of_the_classes(first: float, second: float, bound: str) -> None:
    found = label(utilizations(compute=first, memory=second))
    assert (found.bound, found.nearest) == (bound, "compute")
    assert found.next == ("memory" if second else found.next)


def test_underutilized_names_the_nearest_ceiling() -> None:
    found = label(utilizations(compute=0.1, memory=0.3))
    assert (found.bound, found.nearest, found.used) == ("underutilized", "memory", 0.3)


def test_what_is_not_known_has_no_label() -> None:
    nothing: dict[Any, float | None] = dict.fromkeys(RESOURCES)
    assert label(nothing).bound == "unknown"
    assert label(utilizations()).bound == "unknown"
    assert label({**nothing, "memory": 0.9}).bound == "memory"


@dataclasses.dataclass(frozen=True)
class CallsByHand:
    count: int = 10
    time_ns: float = 1000.0
    total_ns: int = 10_000
    delay: HostDelay | None = None


@pytest.mark.parametrize(
    ("resource", "delay", "bound"),
    [
        ("latency", HostDelay(late=5, known=10), "launch"),
        ("latency", HostDelay(late=4, known=10), "latency"),
        ("latency", None, "latency"),
        ("memory", HostDelay(late=10, known=10), "memory"),
    ],
)
def test_calls_of_nothing_for_which_the_gpu_waited_are_bound_by_launching(
    resource: Any, delay: HostDelay | None, bound: str
) -> None:
    found = label({**utilizations(), resource: 0.8}, CallsByHand(delay=delay))
    assert (found.bound, found.nearest, found.used) == (bound, resource, 0.8)


# ---- confidence ------------------------------------------------------------------------------

SURE = Label(Bound.COMPUTE, Resource.COMPUTE, 1.0, Resource.MEMORY, 0.1, 1.6)


def test_a_clear_label_without_doubts_has_full_confidence() -> None:
    assert confidence(SURE, Doubts()) == 1.0


@pytest.mark.parametrize(
    "doubt",
    [
        {"exactness": "estimated"},
        {"exactness": "unknown"},
        {"ceiling_uncertainty": 0.2},
        {"drift": -0.2},
        {"timing_spread": 0.2},
        {"timing_spread": None},
        {"join": 0.9},
        {"uncertain_bytes": 0.5},
    ],
    ids=str,
)
def test_each_doubt_lowers_the_confidence_and_doubts_multiply(doubt: dict[str, Any]) -> None:
    one = confidence(SURE, Doubts(**doubt))
    assert 0 < one < 1
    if "join" not in doubt:
        assert confidence(SURE, Doubts(**doubt, join=0.5)) == pytest.approx(one / 2)


def test_the_margin_counts() -> None:
    margins = [label(utilizations(compute=used)) for used in (0.6, 0.7, 0.8, 0.9)]
    found = [confidence(each, Doubts()) for each in margins]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (pytest.approx(0.75), 1.0)


def test_more_than_the_ceiling_is_not_believed() -> None:
    above = dataclasses.replace(SURE, used=2.1)
    assert confidence(above, Doubts()) == pytest.approx(0.25)
    assert confidence(Label(Bound.UNKNOWN, None, None, None, None, 0.0), Doubts()) == 0


# ---- what an operator needs at least ---------------------------------------------------------


def test_compute_is_flops_over_the_peak_of_the_type() -> None:
    use = utilization_of(counted(flops=50_000_000, bytes=1), machine(), 1e6)
    assert use.fractions(1e6)["compute"] == pytest.approx(0.5)
    assert ceiling_name(Resource.COMPUTE, use) == "compute fp32"
    half = utilization_of(counted(flops=50_000_000, bytes=1, dtype="bfloat16"), machine(), 1e6)
    assert half.fractions(1e6)["compute"] == pytest.approx(0.125)


def test_a_type_without_a_ceiling_is_not_known() -> None:
    use = utilization_of(counted(flops=50, bytes=1, dtype="float8_e4m3fn"), machine(), 1e6)
    assert use.fractions(1e6)["compute"] is None
    assert utilization_of(counted(flops=None, bytes=1), machine(), 1e6).fractions(1e6)["compute"] is None
    assert (
        utilization_of(counted(flops=0, bytes=1, dtype=None), machine(), 1e6).fractions(1e6)["compute"] == 0
    )


def test_what_no_cache_holds_comes_from_memory() -> None:
    use = utilization_of(counted(bytes=8_000_000, reuse=(far(4_000_000), far(4_000_000))), machine(), 1e6)
    assert use.traffic is not None
    assert (use.traffic.level.name, use.traffic.bytes) == ("dram", 8_000_000)
    assert use.fractions(1e6)["memory"] == pytest.approx(0.8)


def test_what_a_cache_holds_comes_from_it() -> None:
    use = utilization_of(counted(bytes=80_000, reuse=(near(40_000), near(40_000))), machine(), 1000)
    assert use.traffic is not None
    assert (use.traffic.level.name, use.fractions(1000)["memory"]) == ("l2", pytest.approx(0.8))


def test_weights_from_memory_outweigh_what_is_in_the_cache() -> None:
    use = utilization_of(counted(bytes=90_000, reuse=(near(80_000), far(10_000))), machine(), 2000)
    assert use.traffic is not None
    assert (use.traffic.level.name, use.traffic.bytes) == ("dram", 10_000)


def test_bytes_cannot_have_come_from_where_they_would_have_taken_longer() -> None:
    # From memory these take 120 us; a cache of 1 MB may still have them.
    use = utilization_of(counted(bytes=1_200_000, reuse=(near(1_200_000),)), machine(), 15_000)
    assert use.traffic is not None
    assert (use.traffic.level.name, use.fractions(15_000)["memory"]) == ("l2", pytest.approx(0.8))


def test_what_no_cache_can_hold_came_from_memory_however_fast() -> None:
    # The ceiling is then the measured rate.
    use = utilization_of(counted(bytes=8_000_000, reuse=(far(8_000_000),)), machine(), 700_000)
    assert use.traffic is not None
    assert (use.traffic.level.name, use.fractions(700_000)["memory"]) == ("dram", 1.0)


def test_without_distances_the_size_decides() -> None:
    small, large = (utilization_of(counted(bytes=size), machine(), 1e9) for size in (900_000, 1_100_000))
    assert small.traffic is not None
    assert large.traffic is not None
    assert (small.traffic.level.name, large.traffic.level.name) == ("l2", "dram")


def test_bytes_that_nearly_fill_the_cache_have_low_confidence() -> None:
    use = utilization_of(counted(bytes=4, reuse=(near(1, 900_000), near(1, 100_000), far(2))), machine(), 1e6)
    assert use.uncertain_bytes == 0.25


def test_a_store_reads_the_line_first_where_copying_shows_it() -> None:
    def copying(rate: float) -> Machine:
        def stream(name: str, value: float) -> Ceiling:
            return Ceiling("cpu", f"memory.dram.{name}", None, value, "bytes_per_s", 0.0, "by hand")

        # Non-temporal stores were measured, so the plain copy includes an assumed write-allocate.
        return machine(stream("copy", rate), stream("triad_non_temporal", 9e9))

    # The named bytes of a copy at the ceiling are 2/3 of the traffic where each store reads its line.
    assert copying(10e9).write_traffic == pytest.approx(2)
    assert copying(15e9).write_traffic == pytest.approx(1)
    assert copying(20e9).write_traffic == 1
    row = counted(bytes=2, reuse=(far(1), far(1, written=True)))
    use = utilization_of(row, copying(10e9), 1e6)
    assert use.traffic is not None
    assert use.traffic.bytes == pytest.approx(3)


def test_latency_is_at_most_all_of_the_time() -> None:
    use = utilization_of(counted(flops=4, bytes=48), machine(), 500)
    assert use.fractions(500)["latency"] == 1.0
    assert label(use.fractions(500)).bound == "latency"


def test_page_faults_count_at_their_measured_cost() -> None:
    row = counted(bytes=4_096_000, page_faults=1000, reuse=(far(4_096_000, written=True),))
    use = utilization_of(row, machine(), 1.2e6)
    assert use.fractions(1.2e6)["page faults"] == pytest.approx(1 / 1.2)
    assert label(use.fractions(1.2e6)).bound == "page faults"
    assert utilization_of(dataclasses.replace(row, page_faults=None), machine(), 1e6).fault_ns is None


def test_huge_pages_have_a_cost_of_their_own() -> None:
    huge = Ceiling("cpu", "page_fault.huge", None, 100_000.0, "ns", 0.0, "by hand")
    row = counted(bytes=1, page_faults=4, reuse=(far(8 << 20, written=True),))
    assert utilization_of(row, machine(huge), 1e9).fault_ns == 400_000


def test_one_thread_is_compared_with_one_core() -> None:
    core = Ceiling("cpu.core", "compute", "fp32", 25e9, "flop_per_s", 0.0, "best: fma")
    assert machine(core, threads=1).peak("float32") == core
    assert machine(core, threads=2).peak("float32") != core
    assert machine(threads=1).peak("float32") is not None
    assert machine(core, threads=1).levels[0].holds_bytes in (500_000, 1_000_000)


def test_drift_is_that_of_the_measurement_that_set_the_ceiling() -> None:
    drifts = [Drift("cpu", "compute.fma", "fp32", -0.3), Drift("cpu", "compute.matmul", "fp32", 0.5)]
    changed = machine(drifts=drifts)
    peak = changed.peak("float32")
    assert peak is not None
    assert changed.drift(peak) == -0.3
    assert machine().drift(peak) == 0


# ---- words -----------------------------------------------------------------------------------


def line_of(found: Label, use: Utilization, time_ns: float, flops: int | None, faults: int | None) -> str:
    return evidence_text(evidence_of(found, use, CallFigures(time_ns, flops, faults)))


def label_and_hint(row: Any, time_ns: float, previous: Any = None) -> tuple[str, str | None]:
    here = machine()
    use = utilization_of(row, here, time_ns)
    found = label(use.fractions(time_ns))
    line = line_of(found, use, time_ns, row.flops, row.page_faults)
    tried = advice(found, row, use, here, time_ns=time_ns, previous=previous)
    return line, None if tried is None else advice_text(tried)


def test_evidence_has_the_figures_that_the_label_rests_on() -> None:
    assert (
        label_and_hint(counted(flops=80_000_000, bytes=100, reuse=(far(100),)), 1e6)[0]
        == "80 of 100 GFLOP/s fp32"
    )
    memory = counted(flops=1_000_000, bytes=8_000_000, reuse=(far(8_000_000),))
    assert label_and_hint(memory, 1e6)[0] == "8 of 10 GB/s dram, 8.00 MB; compute 1%"
    assert label_and_hint(counted(flops=4, bytes=48), 1250)[0] == "1.25 us, dispatch 1.00 us"
    faults = counted(bytes=4_096_000, page_faults=1000, reuse=(far(4_096_000, written=True),))
    assert label_and_hint(faults, 1.2e6)[0].startswith("1,000 page faults x 1.00 us of 1.20 ms")


def test_no_part_is_larger_than_the_whole() -> None:
    line, dispatch = label_and_hint(counted(flops=4, bytes=48), 541)
    assert line == "541 ns, empty dispatch 1.00 us"
    assert "no more than an empty one (1.00 us)" in str(dispatch)
    faults = counted(bytes=4_096_000, page_faults=1000, reuse=(far(4_096_000, written=True),))
    line, preallocate = label_and_hint(faults, 477_000)
    assert line.startswith("1,000 page faults x 1.00 us account for all of 477 us")
    assert "4.10 MB of fresh memory, whose page faults alone are worth all of its 477 us:" in str(preallocate)


def test_one_fault_is_no_faults() -> None:
    row = counted(bytes=4096, page_faults=1, reuse=(far(4096, written=True),))
    use = utilization_of(row, machine(), 1400)
    found = Label(Bound.PAGE_FAULTS, Resource.PAGE_FAULTS, 0.7, None, None, 1.2)
    line = line_of(found, use, 1400, 0, 1)
    assert line == "1 page fault x 1.00 us of 1.40 us"


def test_what_is_done_with_whole_numbers_are_no_flops() -> None:
    whole = Ceiling("cpu", "compute", "int8", 400e9, "flop_per_s", 0.0, "best: dot")
    use = utilization_of(counted(flops=200_000_000, bytes=1, dtype="int8"), machine(whole), 1e6)
    found = label(use.fractions(1e6))
    line = line_of(found, use, 1e6, 200_000_000, 0)
    assert line == "200 of 400 GOP/s int8"


def test_advice_follows_from_the_figures() -> None:
    faults = counted(bytes=4_096_000, page_faults=1000, reuse=(far(4_096_000, written=True),))
    assert "preallocate" in str(label_and_hint(faults, 1.2e6)[1])
    assert "batch" in str(label_and_hint(counted(flops=4, bytes=48), 1250)[1])
    product = counted("aten::addmm", flops=4_000_000, bytes=8_000_000, reuse=(far(8_000_000),))
    assert "20 times as many rows" in str(label_and_hint(product, 1e6)[1])
    slow = counted("aten::mm", flops=20_000_000, bytes=100, reuse=(far(100),))
    assert "80 GFLOP/s" in str(label_and_hint(slow, 1e6)[1])
    quick = counted("aten::mm", flops=90_000_000, bytes=100, reuse=(far(100),))
    assert "bfloat16 is 4.0 times as fast" in str(label_and_hint(quick, 1e6)[1])


def test_fusing_is_advised_only_where_one_operator_feeds_the_other() -> None:
    half = 4_000_000
    relu = counted("aten::relu", flops=1, bytes=8_000_000, reuse=(far(half), far(half, written=True)))
    feeding = counted("aten::add", bytes=half, reuse=(far(half, written=True),))
    other = counted("aten::add", bytes=half, reuse=(far(half // 2, written=True),))
    assert "fuse the two" in str(label_and_hint(relu, 1e6, feeding)[1])
    assert "fuse" not in str(label_and_hint(relu, 1e6, other)[1])
    assert "fuse" not in str(label_and_hint(relu, 1e6)[1])


def test_nothing_is_advised_where_nothing_follows() -> None:
    idle = counted("aten::relu", flops=1, bytes=1000, dtype="bfloat16", reuse=(far(1000),))
    assert label_and_hint(idle, 1e9)[1] is None


def test_every_pair_of_utilizations_has_a_label() -> None:
    steps = [0.0, 0.3, 0.59, 0.6, 0.75, 0.8, 1.0, 1.3]
    for first, second in itertools.product(steps, steps):
        found = label(utilizations(compute=first, memory=second))
        assert found.margin >= (0 if first == second == 0 else 1 - 1e-9)
        assert 0 <= confidence(found, Doubts()) <= 1
