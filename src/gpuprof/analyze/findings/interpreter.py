# SPDX-License-Identifier: Apache-2.0
"""Rules about the interpreter: collections, compilations, its lock, imports, start-up, threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.findings.certain_waits import are_steps_sampled, certain_wait, is_waiting_call
from gpuprof.analyze.findings.finding import Draft, GainKind, Missing, Places, Rule, TimeRange
from gpuprof.analyze.whatif.intervals import Intervals

if TYPE_CHECKING:
    from gpuprof.analyze.findings.record import NamedSpans, ProgramRecord, SampledStacks

_FULL = "generation 2"
_IN_EACH_STEP = 0.8
_TIME_OF_COLLECTIONS = """
    SELECT sum(duration_ns)::BIGINT FROM spans WHERE process_id = {process} AND thread_id = {thread}
        AND kind = 'gc' AND start_ns >= {first}
"""
_TIME_OF_COMPILATIONS = """
    SELECT sum(duration_ns)::BIGINT FROM spans WHERE process_id = {process} AND thread_id = {thread}
        AND kind = 'compile' AND start_ns >= {first}
"""
_COMPILATIONS = """
    SELECT count(*) FROM spans WHERE process_id = {process} AND thread_id = {thread} AND kind = 'compile'
        AND start_ns >= {first}
"""
_FULL_COLLECTIONS = """
    SELECT count(*) FROM spans WHERE process_id = {process} AND thread_id = {thread} AND kind = 'gc'
        AND name = 'generation 2' AND start_ns >= {first}
"""
# The table `later`: collections whose stack is in no import.
_OUTSIDE_IMPORTS = """
    WITH later AS (
        SELECT spans.name, spans.duration_ns FROM spans
        ASOF JOIN (SELECT t_ns - duration_ns AS begin_ns, frames FROM stacks
            WHERE process_id = {process} AND thread_id = {thread}) AS samples ON spans.start_ns >= begin_ns
        WHERE process_id = {process} AND thread_id = {thread} AND kind = 'gc'
            AND len(string_split(array_to_string(frames, ' '), '<module> (')) <= 2)
"""
_TIME_OUTSIDE_IMPORTS = "".join([_OUTSIDE_IMPORTS, "SELECT sum(duration_ns)::BIGINT FROM later"])
_FULL_OUTSIDE_IMPORTS = "".join([_OUTSIDE_IMPORTS, "SELECT count(*) FROM later WHERE name = 'generation 2'"])
# A start-up or an import is worth a look from this part of the wall time.
_LEAST_PART = 0.1
_MODULE = "<module> ("
_AN_OPERATOR = """
    SELECT span_id FROM spans WHERE process_id = {process} AND kind = 'operator' LIMIT 1
"""
_TIME_BEFORE_STEPS = """
    SELECT sum(duration_ns)::BIGINT FROM stacks WHERE process_id = {process} AND thread_id = {thread}
        AND t_ns <= {until} AND list_contains(frames, {function})
"""
_TIME_OF_IMPORT = """
    SELECT sum(duration_ns)::BIGINT FROM stacks WHERE process_id = {process} AND thread_id = {thread}
        AND list_has_any(frames, {modules}::VARCHAR[])
"""
# Samples of other threads that are in Python code, and in no call of it: they execute it, or are ready to.
# Python 3.10 does not show the calls in which threads wait: they are on a processor for less of their time.
_EXECUTING = """
    SELECT thread_id, hash(frames[-1]) AS frame, t_ns - duration_ns AS begin_ns, t_ns AS end_ns FROM stacks
    WHERE process_id = {process} AND NOT ends_with(frames[-1], '(built-in)') AND thread_id IN (
        SELECT thread_id FROM stacks WHERE process_id = {process} AND thread_id <> {thread}
        GROUP BY thread_id HAVING 10 * sum(cpu_ns) >= sum(duration_ns))
    ORDER BY begin_ns
"""
_BACKWARD_ELSEWHERE = """
    SELECT start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM spans
    WHERE process_id = {process} AND thread_id <> {thread} AND kind = 'backward'
"""
_NAME_OF_FRAME = """
    SELECT any_value(frames[-1]) AS name FROM stacks
    WHERE process_id = {process} AND thread_id = {thread} AND hash(frames[-1]) = {frame}::UBIGINT
"""
_TIME_OF_HOLDER = """
    SELECT sum(cpu_ns)::BIGINT FROM stacks
    WHERE process_id = {process} AND thread_id = {thread} AND t_ns >= {begin} AND t_ns < {end}
"""
_WHILE_EXECUTING = 0.8  # of a wait
_LEAST_CERTAIN = 0.5  # of the waits
_LEAST_LOCKED = 0.005  # of the time in steps
_QUEUED = "SELECT sum(queued_ns)::BIGINT FROM threads WHERE process_id = {process}"
_RAN = "SELECT sum(cpu_ns)::BIGINT FROM threads WHERE process_id = {process}"


def collections(record: ProgramRecord) -> list[Draft] | Missing:
    """Find pauses of the main thread by the garbage collector."""
    if not record.is_on("gc"):
        return Missing.COLLECTIONS
    # Without steps, only the stacks show which collections are those of imports.
    by_stacks = record.steps is None and not record.is_trace
    if by_stacks and record.stacks is None:
        return Missing.STACKS
    spans, full = (_avoidable(record, pattern, by_stacks) for pattern in ("%", _FULL))
    if not len(spans):
        return []
    time = spans.covered
    kind, gain, explained = record.without(time)
    of = {"process": record.process_id, "thread": record.main_thread}
    values = {"full": len(full), "collections": len(spans), "in_each_step": _is_in_each_step(record, full)}
    if by_stacks:
        queries = (_TIME_OUTSIDE_IMPORTS, _FULL_OUTSIDE_IMPORTS)
    else:
        queries = (_TIME_OF_COLLECTIONS, _FULL_COLLECTIONS)
        of["first"] = _first_step_ns(record)
    evidence = (
        record.figure("collection_time", "ns", queries[0], **of),
        record.figure("full_collections", "count", queries[1], **of),
    )
    longest = full if len(full) else spans
    places = Places(spans=longest.typical())
    return [Draft(Rule.COLLECTIONS, values, time, kind, gain, evidence, places, explained)]


def _first_step_ns(record: ProgramRecord) -> int:
    return 0 if record.steps is None else int(record.steps.begin_ns[0])


def _avoidable(record: ProgramRecord, pattern: str, by_stacks: bool) -> NamedSpans:
    """Return collections from the first step on, or without steps those outside imports.

    The many objects that imports make are not the program's to avoid.
    """
    spans = record.spans(pattern, "gc").on_thread(record.main_thread).since(_first_step_ns(record))
    stacks = record.stacks
    if not by_stacks or stacks is None:
        return spans
    is_import = np.array([len(_modules(frames)) > 1 for frames in stacks.frames], dtype=bool)
    place = np.searchsorted(stacks.begin_ns, spans.begin_ns, side="right") - 1
    return spans.chosen((place >= 0) & ~is_import[stacks.stack[np.maximum(place, 0)]])


def _is_in_each_step(record: ProgramRecord, spans: Any) -> bool:
    if record.steps is None:
        return False
    warm = record.steps.warm
    counts = np.searchsorted(spans.begin_ns, warm.end_ns) - np.searchsorted(spans.begin_ns, warm.begin_ns)
    return bool(len(counts) and np.mean(counts > 0) >= _IN_EACH_STEP)


def recompilations(record: ProgramRecord) -> list[Draft] | Missing:
    """Find compilations by torch.compile in steps after the warm-up.

    With dynamic shapes one of them remains: the low end of the gain keeps the longest one.
    """
    if not record.is_on("compilations"):
        # Without PyTorch there is nothing to compile.
        return Missing.COMPILATIONS if record.is_on("operators") else []
    if record.steps is None:
        return Missing.STEPS
    # The first step compiles in any case, also if others are as slow.
    first = max(record.steps.warm_up, 1)
    if first >= len(record.steps.begin_ns):
        return []
    first_ns = int(record.steps.begin_ns[first])
    spans = record.spans("%", "compile").on_thread(record.main_thread).since(first_ns)
    if not len(spans):
        return []
    # A compilation may start another one.
    time = spans.covered
    longest = int((time.end_ns - time.begin_ns).argmax())
    shorter = Intervals(np.delete(time.begin_ns, longest), np.delete(time.end_ns, longest))
    kind, gain, explained = record.without(time)
    low = record.without(shorter)[1].low_ns if kind is GainKind.REPLAYED else 0.0
    of = {"process": record.process_id, "thread": record.main_thread, "first": first_ns}
    evidence = (
        record.figure("compilation_time", "ns", _TIME_OF_COMPILATIONS, **of),
        record.figure("compilations", "count", _COMPILATIONS, **of),
    )
    values = {"compilations": len(time)}
    range_ = TimeRange(low, gain.high_ns)
    places = Places(spans=spans.typical())
    return [Draft(Rule.RECOMPILATIONS, values, time, kind, range_, evidence, places, explained)]


def interpreter_lock(record: ProgramRecord) -> list[Draft] | Missing:
    """Find time in steps in which the main thread waits and another thread executes Python code.

    Only one thread at a time does. Another one gets the lock after 5 ms, each time that an operator has
    released it. Calls that wait for something else by their name are left out.
    """
    if record.steps is None:
        return Missing.STEPS
    stacks = record.stacks
    if stacks is None or not (stacks.cpu_ns >= 0).any():
        return Missing.STACKS if stacks is None else Missing.THREAD_STATES
    of = {"process": record.process_id, "thread": record.main_thread}
    columns = record.fetch(_EXECUTING, **of)
    begin, end = columns["begin_ns"].astype(np.int64), columns["end_ns"].astype(np.int64)
    # There, the main thread waits for the backward pass.
    elsewhere = record.intervals(record.fetch(_BACKWARD_ELSEWHERE, **of))
    executing = Intervals.union(begin, end).without(elsewhere)
    steps = Intervals.union(record.steps.begin_ns, record.steps.end_ns)
    if not are_steps_sampled(stacks, steps):
        return Missing.SAMPLES_OF_STEPS
    calls = [any(map(is_waiting_call, frames[-1:])) for frames in stacks.frames]
    is_other = np.array(calls, dtype=bool)[stacks.stack]
    waits = np.flatnonzero(stacks.is_waiting & stacks.is_inside(steps) & ~is_other)
    length = stacks.end_ns[waits] - stacks.begin_ns[waits]
    both_ns = executing.covered_ns(stacks.begin_ns[waits], stacks.end_ns[waits])
    time = stacks.covered(waits[both_ns >= _WHILE_EXECUTING * length])
    if time.total_ns < _LEAST_LOCKED * steps.total_ns:
        return []
    if (certain_wait(record, time) or 0.0) < _LEAST_CERTAIN:
        return Missing.CERTAIN_WAITS
    _, gain, _ = record.without(time, error_ns=record.sampling_error_ns(time))
    inside_ns = time.covered_ns(begin, end)  # of each sample of another thread
    holder = _with_most(columns["thread_id"], inside_ns)
    is_holder = columns["thread_id"] == holder
    frame = _with_most(columns["frame"][is_holder], inside_ns[is_holder])
    of_holder = {"process": record.process_id, "thread": holder}
    function = str(record.fetch(_NAME_OF_FRAME, **of_holder, frame=str(frame))["name"][0])
    values = {"thread": holder, "function": function}
    bounds = {"begin": int(record.steps.begin_ns[0]), "end": int(record.steps.end_ns[-1])}
    evidence = record.figure("lock_holder_time", "ns", _TIME_OF_HOLDER, **of_holder, **bounds)
    places = Places(function=function)
    bound = TimeRange(0.0, max(gain.high_ns, 0.0))
    return [Draft(Rule.INTERPRETER_LOCK, values, time, GainKind.BOUND, bound, (evidence,), places)]


def _with_most(values: Any, weights: Any) -> int:
    found, place = np.unique(values, return_inverse=True)
    return int(found[np.bincount(place.ravel(), weights=weights).argmax()])


def unused_import(record: ProgramRecord) -> list[Draft] | Missing:
    """Find packages that the program imports and in which no sample is afterwards.

    What such a package imports itself may be needed by others, so this time is the upper end of the gain.
    Nothing is known of a package if the recording ended before the program had run as long as the import had
    taken.
    """
    stacks = record.stacks
    if stacks is None:
        return Missing.STACKS
    found = _imports(stacks)
    used = _used_packages(record, stacks)
    drafts = []
    for package, (time, own_ns, modules) in found.items():
        if package in used or time.total_ns < _LEAST_PART * record.wall_ns:
            continue
        if _ran_after_ns(stacks, time) < time.total_ns:
            continue
        evidence = record.figure(
            "import_time",
            "ns",
            _TIME_OF_IMPORT,
            process=record.process_id,
            thread=record.main_thread,
            modules=modules,
        )
        gain = TimeRange(float(own_ns), float(time.total_ns))
        places = Places(function=modules[0])
        drafts.append(
            Draft(Rule.UNUSED_IMPORT, {"package": package}, time, GainKind.BOUND, gain, (evidence,), places)
        )
    return drafts


def _modules(frames: tuple[str, ...]) -> list[str]:
    """Return the modules that are executed, the program's own first."""
    return [frame for frame in frames if frame.startswith(_MODULE)]


def _package(frame: str) -> str | None:
    """Return the package of a frame's file; None for a file of the program."""
    path = frame.rpartition(" (")[2].rstrip(")")
    if path.startswith(("/", "<")) or "/" not in path:
        return None
    return path.partition("/")[0]


def _imports(stacks: SampledStacks) -> dict[str, tuple[Intervals, int, list[str]]]:
    """Return by package that the program imports: its time, that in its own modules, the imported modules."""
    keys: list[str | None] = []
    own: list[bool] = []
    modules: dict[str, set[str]] = {}
    for frames in stacks.frames:
        executed = _modules(frames)
        package = _package(executed[1]) if len(executed) > 1 else None
        keys.append(package)
        own.append(package is not None and _package(executed[-1]) == package)
        if package is not None:
            modules.setdefault(package, set()).add(executed[1])
    found = {}
    is_own = np.array(own, dtype=bool)[stacks.stack]
    for package, imported in modules.items():
        chosen = np.array([key == package for key in keys], dtype=bool)[stacks.stack]
        mine = stacks.covered(chosen & is_own).total_ns
        found[package] = (stacks.covered(chosen), mine, sorted(imported))
    return found


def _used_packages(record: ProgramRecord, stacks: SampledStacks) -> set[str]:
    """Return the packages whose functions ran other than for an import; PyTorch's operators have no frame."""
    used = {
        package
        for frames in stacks.frames
        if len(_modules(frames)) < 2
        for frame in frames
        if (package := _package(frame)) is not None
    }
    has_operators = len(record.fetch(_AN_OPERATOR, process=record.process_id)["span_id"])
    return used | {"torch"} if has_operators else used


def _ran_after_ns(stacks: SampledStacks, time: Intervals) -> int:
    """Return how long the thread executed anything other than imports after some imports."""
    outside = np.array([len(_modules(frames)) < 2 for frames in stacks.frames], dtype=bool)
    later = stacks.begin_ns >= time.end_ns[-1]
    return stacks.covered(outside[stacks.stack] & later).total_ns


def startup(record: ProgramRecord) -> list[Draft] | Missing:
    """Find functions other than imports that a program spends its time in before the first step."""
    stacks = record.stacks
    if stacks is None:
        return Missing.STACKS
    if record.steps is None:
        return Missing.STEPS
    first_ns = int(record.steps.begin_ns[0])
    drafts = []
    for function, time in _slow_starts(stacks, first_ns, _LEAST_PART * record.wall_ns):
        evidence = record.figure(
            "function_time_before_steps",
            "ns",
            _TIME_BEFORE_STEPS,
            process=record.process_id,
            thread=record.main_thread,
            until=first_ns,
            function=function,
        )
        drafts.append(
            Draft(
                Rule.STARTUP,
                {"function": function},
                time,
                GainKind.BOUND,
                TimeRange(0.0, float(time.total_ns)),
                (evidence,),
                Places(function=function),
            )
        )
    return drafts


def _slow_starts(stacks: SampledStacks, first_ns: int, least_ns: float) -> list[tuple[str, Intervals]]:
    """Return the innermost functions before the first step that have so much time, with their time."""
    is_early = stacks.end_ns <= first_ns
    is_import = np.array([len(_modules(frames)) > 1 for frames in stacks.frames], dtype=bool)
    chosen = is_early & ~is_import[stacks.stack]
    length = np.where(chosen, stacks.end_ns - stacks.begin_ns, 0)
    totals = np.bincount(stacks.stack, weights=length, minlength=len(stacks.frames))
    # The function of the training loop is not slow itself: what it calls is.
    later = np.unique(stacks.stack[~is_early]).tolist()
    of_loop = {frame for place in later for frame in stacks.frames[place]}
    sums: dict[str, float] = {}
    for frames, total_ns in zip(stacks.frames, totals.tolist(), strict=True):
        for frame in dict.fromkeys(frames):
            if total_ns and not frame.startswith(_MODULE) and frame not in of_loop:
                sums[frame] = sums.get(frame, 0.0) + total_ns
    slow = {frame for frame, total_ns in sums.items() if total_ns >= least_ns}
    inner = [next((each for each in reversed(frames) if each in slow), None) for frames in stacks.frames]
    found = []
    for function in dict.fromkeys(each for each in inner if each is not None):
        own = np.array([each == function for each in inner], dtype=bool)[stacks.stack] & chosen
        time = stacks.covered(own)
        if time.total_ns >= least_ns:
            found.append((function, time))
    return found


def threads(record: ProgramRecord) -> list[Draft] | Missing:
    """Find more threads for an operator than the program has processors."""
    settings = record.settings
    if settings is None or settings.threads is None:
        return Missing.SETTINGS
    if settings.threads.intra_op <= settings.threads.usable_processors:
        return []
    queued = record.figure("queued", "ns", _QUEUED, process=record.process_id)
    ran = record.figure("ran", "ns", _RAN, process=record.process_id)
    if queued.value is None or ran.value is None:
        return Missing.THREADS
    time = record.in_model
    wanted = queued.value + ran.value
    share = queued.value / wanted if wanted else 0.0
    values = {
        "threads": settings.threads.intra_op,
        "processors": record.processors,
        "queued_share": share,
    }
    gain = TimeRange(0.0, time.total_ns * share)
    return [Draft(Rule.THREADS, values, time, GainKind.BOUND, gain, (queued, ran))]
