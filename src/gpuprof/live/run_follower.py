# SPDX-License-Identifier: Apache-2.0
"""Follows all sources of a run while it is recorded: spans, stacks, kernels and devices."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuprof.errors import RunError
from gpuprof.live.devices import DeviceFollower
from gpuprof.live.kernels import KernelFollower
from gpuprof.live.snapshot import MissingReason, RunState, Unavailable
from gpuprof.live.spans import SpanFollower
from gpuprof.live.stacks import StackFollower
from gpuprof.record.facts import Method, SourceStatus
from gpuprof.record.recording_folder import RECORDING_FILE
from gpuprof.run.facts import statuses_of
from gpuprof.run.format import META_FILE, read_json


class RunFollower:
    """Reads what was added to a run since the last poll. Raises RunError for a damaged one."""

    def __init__(self, run: Path, segments: Path) -> None:
        self._run = run
        self._spans = SpanFollower(segments)
        self._stacks = StackFollower(segments)
        self._kernels = KernelFollower(segments)
        self._devices = DeviceFollower(segments)
        self._facts = read_json(run / RECORDING_FILE)
        self._is_left = False

    def poll(self, ended: Sequence[int]) -> dict[str, Any]:
        """Take in new events; returns fields of a snapshot. `ended` are processes that exist no more."""
        is_closed = not (self._run / RECORDING_FILE).exists() and (self._run / META_FILE).exists()
        spans_before = self._spans.total_spans
        # Of a run that was closed or removed, what was known remains.
        with contextlib.suppress(OSError, ValueError):
            self._facts = json.loads((self._run / RECORDING_FILE).read_bytes())
        statuses = statuses_of(self._facts)
        operators = _why_no_operators(statuses.get("operators"))
        is_late = self._spans.poll(ended, has_operators=operators is None)
        # Files that were removed before they were opened have no end to be read.
        self._is_left = is_closed and self._spans.total_spans == spans_before
        python = self._stacks.take()
        steps = self._spans.take_steps()
        return {
            "operators": operators,
            "steps": steps if self._spans.has_steps else Unavailable(MissingReason.NO_STEPS),
            "layers": self._spans.take_layers(),
            "calls": self._spans.take_calls(),
            "python": _with_reason(python, statuses.get("python")),
            "kernels": _with_reason(self._kernels.take(), statuses.get("kernels")),
            "devices": _with_reason(self._devices.take(), statuses.get("samples")),
            "is_late": is_late or self._stacks.is_late,
            "dropped_events": sum(state["dropped_events"] for state in self.processes()),
        }

    def look_for_processes(self) -> list[dict[str, Any]]:
        """Return the state of each process without reading its events."""
        self._spans.poll(most_events=0)
        return self.processes()

    def choose(self, process_id: int | None) -> None:
        """Sum up the calls and layers of one process from now on; None: of all."""
        self._spans.chosen = process_id

    def processes(self) -> list[dict[str, Any]]:
        """Return the state of each process, as the native core has it."""
        return self._spans.processes()

    @property
    def state(self) -> RunState:
        """What is left to read."""
        if self._spans.is_finished or self._is_left:
            return RunState.ENDED
        return RunState.RECORDING if self._run.is_dir() else RunState.GONE

    @property
    def missed_spans(self) -> int:
        """How many spans of the closed run were removed before they could be read."""
        if self.state is not RunState.ENDED or not (self._run / META_FILE).exists():
            return 0
        try:
            total = int(read_json(self._run / META_FILE)["totals"]["spans"])
        except (RunError, OSError, KeyError, TypeError, ValueError):
            return 0
        return max(total - self._spans.total_spans, 0)


def _why_no_operators(status: SourceStatus | None) -> Unavailable | None:
    if status is None or not status.is_on:
        return Unavailable(MissingReason.NOT_RECORDED)
    if status.method is Method.TORCH_PROFILER:
        return Unavailable(MissingReason.AFTER_THE_END)
    return None


def _with_reason(figures: Any, status: SourceStatus | None) -> Any:
    """Return the figures; with the recording's reason where there are none and it has one."""
    if not isinstance(figures, Unavailable) or status is None or status.is_on or status.reason is None:
        return figures
    return Unavailable(MissingReason.NOT_RECORDED, figures.detail or status.reason.value)
