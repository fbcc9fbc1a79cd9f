# SPDX-License-Identifier: Apache-2.0
"""Models and metrics for tests of outputs, by name."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from gpuprof.bench import Metric


def sums() -> Any:
    """Scores of three classes: the sum of a sample, its negative, and 0."""
    return lambda batch: np.stack([batch.sum(1), -batch.sum(1), 0 * batch.sum(1)], axis=1)


def wrong_for_class_one() -> Any:
    return lambda batch: np.stack([batch.sum(1), batch.sum(1) - 1, 0 * batch.sum(1)], axis=1)


def four_classes() -> Any:
    return lambda batch: np.ones((len(batch), 4), np.float32)


def two_outputs() -> Any:
    return lambda batch: {"scores": sums()(batch), "total": batch.sum(), "labels": ["a"] * len(batch)}


def two_other_outputs() -> Any:
    return lambda batch: [sums()(batch), batch.sum()]


def in_pairs() -> Any:
    """Inputs of the factory's own, drawn from NumPy's generator."""
    return (lambda left, right: left @ right.T), lambda size: (np.random.rand(size, 2), np.random.rand(3, 2))


def not_a_number() -> Any:
    return lambda batch: sums()(batch) * np.where(np.arange(len(batch)) == 1, np.nan, 1)[:, None]


def of_one() -> Any:
    return lambda batch: batch.sum()


def raising() -> Any:
    def call(batch: Any) -> Any:
        raise ValueError("no weights\nare here")

    return call


def dying() -> Any:
    return lambda batch: os.abort()


def network() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


# --- metrics -------------------------------------------------------------------------------------


def top_score(outputs: Any, labels: Any) -> float:
    assert outputs.shape[1] == 3
    return float(outputs.max())


class ErrorRate(Metric):
    better = "lower"

    def compute(self, outputs: Any, labels: Any) -> float:
        return float((outputs.argmax(axis=1) != labels).mean())


def nothing(outputs: Any, labels: Any) -> float:
    return float("nan")


def broken(outputs: Any, labels: Any) -> float:
    outputs.sort()
    return 0.0


NUMBER = 3
