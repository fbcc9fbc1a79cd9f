# SPDX-License-Identifier: Apache-2.0
"""Layers timed on the GPU by pairs of CUDA events, where CUPTI cannot be had."""

from __future__ import annotations

from typing import Any

from gpuprof import _native
from gpuprof.record.facts import Method, Note, NoteCode, note


class LayerTimer:
    """Times the layers that are recorded, from `start` to `stop`.

    `totals` are those of docs/run-format.md, None while nothing was timed.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.notes: list[Note] = []
        self.totals: dict[str, Any] | None = None

    def start(self) -> str:
        """Begin; CUDA is in use. Returns why layers cannot be timed, or nothing."""
        import torch

        get_device = getattr(torch._C, "_cuda_getDevice", None)
        get_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        if get_device is None or get_stream is None:
            return "this torch does not tell its current stream"
        reason = _native.event_timer_start(get_device, get_stream)
        self.is_on = not reason
        return reason

    def stop(self) -> None:
        """End. Layers that still run on the GPU are waited for briefly, not synchronised."""
        if not self.is_on:
            return
        self.is_on = False
        totals = _native.event_timer_stop()
        problem = totals.pop("problem")
        self.totals = {"method": Method.CUDA_EVENTS.value, **totals, "problem": problem or None}
        self.notes.append(note(NoteCode.GPU_TIMES_OF_LAYERS))
        if problem:
            self.notes.append(note(NoteCode.EVENTS_PROBLEM, detail=problem))
        if totals["untimed"]:
            self.notes.append(note(NoteCode.LAYERS_NOT_TIMED, count=totals["untimed"]))
        if totals["unfinished"]:
            self.notes.append(note(NoteCode.LAYERS_NOT_ENDED, count=totals["unfinished"]))
