# SPDX-License-Identifier: Apache-2.0
"""Windows of a long program: when they begin and end, what triggers them, and what failures do."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpuprof
from gpuprof import _native
from gpuprof.errors import RecordingError
from gpuprof.record import window_sampler
from gpuprof.record.options import RecordingOptions
from gpuprof.record.window_options import StepHistory, Trigger, WindowOptions, parse_bytes, parse_seconds
from gpuprof.record.window_sampler import WINDOW_FILE, WindowSampler
from gpuprof.run.format import read_json
from gpuprof.run.windows import create_windows, finish, open_windows

QUIET = RecordingOptions(layers=False, operators=False, gpu=False)
STEP_NS = 10_000_000


class Program:
    """A program with a clock of its own, whose steps take as long as the test wants."""

    def __init__(self, folder: Path, options: WindowOptions, recording: RecordingOptions = QUIET) -> None:
        self.now_ns = 0
        self.warnings: list[str] = []
        create_windows(folder, options, ["program"])
        self.folder = folder
        self.sampler = WindowSampler(
            folder, options, recording, clock=lambda: self.now_ns, warn=self.warnings.append
        )
        self.sampler.start()

    def steps(self, count: int, duration_ns: int = STEP_NS) -> None:
        for _ in range(count):
            begin_ns, self.now_ns = self.now_ns, self.now_ns + duration_ns
            self.sampler.step_ended(begin_ns, self.now_ns)

    def windows(self) -> list[dict[str, object]]:
        return [read_json(path) for path in sorted(self.folder.glob(f"*/{WINDOW_FILE}"))]


def test_a_window_begins_and_ends_between_steps(tmp_path: Path) -> None:
    program = Program(tmp_path / "p.windows", WindowOptions(every_s=1.0, duration_s=0.1))
    program.steps(99)
    assert not program.sampler.is_recording
    program.steps(1)
    assert program.sampler.is_recording
    assert _native.is_recording()
    program.steps(10)
    assert not _native.is_recording()
    (window,) = program.windows()
    assert (window["reason"], window["steps"], window["ended_by"]) == ("interval", 10, "duration")
    program.sampler.stop()


@pytest.mark.parametrize("when", ["step > 1.5x", "step > p99", "step > 200ms"])
def test_a_slow_step_triggers_exactly_one_window(tmp_path: Path, when: str) -> None:
    program = Program(tmp_path / "p.windows", WindowOptions(every_s=1000.0, duration_s=0.1, when=when))
    program.steps(200)
    program.steps(1, 25 * STEP_NS)
    assert program.sampler.is_recording
    program.steps(300)
    (window,) = program.windows()
    assert window["reason"] == "trigger"
    assert window["trigger"]["step_ns"] == 25 * STEP_NS  # type: ignore[index]
    program.sampler.stop()


def test_triggered_windows_are_limited_to_one_in_an_interval(tmp_path: Path) -> None:
    options = WindowOptions(every_s=100.0, duration_s=0.1, when="step > 2x")
    program = Program(tmp_path / "p.windows", options)
    program.steps(50)
    for _ in range(20):
        program.steps(1, 5 * STEP_NS)
        program.steps(30)
    assert len(program.windows()) == 1
    program.sampler.stop()


def test_without_steps_a_window_begins_after_a_grace_period(tmp_path: Path) -> None:
    program = Program(tmp_path / "p.windows", WindowOptions(every_s=10.0, duration_s=1.0))
    program.now_ns = 10_500_000_000
    program.sampler.poll()
    assert not program.sampler.is_recording
    program.now_ns = 11_000_000_000
    program.sampler.poll()
    assert program.sampler.is_recording
    program.now_ns = 13_000_000_000
    program.sampler.poll()
    assert [each["steps"] for each in program.windows()] == [0]
    program.sampler.stop()


@pytest.mark.parametrize("is_other_thread", [False, True])
def test_no_window_begins_or_ends_while_torch_is_being_imported(
    tmp_path: Path, is_other_thread: bool
) -> None:
    program = Program(tmp_path / "p.windows", WindowOptions(every_s=10.0, duration_s=1.0))
    poll = program.sampler.poll

    def poll_in_import() -> None:
        if is_other_thread:
            thread = threading.Thread(target=poll)
            thread.start()
            thread.join()
        else:
            poll()

    # A frame as that of the body of a module of PyTorch.
    body = compile("call()", "proxy_tensor.py", "exec")

    program.now_ns = 12_000_000_000
    exec(body, {"__name__": "torch.fx.experimental.proxy_tensor", "call": poll_in_import})
    assert not program.sampler.is_recording
    exec(body, {"__name__": "torchless", "call": poll_in_import})
    assert program.sampler.is_recording
    program.now_ns += 3_000_000_000
    exec(body, {"__name__": "torch", "call": poll_in_import})
    assert program.sampler.is_recording
    poll()
    assert not program.sampler.is_recording
    program.sampler.stop()


def test_the_end_of_the_program_ends_a_window(tmp_path: Path) -> None:
    program = Program(tmp_path / "p.windows", WindowOptions(every_s=1.0, duration_s=0.5))
    program.steps(100)
    program.sampler.stop()
    assert [each["ended_by"] for each in program.windows()] == ["program"]
    assert not _native.is_recording()
    program.steps(500)
    assert len(program.windows()) == 1


def test_a_full_disk_is_one_line_and_no_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path / "p.windows", WindowOptions(every_s=1.0, duration_s=0.1))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=4096))
    program.steps(500)
    assert len(program.warnings) == 1
    assert not program.windows()
    monkeypatch.undo()
    program.steps(200)  # room was made
    assert program.windows()
    program.sampler.stop()


def test_windows_that_are_left_out_are_in_the_index_with_their_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(tmp_path / "p.windows", WindowOptions(every_s=4.0, duration_s=1.0))
    with gpuprof.profile(out=tmp_path / "own.gpuprof", layers=False, operators=False, gpu=False):
        program.steps(900)
    assert open_windows(program.folder)["ran_s"] is None
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=4096))
    program.steps(400)
    monkeypatch.undo()
    program.sampler.stop()
    index = finish(program.folder)
    assert index["skipped"] == {"recording_active": 2, "disk_full": 1}
    assert (index["windows"], index["ran_s"]) == ([], 13.0)
    assert "no room" in index["last_failure"]


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path / "p.windows", WindowOptions(every_s=1.0, duration_s=0.1))

    def refuse(path: Path) -> None:
        raise RecordingError("cannot_write", f"cannot make {path}: Read-only file system")

    monkeypatch.setattr(window_sampler, "create_folder", refuse)
    program.steps(500)
    assert len(program.warnings) == 1
    assert not _native.is_recording()
    program.sampler.stop()


def test_windows_wait_while_others_are_not_closed(tmp_path: Path) -> None:
    program = Program(tmp_path / "p.windows", WindowOptions(every_s=1.0, duration_s=0.1))
    program.steps(1000)
    assert len(program.windows()) == 2
    assert program.sampler.skipped > 0
    program.sampler.stop()


def test_a_window_that_grows_too_large_ends(tmp_path: Path) -> None:
    options = WindowOptions(every_s=10.0, duration_s=5.0, disk_bytes=16_000_000)
    program = Program(tmp_path / "p.windows", options)
    program.steps(1000)
    assert program.sampler.is_recording
    (window,) = program.folder.glob("*.gpuprof")
    (window / "segments" / "large").write_bytes(b"x" * 3_000_000)
    program.sampler.check_size()
    program.steps(1)
    assert [each["too_large"] for each in program.windows()] == [True]
    program.sampler.stop()


def test_a_window_of_many_events_stays_within_its_part_of_the_disk_budget(tmp_path: Path) -> None:
    options = WindowOptions(every_s=10.0, duration_s=5.0, disk_bytes=16_000_000)
    program = Program(tmp_path / "p.windows", options)
    program.steps(1000)
    (window,) = program.folder.glob("*.gpuprof")
    for _ in range(200_000):  # 6.4 MB
        with gpuprof.span("s"):
            pass
    allocated = sum(each.stat().st_blocks * 512 for each in window.rglob("*") if each.is_file())
    assert 1_500_000 < allocated <= options.largest_window_bytes
    program.sampler.check_size()
    program.steps(1)
    assert [each["too_large"] for each in program.windows()] == [True]
    program.sampler.stop()
    run = gpuprof.open(window)
    assert run.meta["totals"]["dropped_events"] > 200_000
    assert "limit_reached" in {each["code"] for each in run.meta["notes"]}


def test_quantiles_of_the_last_thousand_steps() -> None:
    history, generator = StepHistory(), np.random.default_rng(1)
    durations = generator.integers(1, 10**9, 2500).tolist()
    for each in durations:
        history.add(each)
    assert len(history) == 1000
    for share in (0.5, 0.9, 0.99):
        expected = np.quantile(durations[-1000:], share, method="inverted_cdf")
        assert history.quantile(share) == expected


@pytest.mark.parametrize(
    "text",
    ["", "step", "step > ", "step > 1x", "step > 0ms", "step > p100", "a > 3", "step > 5"],
)
def test_wrong_triggers_are_refused(text: str) -> None:
    with pytest.raises(RecordingError) as refusal:
        Trigger(text)
    assert refusal.value.code == "invalid_trigger"


def test_amounts() -> None:
    assert [parse_seconds(each) for each in ("60s", "500ms", "5m", "1.5h", "2")] == [60, 0.5, 300, 5400, 2]
    assert [parse_bytes(each) for each in ("2GB", "500 MiB")] == [2 * 10**9, 500 * 2**20]
    for text in ("soon", "-1s"):
        with pytest.raises(RecordingError):
            parse_seconds(text)
    for text in ("2", "x"):
        with pytest.raises(RecordingError):
            parse_bytes(text)


@pytest.mark.parametrize(
    "wrong",
    [{"duration_s": 0.01}, {"every_s": 3.0}, {"keep": 1}, {"disk_bytes": 1}, {"every_s": float("nan")}],
)
def test_options_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(RecordingError) as refusal:
        WindowOptions(**wrong)  # type: ignore[arg-type]
    assert refusal.value.code == "invalid_windows"
