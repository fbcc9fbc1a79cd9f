# SPDX-License-Identifier: Apache-2.0
"""Comparisons with known samples and without processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from batches import batch_of

from gpuprof.bench.compare.plan import ComparisonPlan, Variant
from gpuprof.bench.compare.runner import ComparisonResult, VariantResult
from gpuprof.bench.config import JobSettings, SystemSpec
from gpuprof.bench.results.session import SessionResult
from gpuprof.errors import BenchmarkError

Milliseconds = Sequence[list[float]]


def runs(
    level_ms: float, seed: int | Sequence[int], count: int = 10, spread: float = 0.01, samples: int = 40
) -> list[list[float]]:
    """Draw process runs that differ by `spread`, each with samples that differ by twice that."""
    random = np.random.default_rng(seed)
    return [
        (level_ms * random.normal(1, spread) * random.normal(1, 2 * spread, samples)).tolist()
        for _ in range(count)
    ]


def comparison_of(variants: Mapping[str, Mapping[int, Milliseconds] | str], **plan: Any) -> ComparisonResult:
    """Return a comparison of variants with samples by batch size, in milliseconds; a text is a failure."""
    specs = tuple(Variant(name, SystemSpec("m.py:f")) for name in variants)
    sizes = tuple(
        dict.fromkeys(size for each in variants.values() if not isinstance(each, str) for size in each)
    )
    count = max(
        (len(found) for each in variants.values() if not isinstance(each, str) for found in each.values()),
        default=1,
    )
    result = ComparisonResult(ComparisonPlan(specs, batch_sizes=sizes or (1,), launches=count, **plan))
    for variant, given in zip(specs, variants.values(), strict=True):
        session = SessionResult(variant.spec, JobSettings())
        if isinstance(given, str):
            session.failure, session.failed_runs = BenchmarkError(given), count
        else:
            session.batches = [batch_of(*samples, batch_size=size) for size, samples in given.items()]
        result.variants.append(VariantResult(variant, session))
        result.runs_done += count
    return result
