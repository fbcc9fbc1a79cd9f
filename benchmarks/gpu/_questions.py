# SPDX-License-Identifier: Apache-2.0
"""What CUPTI's documentation leaves open, and which programs ask a GPU for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu._conclusions import JUDGES, summarize

_COEXISTENCE = (
    "profiler_inside",
    "gpuprof_inside",
    "one_after_the_other",
    "on_another_thread",
    "native_start_during_profiler",
    "profiler_during_native_recording",
)


@dataclass(frozen=True, slots=True)
class Question:
    """`programs` are cases of `_coexistence.py`; without any, the native program `cupti_probe` runs."""

    text: str
    method: str
    programs: tuple[str, ...] = ()


QUESTIONS: dict[str, Question] = {
    "correlation_cost": Question(
        "Which costs the launching thread less: external correlation ids or callbacks at the launch?",
        "batches of 500 launches of a short kernel, nine rounds of all four ways in one process",
    ),
    "residual_cost": Question(
        "Does a launch stay slower after a recording has stopped, and does cuptiFinalize help?",
        "batches of 500 launches: without CUPTI, loaded, recording, stopped, finalized",
    ),
    "clock_error": Question(
        "How far is the GPU's clock, as CUPTI converts it, from the CPU's?",
        "2,000 kernels over 5 s, each bounded by the time before its launch and after its synchronization; "
        "CUPTI's clock is compared with the CPU's each half second",
    ),
    "timestamp_clock": Question(
        "Do cuptiGetTimestamp and the records follow the registered clock?",
        "a clock that is shifted by 1e15 ns is registered; both are compared with the monotonic clock",
    ),
    "empty_buffers": Question(
        "Are buffers without records kept at a flush?",
        "counts of buffers asked for and returned around flushes with and without work",
    ),
    "dropped_records": Question(
        "Is CUPTI's count of dropped records true?",
        "20,000 kernels into two buffers of 64 KiB; launched = recorded + dropped?",
    ),
    "flush_while_running": Question(
        "What does a flush hand out, and how long does it take, while a kernel runs?",
        "a plain and a forced flush in the middle of a kernel of half a billion cycles",
    ),
    "graph_clones": Question(
        "For which nodes do the callbacks for created and cloned nodes come, and which ids do records carry?",
        "4 kernels captured, instantiated, cloned and replayed 3 times; callbacks by phase",
    ),
    "torch_profiler": Question(
        "What becomes of gpuprof and torch.profiler in one process?",
        "six orders of beginning and ending, 100 kernels in each part, counted by both",
        _COEXISTENCE,
    ),
    "runtime_copies": Question(
        "Do the driver's callbacks come for copies by the runtime, with the id that the record carries?",
        "copies and fills by PyTorch, each in a span of its own, joined by correlation id",
        ("copies",),
    ),
}


def conclude(name: str, cases: Mapping[str, Any], problems: Mapping[str, str]) -> dict[str, Any]:
    """Return the conclusion about a question, given its programs' figures and problems by case.

    `conclusive` is False where figures are missing.
    """
    question = QUESTIONS[name]
    figures: dict[str, Any] = {}
    for case in question.programs or (name,):
        if cases.get(case) is not None:
            figures.update({case: cases[case]} if question.programs else cases[case])
    found = {
        "name": name,
        "question": question.text,
        "method": question.method,
        "problems": {case: problems[case] for case in question.programs or (name,) if case in problems},
        "figures": summarize(figures),
    }
    if not figures:
        return {**found, "conclusive": False, "conclusion": "no figures"}
    try:
        return {**found, "conclusive": True, "conclusion": JUDGES[name](figures)}
    except (KeyError, IndexError, TypeError, ZeroDivisionError) as error:
        return {**found, "conclusive": False, "conclusion": f"the figures lack something: {error!r}"}
