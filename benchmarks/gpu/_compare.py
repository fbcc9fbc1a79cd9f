# SPDX-License-Identifier: Apache-2.0
"""Profilers side by side: rounds of fresh processes, one for each profiler, in a random order.

A first process, whose figures are thrown away, fills the caches of compilers and says how long a step
takes, so that all profilers run as many steps. The ratio of a profiler is that of its processes to the
unprofiled ones of the same rounds. How much it adds within its own process is told beside it.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu._processes import run
from benchmarks.gpu._statistics import describe, paired_ratio

BASE = "unprofiled"


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
    """What was measured so far: for each workload and profiler, a child's figures by round."""

    plan: Plan
    folder: Path
    log: Path
    save: Callable[[dict[str, Any]], None]
    prefix: dict[str, list[str]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    measured: dict[str, dict[str, dict[int, Any]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """Measure until the rounds or the time are spent; `save` is called after each process."""
        deadline = time.monotonic() + self.plan.limit_s
        self._calibrate(deadline)
        order = random.Random(self.plan.seed)
        for number in range(self.plan.rounds):
            begin = time.monotonic()
            for profiler in order.sample(list(self.plan.profilers), len(self.plan.profilers)):
                if time.monotonic() >= deadline:
                    self.problems.append(f"the time was spent in round {number + 1}")
                    return self.result()
                self._measure(number, profiler, deadline)
                self.save(self.result())
            if time.monotonic() + (time.monotonic() - begin) > deadline:
                break  # another round would be cut off
        return self.result()

    def result(self) -> dict[str, Any]:
        """Return what is reported."""
        rows = {name: self._row(name) for name in self.plan.workloads}
        return {"workloads": rows, "profilers": list(self.plan.profilers), "problems": self.problems}

    def _calibrate(self, deadline: float) -> None:
        for line in self._child(BASE, dict.fromkeys(self.plan.workloads, 0), deadline):
            if "error" in line:
                self.problems.append(f"{line['workload']}: {line['error']}")
            else:
                self.steps[line["workload"]] = max(1, int(self.plan.chunk_s / line["step_s"]))

    def _measure(self, number: int, profiler: str, deadline: float) -> None:
        names = list(self.steps)
        for group in [[name] for name in names] if self.plan.apart else [names]:
            for line in self._child(profiler, {name: self.steps[name] for name in group}, deadline):
                found = self.measured.setdefault(line["workload"], {}).setdefault(profiler, {})
                found[number] = line

    def _child(self, profiler: str, steps: dict[str, int], deadline: float) -> list[dict[str, Any]]:
        plan = {
            "workloads": list(steps.items()),
            "chunks": self.plan.chunks,
            "seed": self.plan.seed,
            "warmup_s": self.plan.warmup_s,
            "tiny": self.plan.tiny,
        }
        words = [sys.executable, "-m", "benchmarks.gpu._child", profiler, self.plan.device]
        limit_s = min(self.plan.child_limit_s, deadline - time.monotonic())
        done = run(
            [*self.prefix.get(profiler, []), *words, str(self.folder), json.dumps(plan)],
            limit_s=limit_s,
            log=self.log,
        )
        lines = [json.loads(line) for line in done.output.splitlines() if line.startswith('{"workload"')]
        if done.problem is not None:
            self.problems.append(f"{profiler}: {done.problem}")
        print(f"  {profiler}: {len(lines)} workloads in {done.seconds:.0f} s", flush=True)
        return lines

    def _row(self, name: str) -> dict[str, Any]:
        found = self.measured.get(name, {})
        base = {number: line for number, line in found.get(BASE, {}).items() if "error" not in line}
        return {
            "steps_in_a_chunk": self.steps.get(name),
            "profilers": {profiler: _entry(lines, base) for profiler, lines in found.items()},
        }


def _entry(lines: dict[int, Any], base: dict[int, Any]) -> dict[str, Any]:
    """Return one profiler's figures of one workload over all rounds."""
    good = {number: line for number, line in lines.items() if "error" not in line}
    entry: dict[str, Any] = {"errors": [line["error"] for line in lines.values() if "error" in line]}
    if not good:
        return entry
    medians = {
        phase: [statistics.median(line[phase]) for line in good.values()]
        for phase in ("before_s", "during_s", "after_s")
    }
    entry["step_s"] = describe(medians["during_s"])
    entry["values_s"] = medians["during_s"]
    # Spread within processes, beside that between them.
    entry["chunk_spread"] = statistics.median(
        describe(line["during_s"])["third_quartile"] / describe(line["during_s"])["first_quartile"] - 1
        for line in good.values()
    )
    both = sorted(good.keys() & base.keys())
    if both:
        entry["to_unprofiled"] = paired_ratio(
            [statistics.median(good[number]["during_s"]) for number in both],
            [statistics.median(base[number]["during_s"]) for number in both],
        )
    entry["within_process"] = paired_ratio(medians["during_s"], medians["before_s"])
    entry["after_stop"] = paired_ratio(medians["after_s"], medians["before_s"])
    entry["start_s"] = describe([line["start_s"] for line in good.values()])
    entry["stop_s"] = describe([line["stop_s"] for line in good.values()])
    entry["told"] = next(iter(good.values()))["told"]
    return entry
