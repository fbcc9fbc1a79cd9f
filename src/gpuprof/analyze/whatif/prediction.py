# SPDX-License-Identifier: Apache-2.0
"""The predicted wall time of a changed program, as an interval, with what it rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.phases import ranks_of, read_phases, steps_left_out
from gpuprof.analyze.whatif.intervals import NO_INTERVALS, Intervals
from gpuprof.analyze.whatif.program import RecordedProcess, ReplayRules
from gpuprof.analyze.whatif.selection import Modification, Selection, select
from gpuprof.analyze.whatif.step_gain import StepGain, step_gain
from gpuprof.errors import RunError
from gpuprof.text.sanitize import escape_text
from gpuprof.text.units import (
    counted,
    format_duration,
    format_duration_range,
    format_share,
    format_share_range,
)

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

_STEPS = "SELECT begin_ns, end_ns, source FROM steps WHERE process_id = {process} ORDER BY begin_ns"
LEAST_EXPLAINED = 0.9  # below, a replay predicts nothing
LEAST_FACTOR = 0.001  # a thousand times as long; far below, nanoseconds of 64 bits would overflow
_REPLAYED = 0.9  # confidence of a replay of a complete recording that the rules explain
_INCOMPLETE = 0.5  # factor for a recording with missing parts
_PROCESSORS = "processors"
_FACTOR_NAMES = {_PROCESSORS: "time with a processor"}


@dataclass(frozen=True, slots=True)
class ChangedTime:
    """What one change applies to: time on threads and on GPUs, and the number of matching names."""

    action: str
    pattern: str
    factor: float | None
    names: int
    thread_ns: int
    gpu_ns: int


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The predicted effect of changes on the wall time of a run's main process, or of one rank of a launcher.

    `low_ns` and `high_ns` bound the gain of this recording: time saved, negative if the program becomes
    slower. They are None if the rules of the replay explain less than 90% of the recorded wall time; `step`
    is None then, and in a run without steps. `explained` is the explained fraction, `confidence` the product
    of `factors`. `rank` is the number of the replayed process, None if it has none.
    """

    recorded_ns: int
    low_ns: int | None
    high_ns: int | None
    explained: float
    factors: dict[str, float]
    changes: tuple[ChangedTime, ...]
    workers: int | None
    contradicted: int
    step: StepGain | None = None
    rank: int | None = None

    @property
    def confidence(self) -> float:
        """A number from 0 to 1."""
        return math.prod(self.factors.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON, with units in the keys."""
        return {**asdict(self), "confidence": self.confidence}

    def __str__(self) -> str:
        lines = [f"recorded   {format_duration(self.recorded_ns)} wall time"]
        lines += [] if self.rank is None else [f"replayed   rank {self.rank}"]
        lines += [f"change     {_text_of(each)}" for each in self.changes]
        if self.workers is not None:
            lines.append(f"change     data loader with {counted(self.workers, 'worker')}")
        if self.low_ns is None or self.high_ns is None:
            lines.append(
                f"predicted  unknown: the replay explains {format_share(self.explained)} of the wall time"
            )
            return "\n".join(lines)
        longest, shortest = self.recorded_ns - self.low_ns, self.recorded_ns - self.high_ns
        lines.append(f"predicted  {format_duration_range(shortest, longest)} wall time")
        gain = format_duration_range(self.low_ns, self.high_ns)
        part = format_share_range(self.low_ns / self.recorded_ns, self.high_ns / self.recorded_ns)
        lines.append(f"gain       {gain} ({part})")
        if (step := self.step) is not None:
            gain = format_duration_range(step.low_ns, step.high_ns)
            lines.append(f"of a step  {gain} of the mean step ({step.share}), {counted(step.steps, 'step')}")
        factors = ", ".join(
            f"{_FACTOR_NAMES.get(name, name)} {value:.2f}" for name, value in self.factors.items()
        )
        lines.append(f"confidence {self.confidence:.2f} ({factors})")
        return "\n".join(lines)


def predict(
    folder: RunFolder,
    *,
    remove: Sequence[str] = (),
    speed_up: Mapping[str, float] | None = None,
    workers: int | None = None,
) -> WhatIf:
    """Replay a run with changes: its main process, or of a launcher the rank that the others wait for.

    Raises RunError if a pattern matches nothing.
    """
    changes = [
        *(Modification("remove", pattern, math.inf) for pattern in remove),
        *(Modification("speed_up", pattern, factor) for pattern, factor in (speed_up or {}).items()),
    ]
    _check(changes, workers)
    process_id, rank = _replayed(folder)
    process = RecordedProcess.read(folder, process_id)
    selections = [select(folder, process_id, change) for change in changes]
    found = replay_changes(process, selections, workers, _steps(folder, process_id))
    return replace(found, rank=rank, factors=found.factors | _time_with_a_processor(folder))


def _time_with_a_processor(folder: RunFolder) -> dict[str, float]:
    """Return the factor of findings for a busy machine, where a replayed thread would wait as it did."""
    phases = None if folder.meta.get("imported") else read_phases(folder)
    waits = None if phases is None else phases.processor_waits
    return {} if waits is None or waits.contention is None else {_PROCESSORS: 1 - waits.fraction}


def _replayed(folder: RunFolder) -> tuple[int, int | None]:
    """Return the process that is replayed, and its rank or None. A launcher only waits for its ranks."""
    process_id, ranks = main_process(folder), ranks_of(folder.meta)
    numbers = {each: rank for rank, each in ranks}
    if not ranks or process_id in numbers:
        return process_id, numbers.get(process_id)
    phases = read_phases(folder)
    if phases is None or not phases.ranks:
        rank, process_id = ranks[0]
        return process_id, rank
    found = phases.last_rank or phases.ranks[0]
    return found.process_id, found.rank


def _steps(folder: RunFolder, process_id: int) -> Intervals:
    """Return the steps of a process, without the first ones that figures leave out."""
    columns = folder.columns(_STEPS, process=process_id)
    begin, end = (np.ma.filled(columns[name], 0).astype(np.int64) for name in ("begin_ns", "end_ns"))
    if not len(begin):
        return NO_INTERVALS
    left_out = steps_left_out((end - begin).astype(np.float64), str(columns["source"][0]))
    return Intervals(begin[left_out:], end[left_out:])


def replay_changes(
    process: RecordedProcess,
    selections: Sequence[Selection],
    workers: int | None = None,
    steps: Intervals = NO_INTERVALS,
) -> WhatIf:
    """Replay a process with changes of what is selected."""
    program = process.changed(selections, workers, steps)

    def wall(variant: ReplayRules) -> int:
        return program.execute(variant, of_all=process.is_imported)

    recorded = wall(ReplayRules(is_changed=False))
    unexplained = wall(ReplayRules(is_changed=False, keeps_delays=False))
    missing_ns = abs(recorded - unexplained) + program.gpu.unexplained_wait_ns
    explained = max(0.0, 1.0 - missing_ns / recorded) if recorded else 0.0
    factors = {"replayed": _REPLAYED, "explained": explained}
    if not process.folder.meta.get("complete"):
        factors["incomplete"] = _INCOMPLETE
    gains = step = None
    if explained >= LEAST_EXPLAINED:
        kept = recorded - wall(ReplayRules(is_changed=True))
        dropped = recorded - wall(ReplayRules(is_changed=True, waits_shrink=True))
        without = unexplained - wall(ReplayRules(is_changed=True, waits_shrink=True, keeps_delays=False))
        error = round(
            1.96 * math.hypot(*(each.error_ns * (1 - each.change.remaining) for each in selections))
        )
        gains = (min(kept, dropped, without) - error, max(kept, dropped, without) + error)
        # What only takes longer gains nothing, however much steps and samples vary.
        most_ns = (
            0 if workers is None and all(each.change.remaining >= 1 for each in selections) else recorded
        )
        gains = (min(gains[0], most_ns), min(gains[1], most_ns))
        if len(steps):
            step = step_gain(program, error, _removed_ns(selections, steps), most_ns)
    return WhatIf(
        recorded_ns=recorded,
        low_ns=None if gains is None else gains[0],
        high_ns=None if gains is None else gains[1],
        explained=explained,
        factors=factors,
        changes=tuple(_changed_time(each, program.gpu) for each in selections),
        workers=workers,
        contradicted=program.gpu.contradicted,
        step=step,
    )


def _removed_ns(selections: Sequence[Selection], steps: Intervals) -> float:
    """Return the time on threads in the steps that changes take away."""
    return sum(
        float(time.covered_ns(steps.begin_ns, steps.end_ns).sum()) * (1 - each.change.remaining)
        for each in selections
        for time in each.by_thread.values()
    )


def _check(changes: Sequence[Modification], workers: int | None) -> None:
    if not changes and workers is None:
        raise RunError(
            "no_change",
            "no change to replay",
            hint="remove or speed up something, or name a number of workers",
        )
    for change in changes:
        if change.action == "speed_up" and not LEAST_FACTOR <= change.factor < math.inf:
            raise RunError(
                "invalid_factor",
                f"{change.factor} is not a factor for {change.pattern!r}",
                hint=f"2 means twice as fast; the least factor is {LEAST_FACTOR}",
            )
    if workers is not None and workers < 1:
        raise RunError("invalid_workers", f"{workers} workers cannot fetch", hint="name 1 or more")


def main_process(folder: RunFolder) -> int:
    """Return the process that started the recording; of an imported run the one with the most calls."""
    if not folder.meta.get("imported"):
        return int(folder.meta["process_id"])
    with folder.reading():
        rows = folder.sql(
            "SELECT process_id FROM (SELECT process_id FROM spans UNION ALL SELECT process_id FROM kernels) "
            "GROUP BY process_id ORDER BY count(*) DESC, process_id LIMIT 1"
        ).fetchall()
    if not rows:
        raise RunError(
            "no_calls",
            f"{folder.path} contains no calls with their times",
            hint="record the program with `gpuprof run`, without --profiler cprofile or line",
        )
    return int(rows[0][0])


def _changed_time(selection: Selection, gpu: Any) -> ChangedTime:
    change = selection.change
    gpu_ns = 0
    for of_kernels, rows in ((True, selection.kernels), (False, selection.transfers)):
        if rows is not None:
            own = gpu.is_kernel == of_kernels
            gpu_ns += int(gpu.duration_ns[own][rows[gpu.row[own]]].sum())
    return ChangedTime(
        action=change.action,
        pattern=change.pattern,
        factor=None if change.action == "remove" else change.factor,
        names=selection.names,
        thread_ns=sum(each.total_ns for each in selection.by_thread.values()),
        gpu_ns=gpu_ns,
    )


def _text_of(change: ChangedTime) -> str:
    pattern = escape_text(change.pattern)
    verb = f"remove {pattern}" if change.factor is None else f"{pattern} {change.factor:g} times as fast"
    times = [f"{format_duration(change.thread_ns)} on threads"] if change.thread_ns else []
    times += [f"{format_duration(change.gpu_ns)} on GPUs"] if change.gpu_ns else []
    names = "1 name" if change.names == 1 else f"{change.names:,} names"
    return f"{verb}: {', '.join([names, *times])}"
