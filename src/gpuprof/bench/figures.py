# SPDX-License-Identifier: Apache-2.0
"""The figures of one batch size, from the samples of its launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof.bench.statistics import Estimate, quantile_of_launches, samples_needed

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Figures:
    """Latency in seconds over all samples. A quantile is None where the samples do not suffice for it."""

    samples: int
    launches: int
    mean_s: float
    std_s: float | None
    min_s: float
    max_s: float
    quantiles: dict[str, Estimate | None]

    def insufficient(self, name: str) -> str | None:
        """Return why a quantile is missing, None where it is not."""
        if self.quantiles[name] is not None:
            return None
        return f"insufficient (n={self.samples}, needs {samples_needed(QUANTILES[name])})"

    def value(self, name: str) -> float | None:
        """Return a quantile, or one of mean, std, min, max; in seconds."""
        if name in self.quantiles:
            estimate = self.quantiles[name]
            return None if estimate is None else estimate.value
        found: float | None = getattr(self, f"{name}_s")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; a missing quantile is its reason."""
        plain: dict[str, Any] = {name: self.value(name) for name in ("mean", "std", "min", "max")}
        for name, estimate in self.quantiles.items():
            if estimate is None:
                plain[name] = {"value": None, "reason": self.insufficient(name)}
            else:
                plain[name] = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
        return {"samples": self.samples, "launches": self.launches, "unit": "s", **plain}


def figures_of(launches: Sequence[Sequence[float]]) -> Figures:
    """Sum up the samples of launches, in seconds; there is at least one."""
    arrays = [np.asarray(each, dtype=np.float64) for each in launches if len(each)]
    pooled = np.concatenate(arrays)
    std = float(pooled.std(ddof=1)) if len(pooled) > 1 else math.nan
    return Figures(
        samples=len(pooled),
        launches=len(arrays),
        mean_s=float(pooled.mean()),
        std_s=None if math.isnan(std) else std,
        min_s=float(pooled.min()),
        max_s=float(pooled.max()),
        quantiles={name: quantile_of_launches(arrays, share) for name, share in QUANTILES.items()},
    )
