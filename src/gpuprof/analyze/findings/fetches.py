# SPDX-License-Identifier: Apache-2.0
"""What fetching a batch consists of: the functions in the sampled stacks of loaders and of their workers.

A worker is a process whose main thread executes PyTorch's `_worker_loop`. It waits there for the numbers of
samples, and fetches them. In the main process, a fetch is in the loader's iterator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuprof.analyze.findings.record import ProgramRecord

_WORKER = "_worker_loop (torch/utils/data/_utils/worker.py"
_FETCHERS = "(torch/utils/data/_utils/fetch.py"
_DATASETS = "(torch/utils/data/dataset.py"
# Stacks of workers with their times, largest first; in the main process those of fetches.
_OF_WORKERS = """
    SELECT frames, sum(duration_ns)::BIGINT AS time_ns,
        coalesce(sum(cpu_ns + coalesce(queued_ns, 0)), -1)::BIGINT AS wanted_ns FROM stacks
    WHERE process_id <> {process} AND thread_id = process_id AND t_ns > {begin} AND t_ns <= {end}
        AND array_to_string(frames, chr(10)) LIKE {pattern} ESCAPE '\\'
    GROUP BY frames ORDER BY time_ns DESC, frames
"""
_OF_MAIN = """
    SELECT frames, sum(duration_ns)::BIGINT AS time_ns,
        coalesce(sum(cpu_ns + coalesce(queued_ns, 0)), -1)::BIGINT AS wanted_ns FROM stacks
    WHERE process_id = {process} AND thread_id = {thread} AND t_ns > {begin} AND t_ns <= {end}
        AND array_to_string(frames, chr(10)) LIKE {pattern} ESCAPE '\\'
    GROUP BY frames ORDER BY time_ns DESC, frames
"""
TIME_OF_WORKERS = """
    SELECT sum(duration_ns)::BIGINT FROM stacks WHERE process_id <> {process} AND thread_id = process_id
        AND t_ns > {begin} AND t_ns <= {end} AND array_to_string(frames, chr(10)) LIKE {pattern} ESCAPE '\\'
"""
WORKER_PATTERN = f"%{_WORKER}%".replace("_", r"\_")
FETCH_PATTERN = f"%{_FETCHERS}%".replace("_", r"\_")


@dataclass(frozen=True, slots=True)
class FetchTimes:
    """What fetches spend their time on.

    `busy` is the part of the workers' time in which they fetch and do not wait for work, None in the main
    process. `function` is the one with most time directly below a fetch: of the data set, or the one that
    makes a batch; `fraction` is its part of the time of the workers, or of the fetches in the main process.
    `call` is the innermost function in it with most time, None if it is itself. `waiting` is the part of the
    function's time in which it was neither on a processor nor ready to run, None if unknown.
    """

    busy: float | None
    function: str
    fraction: float
    call: str | None
    waiting: float | None


@dataclass(frozen=True, slots=True)
class _Stack:
    inner: tuple[str, ...]  # below the fetch, outermost first; empty if the worker waits for work
    time_ns: int
    wanted_ns: int  # on a processor or ready to run; -1 if unknown


def fetches_of_workers(record: ProgramRecord) -> FetchTimes | None:
    """Return what the workers do from the first to the last step; None if they were not sampled."""
    stacks = _stacks(record, _OF_WORKERS, WORKER_PATTERN)
    return _times(stacks, of_workers=True) if stacks else None


def fetches_in_process(record: ProgramRecord) -> FetchTimes | None:
    """Return what the fetches in the main process do; None without samples of them."""
    stacks = _stacks(record, _OF_MAIN, FETCH_PATTERN)
    return _times(stacks, of_workers=False) if stacks else None


def bounds(record: ProgramRecord) -> dict[str, int]:
    """Return the times in which fetches are looked at: of the steps, or of the run."""
    if record.steps is None:
        return {"begin": 0, "end": record.wall_ns}
    return {"begin": int(record.steps.begin_ns[0]), "end": int(record.steps.end_ns[-1])}


def _stacks(record: ProgramRecord, query: str, pattern: str) -> list[_Stack]:
    columns = record.fetch(
        query, process=record.process_id, thread=record.main_thread, pattern=pattern, **bounds(record)
    )
    rows = zip(columns["frames"], columns["time_ns"].tolist(), columns["wanted_ns"].tolist(), strict=True)
    return [_Stack(_below_fetch(tuple(frames)), time_ns, wanted_ns) for frames, time_ns, wanted_ns in rows]


def _below_fetch(frames: tuple[str, ...]) -> tuple[str, ...]:
    """Return the frames from the first function of a fetch that is not the loader's own.

    A data set of PyTorch that only passes a fetch on, as `Subset`, is one of its own.
    """
    fetches = [place for place, frame in enumerate(frames) if _FETCHERS in frame]
    if not fetches:
        return ()
    first = fetches[-1] + 1
    while first + 1 < len(frames) and _DATASETS in frames[first]:
        first += 1
    return frames[first:] or frames[fetches[-1] :]


def _times(stacks: list[_Stack], *, of_workers: bool) -> FetchTimes | None:
    whole_ns = sum(each.time_ns for each in stacks)
    sums: dict[str, int] = {}
    for each in stacks:
        if each.inner:
            sums[each.inner[0]] = sums.get(each.inner[0], 0) + each.time_ns
    if not sums or not whole_ns:
        return None
    function = max(sums, key=lambda name: (sums[name], name))
    own = [each for each in stacks if each.inner and each.inner[0] == function]
    is_known = all(each.wanted_ns >= 0 for each in own)
    waited_ns = sum(each.time_ns - each.wanted_ns for each in own)
    calls: dict[str, int] = {}
    for each in own:
        calls[each.inner[-1]] = calls.get(each.inner[-1], 0) + each.time_ns
    call = max(calls, key=lambda name: (calls[name], name))
    return FetchTimes(
        busy=sum(sums.values()) / whole_ns if of_workers else None,
        function=function,
        fraction=sums[function] / whole_ns,
        call=None if call == function else call,
        waiting=max(waited_ns, 0) / sums[function] if is_known else None,
    )
