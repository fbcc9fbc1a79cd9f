# SPDX-License-Identifier: Apache-2.0
"""The steps of a process while it runs, found as those of the table `steps` in a window of its last calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof.live.snapshot import LiveStepFigures
from gpuprof.run.outermost_calls import Call, LayerModes, ProgramCalls
from gpuprof.run.steps import UNKNOWN, Step, find_steps

# Outermost calls of a process that makes no steps, in about 50 bytes each.
MOST_CALLS = 200_000
MOST_MODES = 10_000
_PARTS = ("forward_ns", "backward_ns", "optimizer_ns", "data_ns", "other_ns")


class StepWindow:
    """The outermost calls since the begin of the last step, and from them the steps that have ended."""

    def __init__(self) -> None:
        self._calls = _no_calls()
        self._new: list[ProgramCalls] = []
        self._modes: dict[str, npt.NDArray[np.int64]] = {}
        self._source: str | None = None
        self._taken_until_ns = 0

    @property
    def has_steps(self) -> bool:
        """Whether steps were found since the begin."""
        return self._source is not None

    def add(self, rows: dict[str, Any], call: npt.NDArray[np.int64], layer: npt.NDArray[np.object_]) -> None:
        """Add outermost calls: columns `thread_id`, `start_ns`, `duration_ns`."""
        start_ns = rows["start_ns"].astype(np.int64)
        self._new.append(
            ProgramCalls(
                layer=layer,
                thread_id=rows["thread_id"].astype(np.int64),
                start_ns=start_ns,
                end_ns=start_ns + rows["duration_ns"],
                call=call,
                evaluated=np.zeros(len(call), dtype=np.bool_),
            )
        )

    def add_modes(self, columns: dict[str, npt.NDArray[np.int64]]) -> None:
        """Add the modes of layer calls, as of `LayerModes`; only the latest are kept."""
        for name, column in columns.items():
            former = self._modes.get(name, np.empty(0, dtype=np.int64))
            self._modes[name] = np.concatenate([former, column.astype(np.int64)])[-MOST_MODES:]

    def take(self, process_id: int, *, has_operators: bool, is_finished: bool) -> LiveStepFigures | None:
        """Return the steps that ended since the last time; None for none.

        A step that ends with an optimizer is known with the begin of the next one, or at the end of the
        process: several optimizers without a backward pass in between end one step.
        """
        if not self._new and not (is_finished and len(self._calls.call)):
            return None
        self._calls = _sorted([self._calls, *self._new])
        self._new = []
        steps = find_steps(self._with_modes(process_id), process_id, has_operators=has_operators)
        if not steps:
            self._keep(self._calls.start_ns[-MOST_CALLS:].min(initial=0))
            return None
        source = steps[0].source
        if source != self._source:
            self._source, self._taken_until_ns = source, 0
        if source == "optimizer" and not is_finished:
            steps = steps[:-1]
        fresh = [step for step in steps if step.begin_ns >= self._taken_until_ns]
        if not fresh:
            return None
        self._taken_until_ns = fresh[-1].end_ns
        self._keep(self._taken_until_ns if is_finished else fresh[-1].begin_ns)
        return _figures(process_id, source, fresh)

    def _with_modes(self, process_id: int) -> ProgramCalls:
        calls = self._calls
        if not self._modes:
            return calls
        modes = LayerModes(*(self._modes[name] for name in ("process_id", "thread_id", "begin_ns", "mode")))
        ids = np.full(len(calls.call), process_id, dtype=np.int64)
        evaluated = (calls.call == Call.FORWARD) & modes.are_evaluated(ids, calls.thread_id, calls.end_ns)
        return ProgramCalls(calls.layer, calls.thread_id, calls.start_ns, calls.end_ns, calls.call, evaluated)

    def _keep(self, from_ns: int) -> None:
        self._calls = self._calls.chosen(self._calls.end_ns > from_ns)


def _figures(process_id: int, source: str, steps: list[Step]) -> LiveStepFigures:
    parts = {name: [getattr(step, name) for step in steps] for name in _PARTS}
    known: dict[str, Any] = {
        name: None if UNKNOWN in values else sum(values) for name, values in parts.items()
    }
    durations = tuple(step.end_ns - step.begin_ns for step in steps)
    return LiveStepFigures(process_id, source, durations, **known)


def _no_calls() -> ProgramCalls:
    thread_id, start_ns, end_ns, call = (np.empty(0, dtype=np.int64) for _ in range(4))
    layer, evaluated = np.empty(0, dtype=object), np.empty(0, dtype=np.bool_)
    return ProgramCalls(layer, thread_id, start_ns, end_ns, call, evaluated)


def _sorted(parts: list[ProgramCalls]) -> ProgramCalls:
    names = ("layer", "thread_id", "start_ns", "end_ns", "call", "evaluated")
    whole = ProgramCalls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
    return whole.chosen(np.lexsort((-whole.end_ns, whole.start_ns)))  # type: ignore[arg-type]
