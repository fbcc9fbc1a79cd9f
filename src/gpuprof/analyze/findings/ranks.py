# SPDX-License-Identifier: Apache-2.0
"""Rules about several ranks: one that is slow, gradients that are synchronized too often or too late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.findings.finding import Draft, GainKind, Missing, Places, Rule, TimeRange
from gpuprof.analyze.whatif.intervals import NO_INTERVALS, Intervals

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.findings.record import ProgramRecord, StepTimes
    from gpuprof.analyze.phases import Phases
    from gpuprof.analyze.whatif.intervals import Ints

_OTHER_KERNELS = """
    SELECT start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM kernels
    WHERE process_id = {process} AND NOT starts_with(name, 'ncclDevKernel')
"""
# Those of several threads or streams can overlap: the time in which at least one is running, in the steps.
_TIME_OF_COLLECTIVES = """
    WITH operations AS (
        SELECT start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM spans
        WHERE process_id = {process} AND regexp_matches(name, '^(gloo|mpi|ucc):')
        UNION ALL SELECT start_ns, start_ns + duration_ns FROM kernels
        WHERE process_id = {process} AND starts_with(name, 'ncclDevKernel')),
    after AS (SELECT end_ns, greatest(begin_ns, coalesce(max(end_ns) OVER (
            ORDER BY begin_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), begin_ns)) AS begin_ns
        FROM operations WHERE begin_ns >= {begin} AND begin_ns < {end})
    SELECT sum(greatest(end_ns - begin_ns, 0))::BIGINT FROM after
"""
_COUNT_OF_COLLECTIVES = """
    SELECT count(*) FROM (
        SELECT start_ns FROM spans WHERE process_id = {process} AND regexp_matches(name, '^(gloo|mpi|ucc):')
        UNION ALL
        SELECT start_ns FROM kernels WHERE process_id = {process} AND starts_with(name, 'ncclDevKernel'))
    WHERE start_ns >= {begin} AND start_ns < {end}
"""
_COUNT_OF_SPANS = "SELECT count(*) FROM spans WHERE process_id = {process} AND name = {name}"
# Announced by PyTorch around each forward pass of a model whose gradients are synchronized.
_FORWARD = "DistributedDataParallel.forward"
# The time of a rank and of all others in each function, in the steps.
_TIME_OF_FUNCTIONS = """
    WITH samples AS (SELECT process_id, frames, sum(duration_ns) AS time_ns FROM stacks
        WHERE thread_id = process_id AND t_ns >= {begin} AND t_ns < {end}
            AND (process_id = {process} OR process_id IN (SELECT unnest({others}::BIGINT[])))
        GROUP BY ALL),
    inside AS (SELECT process_id, time_ns, unnest(list_distinct(frames)) AS frame, frames FROM samples)
    SELECT frame, max(list_position(frames, frame)) AS depth,
        coalesce(sum(time_ns) FILTER (WHERE process_id = {process}), 0)::BIGINT AS own_ns,
        coalesce(sum(time_ns) FILTER (WHERE process_id <> {process}), 0)::BIGINT AS others_ns,
        (SELECT count(DISTINCT process_id) FROM samples) AS sampled
    FROM inside GROUP BY frame ORDER BY frame
"""
_CALLER = """
    SELECT frames[list_position(frames, {function}) - 1] AS caller FROM stacks
    WHERE thread_id = process_id AND process_id = {process} AND t_ns >= {begin} AND t_ns < {end}
        AND list_position(frames, {function}) > 1
    GROUP BY caller ORDER BY sum(duration_ns) DESC, caller LIMIT 1
"""
_BUILT_IN = " (built-in)"  # what ends the name of a function without a file
_LEAST_MATCHED = 0.9  # of the collectives of the rank with most of them
_MOST_BUCKETS = 3  # a step; more are small enough to run next to the backward pass
_MOST_OF_LATENESS = 0.6  # of the time by which a rank is later, to be named
# Of the lateness of a rank, that of another one. With four ranks on two processors, it was at least 0.6 in
# three runs of equal ranks, and at most 0.05 in three runs with a slow one.
_BY_CHANCE = 0.5
_LEAST_ELEMENTS = 2_000_000  # of the gradients; the time for fewer is latency


def slow_rank(record: ProgramRecord) -> list[Draft] | Missing:
    """Find a rank that the others wait for in collective operations.

    The cost is the time from when the last but one rank has come to a collective operation until the last one
    has. Of operations that it is late for at the same time, as those of a backward pass that does not wait
    for each, the longest one counts: the rest is work that all ranks have. The low end of the gain is that of
    the last operation in each step. Where processors are scarce, any rank can come last: one that does so by
    about as much as another one is not slow.
    """
    if lacks := _lacks_collectives(record):
        return [] if record.phases is None or not record.phases.ranks else lacks
    if record.phases is None:
        return []
    if record.phases.last_rank is None:
        return Missing.RANKS if record.phases.missing_ranks else []
    # The searched process is this one, unless the main process has steps.
    last = record.phases.last_rank
    if last.process_id != record.process_id or record.steps is None:
        return []
    found = _arrivals(record, [each.process_id for each in record.phases.ranks if each != last])
    if found is None:
        return Missing.COLLECTIVES
    in_steps = Intervals.union(record.steps.begin_ns, record.steps.end_ns).place(found[0]) >= 0
    arrivals = found[:, in_steps]
    before, own = _of_rank(arrivals, 0)
    time = _lateness(before, own)
    if not time.total_ns or _is_late_by_chance(record.phases, arrivals, time.total_ns):
        return []
    others = [each for each in record.phases.ranks if each != last]
    kind, gain, explained = record.without(time)
    low = min(gain.low_ns, _of_last_in_steps(record.steps, before, own))
    own_of = {"process": record.process_id, **_range_of(record.steps)}
    other_of = {**own_of, "process": others[0].process_id}
    evidence = (
        record.figure("own_collective_time", "ns", _TIME_OF_COLLECTIVES, **own_of),
        record.figure("other_collective_time", "ns", _TIME_OF_COLLECTIVES, **other_of),
        record.figure("collectives", "count", _COUNT_OF_COLLECTIVES, **own_of),
    )
    function = _slow_function(record, record.steps, [each.process_id for each in others], time.total_ns)
    caller = _caller(record, record.steps, function)
    values = {
        "rank": last.rank,
        "function": function,
        "caller": caller,
        "others": len(others),
        "own_share": last.collectives,
        "others_share": float(np.median([each.collectives for each in others])),
    }
    gain = TimeRange(max(low, 0.0), max(gain.high_ns, 0.0))
    places = Places(function=caller or function)
    return [Draft(Rule.SLOW_RANK, values, time, kind, gain, evidence, places, explained)]


def _slow_function(
    record: ProgramRecord, steps: StepTimes, others: list[int], lateness_ns: int
) -> str | None:
    """Return the innermost function in which the rank spends most of what it needs longer than the others.

    None without one, or if a rank has no samples.
    """
    columns = record.fetch(_TIME_OF_FUNCTIONS, process=record.process_id, others=others, **_range_of(steps))
    if not len(columns["sampled"]) or columns["sampled"][0] <= len(others):
        return None
    names = np.ma.filled(columns["frame"], "").astype(str)
    excess = columns["own_ns"].astype(np.float64) - columns["others_ns"].astype(np.float64) / len(others)
    chosen = np.flatnonzero(excess >= max(_MOST_OF_LATENESS * lateness_ns, 1))
    depths = columns["depth"].astype(np.int64)
    return str(names[chosen[depths[chosen].argmax()]]) if len(chosen) else None


def _caller(record: ProgramRecord, steps: StepTimes, function: str | None) -> str | None:
    """Return the function that calls a built-in one, which has no file; None for another."""
    if function is None or not function.endswith(_BUILT_IN):
        return None
    found = record.fetch(_CALLER, process=record.process_id, function=function, **_range_of(steps))
    return str(found["caller"][0]) if len(found["caller"]) else None


def _range_of(steps: StepTimes) -> dict[str, int]:
    return {"begin": int(steps.begin_ns[0]), "end": int(steps.end_ns[-1])}


def _arrivals(record: ProgramRecord, others: list[int]) -> Ints | None:
    """Return when each rank has come to each collective: a row for this process, then one for each other.

    None if the ranks have too different operations.
    """
    all_of = [record.collectives(each) for each in (record.process_id, *others)]
    fewest, most = min(map(len, all_of)), max(map(len, all_of))
    names = [each.name[:fewest] for each in all_of]
    if fewest < _LEAST_MATCHED * most or any((each != names[0]).any() for each in names[1:]):
        return None
    return np.stack([each.begin_ns[:fewest] for each in all_of])


def _of_rank(arrivals: Ints, row: int) -> tuple[Ints, Ints]:
    """Return when the last of the others has come to each collective, and when the rank of a row has."""
    before: Ints = np.delete(arrivals, row, axis=0).max(axis=0)
    return before, arrivals[row]


def _is_late_by_chance(phases: Phases, arrivals: Ints, lateness_ns: int) -> bool:
    """Whether threads waited for processors, and another rank was later than all others by about as much."""
    waits = phases.processor_waits
    if waits is None or waits.contention is None:
        return False
    of_others = [_lateness(*_of_rank(arrivals, row)).total_ns for row in range(1, len(arrivals))]
    return max(of_others) >= _BY_CHANCE * lateness_ns


def _lateness(before: Ints, own: Ints) -> Intervals:
    """Return when the process is later than the others, for the longest of operations that overlap."""
    lengths = np.maximum(own - before, 0)
    late = np.flatnonzero(lengths)
    group = Intervals.union(before[late], own[late]).place(before[late])
    order = late[np.lexsort((lengths[late], group))]
    longest = order[np.flatnonzero(np.diff(np.sort(group), append=-1))]
    return Intervals.union(before[longest], own[longest])


def _of_last_in_steps(steps: StepTimes, before: Ints, own: Ints) -> float:
    """Return by how much the process is later at the last collective operation of its steps, summed."""
    last = np.searchsorted(own, steps.end_ns) - 1
    inside = (last >= 0) & (own[last] >= steps.begin_ns)
    return float((own - before)[last[inside]].sum())


def accumulation(record: ProgramRecord) -> list[Draft] | Missing:
    """Find gradients that are synchronized after each of several backward passes of a step.

    Only the last of them needs it. The gain is the time of the others in which nothing else runs.
    """
    return _of_synchronization(record, is_last=False)


def buckets(record: ProgramRecord) -> list[Draft] | Missing:
    """Find gradients that are synchronized after the backward pass, in few large pieces.

    With smaller pieces, most of the time could overlap with the backward pass: an upper end.
    """
    return _of_synchronization(record, is_last=True)


def _of_synchronization(record: ProgramRecord, *, is_last: bool) -> list[Draft] | Missing:
    if lacks := _lacks_collectives(record):
        return lacks if record.rank is not None else []
    forward = record.spans(_FORWARD, "span")
    if not len(forward):
        return []
    if record.steps is None:
        return Missing.STEPS
    chosen = _of_passes(record, record.steps, forward.begin_ns, is_last=is_last)
    own = record.collectives(record.process_id)
    time = _exposed(record, Intervals.union(own.begin_ns[chosen], own.end_ns[chosen]), own.on_gpu)
    count = float(chosen.sum()) / len(record.steps.begin_ns)
    if not time.total_ns or (is_last and not _is_in_few_pieces(record, count)):
        return []
    of = {"process": record.process_id, **_range_of(record.steps)}
    evidence = (
        record.figure("collective_time", "ns", _TIME_OF_COLLECTIVES, **of),
        record.figure("collectives", "count", _COUNT_OF_COLLECTIVES, **of),
        record.figure("forward_passes", "count", _COUNT_OF_SPANS, process=record.process_id, name=_FORWARD),
    )
    values = {"passes": len(forward) / len(record.steps.begin_ns), "collectives": count}
    places = Places(spans=tuple(each for each in own.span_id[chosen][:3].tolist() if each >= 0))
    kind, gain, explained = record.without(time)
    if is_last or own.on_gpu.any():
        kind, gain, explained = GainKind.BOUND, TimeRange(0.0, float(time.total_ns)), 1.0
    rule = Rule.BUCKETS if is_last else Rule.ACCUMULATION
    return [Draft(rule, values, time, kind, gain, evidence, places, explained)]


def _is_in_few_pieces(record: ProgramRecord, count: float) -> bool:
    optimizers = () if record.settings is None else record.settings.optimizers
    is_small = bool(optimizers) and sum(each.elements for each in optimizers) < _LEAST_ELEMENTS
    return 1 <= count <= _MOST_BUCKETS and not is_small


def _of_passes(
    record: ProgramRecord, steps: StepTimes, forward: Ints, *, is_last: bool
) -> npt.NDArray[np.bool_]:
    """Return which collectives belong to the last pass of their step, or to the passes before it.

    Those of a rank that others wait for are not longer than the operation itself.
    """
    begins = record.collectives(record.process_id).begin_ns
    step = Intervals.union(steps.begin_ns, steps.end_ns).place(begins)
    if not len(begins) or not len(forward):
        return np.zeros(len(begins), dtype=np.bool_)
    own_pass = np.searchsorted(forward, begins, side="right") - 1
    last_pass = np.searchsorted(forward, steps.end_ns) - 1
    is_of_last = own_pass == last_pass[np.maximum(_step_of(steps, begins), 0)]
    chosen: npt.NDArray[np.bool_] = (step >= 0) & (own_pass >= 0) & (is_of_last == is_last)
    return chosen


def _step_of(steps: StepTimes, times: Ints) -> Ints:
    place: Ints = np.searchsorted(steps.begin_ns, times, side="right") - 1
    return place


def _exposed(record: ProgramRecord, time: Intervals, on_gpu: Any) -> Intervals:
    """Return the part of collectives in which nothing else runs: no kernels, or no code of the model."""
    if not len(time):
        return NO_INTERVALS
    if on_gpu.any():
        columns = record.fetch(_OTHER_KERNELS, process=record.process_id)
        return time.without(Intervals.union(columns["begin_ns"], columns["end_ns"]))
    return time.without(record.in_model)


def _lacks_collectives(record: ProgramRecord) -> Missing | None:
    return None if record.is_on("operators") or record.is_on("kernels") else Missing.OPERATORS
