# SPDX-License-Identifier: Apache-2.0
"""The gain of a step as an interval: how the steps vary, and how far replays are from reality."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.analyze.whatif.program import ReplayRules
from gpuprof.stats.distributions import mean_half_width
from gpuprof.text.units import format_share_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuprof.analyze.whatif.program import ReplayProgram
    from gpuprof.stats.arrays import Floats

# What a replay cannot know: without some work, caches, clocks and other threads behave differently. Removed
# waits are predicted within 4%, removed computing within 20%: without it, the rest of a step is often faster
# (benchmarks/planted_causes.py, on two machines).
REPLAY_ERROR = 0.2
# Of removed time that other threads hide: its thread still takes processors, memory and the interpreter lock.
HIDDEN_ERROR = 0.05
_CONFIDENCE = 0.9
FEWEST_STEPS = 5  # with less, the interval is the range


@dataclass(frozen=True, slots=True)
class StepGain:
    """The gain of a step: of the mean of `steps` recorded ones. Those of warm-up are left out.

    `low_ns` and `high_ns` are a 90% interval: of the ways to replay what is unknown, the variation of the
    steps, the sampling of stacks, the error of replays, and the effect of time that other threads hide.
    """

    recorded_ns: float
    low_ns: float
    high_ns: float
    steps: int

    @property
    def share(self) -> str:
        """The gain as a part of the step."""
        whole_ns = self.recorded_ns or 1.0
        return format_share_range(self.low_ns / whole_ns, self.high_ns / whole_ns)


def step_gain(
    program: ReplayProgram, sampling_error_ns: float, removed_ns: float, most_ns: float
) -> StepGain:
    """Return the gain of a step, with the same three replays as that of the run.

    `sampling_error_ns` is the half width that the sampling of stacks adds to the time of all steps, and
    `removed_ns` the time on threads that the changes take from all steps. A step gains `most_ns` at most.
    """
    count = len(program.steps)
    recorded = program.execute_steps(ReplayRules(is_changed=False))
    unexplained = program.execute_steps(ReplayRules(is_changed=False, keeps_delays=False))
    without = ReplayRules(is_changed=True, waits_shrink=True, keeps_delays=False)
    gains = [
        recorded - program.execute_steps(ReplayRules(is_changed=True)),
        recorded - program.execute_steps(ReplayRules(is_changed=True, waits_shrink=True)),
        unexplained - program.execute_steps(without),
    ]
    low_ns, high_ns = step_interval(gains, sampling_error_ns / count)
    gained_ns = max(float(each.mean()) for each in gains)
    hidden_ns = HIDDEN_ERROR * max(removed_ns / count - max(gained_ns, 0.0), 0.0)
    mean_ns = float(recorded.mean())
    most_ns = min(most_ns, mean_ns)
    return StepGain(mean_ns, min(low_ns - hidden_ns, most_ns), min(high_ns + hidden_ns, most_ns), count)


def step_interval(
    gains_ns: Sequence[Floats], sampling_error_ns: float = 0.0, relative_error: float = REPLAY_ERROR
) -> tuple[float, float]:
    """Return the ends of the mean gain of a step; each array has a gain for each step.

    If no step becomes slower, their mean does not either; and it is not below the least gain of a step,
    however much single steps gain.
    """
    means = [float(each.mean()) for each in gains_ns]
    variation = max(_half_width(each) for each in gains_ns)
    low_ns, high_ns = (
        end + side * math.hypot(variation, sampling_error_ns, relative_error * end)
        for end, side in ((min(means), -1), (max(means), 1))
    )
    least_ns = min(float(each.min()) for each in gains_ns)
    return low_ns if least_ns < 0 else max(low_ns, (1 - relative_error) * least_ns), high_ns


def replay_interval(low_ns: float, high_ns: float) -> tuple[float, float]:
    """Return the ends of a gain that a program has once, with the error of replays."""
    return low_ns - REPLAY_ERROR * abs(low_ns), high_ns + REPLAY_ERROR * abs(high_ns)


def _half_width(values: Floats) -> float:
    """Return half of the 90% interval of the mean: Student's, or the range of few values."""
    if len(values) < FEWEST_STEPS:
        return float(np.ptp(values)) / 2
    return mean_half_width(values, _CONFIDENCE)
