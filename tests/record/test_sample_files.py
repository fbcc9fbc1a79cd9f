# SPDX-License-Identifier: Apache-2.0
"""Files of device samples: how the sampler paces itself, with a fake clock, and files that are damaged."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import hypothesis.strategies as some
import pytest

import gpuprof
from gpuprof.record import device_sampler as layout
from gpuprof.record.device_sampler import Sampler, pack_head, pack_record
from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.samples import SampledDevices, read_samples

HEAD = pack_head({"devices": [{"index": 0, "name": "Stub"}], "period_ns": 50_000_000})
END = pack_record(10**9, 0, layout.END, 0.0)


def read(segments: Path, *, closed: bool = True) -> tuple[SampledDevices, list[tuple[int, int, int, float]]]:
    """Return what is found in the files of a folder, and the rows."""
    rows: list[tuple[int, int, int, float]] = []

    def take(columns: dict[str, Any]) -> None:
        rows.extend(zip(*(columns[key].tolist() for key in ("t_ns", "device", "code", "value")), strict=True))

    return read_samples(segments, take, closed=closed), rows


def read_content(folder: Path, content: bytes, **options: Any) -> Any:
    (folder / "1-2.samples").write_bytes(content)
    return read(folder, **options)


# --- the sampler ---------------------------------------------------------------------------------


class NvmlError(Exception):
    value = 3


class FakeMachine:
    """A clock that advances only during NVML's calls; pauses are recorded and take no time."""

    def __init__(self, answers_take_ns: list[int]) -> None:
        self.now_ns = 1_000
        self.pauses_ns: list[int] = []
        self._answers_take_ns = answers_take_ns
        self.NVMLError = NvmlError
        self.NVML_CLOCK_SM = self.NVML_CLOCK_MEM = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wait(self, seconds: float) -> bool:
        self.pauses_ns.append(round(seconds * 1e9))
        self.now_ns += self.pauses_ns[-1]
        return not self._answers_take_ns

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        self.now_ns += self._answers_take_ns.pop(0) if self._answers_take_ns else 0
        return 90_000


def sample(path: Path, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "time", SimpleNamespace(monotonic_ns=machine.monotonic_ns))
    sampler = Sampler(str(path / "1-2.samples"), 50, lambda: machine)
    sampler.stopping = SimpleNamespace(wait=machine.wait)
    sampler.run()


def test_readings_keep_their_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine([10, 0, 24])
    sample(tmp_path, machine, monkeypatch)
    assert machine.pauses_ns == [40, 50, 26]
    found, rows = read(tmp_path)
    power = layout.METRICS.index("power_w") + 1
    assert rows == [(t_ns, 0, power, 90.0) for t_ns in (1_000, 1_050, 1_100, 1_150)]
    assert (found.notes, found.damage, found.readings) == ([], [], 4)


def test_slow_readings_take_half_of_the_time_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine([200, 10, 26, 30])
    sample(tmp_path, machine, monkeypatch)
    assert machine.pauses_ns == [200, 40, 26, 30]
    found, _ = read(tmp_path)
    assert [(note.code, note.values) for note in found.notes] == [
        ("slow_readings", {"count": 3, "period_ns": 50})
    ]


def test_a_rare_slow_reading_is_none_to_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample(tmp_path, FakeMachine([10, 10, 900, *[10] * 17]), monkeypatch)
    assert read(tmp_path)[0].notes == []


def test_a_full_disk_ends_the_file_in_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    sizes: list[int] = []

    def write_less(file: int, content: bytes) -> int:
        sizes.append(len(content))
        return write(file, content if len(sizes) < 4 else content[:7])

    monkeypatch.setattr(layout.os, "write", write_less)
    with pytest.raises(OSError, match="full"):
        sample(tmp_path, FakeMachine([1] * 9), monkeypatch)
    found, rows = read(tmp_path)
    assert len(rows) == 2  # after the head
    assert found.damage == [Damage(DamageCode.RECORD_CUT, "1-2.samples")]


def test_the_kernel_that_knows_no_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process_id: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(layout.os, "pidfd_open", refuse, raising=False)
    monkeypatch.setattr(layout, "LIVENESS_PERIOD_MS", 1)
    leash, other_end = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            signal.pause()
        begun = layout._start_time(child)
        assert begun is not None
        os.kill(child, signal.SIGKILL)
        layout.wait_for_end(child, leash)  # a zombie has ended
        os.waitpid(child, 0)
        assert layout._start_time(child) is None
        os.close(other_end)
        layout.wait_for_end(os.getpid(), leash)
    finally:
        os.close(leash)


# --- damaged files -------------------------------------------------------------------------------


def reading(number: int) -> bytes:
    return pack_record(number, 0, 1 + number % len(layout.METRICS), number / 3)


WHOLE = b"".join(reading(number) for number in range(40))


def test_every_cut_keeps_what_is_before_it(tmp_path: Path) -> None:
    content = HEAD + WHOLE + END
    for size in range(len(content) + 1):
        found, rows = read_content(tmp_path, content[:size])
        records, rest = divmod(size - len(HEAD), layout.RECORD.size)
        assert len(rows) == found.readings == min(max(records, 0), 40)
        assert [row[0] for row in rows] == list(range(len(rows)))
        if size < len(HEAD):
            assert found.damage == [Damage(DamageCode.SAMPLES_NO_FILE, "1-2.samples")]
        elif rest:
            assert found.damage == [Damage(DamageCode.RECORD_CUT, "1-2.samples")]
        elif size < len(content):
            assert found.damage == [Damage(DamageCode.SAMPLES_END_EARLY, "1-2.samples")]
        else:
            assert found.damage == []


def test_a_program_that_was_killed_need_not_have_an_end(tmp_path: Path) -> None:
    found, rows = read_content(tmp_path, HEAD + WHOLE, closed=False)
    assert (found.damage, len(rows)) == ([], 40)


def test_every_changed_byte_of_a_record_is_noticed(tmp_path: Path) -> None:
    content = HEAD + reading(1) + reading(2) + reading(3) + END
    start = len(HEAD) + layout.RECORD.size
    for place in range(start, start + layout.RECORD.size):
        changed = bytearray(content)
        changed[place] ^= 0x5A
        found, rows = read_content(tmp_path, bytes(changed))
        assert [row[0] for row in rows] == [1, 3]
        assert found.damage == [Damage(DamageCode.RECORDS, "1-2.samples", 1)]


@pytest.mark.parametrize(
    "record",
    [
        bytes(24),
        b"\xff" * 24,
        pack_record(1, 0, 0, 1.0),
        pack_record(1, 1, 1, 1.0),  # there is no such device
        pack_record(1, 9, layout.DEVICE_LOST, 1.0),
        pack_record(1, 0, 99, 1.0),
        pack_record(-1, 0, 1, 1.0),
        pack_record(2**62, 0, 1, 1.0),
        pack_record(1, 0, 1, float("nan")),
        pack_record(1, 0, 1, float("inf")),
    ],
)
def test_records_that_make_no_sense_are_left_out(tmp_path: Path, record: bytes) -> None:
    found, rows = read_content(tmp_path, HEAD + reading(5) + record + reading(6) + END)
    assert [row[0] for row in rows] == [5, 6]
    assert found.damage == [Damage(DamageCode.RECORDS, "1-2.samples", 1)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GPUPSMPL",
        layout.HEAD.pack(b"GPUPSMPX", 1, 2) + b"{}",
        layout.HEAD.pack(layout.MAGIC, 2, 2) + b"{}",
        layout.HEAD.pack(layout.MAGIC, 1, 2**32 - 1) + b"{}",
        layout.HEAD.pack(layout.MAGIC, 1, 2) + b"[]",
        layout.HEAD.pack(layout.MAGIC, 1, 2) + b"\xff{",
        layout.HEAD.pack(layout.MAGIC, 1, 90_000) + b"[" * 90_000,
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes) -> None:
    found, rows = read_content(tmp_path, content + WHOLE)
    assert (rows, found.damage) == ([], [Damage(DamageCode.SAMPLES_NO_FILE, "1-2.samples")])


@pytest.mark.parametrize(
    "devices", [None, 7, [], [1, None], [{"index": "0", "memory_bytes": True, "power_limit_w": "x"}]]
)
def test_descriptions_that_are_odd(tmp_path: Path, devices: Any) -> None:
    found, _ = read_content(tmp_path, pack_head({"devices": devices, "period_ns": []}) + WHOLE + END)
    assert all(value is None for device in found.devices for value in device.values())


def test_batches_join_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuprof.run.samples.BATCH_RECORDS", 7)
    found, rows = read_content(tmp_path, HEAD + WHOLE + END)
    assert [row[0] for row in rows] == list(range(40))
    assert found.damage == []


@hypothesis.given(some.binary(max_size=200), some.integers(0, 2**32))
def test_noise_is_never_an_error(tmp_path_factory: pytest.TempPathFactory, noise: bytes, seed: int) -> None:
    folder = tmp_path_factory.mktemp("noise")
    content = bytearray(HEAD + WHOLE + END)
    place = random.Random(seed).randrange(len(content))
    content[place : place + len(noise)] = noise
    for damaged in (noise, HEAD + noise, bytes(content)):
        found, rows = read_content(folder, damaged)
        assert found.readings == len(rows)
        assert all(0 <= row[0] < 2**61 and 1 <= row[2] <= len(layout.METRICS) for row in rows)


def test_a_run_with_damaged_samples_opens_and_reports_them(tmp_path: Path, run_python: Any) -> None:
    done = run_python(
        "-c",
        "import gpuprof, os, signal\n"
        "gpuprof.profile(out='r.gpuprof', layers=False, operators=False).__enter__()\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
    )
    assert done.returncode == -signal.SIGKILL
    path = tmp_path / "r.gpuprof"
    (path / "segments" / "1-1.samples").write_bytes(HEAD + WHOLE[:100])
    (path / "segments" / "2-1.samples").write_bytes(b"noise")
    run = gpuprof.open(path)
    assert [(each.code, each.file) for each in run.damage] == [
        ("record_cut", "1-1.samples"),
        ("samples_no_file", "2-1.samples"),
    ]
    assert run.sql("SELECT count(*), min(metric) FROM samples").fetchall() == [(4, "memory_used_bytes")]
    assert [device["name"] for device in run.meta["devices"]] == ["Stub"]
