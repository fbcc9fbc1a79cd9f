# SPDX-License-Identifier: Apache-2.0
"""What a re-run executes, and what it measured, as plain values between two processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuprof.analyze.findings.finding import RerunProblem


class ExperimentKind(str, Enum):
    """Which replica is made."""

    OPTIMIZER = "optimizer"
    THREADS = "threads"
    ATTENTION = "attention"
    SUBNORMALS = "subnormals"


@dataclass(frozen=True, slots=True)
class Experiment:
    """A replica: `values` are plain data for JSON. `threads` is PyTorch's number of threads, as recorded."""

    kind: ExperimentKind
    threads: int
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Times of a call without and with the fix, in pairs, in nanoseconds.

    `operators` are the names of those that the replica contains, `ordinary_ns` is the time of a call on
    ordinary numbers, where it matters. With a `problem`, the pairs until then are kept.
    """

    times_ns: tuple[tuple[float, float], ...]
    problem: RerunProblem | None = None
    operators: tuple[str, ...] = ()
    ordinary_ns: float | None = None
