# SPDX-License-Identifier: Apache-2.0
"""Rules about a step's time outside the model, optimizer and loader: logging, reading values, waiting."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.findings.certain_waits import are_steps_sampled, certain_wait, is_waiting_call
from gpuprof.analyze.findings.finding import Draft, GainKind, Missing, Places, Rule, TimeRange
from gpuprof.analyze.whatif.intervals import NO_INTERVALS, Intervals

if TYPE_CHECKING:
    from gpuprof.analyze.findings.finding import EvidenceFigure
    from gpuprof.analyze.findings.record import ProgramRecord, SampledStacks, StepTimes
    from gpuprof.analyze.whatif.intervals import Ints

# Most of a function's time in steps must be outside the model: it is no part of the model then.
_OUTSIDE = 0.9
# A span of the program is the place of a function where so much of the function's time is in it, and so much
# of its time is in the function.
_IN_SPAN = 0.8
_OF_SPAN = 0.5
_IN_EACH_STEP = 0.8
_IN_MANY_STEPS = 0.5
_LEAST_CERTAIN = 0.5  # of a function's waits
_LEAST_UNCERTAIN = 0.01  # of the time in steps; less would be no finding either
_LEAST_LOGGED = 0.05  # of a function's time in steps; else it only calls what writes logs now and then
_LEAST_PART = 0.005  # of the time in steps; less cannot become a finding
# The call of the autograd engine, with frames of native functions and without.
_BACKWARD = ("run_backward (built-in)", "run_backward (torch/autograd/")
# Files of packages that write logs: directories, or modules of the standard library.
_LOGGING = ("logging/", "tensorboard/", "tensorboardX/", "torch/utils/tensorboard/", "wandb/", "mlflow/")
_READS = """
    SELECT start_ns, start_ns + duration_ns AS end_ns FROM spans
    WHERE process_id = {process} AND thread_id = {thread} AND name = 'aten::item' ORDER BY start_ns
"""
_COUNT_OF_READS = """
    SELECT count(*) FROM spans AS reads
    ASOF JOIN (SELECT begin_ns, end_ns FROM steps WHERE process_id = {process}) AS own_steps
        ON reads.start_ns >= own_steps.begin_ns
    ASOF LEFT JOIN updates ON reads.start_ns >= updates.update_ns
    WHERE reads.process_id = {process} AND reads.thread_id = {thread} AND reads.name = 'aten::item'
        AND reads.start_ns < own_steps.end_ns AND (updated_ns IS NULL OR reads.start_ns >= updated_ns)
"""
_TIME_OF_FUNCTION = """
    SELECT sum(duration_ns)::BIGINT FROM stacks
    WHERE process_id = {process} AND thread_id = {thread} AND list_contains(frames, {function})
"""
_TIME_OF_LINE = """
    SELECT sum(duration_ns)::BIGINT FROM stacks
    WHERE process_id = {process} AND thread_id = {thread} AND frames[-1] = {function} AND line = {line}
"""
_TIME_OF_SPAN = """
    SELECT sum(duration_ns)::BIGINT FROM spans
    WHERE process_id = {process} AND thread_id = {thread} AND kind = 'span' AND name = {name}
"""
_OWN_SPANS = """
    SELECT span_id, name, start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM spans
    WHERE process_id = {process} AND thread_id = {thread} AND kind IN ('span', 'nvtx') AND name <> 'step'
        AND NOT starts_with(name, 'Optimizer.') AND NOT starts_with(name, 'enumerate(DataLoader)')
        AND NOT starts_with(name, 'ProfilerStep#')
    ORDER BY start_ns
"""


@dataclass(slots=True)
class Stretch:
    """Time of the steps in one function, span or line outside the model."""

    time: Intervals
    function: str | None = None
    line: int | None = None
    span: str | None = None
    spans: tuple[int, ...] = ()
    is_sampled: bool = False
    logs: bool = False
    caller: str | None = None


def logging(record: ProgramRecord) -> list[Draft] | Missing:
    """Find what reads values of tensors or writes logs in each step."""
    if record.steps is None:
        return Missing.STEPS
    if not record.is_on("operators"):
        return Missing.OPERATORS
    if record.is_trace and not record.is_on("layers"):
        return Missing.LAYERS  # without them, a trace's ranges may be parts of the model
    columns = record.fetch(_READS, process=record.process_id, thread=record.main_thread)
    reads = columns["start_ns"].astype(np.int64)
    outside = record.in_model.place(reads) < 0
    reads = reads[outside]
    reading = Intervals.union(reads, columns["end_ns"].astype(np.int64)[outside])
    warm = record.steps.warm
    of_steps = np.searchsorted(reads, warm.end_ns) - np.searchsorted(reads, warm.begin_ns)
    all_reads = float(np.median(of_steps))
    drafts = []
    for stretch in _stretches(record, record.steps, reads):
        counts = _count_inside(stretch, record.steps, reads)
        is_logged = stretch.time.covered_ns(warm.begin_ns, warm.end_ns) > 0
        if float(np.mean((counts > 0) | (is_logged & stretch.logs))) >= _IN_EACH_STEP:
            share = reading.covered_ns(stretch.time.begin_ns, stretch.time.end_ns).sum()
            values = {
                "reads": float(np.median(counts)),
                "all_reads": all_reads,
                "read_share": float(share) / stretch.time.total_ns,
            }
            drafts.append(_logging_draft(record, stretch, values))
    return drafts


def waiting(record: ProgramRecord) -> list[Draft] | Missing:
    """Find what the main thread waits for in steps outside the model: sleeps, locks, files."""
    if record.steps is None:
        return Missing.STEPS
    stacks = record.stacks
    if stacks is None or not (stacks.cpu_ns >= 0).any():
        return Missing.STACKS if stacks is None else Missing.THREAD_STATES
    steps = Intervals.union(record.steps.begin_ns, record.steps.end_ns)
    if not are_steps_sampled(stacks, steps):
        return Missing.SAMPLES_OF_STEPS
    outside = stacks.is_waiting & ~stacks.is_inside(record.in_model) & stacks.is_inside(steps)
    # Other rules look at waits for other ranks.
    own = record.collectives(record.process_id)
    outside &= ~stacks.is_inside(Intervals.union(own.begin_ns[~own.on_gpu], own.end_ns[~own.on_gpu]))
    if len(own):
        # So is what the backward pass waits for before an operation begins, and after it.
        is_backward = [any(each in "".join(frames[-1:]) for each in _BACKWARD) for frames in stacks.frames]
        outside &= ~np.array(is_backward, dtype=bool)[stacks.stack]
    drafts, is_unknown = [], False
    for function, samples in _by_function(stacks, outside):
        time = stacks.covered(samples).without(record.in_model)
        if time.total_ns < _LEAST_PART * steps.total_ns:
            continue
        if not (is_waiting_call(function[0]) or _is_repeated(record.steps, time)):
            continue
        certain = certain_wait(record, time)
        if certain is None or certain < _LEAST_CERTAIN:
            is_unknown |= time.total_ns >= _LEAST_UNCERTAIN * steps.total_ns
            continue
        error = record.sampling_error_ns(time)
        kind, gain, explained = record.without(time, error_ns=error)
        gain = TimeRange(min(gain.low_ns, gain.low_ns * certain), gain.high_ns)
        name, caller = function
        is_sleep = name.startswith("time.sleep")
        if not is_sleep:  # a lock or a queue is waited for until another thread is ready
            kind, gain = GainKind.BOUND, TimeRange(0.0, gain.high_ns)
        values = {"function": name, "caller": caller, "is_sleep": is_sleep}
        evidence = record.figure("function_time", "ns", _TIME_OF_FUNCTION, **_of_main(record), function=name)
        lines = stacks.line[samples]
        line = int(np.bincount(lines).argmax()) or None
        places = Places(function=caller, line=line)
        missed = record.missed_ns(time)
        drafts.append(Draft(Rule.WAITING, values, time, kind, gain, (evidence,), places, explained, missed))
    return Missing.CERTAIN_WAITS if is_unknown and not drafts else drafts


def _is_repeated(steps: StepTimes, time: Intervals) -> bool:
    """Whether many steps have some of the time, and none has most of it.

    A call that does not wait by itself is kept from its processor once or twice, for example by a page that
    is read from the disk or by the host of a virtual machine; that is no property of the program.
    """
    of_steps = time.covered_ns(steps.warm.begin_ns, steps.warm.end_ns)
    return float(np.mean(of_steps > 0)) >= _IN_MANY_STEPS and bool(of_steps.max() <= of_steps.sum() / 2)


def _by_function(stacks: SampledStacks, chosen: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield the functions in which samples wait, with their callers, and the places of these samples."""
    pairs = [(frames[-1], frames[-2:][0]) if frames else None for frames in stacks.frames]
    places = {pair: place for place, pair in enumerate(dict.fromkeys(pairs))}
    known = list(places)
    of_stack = np.array([places[pair] for pair in pairs], dtype=np.int64)
    for (place,), own in _grouped(chosen, of_stack[stacks.stack]):
        if (pair := known[place]) is not None:
            yield pair, own


def _logging_draft(record: ProgramRecord, stretch: Stretch, of_reads: dict[str, float]) -> Draft:
    error = record.sampling_error_ns(stretch.time) if stretch.is_sampled else 0.0
    kind, gain, explained = record.without(stretch.time, error_ns=error)
    values = {
        "function": stretch.function,
        "line": stretch.line,
        "span": stretch.span,
        "caller": stretch.caller,
        **of_reads,
        "logs": stretch.logs,
    }
    places = Places(spans=stretch.spans, function=stretch.function, line=stretch.line)
    return Draft(
        rule=Rule.LOGGING,
        values=values,
        time=stretch.time,
        kind=kind,
        gain=gain,
        evidence=_logging_evidence(record, stretch),
        places=places,
        explained=explained,
        missed_ns=record.missed_ns(stretch.time) if stretch.is_sampled else 0.0,
    )


def _logging_evidence(record: ProgramRecord, stretch: Stretch) -> tuple[EvidenceFigure, ...]:
    of = _of_main(record)
    found = [record.figure_of_updates("reads_in_steps", "count", _COUNT_OF_READS)]
    if stretch.span is not None:
        found.append(record.figure("span_time", "ns", _TIME_OF_SPAN, **of, name=stretch.span))
    elif stretch.function is not None and stretch.line is not None:
        figure = record.figure(
            "line_time", "ns", _TIME_OF_LINE, **of, function=stretch.function, line=stretch.line
        )
        found.append(figure)
    elif stretch.function is not None:
        found.append(record.figure("function_time", "ns", _TIME_OF_FUNCTION, **of, function=stretch.function))
    return tuple(found)


def _of_main(record: ProgramRecord) -> dict[str, Any]:
    return {"process": record.process_id, "thread": record.main_thread}


def _count_inside(stretch: Stretch, steps: StepTimes, times_ns: Ints) -> Ints:
    """Return for each warm step how many of the times are in the stretch."""
    inside = times_ns[stretch.time.place(times_ns) >= 0]
    warm = steps.warm
    counts: Ints = np.searchsorted(inside, warm.end_ns) - np.searchsorted(inside, warm.begin_ns)
    return counts


def _stretches(record: ProgramRecord, steps: StepTimes, reads: Ints) -> list[Stretch]:
    """Return what the steps consist of outside the model: functions if stacks were sampled, else spans."""
    spans = _own_spans(record)
    if record.stacks is None:
        found = [Stretch(time, span=name, spans=ids) for name, (time, ids) in spans.items()]
        known = Intervals.union(*_joined([each.time for each in found]))
        rest = reads[known.place(reads) < 0]
        found.append(Stretch(_around(record, steps, rest)))
    else:
        found = [_with_span(each, spans) for each in _functions(record.stacks, record.in_model, steps)]
    in_steps = Intervals.union(steps.begin_ns, steps.end_ns)
    least = _LEAST_PART * in_steps.total_ns
    outside = [
        each
        for each in found
        if int(in_steps.covered_ns(each.time.begin_ns, each.time.end_ns).sum()) >= least
        and int(record.in_model.covered_ns(each.time.begin_ns, each.time.end_ns).sum())
        <= (1 - _OUTSIDE) * each.time.total_ns
    ]
    return [each for each in outside if len(each.time)]


def _joined(times: list[Intervals]) -> tuple[Ints, Ints]:
    all_of = [*times, NO_INTERVALS]
    return np.concatenate([each.begin_ns for each in all_of]), np.concatenate(
        [each.end_ns for each in all_of]
    )


def _own_spans(record: ProgramRecord) -> dict[str, tuple[Intervals, tuple[int, ...]]]:
    """Return the time of the program's own spans by name, and up to three of them."""
    columns = record.fetch(_OWN_SPANS, **_of_main(record))
    names = np.asarray(columns["name"], dtype=object)
    found = {}
    for name in dict.fromkeys(names.tolist()):
        own = names == name
        time = Intervals.union(columns["begin_ns"][own], columns["end_ns"][own])
        found[str(name)] = (time, tuple(int(each) for each in columns["span_id"][own][:3]))
    return found


def _around(record: ProgramRecord, steps: StepTimes, reads: Ints) -> Intervals:
    """Return, for each stretch between parts of the model, the time from its first to its last read value.

    A single read has no extent that is known without stacks.
    """
    edges = np.unique(np.concatenate([record.in_model.end_ns, steps.begin_ns, steps.end_ns]))
    place = np.searchsorted(edges, reads, side="right")
    first = np.flatnonzero(np.diff(place, prepend=-1))
    last = np.append(first[1:], len(reads)) - 1 if len(first) else first
    return Intervals.union(reads[first], reads[last]) if len(reads) else NO_INTERVALS


def _functions(stacks: SampledStacks, in_model: Intervals, steps: StepTimes) -> list[Stretch]:
    """Return the outermost functions whose time in steps is outside the model, and lines of what remains."""
    length = stacks.end_ns - stacks.begin_ns
    is_in_step = stacks.is_inside(Intervals.union(steps.begin_ns, steps.end_ns))
    is_outside = is_in_step & ~stacks.is_inside(in_model)
    outside, inside = np.where(is_outside, length, 0), np.where(is_in_step, length, 0)
    count = len(stacks.frames)
    outside_of = np.bincount(stacks.stack, weights=outside, minlength=count)
    total_of = np.bincount(stacks.stack, weights=inside, minlength=count)
    is_of_model = _frames_of_model(stacks.frames, outside_of, total_of)
    keys = [next((each for each in frames if each not in is_of_model), None) for frames in stacks.frames]
    found = []
    for function in dict.fromkeys(key for key in keys if key is not None):
        own_stacks = np.array([key == function for key in keys], dtype=bool)
        chosen = own_stacks[stacks.stack] & is_outside
        # Stacks of the steps only: start-up imports modules that write logs.
        places = np.flatnonzero(own_stacks & (outside_of > 0)).tolist()
        own = [(stacks.frames[place], float(outside_of[place])) for place in places]
        time = stacks.covered(chosen).without(in_model)
        logs, caller = _writes_logs(own), _caller(function, own)
        found.append(Stretch(time, function, is_sampled=True, logs=logs, caller=caller))
    is_rest = np.array([key is None for key in keys], dtype=bool)[stacks.stack] & is_outside
    return [*found, *_lines(stacks, in_model, is_rest)]


def _caller(function: str, stacks: list[tuple[tuple[str, ...], float]]) -> str | None:
    """Return the function that calls another one for most of its time; None for one without a caller."""
    sums: dict[str, float] = {}
    for frames, time in stacks:
        if place := frames.index(function):
            sums[frames[place - 1]] = sums.get(frames[place - 1], 0.0) + time
    return max(sums, key=lambda caller: sums[caller], default=None)


def _frames_of_model(frames: list[tuple[str, ...]], outside: Any, total: Any) -> set[str]:
    """Return the functions that the model is part of, or that are a part of it themselves.

    `outside` and `total` are times of each stack in steps: outside the model, and all.
    """
    sums: dict[str, list[float]] = {}
    for stack, own, whole in zip(frames, outside.tolist(), total.tolist(), strict=True):
        for frame in set(stack):
            found = sums.setdefault(frame, [0.0, 0.0])
            found[0] += whole - own
            found[1] += whole
    most = (1 - _OUTSIDE) * float((total - outside).sum())
    return {
        frame
        for frame, (inside, whole) in sums.items()
        if not whole or inside > (1 - _OUTSIDE) * whole or inside > most
    }


def _lines(stacks: SampledStacks, in_model: Intervals, chosen: Any) -> list[Stretch]:
    """Return stretches by the line of the innermost function."""
    innermost = [frames[-1] if frames else "" for frames in stacks.frames]
    functions = list(dict.fromkeys(innermost))
    places = {function: place for place, function in enumerate(functions)}
    function = np.array([places[each] for each in innermost], dtype=np.int64)[stacks.stack]
    return [
        Stretch(stacks.covered(own).without(in_model), functions[place], line, is_sampled=True)
        for (place, line), own in _grouped(chosen, function, stacks.line)
        if functions[place] and line
    ]


def _grouped(chosen: Any, *columns: Ints) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield the different rows of columns among the chosen ones, each with the places that have it."""
    places = np.flatnonzero(chosen)
    if not len(places):
        return
    rows = np.stack([column[places] for column in columns])
    different, group = np.unique(rows, axis=1, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(group.ravel(), minlength=different.shape[1]))[:-1]
    for row, own in zip(different.T.tolist(), np.split(places[order], ends), strict=True):
        yield tuple(row), own


def _writes_logs(stacks: list[tuple[tuple[str, ...], float]]) -> bool:
    """Return whether enough of the time of stacks is in packages that write logs."""
    logged = sum(time for frames, time in stacks if any(map(_is_logging, frames)))
    return logged > _LEAST_LOGGED * sum(time for _, time in stacks)


def _is_logging(frame: str) -> bool:
    return any(f"({part}" in frame or f"/{part}" in frame for part in _LOGGING)


def _with_span(stretch: Stretch, spans: dict[str, tuple[Intervals, tuple[int, ...]]]) -> Stretch:
    """Return a stretch with the times of the program's span that it is in, which are exact."""
    for name, (time, ids) in spans.items():
        both = int(stretch.time.covered_ns(time.begin_ns, time.end_ns).sum())
        if both >= _OF_SPAN * time.total_ns and both >= _IN_SPAN * stretch.time.total_ns:
            return dataclasses.replace(stretch, time=time, span=name, spans=ids, is_sampled=False)
    return stretch
