# SPDX-License-Identifier: Apache-2.0
"""Settles on a GPU what CUPTI's documentation leaves open, with figures.

    python benchmarks/gpu/settle.py [--out FILE] [--question NAME]...

`run.py` asks all of them. Each question is asked in processes of its own; one that crashes is an answer too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.gpu._answers import JUDGES, summarise
from benchmarks.gpu._build import PROGRAM_FOLDER, environment
from benchmarks.gpu._processes import end_children_when_ended, run

LIMIT_S = 60.0
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
    """`programs`: the cases of the Python program; without any, the native program is asked."""

    text: str
    method: str
    programs: tuple[str, ...] = ()


QUESTIONS: dict[str, Question] = {
    "correlation_cost": Question(
        "Which costs the launching thread less: external correlation ids or callbacks at the launch?",
        "batches of 500 launches of a short kernel, nine rounds of all four ways in one process",
    ),
    "residual_cost": Question(
        "Does a launch stay slower after a recording has stopped, and does cuptiFinalize mend it?",
        "batches of 500 launches: without CUPTI, loaded, recording, stopped, finalized",
    ),
    "clock_error": Question(
        "How far is the GPU's clock, as CUPTI converts it, from the CPU's?",
        "2,000 kernels over 5 s, each bounded by the time before its launch and after its synchronization",
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

Ask = Callable[[str], tuple[dict[str, Any] | None, str | None]]


def settle(names: Sequence[str], ask: Ask) -> list[dict[str, Any]]:
    """Return an answer to each question. `ask` runs a program's case: its figures, or what went wrong."""
    answers = []
    for name in names:
        question = QUESTIONS[name]
        print(f"  {name}", flush=True)
        figures, problems = _figures(name, question, ask)
        answers.append(
            {
                "name": name,
                "question": question.text,
                "method": question.method,
                "answer": _judge(name, figures, problems),
                "problems": problems,
                "figures": summarise(figures),
            }
        )
    return answers


def _figures(name: str, question: Question, ask: Ask) -> tuple[dict[str, Any], list[str]]:
    figures: dict[str, Any] = {}
    problems = []
    for case in question.programs or (name,):
        found, problem = ask(case)
        if problem is not None:
            problems.append(f"{case}: {problem}")
        if found is not None:
            figures.update({case: found} if question.programs else found)
    return figures, problems


def _judge(name: str, figures: Mapping[str, Any], problems: Sequence[str]) -> str:
    if not figures:
        return f"not settled: {problems[0] if problems else 'no figures'}"
    try:
        return JUDGES[name](figures)
    except (KeyError, IndexError, TypeError, ZeroDivisionError) as error:
        return f"not settled: the figures are not what was expected ({type(error).__name__}: {error})"


def ask_programs(log: Path, limit_s: float = LIMIT_S) -> Ask:
    """Return an `ask` that runs the programs on this machine."""
    from gpuprof.record.kernels import cupti_folders

    python_cases = {case for question in QUESTIONS.values() for case in question.programs}

    def ask(case: str) -> tuple[dict[str, Any] | None, str | None]:
        if case in python_cases:
            words: list[Any] = [sys.executable, "-m", "benchmarks.gpu._coexistence", case]
        else:
            words = [PROGRAM_FOLDER / "cupti_settle", case, *cupti_folders()]
        done = run(words, limit_s=limit_s, log=log, environment=environment())
        lines = [line for line in done.output.splitlines() if line.startswith("{")]
        return (json.loads(lines[-1]) if lines else None), done.problem

    return ask


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask what is asked for, and print the answers."""
    parser = argparse.ArgumentParser(description="Settles on a GPU what CUPTI's documentation leaves open.")
    parser.add_argument("--question", action="append", choices=list(QUESTIONS), help="may be repeated")
    parser.add_argument("--out", type=Path, help="write the answers as JSON")
    options = parser.parse_args(arguments)
    end_children_when_ended()
    with tempfile.TemporaryDirectory() as folder:
        answers = settle(options.question or list(QUESTIONS), ask_programs(Path(folder) / "log.txt"))
    if options.out is not None:
        options.out.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
    for answer in answers:
        print(f"{answer['question']}\n    {answer['answer']}")
    return 0 if all(not answer["answer"].startswith("not settled") for answer in answers) else 3


if __name__ == "__main__":
    sys.exit(main())
