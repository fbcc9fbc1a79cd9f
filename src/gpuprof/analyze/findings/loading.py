# SPDX-License-Identifier: Apache-2.0
"""Rule: the main process waits for batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.findings.fetches import (
    FETCH_TIME_OF_WORKERS,
    TIME_OF_WORKERS,
    fetches_in_process,
    fetches_of_workers,
    workers_of,
)
from gpuprof.analyze.findings.finding import Draft, GainKind, Missing, Places, Rule, TimeRange
from gpuprof.analyze.whatif.prediction import replay_changes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuprof.analyze.findings.fetches import FetchTimes
    from gpuprof.analyze.findings.finding import EvidenceFigure
    from gpuprof.analyze.findings.record import NamedSpans, ProgramRecord
    from gpuprof.analyze.whatif.intervals import Intervals
    from gpuprof.run.folder import Value

_IN_PROCESS = "enumerate(DataLoader)#\\_SingleProcessDataLoaderIter%"
_BY_WORKERS = "enumerate(DataLoader)#\\_MultiProcessingDataLoaderIter%"
_TIME = """
    SELECT sum(duration_ns)::BIGINT FROM spans
    WHERE process_id = {process} AND thread_id = {thread} AND name LIKE {pattern} ESCAPE '\\'
"""
_FETCHES = """
    SELECT count(*) FROM spans
    WHERE process_id = {process} AND thread_id = {thread} AND name LIKE {pattern} ESCAPE '\\'
"""
_PROCESSOR_SHARE = """
    SELECT sum(cpu_ns) / sum(duration_ns) FROM stacks ASOF JOIN (
        SELECT start_ns, start_ns + duration_ns AS end_ns FROM spans
        WHERE process_id = {process} AND thread_id = {thread} AND name LIKE {pattern} ESCAPE '\\') AS fetches
        ON stacks.t_ns > fetches.start_ns
    WHERE process_id = {process} AND thread_id = {thread} AND cpu_ns IS NOT NULL AND t_ns <= end_ns
"""
# Frames below which the main process unpacks a batch. It waits there, too, for a worker's file descriptors.
_UNPACKING = ("_ForkingPickler.loads (built-in)", "(torch/multiprocessing/reductions.py")
# Workers are worth it up to a gain so near to that of the best number.
_NEARLY_ALL = 0.95
_MOSTLY = 0.5
_WAITING_WORKERS = 4  # for each processor


def loader(record: ProgramRecord) -> list[Draft] | Missing:
    """Find a data loader that the main process waits for."""
    if not record.is_on("operators"):
        return Missing.OPERATORS
    found = []
    for pattern, draft_of in ((_IN_PROCESS, _in_process), (_BY_WORKERS, _by_workers)):
        spans = record.spans(pattern, "span").on_thread(record.main_thread)
        if len(spans):
            found.append(draft_of(record, spans))
    return found


def _in_process(record: ProgramRecord, spans: NamedSpans) -> Draft:
    """Replay with workers, as few as gain nearly as much as the best number that the machine can use."""
    cpu_share = record.process.fetches.cpu_share
    waits = cpu_share is not None and cpu_share < _MOSTLY
    tried = []
    for workers in _numbers(record.processors * (_WAITING_WORKERS if waits else 1)):
        replayed = replay_changes(record.process, [], workers)
        if replayed.low_ns is None or replayed.high_ns is None:
            break
        tried.append((workers, replayed.low_ns, replayed.high_ns, replayed.explained))
    fetches = fetches_in_process(record)
    values = _values(record, fetches, is_in_process=True)
    evidence = _evidence(record, _IN_PROCESS, fetches)
    places = _places(values, spans)
    best = max((low for _, low, _, _ in tried), default=0)
    if best <= 0:
        # No replay, or the workers would share the processors: only cheaper fetches gain. How many processors
        # the machine of a trace has is unknown.
        is_full = bool(tried) and not record.is_trace
        values["suggested"] = None if is_full else _numbers(record.processors)[0]
        bound = TimeRange(0.0, spans.covered.total_ns)
        return Draft(Rule.LOADER, values, spans.covered, GainKind.BOUND, bound, evidence, places)
    workers, low, high, explained = next(each for each in tried if each[1] >= _NEARLY_ALL * best)
    values["suggested"] = workers
    gain = TimeRange(low, high)
    return Draft(Rule.LOADER, values, spans.covered, GainKind.REPLAYED, gain, evidence, places, explained)


def _by_workers(record: ProgramRecord, spans: NamedSpans) -> Draft:
    """Bound the gain of more workers: the wait, as far as as many workers as processors can remove it.

    Workers that are the bottleneck are busy all the time. With n of them in place of w, a step takes at least
    w/n of its time.
    """
    fetches = fetches_of_workers(record)
    values = _values(record, fetches, is_in_process=False)
    high = spans.covered.total_ns * _waiting_part(record, spans.covered)
    values["suggested"] = suggested = _more_workers(values)
    if suggested is not None and record.steps is not None:
        within = record.steps.end_ns[-1] - record.steps.begin_ns[0]
        high = min(high, float(within) * (1 - values["workers"] / suggested))
    return Draft(
        Rule.LOADER,
        values,
        spans.covered,
        GainKind.BOUND,
        TimeRange(0.0, high),
        _evidence(record, _BY_WORKERS, fetches),
        _places(values, spans),
    )


def _waiting_part(record: ProgramRecord, time: Intervals) -> float:
    """Return the part of the time in the loader in which the main thread waits; 1 if unknown.

    The rest, in which it unpacks batches or has no processor, is not that of workers.
    """
    stacks = record.stacks
    if stacks is None:
        return 1.0
    inside = stacks.is_inside(time) & (stacks.cpu_ns >= 0)
    unpacks = np.array([any(map(_is_unpacking, frames)) for frames in stacks.frames], dtype=bool)
    length = stacks.end_ns - stacks.begin_ns
    waited = length - stacks.cpu_ns - stacks.queued_ns
    all_ns = int(length[inside].sum())
    return max(int(waited[inside & ~unpacks[stacks.stack]].sum()) / all_ns, 0.0) if all_ns else 1.0


def _is_unpacking(frame: str) -> bool:
    return any(each in frame for each in _UNPACKING)


def _more_workers(values: Mapping[str, Any]) -> int | None:
    """Return a number of workers that fetch more at the same time; None if that needs cheaper fetches."""
    workers, busy = values["workers"], values["busy"]
    if workers is None or (busy is not None and busy < _MOSTLY):
        return None  # they wait for the main process most of the time
    most = max(_numbers(values["processors"]))
    if most > workers:
        return most
    # Only workers that wait can share the processors.
    return 2 * workers if (values["fetch_waiting"] or 0.0) >= _MOSTLY else None


def _places(values: Mapping[str, Any], spans: NamedSpans) -> Places:
    return Places(spans=spans.typical(), function=values["iterated"], line=values["iterated_line"])


def _numbers(most: int) -> list[int]:
    """Return the numbers of workers to try: powers of two."""
    return [2**power for power in range(most.bit_length()) if 2**power <= min(most, 16)]


def _values(record: ProgramRecord, fetches: FetchTimes | None, *, is_in_process: bool) -> dict[str, Any]:
    loaders = () if record.settings is None else record.settings.loaders
    own = [each for each in loaders if (each.workers == 0) == is_in_process]
    known = own[0] if len(own) == 1 else None
    return {
        "is_in_process": is_in_process,
        "dataset": known and known.dataset,
        "batch_size": known and known.batch_size,
        "workers": 0 if is_in_process else known and known.workers,
        "persistent": known and known.persistent_workers,
        "processors": record.processors,
        "iterated": known and known.iterated,
        "iterated_line": known and known.iterated_line,
        "item": known and known.item,
        "collate": known and known.collate,
        "busy": fetches and fetches.busy,
        "fetch_function": fetches and fetches.function,
        "fetch_fraction": fetches and fetches.fraction,
        "fetch_call": fetches and fetches.call,
        "fetch_waiting": fetches and fetches.waiting,
    }


def _evidence(record: ProgramRecord, pattern: str, fetches: FetchTimes | None) -> tuple[EvidenceFigure, ...]:
    of: dict[str, Value] = {"process": record.process_id, "thread": record.main_thread, "pattern": pattern}
    figures = (
        record.figure("loader_time", "ns", _TIME, **of),
        record.figure("fetches", "count", _FETCHES, **of),
    )
    if fetches is None or fetches.busy is None:
        return (*figures, record.figure("fetches_on_processor", "ratio", _PROCESSOR_SHARE, **of))
    return (
        *figures,
        record.figure("workers_time", "ns", TIME_OF_WORKERS, **workers_of(record)),
        record.figure("workers_fetch_time", "ns", FETCH_TIME_OF_WORKERS, **workers_of(record)),
    )
