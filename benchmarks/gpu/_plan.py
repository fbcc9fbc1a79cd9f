# SPDX-License-Identifier: Apache-2.0
"""What a call does, in which order, and how long each step may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gpu import _steps
from benchmarks.gpu._call import Call

PART_S = 560.0


@dataclass(frozen=True, slots=True)
class Step:
    """`needs` names steps without whose success this one is not worth its time, where the call has them."""

    run: Callable[[Call], None]
    limit_s: float
    what: str
    needs: tuple[str, ...] = ("build",)


STEPS: dict[str, Step] = {
    "build": Step(_steps.build, 300, "gpuprof, the native programs, and the machine's description", ()),
    "doctor": Step(_steps.doctor, 60, "the output of `gpuprof doctor --json`", ()),
    "captures": Step(_steps.captures, 120, "raw buffers of CUPTI in five cases, packed, and their replay"),
    "smoke": Step(_steps.smoke, 120, "are PyTorch's own kernels correlated with launch and layer?"),
    "questions": Step(_steps.questions, 240, "what CUPTI's documentation leaves open"),
    "tests": Step(_steps.tests, 400, "`tests/gpu`, and the native tests that read CUPTI's headers"),
    "workloads-key": Step(
        _steps.workloads_key, 400, "four workloads under gpuprof and torch.profiler", ("build", "smoke")
    ),
    "ceilings": Step(_steps.ceilings, 120, "the ceilings of the GPUs alone, and whether they are plausible"),
    "growth": Step(_steps.growth, 60, "device memory over 1.5 million kernels of a CUDA graph"),
    "counters": Step(_steps.counters, 120, "hardware counters of kernels whose work is known"),
    "roofline": Step(_steps.roofline, 300, "the cases of `benchmarks/roofline_cases.py --device cuda`"),
    "workloads-rest": Step(
        _steps.workloads_rest, 400, "large models, streams, torch.compile", ("build", "smoke")
    ),
    "workloads": Step(
        _steps.workloads, 540, "all workloads under all profilers, or those asked for", ("build", "smoke")
    ),
    "long-run": Step(_steps.long_run, 420, "ten million kernels in one recording"),
}

# Two calls of ten minutes at most, each on a machine where nothing was built yet. The last step of a call has
# what the ones before it left, and its own limit at least, as long as those keep theirs.
PARTS: dict[str, dict[str, float]] = {
    "1": {
        "build": 95,
        "captures": 20,
        "smoke": 40,
        "questions": 75,
        "tests": 125,
        "workloads-key": 195,
    },
    "2": {
        "build": 80,
        "ceilings": 50,
        "growth": 25,
        "counters": 25,
        "roofline": 95,
        "workloads-key": 175,
        "workloads-rest": 100,
    },
}
EVERYTHING = tuple(name for name in STEPS if name not in ("workloads-key", "workloads-rest", "long-run"))


def run_step(call: Call, name: str, limit_s: float) -> None:
    """Run a step, or write why it is not run."""
    step = STEPS[name]
    failed = [each for each in step.needs if each in call.failed]
    if call.begin(name, limit_s) <= 0:
        call.add("step", "skipped", problem="no time was left")
    elif failed:
        call.add("step", "skipped", problem=f"{failed[0]} failed")
    else:
        step.run(call)
