# SPDX-License-Identifier: Apache-2.0
"""Follows the spans of a recording: sums of calls, of layers, and the steps of each process.

An event is in the file at the moment when it is recorded, so there is no flush to wait for. A call counts in
the interval in which it ends.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof import _native
from gpuprof.live.snapshot import LiveCallFigures, LiveLayerFigures, LiveStepFigures
from gpuprof.live.step_window import StepWindow
from gpuprof.run.format import KINDS
from gpuprof.run.outermost_calls import NO_CALL, TRANSPARENT, Call, call_of

# At 30 ns an event, a poll of a program that was recorded for long ends after about a third of a second.
MOST_EVENTS = 8_000_000
_LAYER = KINDS.index("layer")
_BACKWARD_GROUP = ("backward", "backward")
_NONE = -1
_LEAST_BINS = 1 << 14


class SpanFollower:
    """Reads what was added to a run's `segments` folder since the last poll, each event once.

    Memory grows with the number of distinct names and call paths, not with events.
    """

    def __init__(self, segments: Path) -> None:
        self._native = _native.SegmentFollower(os.fsencode(segments))
        self._names: list[str] = []
        self._nodes = _Nodes()
        self._calls: dict[tuple[int, int], list[int]] = {}
        self._layers: dict[int, list[int]] = {}
        self._windows: dict[int, StepWindow] = {}
        self._has_operators = False
        self.total_spans = 0
        self.chosen: int | None = None  # the process whose calls and layers are summed up; None: all

    def poll(
        self, ended: Sequence[int] = (), *, has_operators: bool = True, most_events: int = MOST_EVENTS
    ) -> bool:
        """Take in new events; returns whether more are waiting. `ended` are processes that exist no more."""
        self._has_operators = has_operators
        is_late = self._native.poll(list(ended), most_events, self._take)
        self._learn()
        modes = self._native.take_modes()
        for process_id in np.unique(modes["process_id"]).tolist():
            self._window(process_id).add_modes(
                {name: column[modes["process_id"] == process_id] for name, column in modes.items()}
            )
        return is_late

    def processes(self) -> list[dict[str, Any]]:
        """Return the state of each process, as the native core has it."""
        return self._native.processes()

    @property
    def is_finished(self) -> bool:
        """Whether there are processes, and all of them were read to their end."""
        states = self._native.processes()
        return bool(states) and all(state["finished"] for state in states)

    def take_calls(self) -> tuple[LiveCallFigures, ...]:
        """Return the calls that ended since this was last asked, by kind and name."""
        sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        for (name, kind), values in self._calls.items():
            found = sums[KINDS[kind], self._names[name]]
            found[:] = (former + value for former, value in zip(found, values, strict=True))
        self._calls = {}
        return tuple(LiveCallFigures(*key, *values) for key, values in sorted(sums.items()))

    def take_layers(self) -> tuple[LiveLayerFigures, ...]:
        """Return the self time of layers since this was last asked, the most first."""
        found = [LiveLayerFigures(self._names[name], *values) for name, values in self._layers.items()]
        self._layers = {}
        return tuple(sorted(found, key=lambda each: (-each.self_ns, each.name)))

    def take_steps(self) -> tuple[LiveStepFigures, ...]:
        """Return the steps that ended since this was last asked, by process."""
        finished = {state["process_id"]: state["finished"] for state in self.processes()}
        taken = []
        for process_id, window in sorted(self._windows.items()):
            steps = window.take(
                process_id, has_operators=self._has_operators, is_finished=finished.get(process_id, False)
            )
            if steps is not None:
                taken.append(steps)
        return tuple(taken)

    @property
    def has_steps(self) -> bool:
        """Whether steps were found, in this interval or before."""
        return any(window.has_steps for window in self._windows.values())

    def _window(self, process_id: int) -> StepWindow:
        return self._windows.setdefault(process_id, StepWindow())

    def _learn(self) -> None:
        self._names += self._native.new_names(len(self._names))
        self._nodes.add(self._native.new_nodes(len(self._nodes)), self._names)

    def _take(self, process_id: int, rows: dict[str, Any]) -> None:
        self._learn()
        self.total_spans += len(rows["kind"])
        if self.chosen is None or self.chosen == process_id:
            self._add_calls(rows)
            self._add_layers(rows)
        node = rows["path_id"].astype(np.int64)
        outermost = self._nodes.outermost(node)
        if outermost.any():
            chosen = {name: rows[name][outermost] for name in ("thread_id", "start_ns", "duration_ns")}
            nodes = node[outermost]
            names = np.array([self._names[name] for name in self._nodes.name_of(nodes)], dtype=object)
            self._window(process_id).add(chosen, self._nodes.call_of(nodes), names)

    def _add_calls(self, rows: dict[str, Any]) -> None:
        keys = (rows["name_id"].astype(np.int64) - 1) * len(KINDS) + rows["kind"]
        found, *sums = _sums(keys, np.ones(len(keys)), rows["duration_ns"], rows["own_ns"])
        for key, *values in zip(found, *sums, strict=True):
            former = self._calls.setdefault(divmod(key, len(KINDS)), [0, 0, 0])
            former[:] = (one + other for one, other in zip(former, values, strict=True))

    def _add_layers(self, rows: dict[str, Any]) -> None:
        layer = self._nodes.layer_of(rows["path_id"].astype(np.int64))
        inside = layer != _NONE
        if not inside.any():
            return
        found, calls, own = _sums(layer[inside], rows["kind"][inside] == _LAYER, rows["own_ns"][inside])
        for name, count, own_ns in zip(found, calls, own, strict=True):
            former = self._layers.setdefault(name, [0, 0])
            former[0] += count
            former[1] += own_ns


def _sums(keys: npt.NDArray[np.int64], *columns: npt.NDArray[Any]) -> list[list[int]]:
    """Return the distinct keys, and the sums by key of each column; exact below 2^53 ns, 104 days."""
    if int(keys.max()) < _LEAST_BINS + len(keys):
        place, found = keys, np.flatnonzero(np.bincount(keys))  # a third of the time that sorting takes
    else:
        found, place = np.unique(keys, return_inverse=True)
    at = found if place is keys else slice(None)
    sums = [np.bincount(place, weights=column)[at].astype(np.int64) for column in columns]
    return [found.tolist(), *(each.tolist() for each in sums)]


class _Nodes:
    """What is known of the call paths, by the number of their node; it grows."""

    def __init__(self) -> None:
        self._call: list[int] = []
        self._name: list[int] = []
        self._layer: list[int] = []  # name of the innermost layer around or at it
        self._is_inside: list[bool] = []  # an outermost call
        self._is_of_optimizer: list[bool] = []
        self._outermost: list[bool] = []
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self._call)

    def add(self, nodes: dict[str, npt.NDArray[Any]], names: Sequence[str]) -> None:
        columns = (nodes[name].tolist() for name in ("parent", "kind", "name"))
        for parent, kind, name in zip(*columns, strict=True):
            self._add(parent, kind, name, names[name] if name >= 0 else "")
            self._columns = {}

    def _add(self, parent: int, kind: int, name: int, text: str) -> None:
        has_parent = parent >= 0
        is_group = (KINDS[kind], text) == _BACKWARD_GROUP
        call = NO_CALL if is_group else call_of(KINDS[kind], text)
        above = self._call[parent] if has_parent else NO_CALL
        is_inside = has_parent and (self._is_inside[parent] or above not in TRANSPARENT)
        is_of_optimizer = has_parent and (self._is_of_optimizer[parent] or above == Call.OPTIMIZER)
        is_extra = is_of_optimizer and call == Call.OPERATOR
        self._call.append(call)
        self._name.append(name)
        self._layer.append(name if kind == _LAYER else self._layer[parent] if has_parent else _NONE)
        self._is_inside.append(is_inside)
        self._is_of_optimizer.append(is_of_optimizer)
        self._outermost.append(call != NO_CALL and not is_inside and not is_extra)

    def outermost(self, node: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return self._column("outermost", self._outermost)[node].astype(np.bool_)

    def layer_of(self, node: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._column("layer", self._layer)[node]

    def call_of(self, node: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._column("call", self._call)[node]

    def name_of(self, node: npt.NDArray[np.int64]) -> list[int]:
        names: list[int] = self._column("name", self._name)[node].tolist()
        return names

    def _column(self, name: str, values: Sequence[int]) -> npt.NDArray[np.int64]:
        if name not in self._columns:
            self._columns[name] = np.array(values, dtype=np.int64)
        return self._columns[name]
