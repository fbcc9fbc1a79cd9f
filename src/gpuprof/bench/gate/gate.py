# SPDX-License-Identifier: Apache-2.0
"""The gate: whether a candidate is worse than one result by more than a threshold, metric by metric.

Of one result the unit is the process run; against a history (`history.py`) it is the result file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from gpuprof.bench.facts import Diagnostic, note, warning
from gpuprof.bench.gate.result import Gate, GateRow, Key, Thresholds, different
from gpuprof.bench.results.run_figures import TAILS, RunMetric
from gpuprof.bench.results.stored import Configuration, ResultFile
from gpuprof.errors import BenchmarkError
from gpuprof.stats.ratio_test import (
    Comparison,
    Judgement,
    LogRatio,
    compare_with,
    geometric_mean,
    proportion_ratio,
    required_runs,
)

MOST_RUNS = 1_000
POWER = 0.8
_BUSY_SHARE = 0.5  # of the process runs of a side, from which on times are inconclusive
Sides = tuple[Sequence[ResultFile], Sequence[ResultFile]]


def judge(
    baseline: ResultFile,
    candidate: ResultFile,
    thresholds: Thresholds | None = None,
    *,
    any_machine: bool = False,
    any_load: bool = False,
) -> Gate:
    """Compare all metrics of all configurations of the baseline, process run by process run.

    Times of a busy machine are inconclusive, unless `any_load`. Raises BenchmarkError where the two were
    measured on different machines (unless `any_machine`), in different ways, or have nothing in common.
    """
    limits = thresholds or Thresholds()
    notes = [*_differences(baseline, candidate, any_machine), *_aborted(baseline), *_aborted(candidate)]
    shared = [each for each in baseline.medians_s if each in candidate.medians_s]
    if not shared:
        raise nothing_shared(candidate, str(baseline.path), next(iter(baseline.medians_s)))
    for each in shared:
        _check_way(each, baseline, candidate)
        _check_figures(each, baseline, candidate)
    sides = ((baseline,), (candidate,))
    judged = [key for each in shared for key in judged_keys(each, limits, sides)]
    found = _compared_rows(
        [key for key in judged if is_whole(key, sides)], baseline, candidate, limits, any_load
    )
    rows = [found[key] if key in found else unmeasured_row(key, limits, sides) for key in judged]
    rows += [
        unmeasured_row((each, RunMetric.P50), limits, sides)
        for each in baseline.medians_s
        if each not in shared
    ]
    notes += side_notes(shared, limits, sides)
    notes += only_candidate([each for each in candidate.medians_s if each not in baseline.medians_s])
    return Gate(tuple(rows), limits.margin, tuple(notes))


def _compared_rows(
    keys: Sequence[Key], baseline: ResultFile, candidate: ResultFile, limits: Thresholds, any_load: bool
) -> dict[Key, GateRow]:
    """Return the rows of what both sides have, judged together."""
    pairs = {key: (baseline.figures(*key), candidate.figures(*key)) for key in keys}
    ratios = {key: ratio for key in keys if (ratio := _known_ratio(key, baseline, candidate)) is not None}
    compared, judged = compare_with(
        {
            key: pair[::-1] if key[1].is_higher_better else pair
            for key, pair in pairs.items()
            if key not in ratios
        },
        {key: limits.of_key(key) for key in keys},
        ratios,
    )
    sides = (baseline,), (candidate,)
    busy = {key: not any_load and is_busy(key, *sides) for key in keys}
    rows = {
        key: _compared_row(key, pairs[key], each, len(keys), is_busy=busy[key], reason=_open(key, *sides))
        for key, each in compared.items()
    }
    return rows | {key: _judged_row(key, pairs[key], each, is_busy=busy[key]) for key, each in judged.items()}


def _known_ratio(key: Key, baseline: ResultFile, candidate: ResultFile) -> LogRatio | None:
    """Return the ratio where its error is known without process runs; None where they are compared."""
    if key[1] is RunMetric.ACCURACY:
        return _accuracy_ratio(key, baseline, candidate)
    old, new = (side.of(key[0]).logs.get(key[1]) for side in (baseline, candidate))
    fewest = min(len(side.figures(*key)) for side in (baseline, candidate))
    if old is None or new is None or (fewest > 1 and not key[1].is_fraction):
        return None
    squares = (old.error**2, new.error**2)
    parts = sum(square**2 / side.freedom for square, side in zip(squares, (old, new), strict=True))
    # Welch's degrees of freedom (Biometrika 34, 1947).
    freedom = sum(squares) ** 2 / parts if parts > 0 else min(old.freedom, new.freedom)
    difference = old.value - new.value if key[1].is_higher_better else new.value - old.value
    return LogRatio.of(difference, math.sqrt(sum(squares)), freedom)


def _open(key: Key, *sides: Sequence[ResultFile]) -> Diagnostic | None:
    """Return why one run of a side has no interval; None where that is not known."""
    found = (file.of(key[0]).open.get(key[1]) for side in sides for file in side)
    return next((each for each in found if each is not None), None)


def _accuracy_ratio(key: Key, baseline: ResultFile, candidate: ResultFile) -> LogRatio:
    (old,), (new,) = baseline.figures(*key), candidate.figures(*key)
    counts = [side.of(key[0]).labeled_samples for side in (baseline, candidate)]
    return proportion_ratio((old, counts[0]), (new, counts[1]))


def _judged_row(
    key: Key, pair: tuple[Sequence[float], Sequence[float]], judged: Judgement, *, is_busy: bool
) -> GateRow:
    reason = reason_of_verdict(judged)
    if judged.reason == "across_margin":
        reason = note(
            "gate_needs_labels" if key[0].load is None else "gate_needs_requests", margin=judged.margin
        )
    return GateRow(
        configuration=key[0],
        metric=key[1],
        threshold=judged.margin,
        baseline=geometric_mean(pair[0]),
        candidate=geometric_mean(pair[1]),
        judgement=judged,
        reason=note("gate_busy_machine") if is_busy else reason,
        is_busy=is_busy,
    )


def judged_keys(each: Configuration, limits: Thresholds, sides: Sides) -> Iterator[Key]:
    """Yield the metrics of a configuration to judge: what is named, and what the baseline has."""
    for metric in limits.judged:
        is_wanted = limits.is_named(metric) and not _is_elsewhere((each, metric), sides)
        if is_wanted or metric is RunMetric.P50 or _is_judged((each, metric), sides):
            yield each, metric


def _is_elsewhere(key: Key, sides: Sides) -> bool:
    """Whether another batch size has the accuracy, of which a variant has one."""
    each, metric = key
    if metric is not RunMetric.ACCURACY or is_whole(key, sides):
        return False
    return any(
        file.figures(other, metric)
        for file in sides[0]
        for other in file.medians_s
        if other.model == each.model
    )


def _is_judged(key: Key, sides: Sides) -> bool:
    each, metric = key
    if metric in TAILS:
        return is_whole(key, sides)  # otherwise there is a note
    if metric is RunMetric.THROUGHPUT:
        # Of single calls it is the inverse of the mean.
        ways = (file.ways[each][0] for file in sides[0] if each in file.ways)
        return any(way in ("throughput", "load") for way in ways)
    if metric is RunMetric.GOODPUT and len(_goals(each, sides)) > 1:
        return False  # there is a note
    if metric is RunMetric.PROCESS_MEMORY:
        # Results of earlier versions have no other.
        return is_whole(key, sides) and not is_whole((each, RunMetric.MEMORY), sides)
    return any(file.figures(each, metric) for file in sides[0])


def is_whole(key: Key, sides: Sides) -> bool:
    """Whether both sides have figures of a metric."""
    return all(any(file.figures(*key) for file in side) for side in sides)


def unmeasured_row(key: Key, limits: Thresholds, sides: Sides) -> GateRow:
    """Return the row of what one side has no figures of."""
    each, metric = key
    old, new = (next((found for file in side if (found := file.figures(*key))), ()) for side in sides)
    missing = next(
        (why for side in sides for file in side if (why := file.of(each).missing.get(metric))), None
    )
    reason = missing or note("gate_no_figure", has_baseline=bool(old), has_candidate=bool(new))
    return GateRow(
        configuration=each,
        metric=metric,
        threshold=limits.of_key(key),
        baseline=geometric_mean(old) if old else None,
        candidate=geometric_mean(new) if new else None,
        reason=missing if metric is RunMetric.P50 else reason,
    )


def _compared_row(
    key: Key,
    pair: tuple[Sequence[float], Sequence[float]],
    compared: Comparison,
    rows: int,
    *,
    is_busy: bool,
    reason: Diagnostic | None,
) -> GateRow:
    """Return a row over process runs; `reason` is why a single one has no interval."""
    variation = _variation(*pair)
    return GateRow(
        configuration=key[0],
        metric=key[1],
        threshold=compared.margin,
        baseline=geometric_mean(pair[0]),
        candidate=geometric_mean(pair[1]),
        judgement=compared,
        variation=variation,
        reason=note("gate_busy_machine") if is_busy else _reason_of(key, compared, reason),
        runs_needed=None if is_busy else runs_needed(compared, variation, rows),
        is_busy=is_busy,
    )


def runs_needed(compared: Comparison, variation: float | None, rows: int = 1) -> int | None:
    """Return the process runs a side that give a verdict; None where there is one, or where it is unknown.

    With so many, all `rows` together have a verdict with a power of 80%: each of them fails to have one with
    a probability of at most 20% / `rows` (Bonferroni).
    """
    if compared.verdict != "inconclusive" or variation is None:
        return None
    power = 1 - (1 - POWER) / rows
    wanted = required_runs(variation, compared.margin, level=compared.level, power=power)
    # With so many already, the ratio lies near the margin: half the width takes four times as many.
    made = min(compared.old_launches, compared.new_launches)
    return 4 * made if wanted is not None and wanted <= made else wanted


def _reason_of(key: Key, compared: Comparison, reason: Diagnostic | None) -> Diagnostic | None:
    if compared.reason == "too_few_runs" and key[0].load is not None:
        return reason or note("gate_one_load")
    if compared.reason == "across_margin" and key[0].load is not None:
        return note("gate_needs_requests", margin=compared.margin)
    return reason_of_verdict(compared)


def reason_of_verdict(judged: Judgement | Comparison) -> Diagnostic | None:
    """Return why the verdict is not that both are the same."""
    code = _REASONS.get(judged.reason)
    return None if code is None else note(code, margin=judged.margin)


_REASONS = {
    "above_margin": "gate_worse",
    "below_margin": "gate_better",
    "across_margin": "gate_crosses",
    "too_few_runs": "gate_one_run",
}


# --- what else is known of both sides --------------------------------------------------------------


def is_busy(key: Key, *sides: Sequence[ResultFile]) -> bool:
    """Whether half of the process runs of a side, or more, had background load that changes the metric."""
    return key[1].depends_on_load and any(_busy_share(key[0], side) >= _BUSY_SHARE for side in sides)


def _busy_share(each: Configuration, side: Sequence[ResultFile]) -> float:
    found = [file.of(each) for file in side]
    return sum(one.busy for one in found) / max(1, sum(one.completed for one in found))


def side_notes(shared: Sequence[Configuration], limits: Thresholds, sides: Sides) -> list[Diagnostic]:
    """Return what a reader needs to know of both sides: background load, and metrics that are not judged."""
    return [
        *_busy_notes(shared, sides),
        *_tail_notes(shared, limits, sides),
        *_goal_notes(shared, limits, sides),
    ]


def _goals(each: Configuration, sides: Sides) -> list[str]:
    """Return the different targets of a goodput."""
    found = (file.of(each).goal or "" for side in sides for file in side if each in file.medians_s)
    return list(dict.fromkeys(found))


def _goal_notes(shared: Sequence[Configuration], limits: Thresholds, sides: Sides) -> Iterator[Diagnostic]:
    """Yield a note for each goodput that is not judged, since the targets differ."""
    for each in shared if RunMetric.GOODPUT in limits.judged else ():
        goals = _goals(each, sides)
        if len(goals) > 1:
            yield note("goodput_not_judged", goals=[goal or "none" for goal in goals])


def _busy_notes(shared: Sequence[Configuration], sides: Sides) -> Iterator[Diagnostic]:
    """Yield a warning for each file that was measured on a busy machine."""
    for file in (file for side in sides for file in side):
        busy = sum(file.of(each).busy for each in shared)
        if busy:
            measured = sum(file.of(each).completed for each in shared)
            yield warning("gate_background_load", path=str(file.path), busy=busy, measured=measured)


def _tail_notes(shared: Sequence[Configuration], limits: Thresholds, sides: Sides) -> Iterator[Diagnostic]:
    """Yield the tail metrics that are not judged, since a process run has too few samples for them."""
    for metric in TAILS:
        if metric not in limits.judged or limits.is_named(metric):
            continue
        lacking = [each for each in shared if not is_whole((each, metric), sides)]
        found = [file.of(each).missing.get(metric) for each in lacking for side in sides for file in side]
        known = [each for each in found if each is not None]
        why = min(known, key=lambda each: each.values.get("samples", 0), default=None)
        if why is not None:
            yield note("tail_not_judged", metric=str(metric), configurations=len(lacking), reason=why)


def _differences(baseline: ResultFile, candidate: ResultFile, any_machine: bool) -> Iterator[Diagnostic]:
    machines = different(baseline.machine, candidate.machine)
    if machines and not any_machine:
        raise BenchmarkError(
            "other_machine",
            f"{baseline.path} was measured on another machine or with other threads than {candidate.path} "
            f"({'; '.join(machines)})",
            hint="measure the baseline again on the candidate's machine, or add --any-machine",
        )
    if baseline.data != candidate.data:
        raise BenchmarkError(
            "data_differs",
            f"{baseline.path} was measured with data {baseline.data} and {candidate.path} with "
            f"{candidate.data}",
            hint="measure both with the same data",
        )
    if machines:
        yield warning("different_machines", different=machines)
    versions = different(baseline.versions, candidate.versions)
    if versions:
        yield note("different_versions", different=versions)


def _aborted(side: ResultFile) -> Iterator[Diagnostic]:
    """Yield which process runs are not counted."""
    for each, (count, total) in side.aborted.items():
        if count:
            counts = {"aborted": count, "process_runs_made": total}
            yield note("aborted_runs", path=str(side.path), configuration=str(each), **counts)


def _check_way(each: Configuration, baseline: ResultFile, candidate: ResultFile) -> None:
    for name, old, new in zip(("mode", "caches"), baseline.ways[each], candidate.ways[each], strict=True):
        if old != new:
            raise BenchmarkError(
                "measured_differently",
                f"{each} was measured with {name} {old} in {baseline.path} and {new} in {candidate.path}",
                hint=f"measure both with the same {name}",
            )


def _check_figures(each: Configuration, *sides: ResultFile) -> None:
    for side in sides:
        # Of a load the requests that failed are figures too.
        if each.load is None and not side.medians_s[each]:
            raise BenchmarkError(
                "no_process_run", f"{side.path}: no process run of {each} completed", hint="measure it again"
            )


def _variation(*sides: Sequence[float]) -> float | None:
    logs = [np.log(side) for side in sides]
    freedom = sum(len(side) - 1 for side in logs)
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in logs)
    return math.sqrt(squares / freedom) if freedom else None


def nothing_shared(candidate: ResultFile, baseline: str, first: Configuration) -> BenchmarkError:
    """Return the error of two sides without a common configuration."""
    others = [each for each in candidate.medians_s if each != first]
    loads = [each.load or "none" for each in others if each._replace(load=first.load) == first]
    if loads:
        return BenchmarkError(
            "different_loads",
            f"the loads differ: {candidate.path} has {loads[0]}, and {baseline} {first.load or 'none'}",
            hint="measure both with the same scenario and the same rate",
        )
    return BenchmarkError(
        "no_configuration",
        f"{candidate.path} has no configuration of {baseline} ({first}, ...)",
        hint="measure the same model, framework, dtype, inputs and batch sizes",
    )


def only_candidate(new: Iterable[Configuration]) -> list[Diagnostic]:
    """Return the note on configurations that the baseline lacks."""
    names = [str(each) for each in new]
    return [note("only_candidate", configurations=names)] if names else []
