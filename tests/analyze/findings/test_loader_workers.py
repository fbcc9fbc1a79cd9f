# SPDX-License-Identifier: Apache-2.0
"""The finding of a slow loader names what a fetch spends its time on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_edits import change_meta
from simulated_program import PROCESS
from simulated_training import MAIN, MS, WORKERS, Planted, TrainingHost, settings, train

import gpuprof
from gpuprof.analyze.findings.finding import Finding, Rule
from gpuprof.analyze.findings.text import repair, title
from gpuprof.analyze.phases import WAIT_FOR_WORKERS

LOOP = "_worker_loop (torch/utils/data/_utils/worker.py:244)"
FETCH = "_MapDatasetFetcher.fetch (torch/utils/data/_utils/fetch.py:49)"
SUBSET = "Subset.__getitems__ (torch/utils/data/dataset.py:412)"
ITEM = "Images.__getitem__ (data.py:5)"
COLLATE = "joined (data.py:40)"
TAKE = "_MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1308)"
IDLE = ("Queue.get (python3.11/multiprocessing/queues.py:98)", "self._selector.poll (built-in)")
PLACES = {"iterated": "main (train.py:9)", "iterated_line": 12, "item": ITEM, "collate": COLLATE}


def waiting_host(inner: tuple[str, ...], **loader: Any) -> TrainingHost:
    """Return a loop that waits 20 of 30 ms in functions called to take a batch."""
    host = TrainingHost(settings=settings(**loader))
    for _ in range(12):
        with host.step():
            with host.span(WORKERS), host.function(TAKE, *inner):
                host.sleep(20 * MS)
            with host.span("model", "layer"):
                host.work(10 * MS)
    return host


def found_with(
    folder: Path,
    stacks: list[tuple[tuple[str, ...], bool]],
    others: list[dict[str, Any]] | None = None,
    parents: dict[int, int] | None = None,
    **loader: Any,
) -> Finding:
    """Record a loop that waits 20 of 30 ms for a worker: its stacks in turn, and whether it waits in them.

    `others` are samples of other processes, with `parents` by process.
    """
    given = {"workers": 1, **PLACES, **loader}
    host = waiting_host(IDLE, **given)
    for place, t_ns in enumerate(range(MS, host.now_ns + 1, MS)):
        if stacks:
            frames, waits = stacks[place % len(stacks)]
            host.samples.append(_sample(t_ns, frames, waits=waits))
    host.samples += others or []
    path = host.write(folder / "r.gpuprof")
    meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    added = {PROCESS + 1: PROCESS, **(parents or {})}
    main = meta["processes"][0]
    children = [{**main, "process_id": each, "parent_process_id": parent} for each, parent in added.items()]
    change_meta(path, processes=[*meta["processes"], *children])
    run = gpuprof.open(path)
    (finding,) = run.findings()
    phases = run.phases()
    assert phases is not None
    assert phases.steps is not None
    assert phases.steps.waits == {WAIT_FOR_WORKERS: pytest.approx(2 / 3)}
    assert finding.rule is Rule.LOADER
    return finding


def _sample(
    t_ns: int, frames: tuple[str, ...], *, waits: bool, process: int = PROCESS + 1, duration_ns: int = MS
) -> dict[str, Any]:
    return {
        "t_ns": t_ns,
        "process_id": process,
        "thread_id": process,
        "duration_ns": duration_ns,
        "frames": [*MAIN, LOOP, *frames],
        "cpu_ns": 0 if waits else duration_ns,
        "queued_ns": 0,
        "line": 7,
    }


def test_the_function_and_the_call_with_most_time_in_it(tmp_path: Path) -> None:
    read = ((FETCH, SUBSET, ITEM, "self._file.read (built-in)"), True)
    computed = ((FETCH, SUBSET, ITEM, "decoded (data.py:20)"), False)
    joined = ((FETCH, COLLATE), False)
    finding = found_with(tmp_path, [read, read, computed, joined])
    values = finding.values
    assert (values["fetch_function"], values["fetch_call"]) == (ITEM, "self._file.read (built-in)")
    assert values["fetch_fraction"] == pytest.approx(0.75)
    assert values["fetch_waiting"] == pytest.approx(2 / 3)
    assert (values["busy"], values["suggested"]) == (1.0, 4)
    assert (finding.places.function, finding.places.line) == ("main (train.py:9)", 12)
    assert ITEM in title(finding)
    assert "self._file.read" in repair(finding)
    figures = {each.code: each.value for each in finding.evidence}
    assert figures["workers_fetch_time"] == figures["workers_time"] == 12 * 30 * MS


def test_a_collate_function_that_takes_most_of_the_time(tmp_path: Path) -> None:
    finding = found_with(
        tmp_path, [((FETCH, ITEM), False), ((FETCH, COLLATE), False), ((FETCH, COLLATE), False)]
    )
    assert (finding.values["fetch_function"], finding.values["fetch_call"]) == (COLLATE, None)
    assert COLLATE in title(finding)


def test_workers_that_wait_for_work_are_not_to_blame(tmp_path: Path) -> None:
    finding = found_with(tmp_path, [(IDLE, True), (IDLE, True), (IDLE, True), ((FETCH, ITEM), False)])
    assert finding.values["busy"] == pytest.approx(0.25)
    assert finding.values["suggested"] is None
    assert ITEM not in title(finding)
    assert "75.0%" in title(finding)


@pytest.mark.parametrize("unpacks", [True, False])
def test_waits_while_a_batch_is_unpacked_are_not_for_a_batch(unpacks: bool, tmp_path: Path) -> None:
    rebuilt = "rebuild_storage_fd (torch/multiprocessing/reductions.py:537)"
    inner = (IDLE[0], rebuilt, "recvfds (python3.11/multiprocessing/reduction.py:153)") if unpacks else IDLE
    host = waiting_host(inner, workers=1, **PLACES)
    found = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    assert (Rule.LOADER in {each.rule for each in found}) is not unpacks


@pytest.mark.parametrize("is_set", [True, False])
def test_persistent_workers_are_no_fix_where_they_are_set(is_set: bool, tmp_path: Path) -> None:
    stacks = [(IDLE, True), (IDLE, True), (IDLE, True), ((FETCH, ITEM), False)]
    finding = found_with(tmp_path, stacks, persistent_workers=is_set)
    assert ("persistent_workers" in repair(finding)) is not is_set
    assert "prefetch_factor" in repair(finding)


def test_idle_workers_of_other_loaders_do_not_count(tmp_path: Path) -> None:
    # Two of a loader for the validation, which wait in all steps.
    idle = [
        _sample(t_ns, IDLE, waits=True, process=PROCESS + 1 + number)
        for number in (1, 2)
        for t_ns in range(MS, 360 * MS + 1, MS)
    ]
    finding = found_with(
        tmp_path, [((FETCH, ITEM), False)], idle, {PROCESS + 2: PROCESS, PROCESS + 3: PROCESS}
    )
    assert (finding.values["busy"], finding.values["suggested"]) == (1.0, 4)
    assert ITEM in title(finding)
    figures = {each.code: each.value for each in finding.evidence}
    assert figures["workers_fetch_time"] == figures["workers_time"] == 360 * MS


def test_workers_of_another_process_do_not_count(tmp_path: Path) -> None:
    other = (FETCH, "Tokens.__getitem__ (tokens.py:1)")
    # Half of the time of each is without work.
    samples = [
        _sample(t_ns, frames, waits=False, process=PROCESS + 12)
        for t_ns in range(MS, 360 * MS + 1, MS)
        for frames in (other, IDLE)
    ]
    parents = {PROCESS + 11: 1, PROCESS + 12: PROCESS + 11}
    finding = found_with(tmp_path, [((FETCH, ITEM), False)], samples, parents)
    assert (finding.values["busy"], finding.values["fetch_function"]) == (1.0, ITEM)


def test_only_the_part_of_a_sample_in_the_steps_counts(tmp_path: Path) -> None:
    # From before the first step to the first ms of it.
    waited = [_sample(MS, IDLE, waits=True, duration_ns=1_000 * MS)]
    finding = found_with(tmp_path, [((FETCH, ITEM), False)], waited)
    assert finding.values["busy"] == pytest.approx(360 / 361)


def test_workers_that_fetch_nothing_in_the_steps_are_unknown(tmp_path: Path) -> None:
    finding = found_with(tmp_path, [(IDLE, True)])
    assert (finding.values["busy"], finding.values["fetch_function"]) == (None, None)


def test_time_in_which_the_main_thread_unpacks_batches_is_not_that_of_workers(tmp_path: Path) -> None:
    host = TrainingHost(settings=settings(workers=1))
    for _ in range(12):
        with host.step():
            with host.span(WORKERS):
                with host.function(TAKE, *IDLE):
                    host.sleep(5 * MS)
                host.work(15 * MS)
            with host.span("model", "layer"):
                host.work(10 * MS)
    (finding,) = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    assert finding.rule is Rule.LOADER
    assert finding.gain.step is not None
    assert finding.gain.step.high_ns == pytest.approx(5 * MS)
    assert finding.cost_step_ns == 20 * MS


def test_a_worker_that_was_not_recorded_has_the_functions_of_the_loader(tmp_path: Path) -> None:
    finding = found_with(tmp_path, [])
    assert (finding.values["busy"], finding.values["fetch_function"]) == (None, None)
    assert ITEM not in title(finding)
    assert ITEM in repair(finding)
    assert COLLATE in repair(finding)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("is_sampled", [True, False])
def test_a_name_adds_no_line_to_the_fix(workers: int, is_sampled: bool, tmp_path: Path) -> None:
    def hostile(name: str) -> str:
        return f"{name}\nrm -rf / ({name}\r.py:1)"

    sampled = [((FETCH, hostile("item"), hostile("call")), True)] if is_sampled else []
    named = {name: hostile(name) for name in ("dataset", "item", "collate")}
    finding = found_with(tmp_path, sampled, workers=workers, **named)
    assert finding.values["item"] == named["item"]
    lines = repair(finding).splitlines()
    assert not any(line.startswith("rm") for line in lines)
    assert len(lines) == (1 if (workers, is_sampled) == (4, False) else 2)
    assert r"item\nrm" in repair(finding)


@pytest.mark.parametrize(("waits", "suggested"), [(True, 8), (False, None)])
def test_only_workers_that_wait_can_be_more_than_the_processors(
    waits: bool, suggested: int | None, tmp_path: Path
) -> None:
    finding = found_with(tmp_path, [((FETCH, ITEM), waits)], workers=4)
    assert finding.values["suggested"] == suggested


def test_a_fetch_in_the_main_process_names_its_function(tmp_path: Path) -> None:
    host = TrainingHost(settings=settings(**PLACES))
    train(host, Planted(load=20, load_sleeps=True))
    item = "Samples.__getitem__ (data.py:5)"
    for sample in host.samples:
        place = sample["frames"].index(item) if item in sample["frames"] else None
        if place is not None:
            sample["frames"].insert(place, FETCH)
    (finding,) = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    values = finding.values
    assert (values["fetch_function"], values["fetch_call"]) == (item, "time.sleep (built-in)")
    assert (values["fetch_fraction"], values["fetch_waiting"], values["busy"]) == (1.0, 1.0, None)
    assert item in title(finding)
