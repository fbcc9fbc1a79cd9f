# SPDX-License-Identifier: Apache-2.0
"""Causes of lost time as typed facts: what a rule found, where, what it costs, what its repair gains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuprof.analyze.whatif.intervals import Intervals


class Rule(str, Enum):
    """What is looked for, the most specific cause first: of two with the same time, the first has it."""

    LOADER = "loader"
    RECOMPILATIONS = "recompilations"
    COLLECTIONS = "collections"
    LOGGING = "logging"
    ALLOCATIONS = "allocations"
    GPU_SYNCHRONIZATION = "gpu_synchronization"
    PAGEABLE_COPIES = "pageable_copies"
    OPTIMIZER = "optimizer"
    ATTENTION = "attention"
    SUBNORMALS = "subnormals"
    ZEROING = "zeroing"
    ACCUMULATION = "accumulation"
    BUCKETS = "buckets"
    SLOW_OPERATORS = "slow_operators"
    FP32_NORMS = "fp32_norms"
    LOOKUPS = "lookups"
    LAYOUT_COPIES = "layout_copies"
    FP32_PRODUCTS = "fp32_products"
    SMALL_KERNELS = "small_kernels"
    THROTTLING = "throttling"
    INTERPRETER_LOCK = "interpreter_lock"
    WAITING = "waiting"
    LAUNCHES = "launches"
    SLOW_RANK = "slow_rank"
    THREADS = "threads"
    SMALL_BATCH = "small_batch"
    PADDING = "padding"
    UNUSED_IMPORT = "unused_import"
    STARTUP = "startup"


class Verdict(str, Enum):
    """Whether a rule found its cause in a run."""

    FOUND = "found"
    NOT_FOUND = "not_found"
    UNKNOWN = "unknown"
    NOT_SIGNIFICANT = "not_significant"


class Missing(str, Enum):
    """What a rule needs and the run lacks."""

    STEPS = "steps"
    OPERATORS = "operators"
    STACKS = "stacks"
    NATIVE_SAMPLER = "native_sampler"
    THREAD_STATES = "thread_states"
    COLLECTIONS = "collections"
    COMPILATIONS = "compilations"
    COLLECTIVES = "collectives"
    RANKS = "ranks"
    SETTINGS = "settings"
    THREADS = "threads"
    KERNELS = "kernels"
    SAMPLES = "samples"
    WORK = "work"
    CEILINGS = "ceilings"
    LAYERS = "layers"
    ALLOCATIONS = "allocations"
    MASKS = "masks"
    OLDER_RUN = "older_run"
    CERTAIN_WAITS = "certain_waits"
    SAMPLES_OF_STEPS = "samples_of_steps"


class GainKind(str, Enum):
    """How a gain was found. A bound is an upper end only."""

    REPLAYED = "replayed"
    RERUN = "rerun"
    BOUND = "bound"


class RerunProblem(str, Enum):
    """Why a finding has no gain that was measured again."""

    NO_REPLICA = "no_replica"  # the fix is in the program's own code
    SETTINGS = "settings"
    SHAPES = "shapes"
    DEVICE = "device"
    MACHINE = "machine"
    TORCH = "torch"
    MEMORY = "memory"
    REFUSED = "refused"  # by PyTorch
    SEVERAL_SHAPES = "several_shapes"
    INCONCLUSIVE = "inconclusive"  # the interval contains 0
    REFUTED = "refuted"  # the replica contradicts the cause
    DEADLINE = "deadline"
    INTERRUPTED = "interrupted"
    CRASHED = "crashed"


# Confidence in each kind of gain, for a complete recording of steady steps.
CONFIDENCE_OF_KIND = {GainKind.REPLAYED: 0.9, GainKind.RERUN: 1.0, GainKind.BOUND: 0.6}


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Wall time from `low_ns` to `high_ns`."""

    low_ns: float
    high_ns: float

    def scaled(self, factor: float) -> TimeRange:
        """Return a multiple."""
        return TimeRange(self.low_ns * factor, self.high_ns * factor)


@dataclass(frozen=True, slots=True)
class Gain:
    """Wall time that the repair saves, of the run and of a step; `step` is None if no step has the cause."""

    kind: GainKind
    run: TimeRange
    step: TimeRange | None


@dataclass(frozen=True, slots=True)
class EvidenceFigure:
    """A number that supports a finding, and the query of the run's tables that returns it.

    `unit` is `ns`, `count`, `ratio` or `hz`. `value` is None if the tables lack it.
    """

    code: str
    value: float | None
    unit: str
    sql: str


@dataclass(frozen=True, slots=True)
class Places:
    """Where a cause is: up to three typical spans, up to three nodes, a line of source.

    `spans` are values of `span_id` in the table `spans`, `nodes` of `node_id` in `call_tree`. `function` is a
    frame as in the table `stacks`, `line` the source line in it; None if unknown. `range_ns` is one
    stretch of the cause's time, begin and end.
    """

    nodes: tuple[int, ...] = ()
    spans: tuple[int, ...] = ()
    function: str | None = None
    line: int | None = None
    range_ns: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """What a rule found, before it is compared with the steps: the cause's time, and the gain of the run.

    `explained` is the fraction of the wall time that the replay explains, 1 for a gain without a replay.
    `missed_ns` is what the time may be longer by, since samples show its begin and end late or early.
    """

    rule: Rule
    values: Mapping[str, Any]
    time: Intervals
    kind: GainKind
    gain: TimeRange
    evidence: tuple[EvidenceFigure, ...]
    places: Places = field(default_factory=Places)
    explained: float = 1.0
    missed_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class Rerun:
    """Pairs of measurements of a replica, without and with the fix, and the median times of a call.

    With a `problem` the gain is not that of the re-run.
    """

    problem: RerunProblem | None
    pairs: int = 0
    before_ns: float | None = None
    after_ns: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause of lost time.

    `values` fill the sentence and the repair of `rule` (`gpuprof.analyze.findings.messages`). `cost_run_ns`
    and `cost_step_ns` are wall time with the cause in it. `factors` multiply to the confidence. `symptoms`
    are rules whose time this cause explains. Gains of several findings do not add up. `rerun` is None if no
    re-run was requested.
    """

    rule: Rule
    values: Mapping[str, Any]
    places: Places
    cost_run_ns: float
    cost_step_ns: float | None
    gain: Gain
    factors: Mapping[str, float]
    evidence: tuple[EvidenceFigure, ...]
    symptoms: tuple[Rule, ...] = ()
    rerun: Rerun | None = None

    @property
    def confidence(self) -> float:
        """A number from 0 to 1."""
        return math.prod(self.factors.values())


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of a rule for a run.

    `missing` is why it is unknown. `largest_ns` is the largest gain that is not significant, and `least_ns`
    what it would have to be: of a step, or of the run if not `is_of_step`. `problem` is why the re-run that
    the rule needs was not possible.
    """

    rule: Rule
    verdict: Verdict
    missing: Missing | None = None
    largest_ns: float | None = None
    least_ns: float | None = None
    is_of_step: bool | None = None
    problem: RerunProblem | None = None
