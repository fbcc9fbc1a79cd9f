# SPDX-License-Identifier: Apache-2.0
"""A folder of windows: what is retained, its index, and windows compared with a whole recording."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from waiting import wait_until

import gpuprof
from gpuprof.always_on import run_windows
from gpuprof.record.options import RecordingOptions
from gpuprof.record.recording import Recording
from gpuprof.record.recording_folder import DiskFullError, create_folder
from gpuprof.record.step_watch import StepWatch
from gpuprof.record.window_options import WindowOptions
from gpuprof.record.window_sampler import WindowSampler
from gpuprof.run.windows import (
    ClosedWindow,
    Keeper,
    Retention,
    create_windows,
    keeper_command,
    open_windows,
    read_index,
)

KB = 1_000


def window(number: int, slowest_ns: int = 0, size: int = KB) -> ClosedWindow:
    return ClosedWindow(f"w{number:06d}.gpuprof", {"slowest_step_ns": slowest_ns, "trigger": None}, size)


def test_the_slowest_windows_are_retained() -> None:
    retention = Retention(keep=6, disk_bytes=10**9)
    slowest = [(each * 7919) % 1000 for each in range(200)]
    for number, each in enumerate(slowest):
        retention.add(window(number, each))
    kept = [each.slowest_step_ns for each in retention.windows if "slowest" in each.kept_as]
    assert sorted(kept) == sorted(slowest)[-3:]
    assert len(retention.windows) <= 6


def test_the_sample_moves_and_has_the_newest() -> None:
    retention = Retention(keep=10, disk_bytes=10**9)
    for number in range(500):
        retention.add(window(number))
        assert retention.windows[-1].name == f"w{number:06d}.gpuprof"
    ages = [499 - int(each.name[1:7]) for each in retention.windows]
    assert len(ages) == 10
    assert max(ages) < 100  # geometric, with a mean of 10


def test_the_disk_budget_is_kept() -> None:
    retention = Retention(keep=20, disk_bytes=10 * KB)
    for number in range(100):
        removed = retention.add(window(number, number % 13, size=(1 + number % 4) * KB))
        assert retention.total_bytes <= 10 * KB
        assert not {each.name for each in removed} & {each.name for each in retention.windows}
    assert any("slowest" in each.kept_as for each in retention.windows)


def test_a_trigger_counts_as_a_slow_step() -> None:
    retention = Retention(keep=2, disk_bytes=10**9)
    retention.add(ClosedWindow("w1", {"slowest_step_ns": 5, "trigger": {"step_ns": 900}}, KB))
    for number in range(10):
        retention.add(window(number, 100))
    assert "w1" in [each.name for each in retention.windows]


def test_a_killed_program_leaves_its_window(tmp_path: Path) -> None:
    folder = tmp_path / "p.windows"
    create_windows(folder, WindowOptions(), ["p"])
    path = folder / "w000001.gpuprof"
    create_folder(path)
    recording = Recording(path, RecordingOptions(layers=False, operators=False, gpu=False))
    recording.start()
    with gpuprof.span("step"):
        pass
    recording.stop()  # but no window.json, as of a program that is killed
    index = open_windows(folder)
    assert [each["ended_by"] for each in index["windows"]] == ["killed"]
    assert gpuprof.open(path).meta["totals"]["spans"] == 1


def test_damage_is_counted_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "p.windows"
    create_windows(folder, WindowOptions(), ["p"])
    (folder / "w000001.gpuprof").mkdir()
    (folder / "w000001.gpuprof" / "window.json").write_text("{}")
    keeper = Keeper(folder)
    keeper.close_ended()
    assert read_index(folder)["failed"] == 0
    assert (folder / "w000001.gpuprof").is_dir()
    keeper.close_ended()
    keeper.close_ended()
    assert read_index(folder)["failed"] == 1
    assert not (folder / "w000001.gpuprof").exists()
    (folder / "windows.json").write_text("[]")
    with pytest.raises(gpuprof.RunError) as refusal:
        read_index(folder)
    assert refusal.value.code == "damaged"


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="sessions are no groups of this kernel")
def test_the_session_of_the_keeper_has_the_lowest_priority(tmp_path: Path) -> None:
    folder = tmp_path / "p.windows"
    create_windows(folder, WindowOptions(), ["p"])
    with subprocess.Popen(keeper_command(folder), start_new_session=True) as keeper:
        try:
            group = Path(f"/proc/{keeper.pid}/autogroup")
            assert wait_until(lambda: group.read_text().endswith("nice 19\n"))
        finally:
            keeper.kill()


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="sessions are no groups of this kernel")
def test_a_keeper_that_is_a_thread_leaves_the_priority_of_its_program(tmp_path: Path) -> None:
    program = """if True:
        import sys, threading
        from pathlib import Path
        from gpuprof.run.windows import keep_windows
        thread = threading.Thread(target=keep_windows, args=(Path(sys.argv[1]),))
        thread.start()
        thread.join()
        print(Path("/proc/self/autogroup").read_text())"""
    words = [sys.executable, "-c", program, str(tmp_path / "absent")]
    printed = subprocess.run(words, start_new_session=True, capture_output=True, text=True, check=True).stdout
    assert "nice 0" in printed


def test_a_keeper_that_gets_no_processor_does_not_hold_up_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    # This one never closes a window.
    never = [sys.executable, "-c", "import signal; signal.pause()"]
    monkeypatch.setattr("gpuprof.always_on.keeper_command", lambda _: never)
    monkeypatch.setattr("gpuprof.always_on._LONGEST_WAIT_S", 0.0)
    script = tmp_path / "p.py"
    script.write_text(
        "import time, torch\n"
        "parameter = torch.ones(4, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([parameter], 0.1)\n"
        "end = time.monotonic() + 1.0\n"
        "while time.monotonic() < end:\n"
        "    parameter.sum().backward()\n"
        "    optimizer.step()\n"
        "raise SystemExit(5)\n",
        encoding="utf-8",
    )
    code, folder, index = run_windows(
        str(script),
        [],
        RecordingOptions(gpu=False),
        WindowOptions(every_s=0.2, duration_s=0.05),
        is_module=False,
        out=tmp_path / "p.windows",
    )
    assert code == 5
    assert index is not None
    assert index["windows"]
    spans = [gpuprof.open(folder / each["run"]).sql("FROM spans") for each in index["windows"]]
    assert any(len(each) > 0 for each in spans)


LAYERS = """
    SELECT name, count(*) AS calls FROM spans WHERE kind IN ('layer', 'operator') GROUP BY name ORDER BY name
"""


def test_a_window_equals_a_recording_of_the_same_steps(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    values = torch.ones(4, 8)

    def step() -> None:
        optimizer.zero_grad()
        model(values).sum().backward()
        optimizer.step()

    folder = tmp_path / "p.windows"
    create_windows(folder, WindowOptions(every_s=10, duration_s=1), ["p"])
    now_ns = 0
    sampler = WindowSampler(
        folder, WindowOptions(every_s=10, duration_s=1), RecordingOptions(gpu=False), clock=lambda: now_ns
    )
    sampler.start()
    step()
    now_ns = 10_000_000_000
    sampler.step_ended(0, now_ns)
    for _ in range(3):
        step()
    now_ns += 1_000_000_000
    sampler.step_ended(0, 1)
    step()
    sampler.stop()
    index = open_windows(folder)
    with gpuprof.profile(out=tmp_path / "whole.gpuprof", gpu=False) as whole:
        for _ in range(3):
            step()
    found = gpuprof.open(folder / index["windows"][0]["run"])
    assert found.sql(LAYERS).fetchall() == whole.run.sql(LAYERS).fetchall()
    assert ("0", 3) in found.sql(LAYERS).fetchall()


def test_steps_are_those_of_the_optimizer_or_else_calls_of_the_model() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    steps: list[tuple[int, int]] = []
    watch = StepWatch(lambda begin_ns, end_ns: steps.append((begin_ns, end_ns)))
    watch.start()
    try:
        for _ in range(5):
            model(torch.ones(1, 8))
        assert len(steps) == 5
        assert all(begin_ns < end_ns for begin_ns, end_ns in steps)
        for _ in range(4):
            model(torch.ones(1, 8)).sum().backward()
            optimizer.step()
        assert len(steps) == 5 + 1 + 3  # the first call of the model, then from optimizer to optimizer
    finally:
        watch.stop()
    model(torch.ones(1, 8))
    assert len(steps) == 9


def test_the_interface_of_python(tmp_path: Path) -> None:
    options: dict[str, Any] = {"every": "200ms", "duration": "50ms", "gpu": False, "disk": "100MB"}
    with gpuprof.windows(out=tmp_path / "p.windows", **options) as recorded:
        pass
    assert recorded.runs == []
    with pytest.raises(gpuprof.RunError) as refusal, gpuprof.windows(out=tmp_path / "p.windows", **options):
        pass
    assert refusal.value.code == "exists"


def test_a_folder_on_a_full_disk_is_refused_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_half(path: Path, _: object) -> None:
        path.write_text("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gpuprof.run.windows.write_json", write_half)
    folder = tmp_path / "p.windows"
    with refused(DiskFullError, "cannot_write", folder, "No space left", "free disk space"):
        create_windows(folder, WindowOptions(), ["p"])
    assert not folder.exists()
