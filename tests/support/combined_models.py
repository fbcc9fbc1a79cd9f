# SPDX-License-Identifier: Apache-2.0
"""Classifiers of two numbers a sample, whose outputs are known: for ensembles and cascades.

The scores of class 0 and 1 are `gain` times the first number and 0, so that the top probability of a sample
x is 1 / (1 + exp(-|gain * x|)).
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _scores(gain: float) -> Any:
    return lambda batch: np.stack([gain * batch[:, 0], 0 * batch[:, 0]], axis=1)


def small() -> Any:
    return _scores(1.0)


def large() -> Any:
    """The opposite classes of `small`, so that it shows which of them computed a sample."""
    return _scores(-3.0)


def three_classes() -> Any:
    return lambda batch: np.ones((len(batch), 3))


def with_inputs() -> Any:
    return _scores(1.0), lambda size: np.linspace(-4, 4, 2 * size).reshape(size, 2)


def two_outputs() -> Any:
    return lambda batch: (batch, batch)


def linear(outputs: int = 5) -> Any:
    import torch

    return torch.nn.Linear(2, outputs)


def linear_of_three() -> Any:
    import torch

    return torch.nn.Linear(3, 5)
