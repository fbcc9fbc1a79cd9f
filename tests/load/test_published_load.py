# SPDX-License-Identifier: Apache-2.0
"""What a load test publishes while it runs, against its rows."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from gpuprof.live.requests import RequestFollower
from gpuprof.live.snapshot import LiveRequestFigures, MissingReason, Unavailable
from gpuprof.load.published import (
    LIVE_FILE,
    LoadPublisher,
    PublishedFile,
    PublishedLoad,
    bucket_bound_ns,
    parse_published,
    publishing,
)
from gpuprof.load.requests import REQUEST, RequestStatus, Rows

LARGEST_ERROR = 2 ** (1 / 16) - 1


def rows_of(count: int, seed: int = 0) -> Rows:
    """An open loop: requests a millisecond apart, of which each sixth fails and some are slow."""
    random = np.random.default_rng(seed)
    rows = np.zeros(count, REQUEST)
    rows["planned_ns"] = 10**9 + np.arange(count) * 10**6
    rows["sent_ns"] = rows["planned_ns"] + random.integers(0, 10**5, count)
    rows["end_ns"] = rows["sent_ns"] + random.lognormal(14, 1.5, count).astype(np.int64)
    rows["status"] = np.where(np.arange(count) % 6 == 5, int(RequestStatus.FAILED), int(RequestStatus.OK))
    return rows


def until(rows: Rows, now_ns: int) -> Rows:
    """The rows as they were at an instant."""
    seen = rows.copy()
    seen["end_ns"][rows["end_ns"] > now_ns] = 0
    seen["status"][rows["end_ns"] > now_ns] = int(RequestStatus.PENDING)
    seen["sent_ns"][rows["sent_ns"] > now_ns] = 0
    return seen


class Clock:
    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def published(folder: Path) -> PublishedLoad:
    found = PublishedFile(folder / LIVE_FILE).read()
    assert found is not None
    return found


def test_the_sums_are_those_of_the_rows_at_each_instant(tmp_path: Path) -> None:
    rows, clock = rows_of(3000), Clock()
    publisher = LoadPublisher(tmp_path, "model.py:build", "server", has_plan=True, clock=clock)
    for now_ns in (5 * 10**8, 10**9 + 1, 17 * 10**8, 25 * 10**8, 6 * 10**9, 10**11):
        clock.now_ns = now_ns
        seen = until(rows, now_ns)
        publisher.update(seen)
        found = published(tmp_path)
        ended = seen[seen["end_ns"] > 0]
        ok = ended[ended["status"] == int(RequestStatus.OK)]
        assert (found.planned, found.t_ns) == (3000, now_ns)
        assert found.due == (seen["planned_ns"] <= now_ns).sum()
        assert found.sent == (seen["sent_ns"] > 0).sum()
        assert found.in_service == ((seen["sent_ns"] > 0) & (seen["end_ns"] == 0)).sum()
        assert (found.ended, found.failed) == (len(ended), len(ended) - len(ok))
        assert found.latency_sum_ns == (ok["end_ns"] - ok["planned_ns"]).sum()
        assert sum(count for _, count in found.buckets) == len(ok)


def test_a_closed_loop_has_no_plan_and_counts_what_was_sent(tmp_path: Path) -> None:
    rows = np.zeros(1000, REQUEST)
    rows["planned_ns"][:10] = rows["sent_ns"][:10] = 5
    rows["end_ns"][:8], rows["status"][:8] = 9, int(RequestStatus.OK)
    publisher = LoadPublisher(tmp_path, "m", "closed-loop", has_plan=False, clock=lambda: 20)
    publisher.update(rows)
    found = published(tmp_path)
    assert (found.planned, found.due, found.sent, found.in_service, found.ended) == (None, 10, 10, 2, 8)


def test_quantiles_of_an_interval_are_bounds_of_its_requests(tmp_path: Path) -> None:
    rows, clock = rows_of(4000), Clock()
    publisher = LoadPublisher(tmp_path, "m", "server", has_plan=True, clock=clock)
    clock.now_ns = 2 * 10**9
    publisher.update(until(rows, clock.now_ns))
    follower = RequestFollower(tmp_path / LIVE_FILE)
    before = until(rows, clock.now_ns)
    clock.now_ns = 4 * 10**9
    publisher.update(until(rows, clock.now_ns))
    found = follower.take()
    assert isinstance(found, LiveRequestFigures)
    now = until(rows, clock.now_ns)
    fresh = now[(now["end_ns"] > 0) & (before["end_ns"] == 0)]
    ok = fresh[fresh["status"] == int(RequestStatus.OK)]
    latencies = np.sort(ok["end_ns"] - ok["planned_ns"])
    for share, bound_ns in ((0.5, found.p50_ns), (0.9, found.p90_ns), (0.99, found.p99_ns)):
        value = np.quantile(latencies, share, method="inverted_cdf")
        assert value <= bound_ns <= value * (1 + LARGEST_ERROR) + 1
    assert found.ended_per_s == len(fresh) / 2
    assert found.arrivals_per_s == 1000
    assert found.queued == (now["planned_ns"] <= clock.now_ns).sum() - (now["sent_ns"] > 0).sum()
    again = follower.take()
    assert isinstance(again, LiveRequestFigures)
    assert again.p50_ns == again.ended_per_s == Unavailable(MissingReason.NOT_UPDATED)


def test_bounds_of_buckets_rise_by_less_than_five_percent() -> None:
    bounds = [bucket_bound_ns(at) for at in range(320, 720)]  # from 1 ms to 9 hours
    assert all(1 < later / former < 1.05 for former, later in itertools.pairwise(bounds))


def test_half_of_a_content_is_none(tmp_path: Path) -> None:
    publisher = LoadPublisher(tmp_path, "m", "server", has_plan=True, clock=lambda: 10**10)
    publisher.update(rows_of(100))
    content = (tmp_path / LIVE_FILE).read_bytes()
    whole = parse_published(content)
    assert whole is not None
    assert whole.ended == 100
    torn = bytearray(content)
    torn[40] ^= 1
    for damaged in (b"", content[:10], content[:60], bytes(torn), bytes(len(content))):
        assert parse_published(damaged) is None


def test_the_file_is_removed_at_the_end_and_who_has_it_open_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with publishing(folder, "m" * 1000, "server", has_plan=True) as publisher:
        publisher.update(rows_of(10))
        follower = RequestFollower(folder / LIVE_FILE)
    assert not folder.exists()
    found = follower.take()
    assert isinstance(found, LiveRequestFigures)
    assert (found.is_over, follower.is_over, len(found.target)) == (True, True, 200)


def test_a_folder_that_cannot_be_made_publishes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with publishing(tmp_path / "file" / "out", "m", "server", has_plan=True) as publisher:
        publisher.update(rows_of(10))
        publisher.update(rows_of(10))
    assert (tmp_path / "file").read_text() == ""


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / LIVE_FILE).symlink_to(other)
    with publishing(tmp_path, "m", "server", has_plan=True) as publisher:
        publisher.update(rows_of(10))
    assert other.read_text() == "kept"


@pytest.mark.parametrize("count", [1, 7])
def test_a_load_test_without_requests_publishes_zeros(tmp_path: Path, count: int) -> None:
    publisher = LoadPublisher(tmp_path, "m", "server", has_plan=True, clock=lambda: 1)
    publisher.update(rows_of(count))
    found = published(tmp_path)
    assert (found.due, found.ended, found.buckets) == (0, 0, [])


def test_a_fifo_and_a_link_in_the_place_of_the_file_are_not_waited_for(tmp_path: Path) -> None:
    fifo, link = tmp_path / "a" / LIVE_FILE, tmp_path / "b" / LIVE_FILE
    for each in (fifo, link):
        each.parent.mkdir()
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    with pytest.raises(OSError, match=LIVE_FILE):
        PublishedFile(link)
    with contextlib.suppress(OSError):
        assert PublishedFile(fifo).read() is None
