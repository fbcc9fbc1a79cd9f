# SPDX-License-Identifier: Apache-2.0
"""What requests shared between two variants say: figures with intervals, failures, and whom to serve with.

The launch is the unit: in each one the ratio of both variants' medians (p95, p99) is one paired figure, whose
logarithms get Student's interval over the launches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.campaign.traffic_advice import Advice, Failures, Figure, advise
from gpuprof.bench.comparison import LogRatio, judge_ratios
from gpuprof.bench.pooling import PooledSamples
from gpuprof.bench.statistics import CONFIDENCE, Estimate, exact_share, samples_needed

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
TAIL_MARGIN = 0.05
ERROR_MARGIN = 0.01


@dataclass(frozen=True, slots=True)
class ArmRequests:
    """The requests of one variant in one launch: nanoseconds of those that were answered.

    The last `compared` of them are held against the other variant's; None for all.
    """

    wall_ns: list[int] = field(default_factory=list)
    compared: int | None = None
    failed: int = 0
    first_failure: str | None = None

    @property
    def seconds(self) -> Floats:
        """The times of answers."""
        return np.array(self.wall_ns, dtype=np.float64) / 1e9

    @property
    def compared_seconds(self) -> Floats:
        """The times of those that are held against the other variant's."""
        first = 0 if self.compared is None else len(self.wall_ns) - self.compared
        return self.seconds[first:]

    @property
    def count(self) -> int:
        """All requests."""
        return len(self.wall_ns) + self.failed

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ArmRequests:
        """Return what `to_dict()` described."""
        return cls(**values)


@dataclass(frozen=True, slots=True)
class TrafficLaunch:
    """One process in which both variants served."""

    number: int
    arms: tuple[ArmRequests, ArmRequests]

    def log_ratio(self, quantile: float) -> float | None:
        """Return the logarithm of the second variant's quantile over the first's; None for too few samples.

        Of those requests that are compared, which are about as many on both sides.
        """
        first, second = (arm.compared_seconds for arm in self.arms)
        if min(len(first), len(second)) < samples_needed(quantile):
            return None
        return math.log(np.quantile(second, quantile) / np.quantile(first, quantile))


@dataclass(frozen=True)
class Traffic:
    """The launches of a traffic split and what follows. `str()` is for people, `to_dict()` for a document."""

    names: tuple[str, str]
    split: tuple[float, float]
    launches: tuple[TrafficLaunch, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    interrupted: bool = False

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """The ratios second over first, judged together; those that too few launches tell have none."""
        logs = {name: self._logs(share) for name, share in QUANTILES.items()}
        ratios = {name: _paired(each) for name, each in logs.items()}
        margins = {name: self._margin(name) for name in QUANTILES}
        judged = judge_ratios(ratios, margins)
        return tuple(
            Figure(
                name=name,
                ratio=math.exp(float(np.mean(each))) if each else None,
                launches=len(each),
                variation=float(np.std(each, ddof=1)) if len(each) > 1 else None,
                judgement=judged[name],
            )
            for name, each in logs.items()
        )

    @cached_property
    def failed(self) -> Failures:
        """The requests that failed, of how many, for both variants."""
        counts = [(sum(each.failed for each in arm), sum(each.count for each in arm)) for arm in self._arms]
        return Failures(counts[0], counts[1])

    @cached_property
    def advice(self) -> Advice:
        """Whom to serve with, and why."""
        return advise(
            self.names,
            self.split,
            self.figures,
            self.failed,
            error_margin=self.settings.get("error_margin", ERROR_MARGIN),
            launches=len(self.launches),
        )

    def estimate(self, arm: int, quantile: float) -> Estimate | None:
        """Return a quantile of one variant's times in seconds; None where the samples do not suffice."""
        return PooledSamples([each.seconds for each in self._arms[arm]]).quantile(quantile)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: what a comparison's document holds under `traffic`."""
        return {
            "variants": list(self.names),
            "split": list(self.split),
            "launches": len(self.launches),
            "settings": dict(self.settings),
            "confidence": CONFIDENCE,
            "arms": [self._arm_dict(number) for number in (0, 1)],
            "failure_difference": self.failed.to_dict(),
            "figures": [each.to_dict() for each in self.figures],
            "launch_ratios": [
                {"launch": each.number, **{name: _exp(each.log_ratio(q)) for name, q in QUANTILES.items()}}
                for each in self.launches
            ],
            "advice": self.advice.to_dict(),
            "failures": list(self.failures),
            "interrupted": self.interrupted,
            "notes": self.notes,
        }

    @property
    def notes(self) -> list[str]:
        """What is to be known about the figures."""
        notes = []
        if self.failures:
            notes.append(f"failed launches: {len(self.failures)}, first: {self.failures[0]}")
        if self.interrupted:
            notes.append("interrupted: these are the launches until then")
        insufficient = [each.name for each in self.figures if each.launches < 2]
        if insufficient:
            needs = ", ".join(f"{name} {samples_needed(QUANTILES[name])}" for name in insufficient)
            notes.append(
                f"insufficient for {', '.join(insufficient)}: needed are 2 launches with so many answers of "
                f"each variant: {needs}"
            )
        return notes

    def __str__(self) -> str:
        from gpuprof.bench.campaign.traffic_text import traffic_text

        return traffic_text(self)

    @property
    def _arms(self) -> tuple[list[ArmRequests], list[ArmRequests]]:
        return [each.arms[0] for each in self.launches], [each.arms[1] for each in self.launches]

    def _logs(self, quantile: float) -> list[float]:
        return [found for each in self.launches if (found := each.log_ratio(quantile)) is not None]

    def _margin(self, name: str) -> float:
        key, usual = ("margin", 0.01) if name == "p50" else ("tail_margin", TAIL_MARGIN)
        return float(self.settings.get(key, usual))

    def _arm_dict(self, number: int) -> dict[str, Any]:
        failed, count = self.failed.arms[number]
        low, high = exact_share(failed, count) if count else (None, None)
        firsts = (each.first_failure for each in self._arms[number] if each.first_failure)
        return {
            "variant": self.names[number],
            "share": self.split[number],
            "requests": count,
            "failed": failed,
            "failed_share": None if not count else {"low": low, "value": failed / count, "high": high},
            "first_failure": next(firsts, None),
            **{f"{name}_s": _plain(self.estimate(number, q)) for name, q in QUANTILES.items()},
        }


def _paired(logs: Sequence[float]) -> LogRatio | None:
    if len(logs) < 2:
        return None
    error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return LogRatio.of(float(np.mean(logs)), error, len(logs) - 1)


def _plain(estimate: Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else {"low": estimate.low, "value": estimate.value, "high": estimate.high}


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)
