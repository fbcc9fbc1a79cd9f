# SPDX-License-Identifier: Apache-2.0
"""Self time in the steps after the warm-up, without start-up, imports and what follows the last step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.calls import load_calls, load_gpu_calls
from gpuprof.analyze.phases import ranks_of, warm_up_steps_of
from gpuprof.analyze.whatif.intervals import Intervals
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree
    from gpuprof.analyze.calls import Calls
    from gpuprof.analyze.metrics import Weight, WeightName
    from gpuprof.run.folder import RunFolder

    Floats = npt.NDArray[np.float64]

_PROCESS, _PYTHON, _WAITING = (KINDS.index(kind) for kind in ("process", "python", "waiting"))
_STEPS = "SELECT process_id, begin_ns, end_ns FROM steps ORDER BY process_id, begin_ns"
# By process and function: the time that its samples ran, and how much of it was in steps. `clocks` has each
# process, the one whose steps count for it, and how many of those are left out. A built-in function that a
# thread waits in is a wait, and what the sample ran is the function's that called it.
_SAMPLED = """
    WITH numbered AS (
        SELECT process_id, begin_ns, end_ns,
               row_number() OVER (PARTITION BY process_id ORDER BY begin_ns) AS number FROM steps),
    steady AS (
        SELECT clock.process_id, begin_ns, end_ns
        FROM (VALUES {clocks}) AS clock(process_id, of, warm_up)
        JOIN numbered ON numbered.process_id = clock.of AND number > warm_up),
    waits AS (
        SELECT *, CASE WHEN cpu_ns >= 0 AND 2 * (duration_ns - cpu_ns - greatest(coalesce(queued_ns, 0), 0))
                            > duration_ns
                       THEN duration_ns - cpu_ns - greatest(coalesce(queued_ns, 0), 0) ELSE 0 END AS waited_ns
        FROM stacks WHERE len(frames) > 0),
    samples AS (
        SELECT process_id, thread_id = process_id AS is_main, t_ns - duration_ns // 2 AS middle_ns,
               CASE WHEN waited_ns > 0 AND ends_with(frames[-1], ' (built-in)') AND len(frames) > 1
                    THEN frames[-2] ELSE frames[-1] END AS name,
               duration_ns - waited_ns AS ran_ns
        FROM waits)
    SELECT samples.process_id, is_main, name, sum(ran_ns)::DOUBLE AS ran_ns,
           coalesce(sum(ran_ns) FILTER (middle_ns < end_ns), 0)::DOUBLE AS inside_ns
    FROM samples ASOF LEFT JOIN steady
        ON samples.process_id = steady.process_id AND middle_ns >= begin_ns
    GROUP BY ALL HAVING sum(ran_ns) > 0
"""


@dataclass(frozen=True, slots=True)
class StepSelfTimes:
    """Self time of each node in the steps, by weight; what waits and processes have is left out.

    That of sampled functions is in proportion to their samples. `whole_ns` is the time that it is a part of:
    wall time of the steps, or the sum of the weight in them.
    """

    own_ns: dict[WeightName, Floats]
    whole_ns: dict[WeightName, float]


def steady_steps(run: RunFolder) -> dict[int, tuple[int, Intervals]]:
    """Return by process how many steps the warm-up has, and the times of the others."""
    columns = run.columns(_STEPS)
    process, begin, end = (np.asarray(columns[name]) for name in ("process_id", "begin_ns", "end_ns"))
    found = {}
    for process_id in np.unique(process).tolist():
        own = process == process_id
        warm_up = warm_up_steps_of((end[own] - begin[own]).astype(np.float64))
        found[process_id] = (warm_up, Intervals.union(begin[own][warm_up:], end[own][warm_up:]))
    return found


def read_step_times(run: RunFolder, tree: CallTree, weights: Sequence[Weight]) -> StepSelfTimes | None:
    """Return the self times for the weights `main` and `gpu`; None for a run without steps or paths."""
    steady = steady_steps(run)
    calls = load_calls(run, tree) if steady else None
    if calls is None:
        return None
    clocks = _clocks(run.meta, tree, steady)
    found = StepSelfTimes({}, {})
    for weight in weights:
        if weight.name == "main":
            found.own_ns["main"] = _on_main_threads(run, weight.tree, calls, clocks, steady)
            mains = [each for _, each in ranks_of(run.meta)] or [run.meta.get("process_id") or 0]
            found.whole_ns["main"] = sum(steady[each][1].total_ns for each in mains if each in steady)
        elif weight.name == "gpu" and (launched := load_gpu_calls(run)) is not None:
            times = {process: steady[clock][1] for process, clock in clocks.items()}
            inside = _fraction_inside(tree, launched, times) > 0
            own = _sums(tree, launched, launched.own_ns * inside)
            found.own_ns["gpu"], found.whole_ns["gpu"] = own, float(own.sum())
    return found


def _clocks(meta: Mapping[str, Any], tree: CallTree, steady: Mapping[int, Any]) -> dict[int, int]:
    """Return for each process the one whose steps count: itself, a parent, or the main process."""
    parents = {each["process_id"]: each.get("parent_process_id") for each in meta.get("processes") or ()}
    clocks = {}
    for process_id in np.unique(tree.process_id).tolist():
        chain = [process_id]
        while (above := parents.get(chain[-1])) is not None and above not in chain:
            chain.append(above)
        own = next((each for each in (*chain, meta.get("process_id") or 0) if each in steady), None)
        if own is not None:
            clocks[process_id] = own
    return clocks


def _sums(tree: CallTree, calls: Calls, values: Floats) -> Floats:
    return np.bincount(calls.node, values, minlength=len(tree)).astype(np.float64)


def _on_main_threads(
    run: RunFolder,
    tree: CallTree,
    calls: Calls,
    clocks: Mapping[int, int],
    steady: Mapping[int, tuple[int, Intervals]],
) -> Floats:
    fraction = _fraction_inside(tree, calls, {process: steady[clock][1] for process, clock in clocks.items()})
    own = _sums(tree, calls, np.where(calls.is_main, calls.own_ns * fraction, 0.0))
    # Of a process that has no wall time of its own, the weight has nothing.
    own = np.where((tree.own_ns > 0) & ~np.isin(tree.kind, (_PROCESS, _WAITING)), own, 0.0)
    sampled = np.flatnonzero((tree.kind == _PYTHON) & (tree.own_ns > 0))
    if len(sampled):
        fractions = _sampled_fractions(
            run, clocks, {process: warm_up for process, (warm_up, _) in steady.items()}
        )
        processes, names = tree.process_id[sampled].tolist(), tree.name[sampled].tolist()
        own[sampled] = tree.own_ns[sampled] * np.array(
            [fractions.get((of, tree.names[name]), 0.0) for of, name in zip(processes, names, strict=True)]
        )
    return own


def _fraction_inside(tree: CallTree, calls: Calls, times: Mapping[int, Intervals]) -> Floats:
    """Return which part of each call is in the steps."""
    fraction = np.zeros(len(calls.node))
    process = tree.process_id[calls.node]
    for process_id, steps in times.items():
        own = np.flatnonzero(process == process_id)
        begin, duration = calls.start_ns[own], calls.duration_ns[own]
        # An instant is as long as a nanosecond.
        length = np.maximum(duration, 1)
        fraction[own] = steps.covered_ns(begin, begin + length) / length
    return fraction


def _sampled_fractions(
    run: RunFolder, clocks: Mapping[int, int], warm_ups: Mapping[int, int]
) -> dict[tuple[int, str], float]:
    """Return by process and function which part of the main thread's time in it is in the steps."""
    rows = ", ".join(f"({process}, {clock}, {warm_ups[clock]})" for process, clock in clocks.items())
    found = run.sql(_SAMPLED.replace("{clocks}", rows)).fetchall()
    return {(process, name): inside / ran for process, is_main, name, ran, inside in found if is_main}
