# SPDX-License-Identifier: Apache-2.0
"""Cost of an empty `with` block, while recording and while not recording."""

from __future__ import annotations

import contextlib
import threading
import time

import gpuprof
from benchmarks._measure import Contestant, Figure, Row, Settings, added, entries, repeated, time_rounds
from benchmarks._recorders import gpuprof_on, torch_profiler_on

try:
    import nvtx
except ImportError:  # the row then goes without it
    nvtx = None

_BASE = "empty loop"
_NO_TOOL = "nvtx without a tool and RecordFunction without a profiler record nothing"


def span_rows(settings: Settings) -> list[Row]:
    """Spans that are recorded."""
    from torch._C._profiler import _RecordFunctionFast
    from torch.profiler import record_function

    many, few = settings.iterations(200_000, 5_000), settings.iterations(10_000, 500)
    recording = gpuprof_on(settings.folder, layers=False, operators=False)
    profiling = torch_profiler_on()
    span, fast = gpuprof.span("x"), _RecordFunctionFast("x")
    # The line that a user writes, for spans made on the spot: module attribute, name, `with`.
    names = {"gpuprof": gpuprof, "record_function": record_function, "Fast": _RecordFunctionFast}
    slow = repeated('with record_function("x"): pass', **names)
    reused = [
        Contestant(
            "gpuprof.span, reused", repeated("with span: pass", span=span), many, recording, "gpuprof"
        ),
        *_nvtx_reused(many),
        Contestant("_RecordFunctionFast, reused", repeated("with fast: pass", fast=fast), many),
        Contestant(
            "_RecordFunctionFast, reused, torch.profiler on",
            repeated("with fast: pass", fast=fast),
            few,
            profiling,
        ),
    ]
    fresh = [
        Contestant(
            "gpuprof.span, fresh",
            repeated('with gpuprof.span("x"): pass', **names),
            many,
            recording,
            "gpuprof",
        ),
        *_nvtx_fresh(many),
        Contestant("_RecordFunctionFast, fresh", repeated('with Fast("x"): pass', **names), many),
        Contestant("record_function", slow, few),
        Contestant("record_function, torch.profiler on", slow, few, profiling),
    ]
    scale = _scale(many)
    figures = _figures([*reused, *fresh, *scale], many, settings)
    return [
        _row("span.reused", "span recorded, object reused", reused, scale, figures, budget=60, note=_NO_TOOL),
        _row(
            "span.fresh",
            "span recorded, new object",
            fresh,
            scale,
            figures,
            budget=60,
            note=_NO_TOOL,
        ),
    ]


def idle_rows(settings: Settings) -> list[Row]:
    """Return rows of spans that stay in code while nothing is recorded."""
    many = settings.iterations(200_000, 5_000)
    reused = [
        Contestant(
            "gpuprof.span, reused", repeated("with span: pass", span=gpuprof.span("x")), many, role="gpuprof"
        ),
        *_nvtx_reused(many),
    ]
    fresh = [
        Contestant(
            "gpuprof.span, fresh",
            repeated('with gpuprof.span("x"): pass', gpuprof=gpuprof),
            many,
            role="gpuprof",
        ),
        *_nvtx_fresh(many),
    ]
    scale = _scale(many)
    figures = _figures([*reused, *fresh, *scale], many, settings)
    return [
        _row("idle.reused", "span while not recording, object reused", reused, scale, figures, budget=40),
        _row("idle.fresh", "span while not recording, new object", fresh, scale, figures, budget=40),
    ]


def _nvtx_reused(many: int) -> list[Contestant]:
    if nvtx is None:
        return []
    loop = repeated("with annotation: pass", annotation=nvtx.annotate("x"))
    return [Contestant("nvtx.annotate, reused", loop, many)]


def _nvtx_fresh(many: int) -> list[Contestant]:
    if nvtx is None:
        return []
    loop = repeated('with nvtx.annotate("x"): pass', nvtx=nvtx)
    return [Contestant("nvtx.annotate, fresh", loop, many)]


def _scale(many: int) -> list[Contestant]:
    clock = repeated("now(); now()", now=time.perf_counter_ns)
    nothing = repeated("with nothing: pass", nothing=contextlib.nullcontext())
    lock = repeated("with lock: pass", lock=threading.Lock())
    return [
        Contestant("threading.Lock, reused: `with` in C", lock, many, role="scale"),
        Contestant("contextlib.nullcontext, reused", nothing, many, role="scale"),
        Contestant("perf_counter_ns, a pair", clock, many, role="scale"),
    ]


def _figures(contestants: list[Contestant], many: int, settings: Settings) -> dict[str, Figure]:
    base = Contestant(_BASE, repeated("pass"), many, role="base")
    return added(time_rounds([base, *contestants], settings.rounds, settings.seed), _BASE)


def _row(
    name: str,
    what: str,
    contestants: list[Contestant],
    scale: list[Contestant],
    figures: dict[str, Figure],
    *,
    budget: float,
    note: str = "",
) -> Row:
    return Row(
        name=name,
        what=what,
        unit="ns",
        measured=figures[contestants[0].name],
        budget=budget,
        others=entries([*contestants, *scale], figures),
        notes=(note,) if note else (),
    )
