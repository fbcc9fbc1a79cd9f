# SPDX-License-Identifier: Apache-2.0
"""The lines of the roofline's table about operators without a label."""

from __future__ import annotations

import pytest

from gpuprof.analyze.roofline.build import Roofline
from gpuprof.analyze.roofline.device_activity import HostDelay
from gpuprof.analyze.roofline.evidence import DispatchFigures, Evidence, LaunchFigures, NoLabel
from gpuprof.analyze.roofline.labels import Bound, Resource
from gpuprof.analyze.roofline.rows import RooflineDevice, RooflineRow, Unmatched
from gpuprof.render.roofline import roofline_page


def without_label(*shares: float, device: str = "cpu") -> tuple[Unmatched, ...]:
    return tuple(
        Unmatched(f"op{number}", "fc", 1, int(share * 1e6), share, NoLabel.NOT_IN_COUNTED_CALL, device)
        for number, share in enumerate(shares)
    )


def roofline(unmatched: tuple[Unmatched, ...], *devices: RooflineDevice) -> Roofline:
    return Roofline((), (), unmatched, (), "cpu", 1_000_000, 0.5, devices=devices)


def unlabeled_lines(found: Roofline) -> list[str]:
    """Return the lines about operators without a label."""
    lines = found.to_text().splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith("no label")), len(lines))
    return lines[first:]


@pytest.mark.parametrize(
    ("fractions", "operators", "rest"),
    [
        ((0.02, 0.01), ["op0", "op1"], []),
        # Each of the others takes too little to matter; together they do.
        ((0.02, 0.01, *[0.004] * 25), ["op0", "op1"], ["  ... and 25 more with 10.0% of the time"]),
        ([0.02] * 7, [f"op{number}" for number in range(5)], ["  ... and 2 more with 4.0% of the time"]),
        ([0.004] * 5, ["op0"], ["  ... and 4 more with 1.6% of the time"]),
    ],
)
def test_what_is_not_listed_is_counted(fractions: list[float], operators: list[str], rest: list[str]) -> None:
    heading, *lines = unlabeled_lines(roofline(without_label(*fractions)))
    assert heading == f"no label, {sum(fractions):.1%} of the time:"
    assert [line.split()[1] for line in lines[: len(operators)]] == operators
    assert lines[len(operators) :] == rest


def test_operators_with_negligible_time_are_not_mentioned() -> None:
    assert unlabeled_lines(roofline(without_label(0.002, 0.001))) == []
    assert unlabeled_lines(roofline(())) == []


def test_the_rest_is_reported_for_each_device() -> None:
    devices = [RooflineDevice(name, None, 1_000_000, 0.5) for name in ("cuda:0", "cpu")]
    rows = (*without_label(0.02, 0.004, device="cuda:0"), *without_label(0.003))
    last = unlabeled_lines(roofline(rows, *devices))[-1]
    assert last == "  ... and 2 more with 0.4% of the time of cuda:0, 0.3% of the time of cpu"


def test_the_page_counts_the_rest_too() -> None:
    page = roofline_page(roofline(without_label(*[0.01] * 14)), title="t", subtitle="s")
    assert "<p>… and 2 more with 2.0% of the time</p>" in page
    assert "more with" not in roofline_page(roofline(without_label(0.01)), title="t", subtitle="s")


def test_the_page_writes_the_sign_of_micro_in_times_and_not_in_names() -> None:
    times = (DispatchFigures(30e3, 1.06e3),)
    evidence = Evidence(times, reason=NoLabel.WORK_NOT_SPLIT, operator="wait 3 us", launches=2)
    found = roofline_page(
        Roofline((operator(evidence),), (), (), (), "cpu", 1_000_000, 0.5), title="t", subtitle="s"
    )
    assert "30.0 us, dispatch 1.06 us" in found
    assert "one of 2 that wait 3 us launches" in found


def test_the_page_shows_an_unknown_floor_as_a_dash() -> None:
    evidence = Evidence((LaunchFigures(30e3, None, HostDelay(0, 0)),))
    found = roofline_page(
        Roofline((operator(evidence),), (), (), (), "cpu", 1_000_000, 0.5), title="t", subtitle="s"
    )
    assert "30.0 us, floor -, " in found


def test_a_terminal_gets_times_in_ascii() -> None:
    evidence = Evidence((DispatchFigures(30e3, 1.06e3),))
    assert operator(evidence).evidence_text == "30.0 us, dispatch 1.06 us"


def operator(evidence: Evidence) -> RooflineRow:
    """Return a row of one operator with this evidence."""
    return RooflineRow(
        kind="operator",
        name="wait @ fc",
        root="Net",
        layer="fc",
        operator="wait 3 us",
        ordinal=0,
        phase="forward",
        dtype="float32",
        calls=1,
        time_ns=30e3,
        total_ns=30_000,
        time_share=0.3,
        timing_spread=None,
        flops=1,
        bytes=1,
        exactness="exact",
        bound=Bound.LATENCY,
        nearest=Resource.LATENCY,
        roof="launch",
        roof_share=0.1,
        used={},
        memory_level=None,
        memory_bytes=None,
        confidence=0.9,
        evidence=evidence,
    )
