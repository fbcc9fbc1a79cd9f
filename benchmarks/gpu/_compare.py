# SPDX-License-Identifier: Apache-2.0
"""Profilers side by side: rounds of fresh processes, one for each profiler, in a random order.

A first process, whose figures are not used, fills the caches of compilers and finds how long a step takes, so
that all profilers run as many steps. Each process is an item of the call's journal when it has ended;
`_rounds.py` makes ratios of them.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu._journal import Entry, State
from benchmarks.gpu._processes import run
from benchmarks.gpu._rounds import BASE


@dataclass(frozen=True)
class Plan:
    """What is compared, and how long it may take."""

    device: str
    workloads: Sequence[str]
    profilers: Sequence[str]
    rounds: int
    limit_s: float
    child_limit_s: float = 150.0
    chunks: int = 5
    chunk_s: float = 0.05
    warmup_s: float = 0.5
    apart: bool = False  # each workload in a process of its own
    tiny: bool = False
    seed: int = 0


@dataclass(slots=True)
class Comparison:
    """`add` writes an item; `sees` returns whether a profiler can see a workload."""

    plan: Plan
    folder: Path
    log: Path
    add: Callable[[Entry], None]
    step: str = "workloads"
    prefix: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sees: Callable[[str, str], bool] = lambda _profiler, _workload: True
    steps: dict[str, int] = field(default_factory=dict)

    def run(self) -> int:
        """Measure until the rounds or the time are spent; returns the rounds that are complete."""
        deadline = time.monotonic() + self.plan.limit_s
        self._calibrate(deadline)
        if not self.steps:  # nothing to measure, and each round would fail in the same way
            return 0
        order = random.Random(self.plan.seed)
        for number in range(self.plan.rounds):
            begin = time.monotonic()
            for profiler in order.sample(list(self.plan.profilers), len(self.plan.profilers)):
                if time.monotonic() >= deadline:
                    return number
                self._measure(number, profiler, deadline)
            if time.monotonic() + (time.monotonic() - begin) > deadline:
                return number + 1  # another round would be cut off
        return self.plan.rounds

    def _calibrate(self, deadline: float) -> None:
        lines = self._child("calibration", BASE, dict.fromkeys(self.plan.workloads, 0), deadline)
        for line in lines:
            if "error" not in line:
                self.steps[line["workload"]] = max(1, int(self.plan.chunk_s / line["step_s"]))

    def _measure(self, number: int, profiler: str, deadline: float) -> None:
        names = [name for name in self.steps if self.sees(profiler, name)]
        for group in [[name] for name in names] if self.plan.apart else [names]:
            item = f"round {number + 1}: {profiler}" + (f": {group[0]}" if self.plan.apart else "")
            if group:
                steps = {name: self.steps[name] for name in group}
                self._child(item, profiler, steps, deadline, round=number)

    def _child(
        self, item: str, profiler: str, steps: dict[str, int], deadline: float, **facts: Any
    ) -> list[dict[str, Any]]:
        plan = {
            "workloads": list(steps.items()),
            "chunks": self.plan.chunks,
            "seed": self.plan.seed,
            "warmup_s": self.plan.warmup_s,
            "tiny": self.plan.tiny,
        }
        words = [sys.executable, "-m", "benchmarks.gpu._child", profiler, self.plan.device]
        done = run(
            [*self.prefix.get(profiler, []), *words, str(self.folder), json.dumps(plan)],
            limit_s=min(self.plan.child_limit_s, deadline - time.monotonic()),
            log=self.log,
        )
        lines = [json.loads(line) for line in done.output.splitlines() if _is_whole(line)]
        errors = [f"{line['workload']}: {line['error']}" for line in lines if "error" in line]
        problem = done.problem or ("; ".join(errors) or None)
        state: State = "timed out" if done.code is None else "ok" if problem is None else "failed"
        found = {**facts, "profiler": profiler, "steps": steps, "lines": lines}
        self.add(Entry(self.step, item, state, round(done.seconds, 2), problem, found))
        return lines


def _is_whole(line: str) -> bool:
    return line.startswith('{"workload"') and line.endswith("}")
