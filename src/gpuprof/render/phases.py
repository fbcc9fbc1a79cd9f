# SPDX-License-Identifier: Apache-2.0
"""The first lines about a run: its wall time by phase, and a step by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpuprof.analyze.phases import WAIT_FOR_BACKWARD, WAIT_FOR_WORKERS, WAIT_IN_BACKWARD
from gpuprof.analyze.processor_waits import Contention, WaitsOf
from gpuprof.render.page import escaped
from gpuprof.run.import_times import FIRST_STEP, LATER, START_UP
from gpuprof.text.sanitize import escape_text
from gpuprof.text.units import (
    counted,
    format_duration,
    format_duration_range,
    format_missing_ranks,
    format_share,
)

if TYPE_CHECKING:
    from gpuprof.analyze.import_causes import ImportedPackage
    from gpuprof.analyze.phases import Phases, RankSteps, StepFigures
    from gpuprof.analyze.processor_waits import ProcessorWaits

_SHOWN_PACKAGES = 3
_SHOWN_IMPORTS_NS = 50_000_000
_LEAST_PACKAGE = 0.01  # of all imports, to be shown
_SHOWN_OTHERS = 0.05  # of a package's time, that other packages which it imports have
_SHOWN_FUNCTIONS = 2
_IMPORT_PHASES = {FIRST_STEP: "the first step", LATER: "later steps"}
_SHOWN_WAITS = 3
_LEAST_WAIT = 0.02  # of a step, to be shown
_MOST_OVERLAPPED = 0.05  # of a step, in collective operations next to the model's calls
_SHOWN_DIFFERENCE = 0.02  # of a part of a step, from the rank with least to that with most
_PART_TEXTS = {"data": "loading data", "waiting": "waiting for collectives", "other": "other Python"}
_WAITING_FOR_WORKERS = "waiting for data"
_OTHER_TEXTS = {
    "evaluation": "evaluation",
    "generation": "generation",
    "inference": "inference",
    "checkpoint": "checkpoints",
}
_WAIT_TEXTS = {
    WAIT_FOR_WORKERS: "data loader workers",
    WAIT_IN_BACKWARD: "in the backward pass",
    WAIT_FOR_BACKWARD: "for the backward pass on another thread",
}
_CONTENTION_TEXTS = {
    Contention.OTHER_PROGRAMS: "processes that were not recorded ran",
    Contention.UNKNOWN: "unrecorded processes ran, or the program has more threads than processors",
}
_LACKS_RANKS = "waits for them have no cause in this run"
_STEP_TEXTS = {"training": "step", "forward": "forward call", "unknown": "step"}


def phases_html(phases: Phases | None) -> str:
    """Return the lines as HTML; empty without phases."""
    lines = phase_lines(phases) if phases is not None else []
    return "".join(f'<p class="phases"><b>{label}</b> {escaped(text)}</p>' for label, text in lines)


def step_html(phases: Phases | None) -> str:
    """Return the median step of the main process as a figure next to the title; empty without steps."""
    if phases is None or phases.steps is None:
        return ""
    figure = format_duration(phases.steps.median_ns)
    return f'<div title="Main process"><dt>Median step</dt><dd>{figure}</dd></div>'


def steps_text(phases: Phases) -> str:
    """Return which steps figures "per step" are of: those after the warm-up."""
    if phases.steps is None:
        return f"the steps of {counted(len(phases.ranks), 'rank')}"
    return counted(phases.steps.count - phases.steps.warm_up_steps, _STEP_TEXTS[phases.steps.kind])


def phase_lines(phases: Phases) -> list[tuple[str, str]]:
    """Return label and text of each line."""
    lines = [("wall time", f"{_ranks_before(phases)}{format_duration(phases.wall_ns)}{_by_phase(phases)}")]
    lines.append(("imports", _imports_by_functions(phases)))
    if phases.processor_waits is not None:
        lines.append(("warning", _processor_waits(phases.processor_waits, of_rank=bool(phases.ranks))))
    if phases.missing_ranks:
        lines.append(("warning", f"{format_missing_ranks(phases.missing_ranks)}: {_LACKS_RANKS}"))
    if phases.ranks:
        lines.append((counted(len(phases.ranks), "rank"), _steps_of_ranks(phases)))
        lines += [("mean step", _parts_of_ranks(phases.ranks)), ("waits", _waits_of_ranks(phases.ranks))]
    elif phases.steps is not None:
        lines += [("mean step", _parts(phases.steps)), ("waits", _waits(phases.steps))]
    return [line for line in lines if line[1]]


def _processor_waits(waits: ProcessorWaits, *, of_rank: bool) -> str:
    """Return how long threads waited for a processor, and why; empty if that does not change times."""
    if waits.contention is None:
        return ""
    who, when = "threads", "of the time in which they were ready"
    if waits.of is WaitsOf.STEPS:
        who, when = "the main thread" + (" of a rank" if of_rank else ""), "of the time in steps"
    why = _CONTENTION_TEXTS.get(waits.contention)
    if waits.contention is Contention.OTHER_PROGRAMS and waits.others is not None:
        why = f"processes that were not recorded used {waits.others:.1f} processors"
    if why is None:
        threads = counted(waits.busy_threads, "busy thread")
        why = f"the program has {threads} on {waits.processors:.3g} processor{'s' * (waits.processors != 1)}"
    return f"{who} waited {format_share(waits.fraction)} {when} for a processor: {why}; times vary"


def _ranks_before(phases: Phases) -> str:
    """Return the wall times of the ranks, and whose the next one is; empty for a main process alone."""
    walls = sorted((wall_ns, rank) for rank, wall_ns in phases.rank_walls_ns.items())
    if not walls or (len(walls) == 1 and phases.main_rank is not None):
        return ""
    (low, least), (high, most) = walls[0], walls[-1]
    first, last = format_duration(low), format_duration(high)
    text = f"{first} (rank {least})"
    if len(walls) > 1:
        text = f"{first} each" if first == last else f"{text} to {last} (rank {most})"
    return f"{text}, {'launcher' if phases.main_rank is None else f'rank {phases.main_rank}'} "


def _by_phase(phases: Phases) -> str:
    imports = _imports(phases)
    others = [(_OTHER_TEXTS[kind], time_ns) for kind, time_ns in phases.others_ns.items() if time_ns]
    if phases.steps is None and not others:
        if not imports:
            return ""
        return f" ({imports})" if _ranks_before(phases) else f": {imports}"
    first, last = ("before", "after") if phases.is_trace else ("start-up", "closing")
    words = [f"{first} {format_duration(phases.startup_ns)}" + (f" ({imports})" if imports else "")]
    if phases.is_trace and not phases.startup_ns:
        words = []
    if phases.steps is not None:
        words += _steps(phases.steps)
    rest = [("other between steps", phases.between_ns), (last, phases.closing_ns)]
    words += [f"{text} {format_duration(time_ns)}" for text, time_ns in others + rest if time_ns > 0]
    return ": " + ", ".join(words)


def _imports(phases: Phases) -> str:
    """Return the packages that the program imports, each with the others that it imports."""
    total_ns = sum((phases.imports_ns or {}).values())
    if not phases.imports_ns or total_ns < _SHOWN_IMPORTS_NS:
        return ""
    causes = phases.import_causes
    least_ns = _LEAST_PACKAGE * total_ns
    if causes is None:
        packages = _times({name: own for name, own in phases.imports_ns.items() if own >= least_ns})
    else:
        shown = [each for each in causes.packages if each.total_ns >= least_ns][:_SHOWN_PACKAGES]
        packages = ", ".join(map(_imported_package, shown))
    return f"imports {format_duration(total_ns)}: {packages}"


def _imported_package(package: ImportedPackage) -> str:
    others = {
        name: time_ns
        for name, time_ns in package.others_ns.items()
        if time_ns >= max(_SHOWN_OTHERS * package.total_ns, _SHOWN_IMPORTS_NS)
    }
    text = f"{escape_text(package.package)} {format_duration(package.total_ns)}"
    return f"{text} (including {_times(others)})" if others else text


def _imports_by_functions(phases: Phases) -> str:
    """Return what functions import that the program calls, and imports after the start-up."""
    functions = () if phases.import_causes is None else phases.import_causes.functions
    shown = [each for each in functions if each.total_ns >= _SHOWN_IMPORTS_NS][:_SHOWN_FUNCTIONS]
    words = []
    for each in shown:
        where = [] if each.caller is None else [escape_text(each.caller)]
        where += [] if each.phase == START_UP else [_IMPORT_PHASES.get(each.phase, escape_text(each.phase))]
        total = format_duration(each.total_ns) + (" of the start-up" if each.phase == START_UP else "")
        words.append(f"{total} in {', '.join(where)}: {_times(each.modules_ns)}")
    return "; ".join(words)


def _times(times_ns: Mapping[str, int]) -> str:
    largest = list(times_ns.items())[:_SHOWN_PACKAGES]
    return ", ".join(f"{escape_text(name)} {format_duration(time_ns)}" for name, time_ns in largest)


def _steps(steps: StepFigures) -> list[str]:
    """Return the steps of the warm-up, if there are any, and the others."""
    what = _STEP_TEXTS[steps.kind]
    warm_up = steps.warm_up_steps
    words = [f"warm-up {counted(warm_up, what)} {format_duration(steps.warm_up_ns)}"] if warm_up else []
    others = steps.count - warm_up
    text = f"{counted(others, what)} {format_duration(steps.total_ns - steps.warm_up_ns)}"
    if others == 1:
        return [*words, text]
    each = f"median {format_duration(steps.median_ns)}"
    if steps.interval_ns is not None:
        low, high = map(format_duration, steps.interval_ns)
        each += f", 90% CI {low} to {high}"
    return [*words, f"{text} ({each})"]


def _steps_of_ranks(phases: Phases) -> str:
    """Return the number of steps, the ranks with the shortest and longest ones, and who waits for whom."""
    ranks = phases.ranks
    fewest, most = (choose(each.steps.count for each in ranks) for choose in (min, max))
    count = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    each_has = " each" if len(ranks) > 1 else ""
    words = [f"{count} {_STEP_TEXTS[ranks[0].steps.kind]}{'' if most == 1 else 's'}{each_has}"]
    fast, slow = (choose(ranks, key=lambda each: each.steps.median_ns) for choose in (min, max))
    shortest, longest = (format_duration(each.steps.median_ns) for each in (fast, slow))
    of_both = f" (rank {fast.rank}) to {longest} (rank {slow.rank})"
    words.append(f"median {shortest}{'' if shortest == longest else of_both}")
    if any(each.collectives for each in ranks):
        shares = [(each.collectives, each.rank) for each in ranks]
        words += (
            []
            if _has_waiting(ranks)
            else [f"collectives run in {_least_to_most(shares)} of the time, also next to other parts"]
        )
        if phases.last_rank is not None:
            others = [each.rank for each in ranks if each != phases.last_rank]
            who = f"rank {others[0]} waits" if len(others) == 1 else "the others wait"
            words.append(f"{who} for rank {phases.last_rank.rank}")
    return ", ".join(words)


def _parts_of_ranks(ranks: Sequence[RankSteps]) -> str:
    """Return each part of a step with the ranks that have least and most of it."""
    words = []
    parts = [_with_waiting(each) for each in ranks]
    steps = [each.steps for each in ranks]
    for name in parts[0]:
        known = [
            (share, each.rank)
            for each, own in zip(ranks, parts, strict=True)
            if (share := own[name]) is not None
        ]
        if len(known) < len(ranks) or (name == "waiting" and not max(known)[0]):
            continue
        words.append((name == "other", -max(known)[0], f"{_part(name, *steps)} {_least_to_most(known)}"))
    if len(words) < 2:
        return ""
    means = sorted(each.steps.mean_ns for each in ranks if each.steps.mean_ns is not None)
    whole = f"{format_duration_range(means[0], means[-1])}: " if means else ""
    return whole + ", ".join(text for *_, text in sorted(words))


def _has_waiting(ranks: Sequence[RankSteps]) -> bool:
    """Whether the wait for collective operations is a part of the printed step, and about all of them."""
    return any(each.waiting for each in ranks) and all(
        each.steps.parts["other"] is not None and each.collectives - each.waiting < _MOST_OVERLAPPED
        for each in ranks
    )


def _with_waiting(rank: RankSteps) -> dict[str, float | None]:
    """Return the parts of a step, with the wait for collective operations apart from the other time."""
    parts, other = rank.steps.parts, rank.steps.parts["other"]
    return {**parts, "waiting": rank.waiting, "other": None if other is None else other - rank.waiting}


def _waits_of_ranks(ranks: Sequence[RankSteps]) -> str:
    names = {name for each in ranks for name in each.steps.waits or {}}
    # Parts of a step have these.
    if _has_waiting(ranks):
        names.discard(WAIT_IN_BACKWARD)
    if all(each.steps.parts.get("data") is not None for each in ranks):
        names.discard(WAIT_FOR_WORKERS)
    shares = {
        name: [((each.steps.waits or {}).get(name, 0.0), each.rank) for each in ranks] for name in names
    }
    largest = sorted(names, key=lambda name: (-max(shares[name])[0], name))[:_SHOWN_WAITS]
    return ", ".join(
        f"{_wait(name)} {_least_to_most(shares[name])}"
        for name in largest
        if max(shares[name])[0] >= _LEAST_WAIT
    )


def _wait(name: str) -> str:
    return _WAIT_TEXTS.get(name) or escape_text(name)


def _least_to_most(shares: Sequence[tuple[float, int]]) -> str:
    """Return the smallest and the largest fraction, each with its rank; one if they hardly differ."""
    (low, least), (high, most) = min(shares), max(shares)
    if high - low < _SHOWN_DIFFERENCE:
        return format_share(low)
    return f"{format_share(low)} (rank {least}) to {format_share(high)} (rank {most})"


def _waits(steps: StepFigures) -> str:
    # The part of the step has that for workers.
    own = (steps.waits or {}).items()
    waits = [each for each in own if each[0] != WAIT_FOR_WORKERS or steps.parts.get("data") is None]
    largest = [(name, share) for name, share in waits if share >= _LEAST_WAIT][:_SHOWN_WAITS]
    return ", ".join(f"{_wait(name)} {format_share(share)}" for name, share in largest)


def _parts(steps: StepFigures) -> str:
    """Return the mean step, of which the parts are fractions."""
    known = [(name, share) for name, share in steps.parts.items() if share is not None]
    if len(known) < 2:
        return ""
    ordered = sorted(known, key=lambda each: (each[0] == "other", -each[1]))
    whole = "" if steps.mean_ns is None else f"{format_duration(steps.mean_ns)}: "
    return whole + ", ".join(f"{_part(name, steps)} {format_share(share)}" for name, share in ordered)


def _part(name: str, *steps: StepFigures) -> str:
    """Return the text of a part. A loader without workers computes and does not wait."""
    if name == "data" and any(WAIT_FOR_WORKERS in (each.waits or {}) for each in steps):
        return _WAITING_FOR_WORKERS
    return _PART_TEXTS.get(name, name)
