# SPDX-License-Identifier: Apache-2.0
"""The Python function that most of a step's time outside of the model is spent in."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gpuprof.analyze.findings.record import ProgramRecord

_LEAST = 0.1  # of a step
_MOST_OF = 0.5  # of the time outside of the model, that a function on the way has
_LOOP = 0.95  # of the time in steps: functions that call the whole step
# What PyTorch's engine does between the functions of the backward pass.
_BACKWARD = re.compile(r"_engine_run_backward \(torch/autograd/")
_SCRIPT = re.compile(r"\([^/()<>]+\.py:\d+\)$")  # a file that is in no package

Weights = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OtherPython:
    """A function that computes in steps, outside of layers, backward pass, optimizer and data loader.

    `fraction` is its part of the time of steps, with what it calls; `caller` is the function that calls it.
    """

    function: str
    caller: str | None
    fraction: float


def read_other_python(record: ProgramRecord) -> OtherPython | None:
    """Return a function that has half of the other time or more; None if there is none.

    It is the innermost one, or what a function of the program calls on the way to it. None, too, for a tenth
    of the step or less, and where only the functions have it that call the whole step. Waits are left out:
    the line of waits has them.
    """
    stacks = record.stacks
    if stacks is None or record.steps is None or record.is_trace:
        return None
    warm = record.steps.warm
    begin, end, count = stacks.begin_ns, stacks.end_ns, len(stacks.frames)
    is_inside = stacks.is_inside(warm)
    outside = warm.without(record.in_model).covered_ns(begin, end) * (is_inside & ~stacks.is_waiting)
    other_ns = np.bincount(stacks.stack, outside, minlength=count).astype(np.float64)
    other_ns[[bool(each) and bool(_BACKWARD.match(each[-1])) for each in stacks.frames]] = 0.0
    in_steps = warm.covered_ns(begin, end) * is_inside
    step_ns = np.bincount(stacks.stack, in_steps, minlength=count).astype(np.float64)
    if not warm.total_ns or other_ns.sum() < _LEAST * warm.total_ns:
        return None
    path = _most(stacks.frames, other_ns, _MOST_OF)
    loop = _most(stacks.frames, step_ns, _LOOP)
    if len(path) <= len(loop) or _below(stacks.frames, other_ns, path) < _LEAST * warm.total_ns:
        return None
    named = path[: _named(path, len(loop)) + 1]
    fraction = _below(stacks.frames, other_ns, named) / warm.total_ns
    return OtherPython(named[-1], named[-2] if len(named) > 1 else None, fraction)


def _below(frames: list[tuple[str, ...]], time_ns: Weights, chain: tuple[str, ...]) -> float:
    """Return the time of the stacks that begin with a chain of calls."""
    return sum(float(time_ns[at]) for at, each in enumerate(frames) if each[: len(chain)] == chain)


def _named(path: tuple[str, ...], loop: int) -> int:
    """Return the place of what the program itself calls: below its innermost function in no package."""
    own = [place for place, frame in enumerate(path) if _SCRIPT.search(frame)]
    last = len(path) - 1
    return min(own[-1] + 1, last) if own and own[-1] + 1 >= loop else last


def _most(frames: list[tuple[str, ...]], time_ns: Weights, least: float) -> tuple[str, ...]:
    """Return the longest chain of calls that has a part `least` of the time or more."""
    least_ns = least * float(time_ns.sum())
    places = np.flatnonzero(time_ns).tolist()
    chain: tuple[str, ...] = ()
    while True:
        depth, sums = len(chain), defaultdict[str, float](float)
        places = [place for place in places if len(frames[place]) > depth]
        for place in places:
            sums[frames[place][depth]] += float(time_ns[place])
        name, largest_ns = max(sums.items(), key=lambda item: item[1], default=("", 0.0))
        if not sums or largest_ns < least_ns:
            return chain
        places = [place for place in places if frames[place][depth] == name]
        chain = (*chain, name)
