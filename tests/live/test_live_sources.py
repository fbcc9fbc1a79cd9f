# SPDX-License-Identifier: Apache-2.0
"""Python samples, devices and GPU work that are followed, against what the closed run or the file holds."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from nvml_stub import ONE, Stub

import gpuprof
from gpuprof.cli.main import execute
from gpuprof.live.devices import DeviceFollower, DeviceWatch
from gpuprof.live.feed import Feed
from gpuprof.live.kernels import KernelFollower
from gpuprof.live.processes import MachineWatch
from gpuprof.live.snapshot import LiveFunctionFigures, MissingReason, RunState, Unavailable
from gpuprof.live.stacks import StackFollower
from gpuprof.record import device_sampler as layout
from gpuprof.record import device_samples
from gpuprof.record.stack_file import StackFile
from gpuprof.run.gpu_records import COPY, HEAD, KERNEL, MAGIC, RECORD, SYNCHRONIZATION, VERSION

# ---- Python stacks -----------------------------------------------------------------------------------------

PROGRAM = textwrap.dedent("""\
    import sys, threading, time
    from pathlib import Path
    from gpuprof.record.options import RecordingOptions
    from gpuprof.record.recording import Recording
    from gpuprof.record.recording_folder import create_folder
    folder = Path(sys.argv[1])
    create_folder(folder)
    recording = Recording(folder, RecordingOptions(layers=False, operators=False, gpu=False, python=True))
    recording.start()
    def spin(seconds):
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
    def idle(): event.wait()
    event = threading.Event()
    thread = threading.Thread(target=idle)
    thread.start()
    for line in sys.stdin:
        if line == "end\\n":
            event.set()
            thread.join()
            recording.stop()
        else:
            spin(float(line))
        print("done", flush=True)
    """)


def test_functions_of_all_intervals_are_the_samples_of_the_closed_run(tmp_path: Path) -> None:
    run = tmp_path / "run.gpuprof"
    program = [sys.executable, "-c", PROGRAM, str(run)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        feed, snapshots = None, []
        for command in ("0.2", "0.05", "0.1", "end"):
            process.stdin.write(f"{command}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
            feed = feed or Feed(run)
            snapshots.append(feed.poll())
        process.stdin.close()
    assert snapshots[-1].state is RunState.ENDED
    samples: Counter[tuple[bool, str]] = Counter()
    times: Counter[tuple[bool, str]] = Counter()
    for snapshot in snapshots:
        assert isinstance(snapshot.python, tuple)
        for each in snapshot.python:
            samples[each.is_main_thread, each.name] += each.samples
            times[each.is_main_thread, each.name] += each.running_ns + each.waiting_ns
            assert sum(line_ns for _, line_ns in each.lines) <= each.running_ns + each.waiting_ns
    rows = gpuprof.open(run).sql(
        "SELECT thread_id = process_id, frames[-1], sum(duration_ns) FROM stacks GROUP BY ALL"
    )
    found = {(main, name): int(total_ns) for main, name, total_ns in rows.fetchall()}
    (spin,) = [key for key in samples if key[1].startswith("spin ")]
    assert spin[0]
    # In the closed run, samples in which a wait begins or ends have two or three rows.
    assert times[spin] == pytest.approx(found[spin], rel=0.05)
    assert sum(times.values()) == sum(found.values())
    assert sum(samples.values()) == gpuprof.open(run).meta["stacks"]["samples"]
    between = [each for snapshot in snapshots[1:-1] for each in snapshot.python]
    idle = [each for each in between if each.waiting_ns and not each.is_main_thread]
    assert idle
    assert all(each.waiting_ns > each.running_ns for each in idle)


def stack_file(folder: Path, process_id: int = 5) -> StackFile:
    file = StackFile(str(folder / f"{process_id}-1-0.stacks"), process_id, 1_000_000)
    file.begin_thread(process_id)
    return file


def python_of(follower: StackFollower) -> tuple[LiveFunctionFigures, ...]:
    found = follower.take()
    assert isinstance(found, tuple)
    return found


def test_each_sample_counts_once_across_blocks_of_the_file(tmp_path: Path) -> None:
    file, follower = stack_file(tmp_path), StackFollower(tmp_path)
    frame = [file.number_of("main (a.py:1)"), file.number_of("work (a.py:9)")]
    total = 0
    for count in (1, 0, 500, 3000, 2):
        for at in range(count):
            file.add_sample(at, 10, frame)
        total += count
        found = python_of(follower)
        assert sum(each.samples for each in found) == count
        assert sum(each.running_ns for each in found) == 10 * count
    assert total * 40 > 2 << 16  # more than one block of the largest size


def test_a_long_file_is_read_in_parts(tmp_path: Path) -> None:
    file, follower = stack_file(tmp_path), StackFollower(tmp_path, most_bytes=1 << 14)
    frame = [file.number_of("work")]
    for at in range(5000):
        file.add_sample(at, 1, frame)
    found, late = 0, []
    while not late or late[-1]:
        found += sum(each.samples for each in python_of(follower))
        late.append(follower.is_late)
    assert found == 5000
    assert late.count(True) > 1


def test_a_record_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    file, follower = stack_file(tmp_path), StackFollower(tmp_path)
    frame = [file.number_of("work")]
    file.add_sample(1, 10, frame)
    assert sum(each.samples for each in python_of(follower)) == 1
    assert file._block is not None
    begin = file._at
    file.add_sample(2, 10, frame)
    last = file._block[file._at - 1]
    file._block[file._at - 1] = last ^ 1
    assert python_of(follower) == ()
    file._block[file._at - 1] = last
    assert sum(each.samples for each in python_of(follower)) == 1
    assert file._at > begin


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"GPUPSTCK", b"x" * 5000])
def test_what_is_no_file_of_samples_has_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1-2-3.stacks").write_bytes(content)
    assert python_of(StackFollower(tmp_path)) == ()
    assert StackFollower(tmp_path / "missing").take() == Unavailable(MissingReason.NOT_RECORDED)


# ---- devices -----------------------------------------------------------------------------------------------


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    played = Stub(tmp_path / "stub")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(played.folder))
    monkeypatch.syspath_prepend(str(played.folder))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(device_samples, "LONGEST_END_S", 60.0)
    monkeypatch.setattr("gpuprof.live.devices.PERIOD_NS", 20_000_000)
    yield played
    played.close()


def test_devices_are_read_without_a_run_by_a_process_that_ends_with_the_view(stub: Stub) -> None:
    # The series of the stub: its last values repeat.
    watch = DeviceWatch()
    folder = watch._folder
    stub.wait_for_reading(4)
    found = watch.take()
    assert isinstance(found, tuple)
    (device,) = found
    assert device.readings >= 4
    assert device.memory_used_bytes == 2000
    assert device.memory_total_bytes == 80_000_000_000
    assert device.energy_j == 2.0
    assert (device.sm_clock_hz, device.memory_clock_hz, device.temperature_c) == (1.5e9, 2.6e9, 41.0)
    assert device.throttle_reasons == ("power cap",)
    readings = device.readings
    assert device.utilization_share == pytest.approx(0.5 * (readings - 1) / readings)
    assert device.power_w == pytest.approx((100 + 200 + 300 * (readings - 2)) / readings)
    stub.wait_for_reading(readings + 1)
    (later,) = watch.take()
    assert (later.utilization_share, later.power_w) == (0.5, 300.0)
    watch.close()
    assert not folder.exists()


def test_metrics_that_are_printed_once_have_the_first_reading(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpuprof.cli.metrics._FIRST_READING_S", 60.0)
    assert execute(["metrics", "--once"]) == 0
    printed = capsys.readouterr().out
    assert 'gpuprof_device_memory_used_bytes{device="0"} ' in printed


def test_without_a_driver_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_samples, "has_driver", lambda: False)
    feed = Feed()
    assert feed.poll().devices == Unavailable(MissingReason.NOT_RECORDED, "no_driver")
    feed.close()


def samples(folder: Path, *records: bytes) -> Path:
    description = {"devices": [{"index": 0, "name": "A"}, {"index": 1, "name": 7}], "period_ns": 1}
    path = folder / "1-2.samples"
    path.write_bytes(layout.pack_head(description) + b"".join(records))
    return path


def test_a_device_that_was_lost_is_marked_and_has_no_readings(tmp_path: Path) -> None:
    lost = layout.pack_record(5, 1, layout.DEVICE_LOST, 15)
    path = samples(tmp_path, layout.pack_record(1, 0, 1, 40.0), layout.pack_record(2, 1, 8, 30.0), lost)
    follower = DeviceFollower(tmp_path)
    first, second = follower.take()
    assert (first.name, first.utilization_share, first.is_lost) == ("A", 0.4, False)
    assert (second.name, second.temperature_c, second.is_lost) == (None, 30.0, True)
    with path.open("ab") as file:
        file.write(layout.pack_record(9, 0, 1, 60.0) + layout.pack_record(9, 0, 1, 80.0)[:10])
    first, second = follower.take()
    assert (first.utilization_share, first.readings) == (0.6, 1)
    assert second.temperature_c == Unavailable(MissingReason.NO_READING)
    assert second.is_lost


def test_noise_among_the_records_is_no_reading(tmp_path: Path) -> None:
    noise = bytes(range(24)) + b"\0" * 24
    samples(tmp_path, noise, layout.pack_record(1, 0, 1, float("nan")), layout.pack_record(1, 9, 1, 5.0))
    assert [each.readings for each in DeviceFollower(tmp_path).take()] == [0, 0]
    (tmp_path / "1-3.samples").write_bytes(layout.pack_head({"off": "no device"}))
    assert len(DeviceFollower(tmp_path).take()) == 2


def test_a_driver_that_does_not_respond_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "1-3.samples").write_bytes(layout.pack_head({"off": "no device"}))
    assert DeviceFollower(tmp_path).take() == Unavailable(MissingReason.NOT_RECORDED, "no device")


def test_the_stub_has_the_series_that_are_expected() -> None:
    assert ONE["nvmlDeviceGetPowerUsage"] == [100_000, 200_000, 300_000]


# ---- GPU work ----------------------------------------------------------------------------------------------


def names_file(path: Path, *names: bytes) -> None:
    heads = (len(name).to_bytes(4, "little") + bytes(4) + name for name in names)
    path.write_bytes(b"GPUPROFN" + b"".join(heads))


def gpu_records(*rows: tuple[int, int, int, int, int]) -> bytes:
    records = np.zeros(len(rows), RECORD)
    for name, values in zip(
        ("kind", "name", "device", "start_ns", "end_ns"), np.transpose(rows), strict=True
    ):
        records[name] = values
    return records.tobytes()


def test_gpu_work_is_summed_up_by_name_as_its_records_come(tmp_path: Path) -> None:
    path = tmp_path / "7-9.gpu"
    path.write_bytes(HEAD.pack(MAGIC, VERSION, RECORD.itemsize, 7, 1, 9))
    follower = KernelFollower(tmp_path)
    assert follower.take() == ()
    names_file(tmp_path / "7-9.names", b"gemm", b"\xff\x1b[2J")
    with path.open("ab", buffering=0) as file:
        file.write(gpu_records((KERNEL, 1, 0, 10, 30), (KERNEL, 1, 0, 30, 40), (KERNEL, 2, 1, 0, 5)))
        file.write(gpu_records((SYNCHRONIZATION, 1, 0, 0, 900), (COPY, 0, 0, 1, 8))[:-100])
        found = follower.take()
        assert [(each.kind, each.name, each.device, each.calls, each.total_ns) for each in found] == [
            ("kernel", "gemm", 0, 2, 30),
            ("kernel", "\\xff\x1b[2J", 1, 1, 5),
        ]
        file.write(gpu_records((COPY, 0, 0, 1, 8))[-100:])
        (copy,) = follower.take()
        assert (copy.kind, copy.name, copy.calls, copy.total_ns) == ("copy", "copy", 1, 7)
        file.write(gpu_records((KERNEL, 3, 0, 0, 1)))
        assert [each.name for each in follower.take()] == ["(lost name)"]
    assert KernelFollower(tmp_path / "none").take() == Unavailable(MissingReason.NOT_RECORDED)


def test_an_interface_that_vanishes_takes_no_traffic_back(tmp_path: Path) -> None:
    def written(**interfaces: int) -> None:
        rows = [f"  {name}: {count} 0 0 0 0 0 0 0 {count} 0" for name, count in interfaces.items()]
        (tmp_path / "net" / "dev").write_text("\n".join(["a", "b", *rows]) + "\n")

    (tmp_path / "net").mkdir()
    (tmp_path / "stat").write_text("cpu 1 1 1 1 1 1 1 1 0 0\n")
    (tmp_path / "meminfo").write_text("MemTotal: 8 kB\nMemAvailable: 4 kB\n")
    written(eth0=1_000, veth1=5_000, lo=9)
    watch = MachineWatch(tmp_path)
    found = []
    for interfaces in ({"eth0": 1_100}, {"eth0": 1_300, "veth1": 50}, {"eth0": 1_300, "veth1": 40}):
        written(**interfaces)
        watch.read()
        figures = watch.figures(10**9)
        found.append((figures.received_bytes_per_s, figures.received_bytes))
    assert found == [(100, 6_100), (250, 6_350), (40, 6_390)]
