# SPDX-License-Identifier: Apache-2.0
"""Sums of snapshots since the start, in the form of a snapshot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from gpuprof.live.snapshot import (
    LiveCallFigures,
    LiveFunctionFigures,
    LiveKernelFigures,
    LiveLayerFigures,
    LiveStepFigures,
    Snapshot,
    Unavailable,
)

# Step times that are kept for the median of a process; older ones count in the number and the mean only.
MOST_STEPS = 100_000


class Totals:
    """Adds up calls, layers, samples, kernels and steps. Memory grows with distinct names, not with time."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], list[int]] = {}
        self._layers: dict[str, list[int]] = {}
        self._functions: dict[tuple[int, str, bool], list[int]] = {}
        self._lines: dict[tuple[int, str, bool], dict[int, int]] = {}
        self._kernels: dict[tuple[str, str, int], list[int]] = {}
        self._steps: dict[int, LiveStepFigures] = {}
        self.interval_ns = 0

    def add(self, snapshot: Snapshot) -> None:
        """Add the figures of one interval."""
        self.interval_ns += snapshot.interval_ns
        for call in _known(snapshot.calls):
            _add(self._calls, (call.kind, call.name), (call.calls, call.total_ns, call.self_ns))
        for layer in _known(snapshot.layers):
            _add(self._layers, layer.name, (layer.calls, layer.self_ns))
        for each in _known(snapshot.python):
            key = (each.process_id, each.name, each.is_main_thread)
            _add(self._functions, key, (each.samples, each.running_ns, each.waiting_ns))
            lines = self._lines.setdefault(key, {})
            for line, line_ns in each.lines:
                lines[line] = lines.get(line, 0) + line_ns
        for kernel in _known(snapshot.kernels):
            _add(self._kernels, (kernel.kind, kernel.name, kernel.device), (kernel.calls, kernel.total_ns))
        for steps in _known(snapshot.steps):
            self._add_steps(steps)

    def in_place_of(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the sums in place of the figures of its interval."""
        return dataclasses.replace(
            snapshot,
            interval_ns=self.interval_ns,
            calls=tuple(LiveCallFigures(*key, *values) for key, values in self._calls.items()),
            layers=tuple(
                sorted(
                    (LiveLayerFigures(name, *values) for name, values in self._layers.items()),
                    key=lambda each: (-each.self_ns, each.name),
                )
            ),
            python=snapshot.python if not self._functions else tuple(map(self._function, self._functions)),
            kernels=snapshot.kernels
            if not self._kernels
            else tuple(LiveKernelFigures(*key, *values) for key, values in self._kernels.items()),
            steps=tuple(self._steps.values()) or snapshot.steps,
        )

    def _function(self, key: tuple[int, str, bool]) -> LiveFunctionFigures:
        lines = sorted(self._lines[key].items(), key=lambda each: (-each[1], each[0]))
        samples, running_ns, waiting_ns = self._functions[key]
        return LiveFunctionFigures(*key, samples, running_ns, waiting_ns, tuple(lines))

    def _add_steps(self, steps: LiveStepFigures) -> None:
        former = self._steps.get(steps.process_id)
        if former is None or former.source != steps.source:
            self._steps[steps.process_id] = steps
            return
        parts = ("forward_ns", "backward_ns", "optimizer_ns", "data_ns", "other_ns")
        sums: dict[str, Any] = {name: _sum(getattr(former, name), getattr(steps, name)) for name in parts}
        durations = (*former.durations_ns, *steps.durations_ns)
        self._steps[steps.process_id] = dataclasses.replace(
            steps,
            durations_ns=durations[-MOST_STEPS:],
            earlier_steps=former.earlier_steps + max(len(durations) - MOST_STEPS, 0),
            **sums,
        )


def _known(figures: Iterable | Unavailable | None) -> Iterable:  # type: ignore[type-arg]
    return () if figures is None or isinstance(figures, Unavailable) else figures


def _add(sums: dict, key: object, values: tuple[int, ...]) -> None:  # type: ignore[type-arg]
    former = sums.get(key)
    if former is None:
        sums[key] = list(values)
    else:
        former[:] = (one + other for one, other in zip(former, values, strict=True))


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
