# SPDX-License-Identifier: Apache-2.0
"""The verdicts and states of benchmarks, each a closed set of words."""

from __future__ import annotations

from gpuprof.bench.facts import TextEnum


class SpeedVerdict(TextEnum):
    """How a variant or candidate compares in time. `MIXED`: faster at one batch size, slower at another."""

    BASELINE = "baseline"
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"
    MIXED = "mixed"
    INSUFFICIENT = "insufficient"
    NOT_MEASURED = "not measured"


class AccuracyVerdict(TextEnum):
    """How an accuracy compares with the baseline's."""

    LOWER = "lower"
    HIGHER = "higher"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"


class ClassVerdict(TextEnum):
    """How the accuracy of one class compares with the baseline's."""

    DEGRADED = "degraded"
    IMPROVED = "improved"
    INCONCLUSIVE = "inconclusive"


class ToleranceVerdict(TextEnum):
    """Whether an error is within what the rounding of a type explains."""

    WITHIN = "within"
    BEYOND = "beyond"
    UNKNOWN = "unknown"


class LayerVerdict(TextEnum):
    """Whether a layer diverges from its baseline. `COMPENSATED`: it does, and a module around it does not."""

    WITHIN = "within"
    DIVERGES = "diverges"
    COMPENSATED = "compensated"
    UNKNOWN = "unknown"


class TargetVerdict(TextEnum):
    """Whether a latency target is met."""

    MET = "met"
    MISSED = "missed"
    INCONCLUSIVE = "inconclusive"


class GateVerdict(TextEnum):
    """How a figure of the candidate compares with the baseline's, whichever direction is better."""

    WORSE = "worse"
    BETTER = "better"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"
    NOT_MEASURED = "not measured"


class GateOutcome(TextEnum):
    """What a gate decides: the worst of its rows."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


class VariantStatus(TextEnum):
    """How much of a variant was measured."""

    MEASURED = "measured"
    PARTLY = "partly"
    FAILED = "failed"


class QualityMeasure(TextEnum):
    """By which figure the outputs of variants are ranked."""

    ACCURACY = "accuracy"
    AGREEMENT = "top-1 agreement"
    COSINE = "cosine"


class Fitness(TextEnum):
    """Whether what a variant computes is good enough to use it."""

    FIT = "fit"
    UNKNOWN = "unknown"
    UNFIT = "unfit"


class RolloutAction(TextEnum):
    """What to do with the second variant of shared traffic."""

    ROLL_OUT = "roll out"
    KEEP = "keep"
    ROLL_BACK = "roll back"
