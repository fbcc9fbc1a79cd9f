# SPDX-License-Identifier: Apache-2.0
"""The table `threads`: what each thread did with its time, by the kernel's counts."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import gpuprof
from gpuprof.record import stack_sampler
from gpuprof.run.threads import UNKNOWN, ThreadReadings, UsageCounts

SECOND = 10**9
needs_sampler = pytest.mark.skipif(
    stack_sampler.why_not() is not None, reason="the sampler does not work with this interpreter"
)


def test_counts_of_threads_of_before_are_since_the_start() -> None:
    readings = ThreadReadings(7)
    readings.add(100, 8, -500, UsageCounts(1000, 50, 10, 3), "early")
    readings.add(SECOND, 8, -500, UsageCounts(1300, 150, 12, 3), "renamed")
    readings.add(SECOND, 9, 600, UsageCounts(40, 10, 1, 0), "late")
    early, late = readings.rows()
    assert early == (7, 8, "renamed", 100, SECOND, 300, 100, SECOND - 100 - 400, 2, 0)
    assert late == (7, 9, "late", 600, SECOND, 40, 10, SECOND - 600 - 50, 1, 0)


def test_what_the_kernel_does_not_count_is_unknown() -> None:
    readings = ThreadReadings(7)
    for t_ns in (0, 1000):
        readings.add(t_ns, 8, UNKNOWN, UsageCounts(UNKNOWN, UNKNOWN, 4, UNKNOWN), "")
    readings.add(1000, 9, UNKNOWN, UsageCounts(UNKNOWN, 10, 4, 4), "")
    first, second = readings.rows()
    assert first[5:] == (UNKNOWN, UNKNOWN, UNKNOWN, 0, UNKNOWN)
    assert second[3:] == (1000, 1000, UNKNOWN, 10, UNKNOWN, 4, 4)


def test_an_id_that_is_given_again_is_another_thread() -> None:
    readings = ThreadReadings(7)
    readings.add(0, 8, -5, UsageCounts(10, 0, 0, 0), "one")
    readings.add(1000, 8, 500, UsageCounts(3, 0, 0, 0), "two")
    assert [(row.name, row.cpu_ns) for row in readings.rows()] == [("one", 0), ("two", 3)]


class Watched(threading.Thread):
    """Reads its own counts around its work, and waits for the end of the recording after it."""

    def __init__(self, work_s: float) -> None:
        super().__init__()
        self._work_s = work_s
        self.measured = [0, 0]
        self.worked = threading.Event()
        self.may_end = threading.Event()

    def counts(self) -> list[int]:
        text = Path(f"/proc/self/task/{self.native_id}/schedstat").read_text()
        return [int(each) for each in text.split()[:2]]

    def run(self) -> None:
        end = time.thread_time() + self._work_s
        while time.thread_time() < end:
            pass
        self.measured = self.counts()
        self.worked.set()
        self.may_end.wait()


@needs_sampler
def test_a_thread_that_computes_and_one_that_sleeps(tmp_path: Path) -> None:
    busy, idle = Watched(0.3), Watched(0.0)
    with gpuprof.profile(out=tmp_path / "r", python=True):
        for thread in (busy, idle):
            thread.start()
        for thread in (busy, idle):
            thread.worked.wait()
    run = gpuprof.open(tmp_path / "r")
    for thread in (busy, idle):
        thread.may_end.set()
        thread.join()
    rows = {
        row[0]: row[1:]
        for row in run.sql(
            "SELECT thread_id, begin_ns, end_ns, cpu_ns, queued_ns, waiting_ns, voluntary_switches "
            "FROM threads"
        ).fetchall()
    }
    begin_ns, end_ns, cpu_ns, queued_ns, waiting_ns, switches = rows[busy.native_id]
    assert cpu_ns >= busy.measured[0] >= 0.3 * SECOND
    assert queued_ns >= busy.measured[1]
    # Begin is rounded down to a clock tick.
    assert cpu_ns + queued_ns + waiting_ns == pytest.approx(end_ns - begin_ns, abs=0.02 * SECOND)
    assert 0 <= begin_ns < end_ns <= run.meta["duration_ns"]
    assert rows[idle.native_id][2] < 0.1 * SECOND
    assert rows[idle.native_id][5] >= 1
    assert threading.main_thread().native_id in rows
    assert switches >= 0


@needs_sampler
def test_the_table_is_empty_without_samples(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "r"):
        pass
    assert gpuprof.open(tmp_path / "r").sql("SELECT count(*) FROM threads").fetchall() == [(0,)]
