# SPDX-License-Identifier: Apache-2.0
"""The lines about wall time, as text and as HTML."""

from __future__ import annotations

import dataclasses

import pytest

from gpuprof.analyze.phases import (
    WAIT_FOR_WORKERS,
    WAIT_IN_BACKWARD,
    Phases,
    RankSteps,
    StepFigures,
)
from gpuprof.render.phases import phase_lines, phases_html

SECOND = 10**9
STEPS = StepFigures(
    count=8,
    kind="training",
    source="optimizer",
    total_ns=30 * SECOND,
    median_ns=3.5 * SECOND,
    interval_ns=(3.25 * SECOND, 4.0 * SECOND),
    warm_up_steps=1,
    parts={"forward": 0.25, "backward": 0.5, "optimizer": 0.125, "data": 0.0, "other": 0.125},
)
PHASES = Phases(57 * SECOND, 12 * SECOND, {"torch": 6 * SECOND}, STEPS, 10 * SECOND, 5 * SECOND)


def test_every_figure_is_in_the_lines() -> None:
    (wall_label, wall), (_, step) = phase_lines(PHASES)
    assert wall_label == "wall time"
    for figure in ("57.0 s", "12.0 s", "6.00 s", "30.0 s", "3.50 s", "3.25 s", "4.00 s", "10.0 s", "5.00 s"):
        assert figure in wall
    assert [part for part in ("50.0%", "25.0%", "12.5%", "0.0%") if part not in step] == []
    assert step.index("50.0%") < step.index("25.0%")


def test_packages_that_take_less_than_a_hundredth_of_the_imports_are_left_out() -> None:
    imports = {"torch": 6 * SECOND, "scipy": SECOND // 10, "standard library": SECOND // 1000}
    (_, wall), *_ = phase_lines(dataclasses.replace(PHASES, imports_ns=imports))
    assert "(imports 6.10 s: torch 6.00 s, scipy 100 ms)" in wall


def test_a_percentage_is_printed_with_the_mean_that_it_is_a_part_of() -> None:
    """Each tenth step takes ten times as long: half of the mean step, and nothing of the median one."""
    steps = dataclasses.replace(STEPS, median_ns=0.01 * SECOND, mean_ns=0.019 * SECOND)
    (_, wall), (label, step) = phase_lines(dataclasses.replace(PHASES, steps=steps))
    assert label == "mean step"
    assert step.startswith("19.0 ms: ")
    assert "10.0 ms" not in step
    assert "10.0 ms" in wall
    assert "19.0 ms" not in wall


def with_figures(median_ns: float, forward: float, waits: dict[str, float]) -> StepFigures:
    parts = {"forward": forward, "backward": 0.1, "other": 0.9 - forward}
    return dataclasses.replace(STEPS, median_ns=median_ns, parts=parts, waits=waits)


def test_of_many_ranks_the_extreme_ones_are_shown() -> None:
    figures = [
        with_figures(3 * SECOND, 0.25, {"run_backward": 0.5}),
        with_figures(4 * SECOND, 0.75, {"sleep": 0.25, "short": 0.01}),
        with_figures(3.5 * SECOND, 0.5, {"run_backward": 0.125}),
    ]
    ranks = tuple(
        RankSteps(number, 100 + number, each, *shares)
        for number, (each, shares) in enumerate(
            zip(figures, ((0.5, 0.4), (0.125, 0.0), (0.25, 0.1)), strict=True)
        )
    )
    _, *lines = phase_lines(Phases(SECOND, SECOND, None, None, 0, 0, ranks))
    assert lines == [
        (
            "3 ranks",
            "8 steps each, median 3.00 s (rank 0) to 4.00 s (rank 1), "
            "collectives run in 12.5% (rank 1) to 50.0% (rank 0) of the time, also next to other parts, "
            "the others wait for rank 1",
        ),
        (
            "mean step",
            "forward 25.0% (rank 0) to 75.0% (rank 1), "
            "waiting for collectives 0.0% (rank 1) to 40.0% (rank 0), backward 10.0%, "
            "other Python 15.0% (rank 1) to 30.0% (rank 2)",
        ),
        ("waits", "run_backward 0.0% (rank 1) to 50.0% (rank 0), sleep 0.0% (rank 0) to 25.0% (rank 1)"),
    ]


def test_a_wait_that_a_part_of_the_step_has_is_not_repeated() -> None:
    waits = {WAIT_FOR_WORKERS: 0.5, "sleep": 0.25, WAIT_IN_BACKWARD: 0.125}
    parts = {"forward": 0.1, "data": 0.5, "other": 0.4}
    steps = dataclasses.replace(STEPS, parts=parts, waits=waits)
    alone = dict(phase_lines(Phases(SECOND, SECOND, None, steps, 0, 0)))
    assert alone["waits"] == "sleep 25.0%, in the backward pass 12.5%"
    unknown = dataclasses.replace(steps, parts={**parts, "data": None})
    assert "workers 50.0%" in dict(phase_lines(Phases(SECOND, SECOND, None, unknown, 0, 0)))["waits"]
    ranks = tuple(RankSteps(number, 100 + number, steps, 0.21, 0.2) for number in range(2))
    assert dict(phase_lines(Phases(SECOND, SECOND, None, None, 0, 0, ranks)))["waits"] == "sleep 25.0%"


def test_only_workers_are_waited_for() -> None:
    for waits in (None, {"sleep": 0.25}, {WAIT_FOR_WORKERS: 0.25}):
        steps = dataclasses.replace(STEPS, waits=waits)
        ranks = tuple(RankSteps(number, 100 + number, steps, 0.2) for number in range(2))
        for phases in (PHASES, Phases(SECOND, SECOND, None, None, 0, 0, ranks)):
            own = dataclasses.replace(phases, steps=None if phases.ranks else steps)
            step = dict(phase_lines(own))["mean step"]
            assert ("waiting for data" in step) is (waits is not None and WAIT_FOR_WORKERS in waits)
            assert "data 0.0%" in step


def test_operations_next_to_the_calls_of_the_model_keep_their_fraction() -> None:
    steps = dataclasses.replace(STEPS, waits={WAIT_IN_BACKWARD: 0.3})
    ranks = tuple(RankSteps(number, 100 + number, steps, 0.7 - number / 2, 0.001) for number in range(2))
    found = dict(phase_lines(Phases(SECOND, SECOND, None, None, 0, 0, ranks)))
    assert "20.0% (rank 1) to 70.0% (rank 0)" in found["2 ranks"]
    assert found["waits"] == "in the backward pass 30.0%"


def test_wall_times_of_ranks_have_names() -> None:
    walls = {0: 4 * SECOND, 1: 5 * SECOND}
    launched = Phases(9 * SECOND, 9 * SECOND, {"torch": SECOND}, None, 0, 0, rank_walls_ns=walls)
    of_ranks = "4.00 s (rank 0) to 5.00 s (rank 1)"
    assert phase_lines(launched) == [
        ("wall time", f"{of_ranks}, launcher 9.00 s (imports 1.00 s: torch 1.00 s)")
    ]
    main = Phases(4 * SECOND, 4 * SECOND, None, None, 0, 0, rank_walls_ns=walls, main_rank=0)
    assert phase_lines(main) == [("wall time", f"{of_ranks}, rank 0 4.00 s")]
    alone = dataclasses.replace(main, rank_walls_ns={0: 4 * SECOND})
    assert phase_lines(alone) == [("wall time", "4.00 s")]


def test_equal_figures_of_ranks_are_printed_once() -> None:
    ranks = tuple(
        RankSteps(number, 100 + number, dataclasses.replace(STEPS, median_ns=3.5 * SECOND + number), 0.0)
        for number in range(2)
    )
    walls = {0: 4 * SECOND, 1: 4 * SECOND + 1}
    lines = dict(phase_lines(Phases(SECOND, SECOND, None, None, 0, 0, ranks, rank_walls_ns=walls)))
    assert lines["2 ranks"] == "8 steps each, median 3.50 s"
    assert lines["wall time"] == "4.00 s each, launcher 1.00 s"


@pytest.mark.parametrize(("missing", "words"), [((1,), "rank 1 was"), ((1, 4, 5, 6), "ranks 1, 4 to 6 were")])
def test_missing_ranks_are_in_the_first_lines(missing: tuple[int, ...], words: str) -> None:
    ranks = (RankSteps(0, 100, STEPS, 0.8, 0.8),)
    lines = dict(phase_lines(Phases(SECOND, SECOND, None, None, 0, 0, ranks, missing_ranks=missing)))
    assert lines["warning"].startswith(words)
    assert "each" not in lines["1 rank"]


def test_long_waits_of_a_step_are_shown() -> None:
    waits = {"queue.get": 0.5, "sleep": 0.25, "<b>": 0.03, "fourth": 0.025, "short": 0.01}
    lines = phase_lines(dataclasses.replace(PHASES, steps=dataclasses.replace(STEPS, waits=waits)))
    assert lines[-1] == ("waits", "queue.get 50.0%, sleep 25.0%, <b> 3.0%")


def test_without_steps_or_imports_there_is_wall_time_alone() -> None:
    alone = Phases(SECOND, SECOND, None, None, 0, 0)
    assert [text for _, text in phase_lines(alone)] == ["1.00 s"]
    assert phases_html(None) == ""


def test_unknown_parts_are_left_out() -> None:
    parts = dict.fromkeys(("backward", "optimizer", "data", "other"), None)
    unknown = dataclasses.replace(STEPS, kind="unknown", parts={"forward": 0.25, **parts})
    assert len(phase_lines(dataclasses.replace(PHASES, steps=unknown))) == 1


def test_names_are_escaped() -> None:
    steps = dataclasses.replace(STEPS, waits={"<script>\x1b[2J": 0.5})
    hostile = dataclasses.replace(PHASES, imports_ns={"<script>\x1b[2J": SECOND}, steps=steps)
    html = phases_html(hostile)
    assert "<script>" not in html
    assert "\x1b" not in html
