# SPDX-License-Identifier: Apache-2.0
"""What rules read of a process: the steps, spans and sampled stacks of its main thread, and its replay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuprof.analyze.findings.finding import EvidenceFigure, GainKind, TimeRange
from gpuprof.analyze.phases import CONFIDENCE, ranks_of, read_phases
from gpuprof.analyze.whatif.intervals import NO_INTERVALS, Intervals
from gpuprof.analyze.whatif.prediction import main_process, replay_changes
from gpuprof.analyze.whatif.program import RecordedProcess
from gpuprof.analyze.whatif.selection import Modification, Selection
from gpuprof.run.facts import statuses_of
from gpuprof.run.folder import filled
from gpuprof.run.outermost_calls import after_closures
from gpuprof.run.program_settings import settings_of
from gpuprof.run.steps import LONGEST_ENGINE_GAP_NS
from gpuprof.stats.quantiles import quantile_so_far

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.phases import Phases, StepFigures
    from gpuprof.analyze.processor_waits import ProcessorWaits
    from gpuprof.analyze.whatif.intervals import Ints
    from gpuprof.record.facts import Reason
    from gpuprof.run.folder import RunFolder, Value
    from gpuprof.run.program_settings import ProgramSettings

_OPTIMIZERS = "Optimizer.%"
_PAGE_BYTES = 4096
_STEPS = "SELECT begin_ns, end_ns FROM steps WHERE process_id = {process} ORDER BY begin_ns"
_NAMED = """
    SELECT span_id, thread_id, start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM spans
    WHERE process_id = {process} AND kind IN (SELECT unnest({kinds}::VARCHAR[]))
        AND name LIKE {pattern} ESCAPE '\\'
    ORDER BY start_ns
"""
# Time in the model, its optimizer and its loader. The backward pass may be on another thread.
_IN_MODEL = """
    SELECT kind = 'backward' AS is_backward, kind = 'layer' AS is_layer,
        kind = 'span' AND starts_with(name, 'Optimizer.step#') AS is_update,
        start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM spans
    WHERE process_id = {process} AND ((kind = 'layer' AND thread_id = {thread}) OR kind = 'backward'
        OR (kind = 'span' AND thread_id = {thread}
            AND (name LIKE 'Optimizer.%' OR name LIKE 'enumerate(DataLoader)#%')))
    ORDER BY start_ns
"""
# The calls of optimizers; of a step with a closure, which runs the model, what follows the backward pass.
_UPDATES = """
    WITH updates AS (SELECT span_id, start_ns AS update_ns, start_ns + duration_ns AS updated_ns FROM spans
        WHERE process_id = {process} AND thread_id = {thread} AND name LIKE {pattern} ESCAPE '\\')
"""
_UPDATES_AFTER_CLOSURES = """
    WITH calls AS (SELECT span_id, start_ns AS begin_ns, start_ns + duration_ns AS updated_ns FROM spans
        WHERE process_id = {process} AND thread_id = {thread} AND name LIKE {pattern} ESCAPE '\\'),
    passes AS (SELECT start_ns + duration_ns AS passed_ns FROM spans
        WHERE process_id = {process} AND kind = 'backward'),
    updates AS (
        SELECT span_id, greatest(begin_ns, coalesce(passed_ns, begin_ns)) AS update_ns, updated_ns
        FROM calls ASOF LEFT JOIN passes ON updated_ns >= passed_ns)
"""
# Spans of torch.distributed's backends, and kernels of NCCL and RCCL.
_COLLECTIVES = """
    SELECT name, span_id, start_ns AS begin_ns, start_ns + duration_ns AS end_ns, false AS on_gpu FROM spans
    WHERE process_id = {process} AND regexp_matches(name, '^(gloo|mpi|ucc):')
    UNION ALL
    SELECT name, -1, start_ns, start_ns + duration_ns, true FROM kernels
    WHERE process_id = {process} AND starts_with(name, 'ncclDevKernel')
    ORDER BY begin_ns
"""
# Calls of the CUDA and HIP interfaces are operators, too, but have no `::` in their names.
_IN_TRACE = """
    SELECT (SELECT count(*) FROM kernels WHERE process_id = {process}) AS kernels,
        (SELECT count(*) FROM spans
         WHERE process_id = {process} AND kind = 'operator' AND contains(name, '::')) AS operators,
        (SELECT count(*) FROM spans WHERE process_id = {process} AND kind = 'layer') AS layers,
        (SELECT count(*) FROM spans WHERE process_id = {process} AND kind = 'gc') AS gc
"""
_SAMPLES = """
    SELECT t_ns - duration_ns AS begin_ns, t_ns AS end_ns, hash(frames) AS stack,
        coalesce(cpu_ns, -1) AS cpu_ns, coalesce(queued_ns, 0) AS queued_ns, coalesce(line, 0) AS line
    FROM stacks WHERE process_id = {process} AND thread_id = {thread} ORDER BY t_ns
"""
_DISTINCT = """
    SELECT hash(frames) AS stack, any_value(frames) AS frames FROM stacks
    WHERE process_id = {process} AND thread_id = {thread} GROUP BY ALL
"""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The steps of the searched process; the first `left_out` are not in figures, `warm_up` are slower."""

    begin_ns: Ints
    end_ns: Ints
    warm_up: int
    left_out: int

    @property
    def warm(self) -> Intervals:
        """The steps of which figures are."""
        return Intervals(self.begin_ns[self.left_out :], self.end_ns[self.left_out :])


@dataclass(frozen=True, slots=True)
class NamedSpans:
    """Spans in columns, by their begin."""

    span_id: Ints
    thread_id: Ints
    begin_ns: Ints
    end_ns: Ints

    def __len__(self) -> int:
        return len(self.span_id)

    def on_thread(self, thread_id: int) -> NamedSpans:
        """Return those of one thread."""
        return self.chosen(self.thread_id == thread_id)

    def since(self, time_ns: int) -> NamedSpans:
        """Return those that begin at a time or later."""
        return self.chosen(self.begin_ns >= time_ns)

    def chosen(self, which: npt.NDArray[np.bool_]) -> NamedSpans:
        """Return those where `which` is true."""
        return NamedSpans(*(column[which] for column in (self.span_id, self.thread_id, *self._times)))

    @property
    def _times(self) -> tuple[Ints, Ints]:
        return self.begin_ns, self.end_ns

    @property
    def covered(self) -> Intervals:
        """The time in any of them."""
        return Intervals.union(*self._times)

    def typical(self) -> tuple[int, ...]:
        """Return up to three spans whose durations are nearest to the median."""
        durations = self.end_ns - self.begin_ns
        if not len(durations):
            return ()
        nearest = np.argsort(np.abs(durations - np.median(durations)), kind="stable")[:3]
        return tuple(int(each) for each in np.sort(self.span_id[nearest]))


@dataclass(frozen=True, slots=True)
class Collectives:
    """The collective operations of a process in columns, by their begin; `span_id` is -1 for a kernel."""

    name: Any
    span_id: Ints
    begin_ns: Ints
    end_ns: Ints
    on_gpu: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.begin_ns)


@dataclass(frozen=True, slots=True)
class SampledStacks:
    """The stack samples of a thread in columns; `stack` is the place in `frames`, outermost frame first.

    `cpu_ns` is -1 if unknown.
    """

    frames: list[tuple[str, ...]]
    stack: Ints
    begin_ns: Ints
    end_ns: Ints
    cpu_ns: Ints
    queued_ns: Ints
    line: Ints

    def is_inside(self, intervals: Intervals) -> npt.NDArray[np.bool_]:
        """Return which stacks were read in the intervals: a sample's stack is that at its end."""
        found: npt.NDArray[np.bool_] = intervals.place(self.end_ns - 1) >= 0
        return found

    def covered(self, chosen: Any) -> Intervals:
        """Return the time of some samples, chosen by flags or places."""
        return Intervals.union(self.begin_ns[chosen], self.end_ns[chosen])

    @property
    def is_waiting(self) -> npt.NDArray[np.bool_]:
        """Which samples are mostly waits."""
        wanted = self.cpu_ns + self.queued_ns
        found: npt.NDArray[np.bool_] = (self.cpu_ns >= 0) & (2 * wanted < self.end_ns - self.begin_ns)
        return found


def step_pattern(optimizer: str) -> str:
    """Return the SQL pattern of the steps of an optimizer's class."""
    return f"Optimizer.step#{optimizer}.step".replace("_", r"\_")


class _ModelCalls(NamedTuple):
    """Calls of layers, the backward pass, optimizers and the loader in columns, by their begin.

    `is_update` are the steps of optimizers.
    """

    begin_ns: Ints
    end_ns: Ints
    is_backward: npt.NDArray[np.bool_]
    is_layer: npt.NDArray[np.bool_]
    is_update: npt.NDArray[np.bool_]

    @property
    def own_begin_ns(self) -> Ints:
        """The begin of each call, of an optimizer's step that of its update."""
        begin: Ints = self.begin_ns.copy()
        begin[self.is_update] = self.without_closures(begin[self.is_update], self.end_ns[self.is_update])
        return begin

    def without_closures(self, begin_ns: Ints, end_ns: Ints) -> Ints:
        """Return where steps of optimizers begin their update."""
        own = self.is_backward
        return after_closures(
            begin_ns, end_ns, self.begin_ns[self.is_layer], self.begin_ns[own], self.end_ns[own]
        )


class ProgramRecord:
    """The searched process of a run, each part read when a rule asks for it first.

    It is the main process. If that has no steps, as a launcher, it is the wanted rank, else the one that the
    others wait for, or the first one with steps; `rank` is its number.
    """

    def __init__(self, folder: RunFolder, rank: int | None = None) -> None:
        self.folder = folder
        self.phases = read_phases(folder)
        self.process_id, self.rank, self.figures = _searched(folder, self.phases, rank)
        self.is_complete = bool(folder.meta.get("complete"))

    @cached_property
    def process(self) -> RecordedProcess:
        """The process as the replay reads it."""
        return RecordedProcess.read(self.folder, self.process_id)

    @property
    def main_thread(self) -> int:
        """The main thread's id."""
        return self.process.main_thread

    @cached_property
    def settings(self) -> ProgramSettings | None:
        """The program's settings, None if they were not recorded."""
        return settings_of(self.folder)

    @property
    def processor_waits(self) -> ProcessorWaits | None:
        """How long threads waited for a processor, as in the phases; None if unknown."""
        return None if self.phases is None else self.phases.processor_waits

    @property
    def lacks_processors(self) -> bool:
        """Whether threads waited for a processor for so long that times are longer and vary."""
        return self.processor_waits is not None and self.processor_waits.contention is not None

    @property
    def wall_ns(self) -> int:
        """The wall time of the run."""
        return int(self.folder.meta.get("duration_ns") or 0)

    @property
    def processors(self) -> int:
        """Processors that the program may use: of its affinity and control groups, or all."""
        threads = None if self.settings is None else self.settings.threads
        known = (self.folder.meta.get("machine") or {}).get("cores") or 1
        return max(1, math.floor(known if threads is None else threads.usable_processors))

    @property
    def operator_threads(self) -> int:
        """Threads that an operator may use; 1 if unknown."""
        threads = None if self.settings is None else self.settings.threads
        return 1 if threads is None else max(1, threads.intra_op)

    @property
    def has_work(self) -> bool:
        """Whether the work of operators was counted, with the shapes of their inputs."""
        return bool(self.folder.meta.get("work"))

    @property
    def is_trace(self) -> bool:
        """Whether the run was imported."""
        return bool(self.folder.meta.get("imported"))

    def is_on(self, source: str) -> bool:
        """Whether a source recorded; of an imported run, whether the trace has what it records."""
        if self.is_trace:
            return bool(self._in_trace.get(source))
        status = statuses_of(self.folder.meta).get(source)
        return status is not None and status.is_on

    @cached_property
    def _in_trace(self) -> dict[str, Any]:
        return {name: column[0] for name, column in self.fetch(_IN_TRACE, process=self.process_id).items()}

    def why_off(self, source: str) -> Reason | None:
        """Return why a source is off; None if it is on or unknown."""
        status = statuses_of(self.folder.meta).get(source)
        return None if status is None or status.is_on else status.reason

    @cached_property
    def steps(self) -> StepTimes | None:
        """The steps, None without any."""
        columns = self.fetch(_STEPS, process=self.process_id)
        if not len(columns["begin_ns"]):
            return None
        begin, end = _integers(columns["begin_ns"]), _integers(columns["end_ns"])
        if self.figures is None:
            return StepTimes(begin, end, 0, 0)
        return StepTimes(begin, end, self.figures.warm_up_steps, self.figures.left_out)

    @cached_property
    def _model_calls(self) -> _ModelCalls:
        columns = self.fetch(_IN_MODEL, process=self.process_id, thread=self.main_thread)
        is_backward, is_layer, is_update = (
            np.asarray(columns[name], dtype=bool) for name in ("is_backward", "is_layer", "is_update")
        )
        begin, end = _integers(columns["begin_ns"]), _integers(columns["end_ns"])
        return _ModelCalls(begin, end, is_backward, is_layer, is_update)

    def updates(self, pattern: str = _OPTIMIZERS) -> NamedSpans:
        """Return the main thread's calls of optimizers by an SQL pattern, without closures."""
        spans = self.spans(pattern, "span").on_thread(self.main_thread)
        if not self.has_closures:
            return spans
        return replace(spans, begin_ns=self._model_calls.without_closures(spans.begin_ns, spans.end_ns))

    @cached_property
    def has_closures(self) -> bool:
        """Whether optimizers run the model once in their step."""
        calls = self._model_calls
        begin, end = calls.begin_ns[calls.is_update], calls.end_ns[calls.is_update]
        return bool((calls.without_closures(begin, end) > begin).any())

    @cached_property
    def in_model(self) -> Intervals:
        """Time in layers, the backward pass, the optimizer without closures, and the data loader."""
        calls = self._model_calls
        begin, end, is_backward = calls.own_begin_ns, calls.end_ns, calls.is_backward
        # Of the engine, what it needs between two nodes belongs to the pass.
        backward = Intervals.union(begin[is_backward], end[is_backward])
        until = backward.end_ns.copy()
        follows = np.diff(backward.begin_ns, append=np.iinfo(np.int64).max // 2)
        close = follows - (backward.end_ns - backward.begin_ns) <= LONGEST_ENGINE_GAP_NS
        # Between two passes of short steps is another call.
        others = np.sort(begin[~is_backward])
        close &= np.searchsorted(others, backward.end_ns) == np.searchsorted(
            others, backward.begin_ns + follows
        )
        until[close] = np.append(backward.begin_ns[1:], 0)[close]
        return Intervals.union(
            np.concatenate([begin[~is_backward], backward.begin_ns]),
            np.concatenate([end[~is_backward], until]),
        )

    @cached_property
    def in_layers(self) -> Intervals:
        """Time in layers and the backward pass."""
        calls = self._model_calls
        others = ~(calls.is_backward | calls.is_layer)
        return self.in_model.without(Intervals.union(calls.own_begin_ns[others], calls.end_ns[others]))

    @cached_property
    def stacks(self) -> SampledStacks | None:
        """The main thread's stack samples, None without any."""
        of_main: dict[str, Value] = {"process": self.process_id, "thread": self.main_thread}
        columns = self.fetch(_SAMPLES, **of_main)
        if not len(columns["begin_ns"]):
            return None
        distinct = self.fetch(_DISTINCT, **of_main)
        order = np.argsort(distinct["stack"])
        frames = [tuple(distinct["frames"][place]) for place in order.tolist()]
        place = np.searchsorted(distinct["stack"][order], columns["stack"])
        times = ("begin_ns", "end_ns", "cpu_ns", "queued_ns", "line")
        return SampledStacks(frames, place, *(_integers(columns[name]) for name in times))

    @property
    def fresh_memory_ns_per_byte(self) -> float:
        """What the first access to memory costs, as measured for a run with counted work; 0 if unknown."""
        rows = (self.folder.meta.get("work") or {}).get("page_faults") or ()
        return max(
            (each["value"] / _PAGE_BYTES for each in rows if each["resource"] == "page_fault"), default=0.0
        )

    def spans(self, pattern: str, *kinds: str) -> NamedSpans:
        """Return the spans of kinds whose name is like an SQL pattern."""
        columns = self.fetch(_NAMED, process=self.process_id, kinds=kinds, pattern=pattern)
        names = ("span_id", "thread_id", "begin_ns", "end_ns")
        return NamedSpans(*(_integers(columns[name]) for name in names))

    def collectives(self, process_id: int) -> Collectives:
        """Return the collective operations that a process took part in, in their order."""
        columns = self.fetch(_COLLECTIVES, process=process_id)
        return Collectives(
            name=np.asarray(columns["name"], dtype=object),
            span_id=_integers(columns["span_id"]),
            begin_ns=_integers(columns["begin_ns"]),
            end_ns=_integers(columns["end_ns"]),
            on_gpu=np.asarray(columns["on_gpu"], dtype=bool),
        )

    def fetch(self, query: str, **values: Value) -> dict[str, Any]:
        """Return the columns of a query."""
        return self.folder.columns(query, **values)

    @staticmethod
    def intervals(columns: Mapping[str, Any]) -> Intervals:
        """Return the time that rows cover from `begin_ns` to `end_ns`."""
        return Intervals.union(_integers(columns["begin_ns"]), _integers(columns["end_ns"]))

    def figure(self, code: str, unit: str, query: str, **values: Value) -> EvidenceFigure:
        """Return a figure of the tables with its query."""
        sql = filled(query, **values)
        with self.folder.reading():
            ((value,),) = self.folder.sql(sql).fetchall()
        return EvidenceFigure(code, None if value is None else float(value), unit, " ".join(sql.split()))

    def figure_of_updates(
        self, code: str, unit: str, query: str, pattern: str = _OPTIMIZERS
    ) -> EvidenceFigure:
        """Return a figure of the table `updates`: those of `updates(pattern)`, with `updated_ns` as end."""
        updates = _UPDATES_AFTER_CLOSURES if self.has_closures else _UPDATES
        of: dict[str, Value] = {"process": self.process_id, "thread": self.main_thread, "pattern": pattern}
        return self.figure(code, unit, "".join([updates, query]), **of)

    def without(
        self, time: Intervals, *, remaining: float = 0.0, error_ns: float = 0.0, threads: Iterable[int] = ()
    ) -> tuple[GainKind, TimeRange, float]:
        """Replay without some time of the main thread and of other threads, or with a part; return the gain.

        It is a bound if the rules of the replay explain too little of the recording. The last value is the
        explained fraction.
        """
        change = Modification("remove", "", math.inf) if not remaining else _faster(1 / remaining)
        selection = Selection(
            change, 1, by_thread=dict.fromkeys([self.main_thread, *threads], time), error_ns=error_ns
        )
        return self.replayed([selection])

    def replayed(self, selections: list[Selection]) -> tuple[GainKind, TimeRange, float]:
        """Replay with changes; return the gain and the explained fraction."""
        found = replay_changes(self.process, selections)
        if found.low_ns is None or found.high_ns is None:
            costs = (each.on_thread(self.main_thread).total_ns for each in selections)
            return GainKind.BOUND, TimeRange(0.0, sum(costs)), 1.0
        return GainKind.REPLAYED, TimeRange(found.low_ns, found.high_ns), found.explained

    def sampling_error_ns(self, time: Intervals) -> float:
        """Return the standard error of sampled time: each end of a stretch is somewhere in one interval."""
        return self._sample_interval_ns * math.sqrt(2 * len(time) / 12)

    def missed_ns(self, time: Intervals) -> float:
        """Return what sampled time may be longer by: half an interval at each end of a stretch."""
        return self._sample_interval_ns * len(time)

    @property
    def _sample_interval_ns(self) -> float:
        return float((self.folder.meta.get("stacks") or {}).get("interval_ns") or 0)

    def step_variation_ns(self, time: Intervals = NO_INTERVALS) -> float | None:
        """Return by how much the median step without some time is uncertain; None with one step or none.

        It is half of the 90% interval, or of the range with fewer than five steps.
        """
        if self.steps is None:
            return None
        warm = self.steps.warm
        durations = warm.end_ns - warm.begin_ns - time.covered_ns(warm.begin_ns, warm.end_ns)
        if len(durations) < 2:
            return None
        estimate = quantile_so_far(durations.astype(np.float64), 0.5, CONFIDENCE)
        if estimate is None or estimate.low is None or estimate.high is None:
            return float(durations.max() - durations.min()) / 2
        return (estimate.high - estimate.low) / 2


def _searched(
    folder: RunFolder, phases: Phases | None, wanted: int | None
) -> tuple[int, int | None, StepFigures | None]:
    """Return the process in which causes are searched, its rank or None, and the figures of its steps."""
    process_id = main_process(folder)
    if phases is None:
        return process_id, None, None
    if phases.steps is None and phases.ranks:
        found = phases.rank_or_last(wanted)
        return found.process_id, found.rank, found.steps
    ranks = {each: rank for rank, each in ranks_of(folder.meta)}
    return process_id, ranks.get(process_id), phases.steps


def _faster(factor: float) -> Modification:
    return Modification("speed_up", "", factor)


def _integers(column: Any) -> Ints:
    return np.ma.filled(column, 0).astype(np.int64)
