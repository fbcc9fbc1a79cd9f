# SPDX-License-Identifier: Apache-2.0
"""The wall time of a program's main process: start-up and imports, steps, evaluations, checkpoints, and more.

The processes that a launcher has numbered (ranks) have steps of their own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuprof.analyze.import_causes import read_import_causes
from gpuprof.analyze.processor_waits import read_processor_waits
from gpuprof.analyze.whatif.intervals import Intervals
from gpuprof.run.call_sites import waited_in_each_ns
from gpuprof.run.facts import statuses_of
from gpuprof.run.program_phases import EVALUATION, INFERENCE, KINDS, OF_FUNCTIONS
from gpuprof.stats.distributions import mean_half_width
from gpuprof.stats.quantiles import Estimate, quantile_so_far

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuprof.analyze.import_causes import ImportCauses
    from gpuprof.analyze.processor_waits import ProcessorWaits
    from gpuprof.run.folder import RunFolder

# Names of waits that are not those of a function.
WAIT_FOR_WORKERS = "(data loader workers)"
WAIT_IN_BACKWARD = "(backward pass)"
WAIT_FOR_BACKWARD = "(backward pass on another thread)"
CONFIDENCE = 0.9  # with it, five steps have an interval
PARTS = ("forward", "backward", "optimizer", "data", "other")
_STEPS = (
    "SELECT process_id, begin_ns, end_ns, kind, source, forward_ns, backward_ns, optimizer_ns, data_ns, "
    "other_ns FROM steps ORDER BY begin_ns"
)
_IMPORTS = (
    "SELECT process_id, package, sum(duration_ns)::BIGINT AS time_ns FROM imports WHERE phase = 'start-up' "
    "GROUP BY ALL ORDER BY time_ns DESC, package"
)
# Samples of the main thread, whose innermost frame is what it waited in if it waited. Waits for a loader's
# workers, and in the autograd engine, are named as such.
_SAMPLES = """
    SELECT CASE WHEN 2 * (cpu_ns + coalesce(queued_ns, 0)) >= duration_ns THEN ''
            WHEN array_to_string(frames, chr(10)) LIKE {loader} ESCAPE '\\' THEN {workers}
            WHEN contains(frames[-1], '_execution_engine.run_backward') THEN {engine}
            ELSE frames[-1] END AS name, t_ns, duration_ns,
           coalesce(cpu_ns, -1) AS cpu_ns, coalesce(queued_ns, 0) AS queued_ns
    FROM stacks WHERE process_id = {process} AND thread_id = {process} ORDER BY t_ns
"""
_TAKING_A_BATCH = r"%\_get\_data (torch/utils/data/dataloader.py%"
# The backward pass on other threads: the main thread waits for it in the autograd engine.
_BACKWARD_ELSEWHERE = """
    SELECT start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM spans
    WHERE process_id = {process} AND thread_id <> {process} AND kind = 'backward'
"""
# Spans of torch.distributed's backends, and kernels of NCCL and RCCL.
_COLLECTIVES = """
    SELECT start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM spans
    WHERE process_id = {process} AND regexp_matches(name, '^(gloo|mpi|ucc):')
    UNION ALL
    SELECT start_ns, start_ns + duration_ns FROM kernels
    WHERE process_id = {process} AND starts_with(name, 'ncclDevKernel')
"""
# What the main thread calls of the model, its optimizers and loaders, and the backward pass.
_CALLS = """
    SELECT start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM spans
    WHERE process_id = {process} AND (kind = 'backward' OR (thread_id = {process} AND (kind = 'layer'
        OR starts_with(name, 'Optimizer.') OR starts_with(name, 'enumerate(DataLoader)#'))))
"""
_OTHERS = "SELECT process_id, kind, begin_ns, end_ns FROM phases"
_SIGNIFICANT_DIFFERENCE = 0.05  # of a step, between the ranks with most and least time in collectives
_FEWEST_WARM_STEPS = 5
_FENCE = 1.5  # interquartile ranges above the third quartile: Tukey, Exploratory Data Analysis, 1977


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The steps of a process.

    The first `warm_up_steps` are slower than the steady ones (`warm_up_steps_of`), and take `warm_up_ns`.
    `count` and `total_ns` are of all steps, the other figures of those after the first `left_out` ones
    (`steps_left_out`). `interval_ns` is
    the 90% interval of the median, None with fewer than five steps; `mean_interval_ns` is that of the mean.
    The mean includes a cause that only few steps have. `parts` are fractions of the time of
    these steps, None for a part that was not recorded. `waits` are fractions of it, too: what the main thread
    waited in, by function, or by one of the names `WAIT_...`; None without samples of Python stacks.
    """

    count: int
    kind: str
    source: str
    total_ns: int
    median_ns: float
    interval_ns: tuple[float, float] | None
    warm_up_steps: int
    parts: dict[str, float | None]
    waits: dict[str, float] | None = None
    warm_up_ns: int = 0
    mean_ns: float | None = None
    mean_interval_ns: tuple[float, float] | None = None
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The steps of the process with a rank.

    `collectives` is the fraction of them in which a collective operation was running, as an all-reduce.
    `waiting` is the part of `other` in which one was: the end of a backward pass waits for the last of them.
    """

    rank: int
    process_id: int
    steps: StepFigures
    collectives: float
    waiting: float = 0.0


@dataclass(frozen=True, slots=True)
class Phases:
    """Wall time of the main process; its phases add up to it.

    Of an imported trace, which is a part of a program, `startup_ns` is what it has before the first step and
    `closing_ns` what it has after the last one; `is_trace` is true.

    `others_ns` is the time in phases outside the steps: "evaluation", "generation", "inference" (other calls
    of models without gradients) and "checkpoint"; None where it was not recorded. `startup_ns`, `between_ns`
    and `closing_ns` are the rest before, between and after the steps. Without steps, all of the rest is
    `startup_ns`. `imports_ns` are the main thread's imports before the first step, by package; None without
    samples of Python stacks. `ranks` are those with steps, in order. `processor_waits` are those of the main
    process, or of the rank with most of them; None if they were not counted. `import_causes` are the imports
    by what the program itself imports, and those of functions. `rank_walls_ns` has the wall time of
    each rank, `main_rank` is that of the main process, None of a launcher. `missing_ranks` were not
    recorded, or have no steps; those after the last one are unknown if the number of ranks was not recorded.
    """

    wall_ns: int
    startup_ns: int
    imports_ns: dict[str, int] | None
    steps: StepFigures | None
    between_ns: int
    closing_ns: int
    ranks: tuple[RankSteps, ...] = ()
    others_ns: dict[str, int | None] = field(default_factory=dict)
    is_trace: bool = False
    processor_waits: ProcessorWaits | None = None
    import_causes: ImportCauses | None = None
    rank_walls_ns: dict[int, int] = field(default_factory=dict)
    main_rank: int | None = None
    missing_ranks: tuple[int, ...] = ()

    @property
    def last_rank(self) -> RankSteps | None:
        """The rank that the others wait for; None if none is significantly later than the others.

        Collective operations of the rank that comes last to them are the shortest.
        """
        if len(self.ranks) < 2:
            return None
        shortest, *_, longest = sorted(self.ranks, key=lambda each: (each.collectives, each.rank))
        is_later = longest.collectives - shortest.collectives >= _SIGNIFICANT_DIFFERENCE
        return shortest if is_later else None

    def rank_or_last(self, rank: int | None) -> RankSteps:
        """Return a rank; without it, the one that the others wait for, or the first one."""
        own = (each for each in self.ranks if each.rank == rank)
        return next(own, self.last_rank or self.ranks[0])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        last = self.last_rank
        return {**asdict(self), "last_rank": None if last is None else last.rank}


def read_phases(run: RunFolder) -> Phases | None:
    """Return the phases of the process that was started; None for an imported run without steps.

    Raises RunError for tables that cannot be read.
    """
    with run.reading():
        return _phases(run)


def _phases(run: RunFolder) -> Phases | None:
    process_id: Any = run.meta.get("process_id")
    times = _process_times(run.meta)
    if process_id not in times:
        return None
    begin_ns, end_ns = times[process_id]
    numbered = ranks_of(run.meta)
    by_process: dict[int, list[tuple[Any, ...]]] = {}
    for row in run.sql(_STEPS).fetchall():
        by_process.setdefault(row[0], []).append(row[1:])
    ranks = tuple(
        _rank_steps(run, rank, each, by_process[each]) for rank, each in numbered if each in by_process
    )
    steps = by_process.get(process_id, [])
    is_trace = bool(run.meta.get("imported"))
    if is_trace and not steps:
        return None
    imports = _imports(run, process_id)
    others = _others(run, process_id)
    taken = Intervals.union(*_columns([step[:2] for step in steps] + [each[1:] for each in others]))
    first_ns, last_ns = (steps[0][0], steps[-1][1]) if steps else (end_ns, end_ns)
    edges = np.array([begin_ns, first_ns, last_ns, max(end_ns, last_ns)])
    rest = np.diff(edges) - taken.covered_ns(edges[:-1], edges[1:])
    startup_ns, between_ns, closing_ns = rest.tolist()
    figures = _figures(run, process_id, steps) if steps else None
    recorded: dict[int, tuple[int, int] | None] = {
        each.process_id: (each.steps.left_out, each.steps.total_ns) for each in ranks
    }
    if not ranks:
        recorded[process_id] = None if figures is None else (figures.left_out, figures.total_ns)
    return Phases(
        wall_ns=end_ns - begin_ns,
        startup_ns=startup_ns,
        imports_ns=imports,
        steps=figures,
        between_ns=between_ns,
        closing_ns=closing_ns,
        ranks=ranks,
        others_ns=_sums(run, others, has_samples=imports is not None),
        is_trace=is_trace,
        import_causes=None if imports is None else read_import_causes(run, process_id),
        processor_waits=None if is_trace else read_processor_waits(run, recorded, end_ns - begin_ns),
        rank_walls_ns={rank: times[each][1] - times[each][0] for rank, each in numbered},
        main_rank=next((rank for rank, each in numbered if each == process_id), None),
        missing_ranks=_missing_ranks(run.meta, [each.rank for each in ranks]),
    )


def _process_times(meta: Mapping[str, Any]) -> dict[Any, tuple[int, int]]:
    """Return begin and end of each process; several parts of a run may be of one."""
    times: dict[Any, tuple[int, int]] = {}
    for part in meta.get("processes") or ():
        begin_ns, end_ns = times.get(part.get("process_id"), (part["start_ns"], part["end_ns"]))
        times[part.get("process_id")] = min(begin_ns, part["start_ns"]), max(end_ns, part["end_ns"])
    return times


def _others(run: RunFolder, process_id: Any) -> list[tuple[str, int, int]]:
    rows = run.sql(_OTHERS).fetchall()
    return [(kind, begin_ns, end_ns) for of, kind, begin_ns, end_ns in rows if of == process_id]


def _columns(rows: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
    columns: npt.NDArray[np.int64] = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return columns


def _sums(
    run: RunFolder, others: Sequence[tuple[str, int, int]], *, has_samples: bool
) -> dict[str, int | None]:
    """Return the time of each kind; None where no phase of the kind can be found in the run."""
    sums: dict[str, int | None] = dict.fromkeys(KINDS)
    if "phases" in run.tables:
        layers = statuses_of(run.meta).get("layers")
        by_calls = (EVALUATION, INFERENCE) if layers is not None and layers.is_on else ()
        sums |= dict.fromkeys((*by_calls, *(OF_FUNCTIONS if has_samples else ())), 0)
    for kind, begin_ns, end_ns in others:
        sums[kind] = (sums.get(kind) or 0) + end_ns - begin_ns
    return sums


def warm_up_steps_of(durations_ns: npt.NDArray[np.float64]) -> int:
    """Return how many of the first steps are slower than the steady ones, at most half of all.

    Steady is the last half. A step is slower above its upper fence: 1.5 interquartile ranges above its third
    quartile (Tukey, Exploratory Data Analysis, 1977). 0 without five steady steps.
    """
    steady = durations_ns[len(durations_ns) - max((len(durations_ns) + 1) // 2, _FEWEST_WARM_STEPS) :]
    first = durations_ns[: len(durations_ns) - len(steady)]
    if len(steady) < _FEWEST_WARM_STEPS or not len(first):
        return 0
    low, high = np.quantile(steady, (0.25, 0.75))
    return int(np.logical_and.accumulate(first > high + _FENCE * (high - low)).sum())


def steps_left_out(durations_ns: npt.NDArray[np.float64], source: str) -> int:
    """Return how many of the first steps figures leave out: those of the warm-up, and an incomplete one.

    A step that ends with the optimizer's begins where the one before ends. The first one begins with its
    first recorded call, so what the loop did before it, or the recording did not see, is missing. It is
    left out if five others remain.
    """
    warm_up = warm_up_steps_of(durations_ns)
    is_complete = source != "optimizer" or len(durations_ns) <= _FEWEST_WARM_STEPS
    return warm_up if is_complete else max(warm_up, 1)


def ranks_of(meta: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the ranks and process ids of the processes that a launcher has numbered, in order of rank."""
    processes = meta.get("processes") or ()
    return sorted({(each["rank"], each["process_id"]) for each in processes if "rank" in each})


def _missing_ranks(meta: Mapping[str, Any], with_steps: Sequence[int]) -> tuple[int, ...]:
    if not with_steps:
        return ()
    sizes = [each["world_size"] for each in meta.get("processes") or () if "world_size" in each]
    count = max([*sizes, *(rank + 1 for rank, _ in ranks_of(meta))])
    return tuple(sorted(set(range(count)) - set(with_steps)))


def _imports(run: RunFolder, process_id: Any) -> dict[str, int] | None:
    ((samples,),) = run.sql("SELECT count(*) FROM stacks").fetchall()
    if not samples:
        return None
    return {package: time_ns for of, package, time_ns in run.sql(_IMPORTS).fetchall() if of == process_id}


def _figures(run: RunFolder, process_id: int, steps: list[tuple[Any, ...]]) -> StepFigures:
    all_durations = np.array([step[1] - step[0] for step in steps], dtype=np.float64)
    warm_up = warm_up_steps_of(all_durations)
    left_out = steps_left_out(all_durations, steps[0][3])
    warm, durations = steps[left_out:], all_durations[left_out:]
    estimate = quantile_so_far(durations, 0.5, CONFIDENCE)
    whole = durations.sum()
    parts: dict[str, float | None] = {}
    for place, name in enumerate(PARTS, start=4):
        times = [step[place] for step in warm]
        parts[name] = None if None in times or not whole else float(sum(times) / whole)
    kinds = [step[2] for step in steps]
    return StepFigures(
        count=len(steps),
        kind=max(set(kinds), key=kinds.count),
        source=steps[0][3],
        total_ns=sum(step[1] - step[0] for step in steps),
        median_ns=float(np.median(durations)),
        interval_ns=_interval(estimate),
        warm_up_steps=warm_up,
        parts=parts,
        waits=_waits(run, process_id, warm),
        warm_up_ns=sum(step[1] - step[0] for step in steps[:warm_up]),
        mean_ns=float(durations.mean()),
        mean_interval_ns=mean_interval(durations),
        left_out=left_out,
    )


def _rank_steps(run: RunFolder, rank: int, process_id: int, steps: list[tuple[Any, ...]]) -> RankSteps:
    figures = _figures(run, process_id, steps)
    running = Intervals.union(*run.columns(_COLLECTIVES, process=process_id).values())
    waiting = 0.0
    if len(running):
        calls = Intervals.union(*run.columns(_CALLS, process=process_id).values())
        waiting = _fraction(running.without(calls), steps[figures.left_out :])
    other = figures.parts["other"]
    return RankSteps(rank, process_id, figures, _fraction(running, steps), min(waiting, other or 0.0))


def _fraction(time: Intervals, steps: list[tuple[Any, ...]]) -> float:
    """Return the fraction of the steps that some time covers."""
    begin, end = np.array([step[:2] for step in steps]).T
    return float(time.covered_ns(begin, end).sum()) / max(int((end - begin).sum()), 1)


def _waits(run: RunFolder, process_id: int, steps: list[tuple[Any, ...]]) -> dict[str, float] | None:
    """Return the functions that the main thread waited in, with fractions of the steps, largest first."""
    samples = run.columns(
        _SAMPLES,
        process=process_id,
        loader=_TAKING_A_BATCH,
        workers=WAIT_FOR_WORKERS,
        engine=WAIT_IN_BACKWARD,
    )
    if not len(samples["t_ns"]):
        return None
    duration, end = samples["duration_ns"], samples["t_ns"]
    waited = waited_in_each_ns(duration, samples["cpu_ns"], samples["queued_ns"])
    own = waited > 0
    begin, end, names = (end - duration)[own], end[own], samples["name"][own]
    in_steps = Intervals.union(*np.array([step[:2] for step in steps]).T)
    # A stack is that at the end of its sample: one that is read after a step has no time in it.
    is_inside = in_steps.place(end - 1) >= 0
    begin, end, names = begin[is_inside], end[is_inside], names[is_inside]
    elsewhere = Intervals.union(*run.columns(_BACKWARD_ELSEWHERE, process=process_id).values())
    part = (waited[own] / duration[own])[is_inside]
    time_ns = in_steps.covered_ns(begin, end)
    handed_ns = np.minimum(elsewhere.covered_ns(begin, end), time_ns)
    found, place = np.unique(np.ma.filled(names, "").astype(str), return_inverse=True)
    totals = np.bincount(place, (time_ns - handed_ns) * part, minlength=len(found))
    sums = dict(zip(found.tolist(), totals.tolist(), strict=True))
    if len(elsewhere):
        # Between two nodes on the other thread, too.
        sums[WAIT_FOR_BACKWARD] = float((handed_ns * part).sum()) + sums.pop(WAIT_IN_BACKWARD, 0.0)
    whole_ns = max(in_steps.total_ns, 1)
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return {name: time / whole_ns for name, time in ordered if time > 0}


def mean_interval(values: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """Return the 90% interval of the mean, None with fewer than five values."""
    if len(values) < _FEWEST_WARM_STEPS:
        return None
    mean, half = float(values.mean()), mean_half_width(values, CONFIDENCE)
    return mean - half, mean + half


def _interval(estimate: Estimate | None) -> tuple[float, float] | None:
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    return estimate.low, estimate.high
