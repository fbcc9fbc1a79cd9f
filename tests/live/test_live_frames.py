# SPDX-License-Identifier: Apache-2.0
"""Frames of any size, and what keys do, without a terminal."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuprof.live import view as view_module
from gpuprof.live.frame import ViewState, fitted_text, frame_lines
from gpuprof.live.snapshot import (
    LiveCallFigures,
    LiveDeviceFigures,
    LiveFunctionFigures,
    LiveKernelFigures,
    LiveLayerFigures,
    LiveRequestFigures,
    LiveStepFigures,
    MachineFigures,
    MissingReason,
    ProcessFigures,
    RunState,
    Snapshot,
    Unavailable,
)
from gpuprof.live.text import SectionKey, SortKey, sections, snapshot_text
from gpuprof.live.totals import Totals
from gpuprof.live.view import LiveView
from gpuprof.text.sanitize import cell_width

HOSTILE = "\x1b]0;title\x07\x1b[2Jlayer\n\r\t'\"</script>\u202e\x9b5nend"
MISSING = Unavailable(MissingReason.NO_READING)
MACHINE = MachineFigures(2, 0.5, 0.0, 10**9, 10**10, 1.0, 1e6, 2e6)
COLOR = re.compile(r"\x1b\[[01]m")


def process(process_id: int = 7, **values: object) -> ProcessFigures:
    figures = ProcessFigures(process_id, 1, "python", True, 3, 10**8, 1.5, 0.0, 10.0, 12)
    return dataclasses.replace(figures, **values)


def device(name: str = "H100", **values: object) -> LiveDeviceFigures:
    values_of_all = (0.5, 0.25, 10**9, 8 * 10**10, 300.0, 700.0, 5.0, 1.5e9, 2.6e9, 41.0, ("power cap",))
    figures = LiveDeviceFigures(0, name, "GPU-1", False, 20, *values_of_all)
    return dataclasses.replace(figures, **values)


def snapshot(name: str = "layer", layers: int = 4, **values: object) -> Snapshot:
    made = Snapshot(
        unix_ns=10**18,
        interval_ns=10**9,
        machine=MACHINE,
        processes=(process(name=name), process(8, rank=1, is_stopped=True)),
        run=f"{name}.gpuprof",
        state=RunState.RECORDING,
        steps=(LiveStepFigures(7, "optimizer", (10**6, 3 * 10**6), 5, 3, 1, None, 1),),
        layers=tuple(LiveLayerFigures(f"{name} {at}", at, 10 * at) for at in range(layers)),
        calls=(
            LiveCallFigures("operator", f"{name} mm", 2, 30, 20),
            LiveCallFigures("operator", f"{name} add", 9, 50, 10),
            LiveCallFigures("span", f"{name} span", 1, 5, 5),
        ),
        operators=None,
        python=(
            LiveFunctionFigures(7, f"{name} other", False, 5, 900, 5000),
            LiveFunctionFigures(7, f"{name} main", True, 3, 300, 0, ((12, 200), (11, 100))),
        ),
        devices=(device(name),),
        kernels=(LiveKernelFigures("kernel", f"{name} gemm", 0, 4, 400),),
        requests=LiveRequestFigures(9, name, "server", False, 100, 60, 50, 40, 1, 10, 10, 1, ((5, 40),), 20.0,
                                    10.0, 10**6, 2 * 10**6, MISSING),
    )  # fmt: skip
    return dataclasses.replace(made, **values)


@pytest.mark.parametrize("width", [1, 3, 20, 33, 80, 200])
@pytest.mark.parametrize("height", [1, 4, 10, 24, 60])
@pytest.mark.parametrize("name", ["layer", HOSTILE, "層" * 50])
def test_a_frame_fits_and_moves_nothing(width: int, height: int, name: str) -> None:
    for state in (ViewState(), ViewState(message=name, output=name), ViewState(shows_help=True)):
        for colors in (True, False):
            lines = frame_lines(snapshot(name), state, width, height, colors=colors)
            assert len(lines) <= height
            plain = [COLOR.sub("", line) if colors else line for line in lines]
            assert all(line.isprintable() for line in plain), plain
            assert all(cell_width(line) <= max(width, 3) for line in plain), plain


def test_a_text_of_hostile_names_has_no_control_characters() -> None:
    assert snapshot_text(snapshot(HOSTILE)).replace("\n", "").isprintable()


def test_twenty_columns_show_the_figures_of_all_lines() -> None:
    lines = frame_lines(snapshot(), ViewState(), 20, 60, colors=False)
    assert "2.00 ms" in " ".join(lines)  # the median of the steps
    assert any(line.startswith("layer 3") for line in lines)


def test_ten_thousand_layers_take_the_height_of_the_terminal() -> None:
    lines = frame_lines(snapshot(layers=10_000), ViewState(only=SectionKey.LAYERS), 80, 24, colors=False)
    assert len(lines) == 24
    (title,) = [at for at, line in enumerate(lines) if "self time" in line and "fraction" in line]
    shown = [line.split()[1] for line in lines[title + 1 : -2]]
    assert shown == [str(9999 - place) for place in range(len(shown))]
    assert lines[-2] == f"... {10_000 - len(shown):,} more"


def test_rows_are_in_the_order_that_was_chosen() -> None:
    (operators,) = [each for each in sections(snapshot()) if each.key is SectionKey.OPERATORS]
    names = {key: [name for name, *_ in operators.first_rows(key)] for key in SortKey}
    assert names == {
        SortKey.SELF: ["layer mm", "layer add"],
        SortKey.TOTAL: ["layer add", "layer mm"],
        SortKey.CALLS: ["layer add", "layer mm"],
        SortKey.NAME: ["layer add", "layer mm"],
    }


def test_main_threads_come_first_and_waits_are_a_table_of_their_own() -> None:
    found = {each.key: each for each in sections(snapshot())}
    running = [name for name, *_ in found[SectionKey.PYTHON].first_rows(SortKey.SELF)]
    waiting = [name for name, *_ in found[SectionKey.WAITING].first_rows(SortKey.SELF)]
    assert (running, waiting) == (["layer main", "layer other"], ["layer other"])
    assert SectionKey.PYTHON not in {each.key for each in sections(snapshot(), process_id=8)}


def test_what_is_unavailable_is_a_dash_and_never_zero() -> None:
    unknown = device(**dict.fromkeys(("power_w", "temperature_c", "throttle_reasons"), MISSING))
    (devices,) = [each for each in sections(snapshot(devices=(unknown,))) if each.key is SectionKey.DEVICES]
    assert devices.first_rows(SortKey.SELF)[0][3:] == ("- of 700 W", "-", "1.50 GHz", "-")


def test_sums_are_those_of_all_intervals() -> None:
    totals = Totals()
    for _ in range(3):
        totals.add(snapshot())
    totals.add(Snapshot(unix_ns=0, interval_ns=1, machine=MACHINE))
    found = totals.in_place_of(snapshot())
    assert found.interval_ns == 3 * 10**9 + 1
    assert sorted(each.calls for each in found.calls) == [3, 6, 27]
    assert found.layers[0] == LiveLayerFigures("layer 3", 9, 90)
    (main,) = [each for each in found.python if each.is_main_thread]
    assert (main.running_ns, main.lines) == (900, ((12, 600), (11, 300)))
    assert found.kernels[0].total_ns == 1200
    assert len(found.steps[0].durations_ns) == 6
    assert (found.steps[0].forward_ns, found.steps[0].data_ns) == (15, None)


# ---- keys --------------------------------------------------------------------------------------------------


class PlayedFeed:
    """A feed that yields the same snapshot, and is over after some polls."""

    def __init__(self, polls: int) -> None:
        self.polls, self.left, self.chosen = 0, polls, []

    def poll(self) -> Snapshot:
        self.polls += 1
        return snapshot(interval_ns=10**9)

    @property
    def is_over(self) -> bool:
        return self.polls >= self.left

    def choose(self, process_id: int | None) -> None:
        self.chosen.append(process_id)


class PlayedScreen:
    """A screen whose user presses given keys, one in each interval; the clock moves with the waits."""

    size = (100, 50)

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys, self.frames, self.now = list(keys), [], 0.0

    def clock(self) -> float:
        return self.now

    def show(self, lines: list[str]) -> None:
        self.frames.append("\n".join(lines))

    def wait_for_keys(self, seconds: float) -> str:
        self.now += seconds
        return self.keys.pop(0) if self.keys else ""


def played(
    keys: Sequence[str], polls: int = 20, **options: object
) -> tuple[LiveView, PlayedScreen, PlayedFeed]:
    screen, feed = PlayedScreen(keys), PlayedFeed(polls)
    view = LiveView(feed, screen, 1.0, colors=False, clock=screen.clock, **options)
    assert view.run() is ("q" not in keys)
    return view, screen, feed


def test_q_ends_the_view_and_the_end_of_the_feed_does() -> None:
    assert played(["q"])[2].polls == 1
    assert played(["x", "\x1b[A", "\x1bOP"], polls=5)[2].polls == 5


def test_keys_change_the_view() -> None:
    view, _, feed = played(["s", "t", "n", "\t"])
    assert view.state == ViewState(
        sort=SortKey.TOTAL,
        since_start=True,
        since_choice=True,
        process_id=7,
        only=SectionKey.LAYERS,
        message="",
    )
    assert feed.chosen == [7]
    # Twice around: the first choice is all.
    assert played(["n", "n", "n"])[2].chosen == [7, 8, None]


def test_a_paused_view_reads_on_and_shows_what_it_showed() -> None:
    view, screen, feed = played(["t", " "], polls=6)
    assert feed.polls == 6
    assert {frame.splitlines()[-1].split(",")[0] for frame in screen.frames[-4:]} == {"paused"}
    assert "since the start of the run" in screen.frames[-1]
    assert "layer 3" in view.last_frame()
    assert view._totals.interval_ns == 6 * 10**9


def test_a_profile_without_a_run_is_refused_and_its_errors_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no profile: only a program" in played(["p"], polls=3)[1].frames[-1]

    class Failed:
        def __init__(self, *_: object) -> None: ...

        def result(self) -> dict[str, str]:
            return {"error": "no room\x1b[2J"}

        def end(self) -> None: ...

    monkeypatch.setattr(view_module, "ProfileCut", Failed)
    frames = played(["p"], run=tmp_path)[1].frames
    assert "no profile: no room\\x1b[2J" in frames[-1]
    assert "no page" in played(["o"], polls=3)[1].frames[-1]


def test_what_does_not_fit_is_counted() -> None:
    full = frame_lines(snapshot(), ViewState(), 200, 80, colors=False)
    assert not any("enlarge" in line for line in full)
    lines = frame_lines(snapshot(), ViewState(), 60, 20, colors=False)
    assert len(lines) <= 20
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (table|line|column)", lines[-2])}
    keys = [each for each in sections(snapshot()) if each.key.value not in ("processes", "devices")]
    titles = [each.columns[:2] for each in keys]
    shown = sum(any(line.startswith(name) and time in line for line in lines) for name, time in titles)
    assert counts["table"] == len(keys) - shown > 0
    assert counts["column"] > 0
    only = frame_lines(snapshot(), ViewState(only=SectionKey.LAYERS), 200, 30, colors=False)
    assert not any("enlarge" in line for line in only)


def test_the_last_figures_fit_the_terminal() -> None:
    for width in (20, 60, 100):
        lines = fitted_text(snapshot("layer" * 20), width).splitlines()
        assert max(map(cell_width, lines)) <= width
    assert "2.00 ms" in fitted_text(snapshot(), 60)


def test_the_order_of_each_table_is_shown() -> None:
    def status(sort: SortKey, **chosen: SectionKey) -> str:
        return frame_lines(snapshot(), ViewState(sort=sort, **chosen), 200, 60, colors=False)[-1]

    assert "by self time;" in status(SortKey.SELF)
    assert "by total time (layers: self time);" in status(SortKey.TOTAL)
    assert "by calls (python: samples, waiting: samples);" in status(SortKey.CALLS)
    assert "by total time;" in status(SortKey.TOTAL, only=SectionKey.OPERATORS)


def test_sums_of_a_view_that_began_later_have_their_own_start() -> None:
    assert "since the start of the run;" in played(["t"], polls=3)[1].frames[-1].replace(", by self time", "")
    chosen = played(["t", "n"], polls=6)[1].frames[-1]
    assert "since the choice of the process, 4 s" in chosen
    without = frame_lines(snapshot(run=None, state=None), ViewState(since_start=True), 100, 60, colors=False)
    assert "since the start of the view, 1 s" in without[-1]


def test_a_message_about_a_page_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module.subprocess, "Popen", lambda *_, **__: None)
    screen = PlayedScreen(["o"])
    view = LiveView(PlayedFeed(10), screen, 1.0, colors=False, clock=screen.clock)
    view.page = Path("x.html")
    view.run()
    openings = [at for at, frame in enumerate(screen.frames) if "opening x.html" in frame]
    assert 0 < len(openings) <= 12  # two frames a second, for 5 s
    assert "profile: x.html (o: open)" in screen.frames[-1]


def test_a_machine_without_devices_has_a_line_about_it() -> None:
    no_driver = Unavailable(MissingReason.NOT_RECORDED, "no_driver")
    alone = snapshot(run=None, state=None, processes=(), devices=no_driver)
    assert "no GPU (no_driver)" in snapshot_text(alone)
    bare = dataclasses.replace(alone, steps=MISSING, layers=None, calls=None, python=MISSING, kernels=MISSING)
    assert any("no GPU" in line for line in frame_lines(bare, ViewState(), 80, 24, colors=False))
