# SPDX-License-Identifier: Apache-2.0
"""What fetching a batch consists of: the functions in the sampled stacks of loaders and of their workers.

A worker is a process whose main thread executes PyTorch's `_worker_loop`. It waits there for the numbers of
samples, and fetches them. In the main process, a fetch is in the loader's iterator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuprof.analyze.findings.record import ProgramRecord
    from gpuprof.run.folder import Value

_WORKER = "_worker_loop (torch/utils/data/_utils/worker.py"
_FETCHERS = "(torch/utils/data/_utils/fetch.py"
_DATASETS = "(torch/utils/data/dataset.py"
# Samples of workers: of children of the process, each as far as it is in the steps that figures are of, or in
# the run without steps. A worker that fetches nothing in them is one of another loader.
_WORKERS = """
    WITH own AS (
        SELECT begin_ns, end_ns FROM steps WHERE process_id = {process} AND "index" >= {left_out}
        UNION ALL SELECT 0, {wall} WHERE NOT EXISTS (FROM steps WHERE process_id = {process})),
    sampled AS (
        SELECT process_id, frames, array_to_string(frames, chr(10)) LIKE {fetch} ESCAPE '\\' AS is_fetch,
            least(t_ns, end_ns) - greatest(t_ns - duration_ns, begin_ns) AS time_ns,
            (cpu_ns + coalesce(queued_ns, 0)) / duration_ns AS wanted
        FROM stacks JOIN own ON t_ns > begin_ns AND t_ns - duration_ns < end_ns
        WHERE process_id IN (SELECT unnest({children}::BIGINT[])) AND thread_id = process_id
            AND duration_ns > 0 AND array_to_string(frames, chr(10)) LIKE {worker} ESCAPE '\\'),
    workers AS (FROM sampled WHERE process_id IN (SELECT process_id FROM sampled WHERE is_fetch))
"""
TIME_OF_WORKERS = "".join([_WORKERS, "SELECT sum(time_ns)::BIGINT FROM workers"])
FETCH_TIME_OF_WORKERS = "".join([TIME_OF_WORKERS, " WHERE is_fetch"])
# Stacks with their times, largest first.
_STACKS_OF_WORKERS = """
    SELECT frames, sum(time_ns)::BIGINT AS time_ns, coalesce(sum(time_ns * wanted), -1)::BIGINT AS wanted_ns
    FROM workers GROUP BY frames ORDER BY time_ns DESC, frames
"""
_OF_WORKERS = "".join([_WORKERS, _STACKS_OF_WORKERS])
_OF_MAIN = """
    SELECT frames, sum(duration_ns)::BIGINT AS time_ns,
        coalesce(sum(cpu_ns + coalesce(queued_ns, 0)), -1)::BIGINT AS wanted_ns FROM stacks
    WHERE process_id = {process} AND thread_id = {thread} AND t_ns > {begin} AND t_ns <= {end}
        AND array_to_string(frames, chr(10)) LIKE {pattern} ESCAPE '\\'
    GROUP BY frames ORDER BY time_ns DESC, frames
"""
_WORKER_PATTERN = f"%{_WORKER}%".replace("_", r"\_")
_FETCH_PATTERN = f"%{_FETCHERS}%".replace("_", r"\_")


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
    """Return what the process's workers do in its steps; None if they fetch nothing or were not sampled."""
    stacks = _stacks(record.fetch(_OF_WORKERS, **workers_of(record)))
    return _times(stacks, of_workers=True) if stacks else None


def fetches_in_process(record: ProgramRecord) -> FetchTimes | None:
    """Return what the main process fetches from the first to the last step; None without samples."""
    begin, end = 0, record.wall_ns
    if record.steps is not None:
        begin, end = int(record.steps.begin_ns[0]), int(record.steps.end_ns[-1])
    of: dict[str, Value] = {"process": record.process_id, "thread": record.main_thread}
    stacks = _stacks(record.fetch(_OF_MAIN, **of, pattern=_FETCH_PATTERN, begin=begin, end=end))
    return _times(stacks, of_workers=False) if stacks else None


def workers_of(record: ProgramRecord) -> dict[str, Value]:
    """Return the values of the queries of workers: those of other ranks have another parent."""
    processes = record.folder.meta.get("processes") or ()
    return {
        "process": record.process_id,
        "children": sorted(
            {
                each["process_id"]
                for each in processes
                if each.get("parent_process_id") == record.process_id != each["process_id"]
            }
        ),
        "left_out": 0 if record.steps is None else record.steps.left_out,
        "wall": record.wall_ns,
        "worker": _WORKER_PATTERN,
        "fetch": _FETCH_PATTERN,
    }


def _stacks(columns: Mapping[str, Any]) -> list[_Stack]:
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
