# SPDX-License-Identifier: Apache-2.0
"""The runs of a folder that grows and shrinks while it is watched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from live_snapshots import snapshot
from refusals import refused

from gpuprof.errors import RunError
from gpuprof.live.snapshot import Snapshot
from gpuprof.live.watched_feeds import LINGER_S, MACHINE, MOST_RUNS, MOST_TRIES, WatchedFeeds


@dataclass
class FakeFeed:
    """A feed whose run ends and fails when the test wants it."""

    path: Path
    is_over: bool = False
    fails: bool = False
    interval_s: float = 1.0
    is_closed: bool = False

    def poll(self) -> Snapshot:
        if self.fails:
            raise ValueError("damaged")
        return snapshot(run=str(self.path), interval_s=self.interval_s)

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Folder:
    """A folder of runs, and the feeds that were opened of them."""

    path: Path
    opened: list[FakeFeed] = field(default_factory=list)

    def add(self, name: str, *, is_whole: bool = True) -> Path:
        run = self.path / name
        (run / "segments").mkdir(parents=True)
        if is_whole:
            (run / "recording.json").write_text("{}")
        return run

    def open(self, run: Path) -> FakeFeed:
        if run.name.startswith("damaged"):
            raise RunError("not_a_run", str(run))
        self.opened.append(FakeFeed(run))
        return self.opened[-1]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def feeds(folder: Folder) -> Callable[[], WatchedFeeds]:
    return lambda: WatchedFeeds(str(folder.path), open_run=folder.open)


def names(watched: WatchedFeeds) -> list[str]:
    return [name for name, _ in watched.poll()]


def test_runs_are_found_as_they_appear_and_an_empty_folder_has_the_machine(folder, feeds) -> None:
    watched = feeds()
    assert watched.is_folder
    assert not watched.is_over
    assert names(watched) == [MACHINE]
    folder.add("a.gpuprof")
    folder.add("draft.gpuprof", is_whole=False)
    folder.add("damaged.gpuprof")
    (folder.path / "file.gpuprof").write_text("")
    (folder.path / "link.gpuprof").symlink_to(folder.path / "a.gpuprof")
    assert names(watched) == [MACHINE, "a.gpuprof"]
    folder.add("b.gpuprof")
    assert names(watched) == [MACHINE, "a.gpuprof", "b.gpuprof"]
    assert [each.path.name for each in folder.opened] == ["a.gpuprof", "b.gpuprof"]
    watched.close()
    assert all(each.is_closed for each in folder.opened)


def test_a_run_that_ended_is_left_after_a_while_and_not_opened_again(folder, feeds) -> None:
    folder.add("a.gpuprof")
    watched = feeds()
    names(watched)
    (feed,) = folder.opened
    feed.is_over, feed.interval_s = True, LINGER_S / 2
    for ended in ([], [], ["a.gpuprof"]):
        assert names(watched) == [MACHINE, "a.gpuprof"]
        assert watched.ended == ended
    assert feed.is_closed
    assert names(watched) == [MACHINE]
    assert len(folder.opened) == 1


def test_a_later_run_of_the_same_name_is_another_one(folder, feeds) -> None:
    run = folder.add("a.gpuprof")
    watched = feeds()
    names(watched)
    shutil.move(run, folder.path / "kept")  # so that its inodes are not used again
    folder.add("a.gpuprof")
    found = [(names(watched), watched.ended) for _ in range(2)]
    assert sum("a.gpuprof" in ended for _, ended in found) == 1
    assert "a.gpuprof" in found[-1][0]
    assert folder.opened[0].is_closed
    assert not folder.opened[-1].is_closed


def test_a_run_that_is_damaged_while_it_is_read_ends_and_the_others_continue(folder, feeds) -> None:
    folder.add("a.gpuprof")
    folder.add("b.gpuprof")
    watched = feeds()
    names(watched)
    next(each for each in folder.opened if each.path.name == "a.gpuprof").fails = True
    assert names(watched) == [MACHINE, "b.gpuprof"]
    assert watched.ended == ["a.gpuprof"]


def test_the_number_of_runs_is_limited(folder, feeds) -> None:
    for number in range(MOST_RUNS + 5):
        folder.add(f"{number:03}.gpuprof")
    assert len(names(feeds())) == MOST_RUNS + 1


def test_a_folder_that_was_removed_has_no_runs(folder, feeds) -> None:
    watched = feeds()
    shutil.rmtree(folder.path)
    assert names(watched) == [MACHINE]
    with refused(RunError, "no_such_run"):
        WatchedFeeds(str(folder.path))


def test_a_run_that_cannot_be_read_yet_is_tried_again_some_times(folder, feeds) -> None:
    tries = []
    folder.add("a.gpuprof")

    def opened(run: Path) -> FakeFeed:
        tries.append(run)
        if len(tries) < 3:
            raise RunError("not_a_run", str(run))
        return FakeFeed(run)

    watched = WatchedFeeds(str(folder.path), open_run=opened)
    assert [names(watched) for _ in range(4)] == [[MACHINE]] * 2 + [[MACHINE, "a.gpuprof"]] * 2
    assert len(tries) == 3
    folder.add("damaged.gpuprof")
    refusing = feeds()
    for _ in range(MOST_TRIES + 3):
        names(refusing)
    assert sum(refusing._tries.values()) == 2 * MOST_TRIES
