# SPDX-License-Identifier: Apache-2.0
"""Stub tests of device samples: real processes, and devices that a stub of pynvml plays. No GPU is asked."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nvml_stub import LONGEST_WAIT_S, ONE, Stub
from refusals import refused
from run_codes import damage_codes, note_codes, source_code

import gpuprof
from gpuprof import _native
from gpuprof.record import device_samples
from gpuprof.record.device_samples import DeviceSampleSource, has_driver
from gpuprof.record.facts import Reason

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))
pytest.register_assert_rewrite("expectations")

import expectations  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="NVML and its driver are sampled on Linux")

BUSY = {"slow_readings"}  # a note of a machine with other work
QUIET = {"layers": False, "operators": False}


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    played = Stub(tmp_path / "stub")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(played.folder))
    monkeypatch.syspath_prepend(str(played.folder))
    # PyTorch imports the real one, where it is installed, with itself.
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(device_samples, "PERIOD_NS", 20_000_000)
    monkeypatch.setattr(device_samples, "LONGEST_END_S", 60.0)
    yield played
    played.close()


@pytest.fixture
def program(stub: Stub, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`program(source)` starts a program that records into r.gpuprof and continues at a line of its input."""
    begun: list[subprocess.Popen[str]] = []

    def start(source: str, **options: Any) -> subprocess.Popen[str]:
        options = {"cwd": tmp_path, "env": stub.environment(), "text": True, **options}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-c", PREAMBLE + source]
        begun.append(subprocess.Popen(command, **{**pipes, **options}))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


PREAMBLE = """
import os, signal, sys, gpuprof
profile = gpuprof.profile(out="r.gpuprof", layers=False, operators=False)
def wait():
    sys.stdin.readline()
"""


def wait_for_end_of(process_id: int) -> None:
    """Wait until the process has ended; a zombie, which only its reaper can take away, has."""
    try:
        file = os.pidfd_open(process_id)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([file], [], [], LONGEST_WAIT_S)
    finally:
        os.close(file)
    assert ended, f"the sampler {process_id} outlives the program"


def metrics(run: gpuprof.Run, device: int = 0) -> dict[str, list[float]]:
    rows = run.sql(f"SELECT metric, value FROM samples WHERE device = {device} ORDER BY t_ns").fetchall()
    found: dict[str, list[float]] = {}
    for metric, value in rows:
        found.setdefault(metric, []).append(value)
    return found


def record_readings(stub: Stub, path: Path, last: int = 3) -> gpuprof.Run:
    with gpuprof.profile(out=path, **QUIET) as recording:
        stub.wait_for_reading(last)
    return recording.run


# --- what is read --------------------------------------------------------------------------------


def test_stub_readings_become_the_table(stub: Stub, tmp_path: Path) -> None:
    run = record_readings(stub, tmp_path / "r.gpuprof")
    found = metrics(run)
    count = len(found["power_w"])
    assert count >= 5  # and one at the end
    assert {len(values) for values in found.values()} == {count}
    assert {metric: values[:3] for metric, values in found.items()} == {
        "utilization_percent": [0, 50, 50],
        "memory_utilization_percent": [1, 25, 25],
        "memory_used_bytes": [1_000, 3_000, 2_000],
        "power_w": [100, 200, 300],
        "energy_j": [0, 1.5, 2],
        "sm_clock_hz": [1.5e9] * 3,
        "memory_clock_hz": [2.6e9] * 3,
        "temperature_c": [40, 41, 41],
        "throttle_reasons": [1, 4, 4],
    }
    columns = run.sql("FROM samples")
    assert list(zip(columns.columns, map(str, columns.types), strict=True))[:4] == [
        ("t_ns", "BIGINT"),
        ("device", "INTEGER"),
        ("metric", "VARCHAR"),
        ("value", "DOUBLE"),
    ]
    inside = f"t_ns BETWEEN 0 AND {run.meta['duration_ns']}"
    assert run.sql(f"SELECT count(*) FROM samples WHERE NOT ({inside})").fetchall() == [(0,)]
    assert run.sources["samples"].values == {"period_ns": 20_000_000}
    assert (run.meta["complete"], run.meta["damage"]) == (True, [])


def test_stub_a_busy_device_is_as_the_test_on_a_gpu_expects_it(stub: Stub, tmp_path: Path) -> None:
    busy = {"nvmlDeviceGetUtilizationRates": [{"gpu": 97, "memory": 40}]}
    busy |= {"nvmlDeviceGetMemoryInfo_v2": [{"used": 10**9}]}
    busy |= {"nvmlDeviceGetTotalEnergyConsumption": [5_000, 9_000, 25_000]}
    stub.play({**ONE, **busy})
    run = record_readings(stub, tmp_path / "r.gpuprof")
    expectations.device_samples(run)
    stub.play(ONE)
    with pytest.raises(AssertionError):
        expectations.device_samples(record_readings(stub, tmp_path / "idle.gpuprof", last=4))


def test_stub_devices_are_described(stub: Stub, tmp_path: Path) -> None:
    stub.play(ONE, {"nvmlDeviceGetPowerUsage": [1]})
    assert record_readings(stub, tmp_path / "r.gpuprof").meta["devices"] == [
        {
            "index": 0,
            "name": "Stub 100",
            "uuid": "GPU-stub",
            "driver_version": "570.stub",
            "memory_bytes": 80_000_000_000,
            "power_limit_w": 700.0,
            "max_sm_clock_hz": 2e9,
            "max_memory_clock_hz": 2e9,
            "mig_mode": False,
        },
        {
            "index": 1,
            "name": "Stub 100",
            "uuid": "GPU-stub",
            "driver_version": "570.stub",
            "memory_bytes": None,
            "power_limit_w": 700.0,
            "max_sm_clock_hz": 2e9,
            "max_memory_clock_hz": 2e9,
            "mig_mode": None,
        },
    ]


def test_stub_what_a_device_lacks_is_absent_and_asked_once(stub: Stub, tmp_path: Path) -> None:
    stub.play({"nvmlDeviceGetPowerUsage": [5_000], "nvmlDeviceGetTemperature": [40, {"error": 999}, 42]})
    found = metrics(record_readings(stub, tmp_path / "r.gpuprof", last=5))
    assert set(found) == {"power_w", "temperature_c"}
    assert set(found["power_w"]) == {5}
    assert found["temperature_c"][:2] == [40, 42]  # an error that may pass leaves out one reading
    assert len(found["temperature_c"]) == len(found["power_w"]) - 1
    assert stub.count_calls("nvmlDeviceGetTotalEnergyConsumption") == 1
    assert stub.count_calls("nvmlDeviceGetUtilizationRates") == 1
    assert stub.count_calls("nvmlDeviceGetPowerUsage") == len(found["power_w"])


def test_stub_older_drivers_are_asked_in_their_way(stub: Stub, tmp_path: Path) -> None:
    no_function = [{"error": 13}]
    stub.play(
        {
            "nvmlDeviceGetPowerUsage": [1],
            "nvmlDeviceGetMemoryInfo_v2": no_function,
            "nvmlDeviceGetMemoryInfo": [{"total": 9, "used": 7}],
            "nvmlDeviceGetCurrentClocksEventReasons": no_function,
            "nvmlDeviceGetCurrentClocksThrottleReasons": [8],
        }
    )
    found = metrics(record_readings(stub, tmp_path / "r.gpuprof"))
    assert set(found["memory_used_bytes"]) == {7}
    assert set(found["throttle_reasons"]) == {8}
    assert stub.count_calls("nvmlDeviceGetCurrentClocksEventReasons") == 1


def test_stub_a_device_that_is_lost_ends_and_the_others_continue(stub: Stub, tmp_path: Path) -> None:
    stub.play({"nvmlDeviceGetPowerUsage": [1_000, 2_000, {"error": 15}]}, ONE)
    run = record_readings(stub, tmp_path / "r.gpuprof", last=5)
    assert metrics(run, 0) == {"power_w": [1, 2]}
    assert len(metrics(run, 1)["power_w"]) >= 6
    (note,) = (note for note in run.notes if note.code.value not in BUSY)
    assert (note.code, note.values) == ("device_lost", {"device": "device 0 (Stub 100)", "error": 15})
    assert run.meta["complete"] is True


@pytest.mark.parametrize(
    ("devices", "more", "reason"),
    [([], {}, "NVML finds no device"), ([ONE], {"init": 18}, "NVML error 18")],
)
def test_stub_nvml_that_does_not_work(
    stub: Stub, tmp_path: Path, devices: list[Any], more: Any, reason: str
) -> None:
    stub.play(*devices, **more)
    path = tmp_path / "r.gpuprof"
    with gpuprof.profile(out=path, **QUIET) as recording:
        source = recording._recording._sources["samples"]
        select.select([source._leash], [], [], LONGEST_WAIT_S)  # the sampler ends by itself
    run = recording.run
    status = run.sources["samples"]
    assert (status.reason, status.values) == ("nvml_failed", {"error": reason})
    assert (run.meta["devices"], run.meta["complete"]) == ([], True)
    assert run.sql("SELECT count(*) FROM samples").fetchall() == [(0,)]


def test_stub_a_recording_that_ends_before_the_first_reading(stub: Stub, tmp_path: Path) -> None:
    stub.play({**ONE, "nvmlDeviceGetName": ["hang"]})
    with gpuprof.profile(out=tmp_path / "r.gpuprof", **QUIET) as recording:
        pass
    assert source_code(recording.run.meta, "samples") == "off: no_reading"
    assert recording.run.meta["complete"] is True


def test_stub_a_driver_that_hangs_blocks_nothing(stub: Stub, tmp_path: Path) -> None:
    stub.play({"nvmlDeviceGetPowerUsage": [1_000, 2_000, "hang"]})
    with gpuprof.profile(out=tmp_path / "r.gpuprof", **QUIET) as recording:
        sampler = stub.wait_for_reading(2)
    wait_for_end_of(sampler)
    assert metrics(recording.run)["power_w"] == [1, 2]
    assert damage_codes(recording.run.meta) == ["samples_end_early"]
    assert recording.run.meta["complete"] is False


def test_stub_many_recordings_in_a_process(stub: Stub, tmp_path: Path) -> None:
    for number in range(3):
        stub.forget_readings()
        run = record_readings(stub, tmp_path / f"{number}.gpuprof", last=0)
        assert metrics(run)["energy_j"][0] == 0
        assert not (run.path / "segments").exists()


# --- where there is nothing to read --------------------------------------------------------------


@pytest.fixture
def nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise AssertionError("a process was started")

    monkeypatch.setattr(_native, "start_detached", refuse)


def test_without_a_driver_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_is_started: None
) -> None:
    monkeypatch.setattr(device_samples, "has_driver", lambda: False)
    with gpuprof.profile(out=tmp_path / "r.gpuprof", **QUIET) as recording:
        pass
    meta = recording.run.meta
    assert (source_code(meta, "samples"), meta["devices"], meta["notes"]) == ("off: no_driver", [], [])
    assert recording.run.sql("SELECT count(*) FROM samples").fetchall() == [(0,)]


def test_a_driver_is_found_as_the_linker_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(b"\0libc.so.6\0/usr/lib/libc.so.6\0")
    monkeypatch.setattr(device_samples, "_LINKER_CACHE", cache)
    monkeypatch.setattr(device_samples, "_searched_folders", lambda: ["", str(tmp_path)])
    assert not has_driver()
    cache.write_bytes(b"\0libnvidia-ml.so.1\0/usr/lib/libnvidia-ml.so.1\0")
    assert has_driver()
    cache.unlink()
    assert not has_driver()
    (tmp_path / "libnvidia-ml.so.1").touch()
    assert has_driver()
    monkeypatch.undo()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    assert has_driver()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not has_driver()


def test_stub_reasons_not_to_start(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_is_started: None
) -> None:
    def reason(**options: Any) -> Reason | None:
        source = DeviceSampleSource(tmp_path, **options)
        try:
            return source.start().reason
        finally:
            source.stop()

    assert reason(wanted=False) is Reason.NOT_WANTED
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        assert reason() is Reason.NO_PYNVML
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/opt/blender/blender")
        assert reason() is Reason.NO_INTERPRETER
    with monkeypatch.context() as patch:
        patch.setattr(_native, "adopts_orphans", lambda: True)
        assert reason() is Reason.ADOPTS_ORPHANS
    with pytest.raises(AssertionError, match="was started"):
        reason()


def test_stub_gpu_as_it_was_asked_for(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpuprof.profile(out=tmp_path / "1.gpuprof", gpu=True, **QUIET) as recording:
        stub.wait_for_reading(0)
    assert metrics(recording.run)
    with gpuprof.profile(out=tmp_path / "2.gpuprof", gpu=False, **QUIET) as recording:
        pass
    assert source_code(recording.run.meta, "samples") == "off: not_wanted"
    monkeypatch.setattr("gpuprof.profiling.has_driver", lambda: False)
    with refused(gpuprof.UnavailableError, "no_driver") as caught:
        gpuprof.profile(gpu=True)
    with refused(gpuprof.RecordingError, "invalid_option", "maybe"):
        gpuprof.profile(gpu="maybe")  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) == 1


def test_a_sampler_that_cannot_be_started_is_a_reason(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python3")
    with gpuprof.profile(out=tmp_path / "r.gpuprof", **QUIET) as recording:
        pass
    assert recording.run.sources["samples"].values["error"].startswith("FileNotFoundError")
    assert recording.run.meta["complete"] is True


# --- the measured program is left alone ----------------------------------------------------------


def test_stub_the_program_is_killed(stub: Stub, program: Any, tmp_path: Path) -> None:
    process = program("profile.__enter__(); wait(); os.kill(os.getpid(), signal.SIGKILL)")
    sampler = stub.wait_for_reading(3)
    process.communicate("go\n")
    assert process.returncode == -signal.SIGKILL
    wait_for_end_of(sampler)
    run = gpuprof.open(tmp_path / "r.gpuprof")
    assert (run.meta["complete"], run.meta["damage"]) == (False, [])
    assert metrics(run)["power_w"][:3] == [100, 200, 300]
    assert run.meta["devices"][0]["name"] == "Stub 100"


def test_stub_the_sampler_is_killed(stub: Stub, tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "r.gpuprof", **QUIET) as recording:
        sampler = stub.wait_for_reading(3)
        os.kill(sampler, signal.SIGKILL)
        wait_for_end_of(sampler)
    run = recording.run
    assert metrics(run)["power_w"][:3] == [100, 200, 300]
    assert damage_codes(run.meta) == ["samples_end_early"]
    assert run.meta["complete"] is False


def test_stub_a_forked_worker_does_not_keep_the_sampler(stub: Stub, program: Any, tmp_path: Path) -> None:
    process = program(
        """
profile.__enter__()
wait()
worker = os.fork()
if worker == 0:
    sys.stdin.read()
    os._exit(0)
print(worker, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    sampler = stub.wait_for_reading(2)
    process.stdin.write("go\n")
    process.stdin.flush()
    worker = int(process.stdout.readline())
    wait_for_end_of(sampler)
    os.kill(worker, 0)  # lives, and holds a copy of the leash
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_stub_the_program_waits_for_its_own_children_only(stub: Stub, program: Any) -> None:
    process = program(
        """
ended = []
signal.signal(signal.SIGCHLD, lambda *_: ended.append(1))
with profile:
    wait()
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        print("none")
    child = os.fork()
    if child == 0:
        os._exit(7)
    assert os.wait() == (child, 7 << 8)
    try:
        os.waitpid(-1, 0x40000000)  # __WALL: children of every kind
    except ChildProcessError:
        print("none of any kind")
print(len(ended), profile.run.sql("SELECT count(*) > 0 FROM samples").fetchall())
try:
    os.wait()
except ChildProcessError:
    print("none after")
"""
    )
    stub.wait_for_reading(2)
    output, errors = process.communicate("go\n", timeout=LONGEST_WAIT_S)
    assert (output, errors) == ("none\nnone of any kind\n1 [(True,)]\nnone after\n", "")


def test_stub_an_interrupt_is_for_the_program_alone(stub: Stub, program: Any, tmp_path: Path) -> None:
    process = program(
        """
with profile:
    try:
        wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        wait()
""",
        start_new_session=True,
    )
    sampler = stub.wait_for_reading(2)
    assert os.getpgid(sampler) == os.getsid(sampler) == sampler
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(sampler, number)  # as a scheduler sends it to all of a job
    stub.wait_for_reading(8)
    output, errors = process.communicate("go\n", timeout=LONGEST_WAIT_S)
    assert (output, errors, process.returncode) == ("", "", 0)
    wait_for_end_of(sampler)
    run = gpuprof.open(tmp_path / "r.gpuprof")
    assert len(metrics(run)["power_w"]) >= 9
    assert run.meta["complete"] is True


def test_stub_the_sampler_holds_nothing_of_the_program(stub: Stub, tmp_path: Path) -> None:
    held = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(held, True)
    try:
        with gpuprof.profile(out=tmp_path / "r.gpuprof", **QUIET):
            sampler = stub.wait_for_reading(2)
            folder = Path(f"/proc/{sampler}")
            files = sorted(
                str(file.readlink()) for file in (folder / "fd").iterdir() if os.path.lexists(file)
            )
            variables = {line.split(b"=")[0] for line in (folder / "environ").read_bytes().split(b"\0")}
            assert str((folder / "cwd").readlink()) == "/"
    finally:
        os.close(held)
    assert files.count("/dev/null") == 2
    assert str(tmp_path) not in files
    assert variables <= {b"HOME", b"LD_LIBRARY_PATH", b"PATH", b""} | {
        name for name in variables if name.startswith((b"NVIDIA_", b"NVML_"))
    }


def test_stub_a_fork_of_the_program_ends_only_its_own_part(stub: Stub, program: Any, tmp_path: Path) -> None:
    process = program(
        """
with profile:
    wait()
    child = os.fork()
    if child == 0:
        profile.__exit__(None, None, None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print("child ended", flush=True)
    wait()
"""
    )
    stub.wait_for_reading(2)
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "child ended\n"
    stub.forget_readings()
    count = stub.count_calls("nvmlDeviceGetPowerUsage")
    sampler = stub.wait_for_reading(count + 3)
    assert process.communicate("go\n", timeout=LONGEST_WAIT_S) == ("", "")
    wait_for_end_of(sampler)
    run = gpuprof.open(tmp_path / "r.gpuprof")
    assert len(metrics(run)["power_w"]) >= count + 4
    assert run.meta["complete"] is True


@pytest.mark.parametrize("reused", [False, True])
def test_stub_a_program_that_closes_files_it_does_not_know(
    stub: Stub, program: Any, tmp_path: Path, reused: bool
) -> None:
    process = program(
        f"""
with profile:
    wait()
    leash = profile._recording._sources["samples"]._leash
    os.close(leash)
    if {reused}:
        assert os.open("/dev/null", os.O_RDONLY) == leash
if {reused}:
    os.fstat(leash)
"""
    )
    sampler = stub.wait_for_reading(2)
    output, errors = process.communicate("go\n", timeout=LONGEST_WAIT_S)
    assert (output, errors, process.returncode) == ("", "", 0)
    wait_for_end_of(sampler)
    run = gpuprof.open(tmp_path / "r.gpuprof")
    assert set(note_codes(run.meta)) - BUSY == {"samples_may_end_early"}
    assert metrics(run)["power_w"][:3] == [100, 200, 300]


def test_stub_a_program_without_standard_streams(stub: Stub, program: Any, tmp_path: Path) -> None:
    (tmp_path / "go").mkdir()
    os.mkfifo(tmp_path / "go" / "on")
    source = """
os.closerange(0, 3)
with profile:
    open("go/on").read()
"""
    process = program(source)
    sampler = stub.wait_for_reading(2)
    (tmp_path / "go" / "on").write_text("")
    process.wait(LONGEST_WAIT_S)
    assert process.returncode == 0
    wait_for_end_of(sampler)
    assert metrics(gpuprof.open(tmp_path / "r.gpuprof"))["power_w"][:3] == [100, 200, 300]


def test_stub_gpuprof_run_takes_samples_and_leaves_them_out(
    stub: Stub, tmp_path: Path, run_python: Any
) -> None:
    (tmp_path / "main.py").write_text(
        "import os, sys\n"
        "with open(sys.argv[1]) as events:\n"
        "    while int((events.readline() or '0 0').split()[1]) < 2: pass\n"
        "print('done')\n"
    )
    words = ["-m", "gpuprof", "run", "--out", "r.gpuprof"]
    done = run_python(*words, "main.py", stub.folder / "events", env=stub.environment())
    assert (done.returncode, done.stdout) == (0, "done\n")
    run = gpuprof.open(tmp_path / "r.gpuprof")
    assert metrics(run)["power_w"][:3] == [100, 200, 300]
    (tmp_path / "main.py").write_text("")
    done = run_python(*words[:-1], "2.gpuprof", "--no-gpu", "main.py", env=stub.environment())
    assert source_code(gpuprof.open(tmp_path / "2.gpuprof").meta, "samples") == "off: not_wanted"
    summary = run_python("-m", "gpuprof", "summary", "r.gpuprof", env=stub.environment())
    header = summary.stdout.partition("\n\n")[0]
    line = " ".join(header[header.index("device 0") :].split())
    for words in (
        "Stub 100",
        "% used on average, 50% at most",
        "(counter)",
        "3.00 kB of 80.0 GB",
        "power cap",
    ):
        assert words in line
    values = json.loads(run_python("-m", "gpuprof", "summary", "r.gpuprof", "--json").stdout)
    (device,) = values["devices"]
    assert (device["energy_j"], device["energy_method"]) == (2.0, "counter")
