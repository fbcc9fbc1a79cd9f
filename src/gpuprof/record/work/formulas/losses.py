# SPDX-License-Identifier: Apache-2.0
"""Losses: the steps for one element, and one sum an element where the loss is reduced."""

from __future__ import annotations

import torch

from gpuprof.record.work.call import Count, OperatorCall
from gpuprof.record.work.registry import formula
from gpuprof.record.work.rows import Exactness
from gpuprof.record.work.sizes import Traffic, elements

# Steps of one element without the reduction, and whether a transcendental function is among them.
_STEPS: dict[str, tuple[int, Exactness]] = {
    "mse_loss": (2, "exact"),  # difference, square
    "smooth_l1_loss": (5, "exact"),  # difference, absolute value, comparison, square, scale
    "huber_loss": (5, "exact"),
    "soft_margin_loss": (4, "estimated"),  # product, negation, exp, log1p
    "binary_cross_entropy": (6, "estimated"),  # two logs, difference, two products, sum
    "binary_cross_entropy_with_logits": (7, "estimated"),  # (1-t)*x + log1p(exp(-|x|)) + max(-x, 0)
}
_BACKWARD_STEPS: dict[str, tuple[int, Exactness]] = {
    "mse_loss_backward": (3, "exact"),  # difference, scale, gradient
    "smooth_l1_loss_backward": (4, "exact"),
    "huber_loss_backward": (4, "exact"),
    "soft_margin_loss_backward": (6, "estimated"),
    "binary_cross_entropy_backward": (5, "estimated"),  # (x - t) / (x * (1 - x)) * gradient
}


@formula(" ".join(_STEPS))
def _loss(call: OperatorCall) -> Count:
    """The steps of one element; one more for the sum where the loss is reduced."""
    steps, exactness = _STEPS[call.base_name]
    steps += call["reduction"] != 0
    return Count(steps * elements(call["self"]), exactness)


@formula(" ".join(_BACKWARD_STEPS))
def _loss_backward(call: OperatorCall) -> Count:
    """The steps of one element."""
    steps, exactness = _BACKWARD_STEPS[call.base_name]
    return Count(steps * elements(call["self"]), exactness)


@formula("nll_loss_forward nll_loss2d_forward")
def _negative_log_likelihood(call: OperatorCall) -> Count:
    """One value a target is read and summed, multiplied with its weight where there are weights."""
    targets, picked = int(call["target"].numel()), _picked(call)
    steps = 1 + (call["weight"] is not None)
    return Count(steps * targets, reads=[picked, *_others(call)])


@formula("nll_loss_backward nll_loss2d_backward")
def _negative_log_likelihood_backward(call: OperatorCall) -> Count:
    """One quotient (and product) a target; the values themselves are not read."""
    steps = 1 + (call["weight"] is not None)
    return Count(steps * int(call["target"].numel()), reads=_others(call))


def _picked(call: OperatorCall) -> int:
    return int(call["target"].numel() * call["self"].element_size())


def _others(call: OperatorCall) -> list[Traffic]:
    values: torch.Tensor = call["self"]
    return [tensor for tensor in call.inputs if tensor is not values]
