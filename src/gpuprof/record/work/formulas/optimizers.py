# SPDX-License-Identifier: Apache-2.0
"""Fused optimizer steps: the steps for one parameter, off the algorithm's definition."""

from __future__ import annotations

from gpuprof.record.work.call import Count, OperatorCall
from gpuprof.record.work.registry import formula
from gpuprof.record.work.sizes import Traffic, elements


def _count(call: OperatorCall, steps: int) -> Count:
    values = sum(elements(tensor) for tensor in call["self"])
    gradients = {id(tensor) for tensor in call["grads"]}
    # The schema lets a fused step write the gradients: it does so only to unscale them.
    writes: list[Traffic] = [
        tensor for tensor in call.written if id(tensor) not in gradients or call["grad_scale"] is not None
    ]
    return Count(steps * values, "estimated", writes=[*call.outputs, *writes] if call.written else None)


@formula("_fused_adam _fused_adamw")
def _adam(call: OperatorCall) -> Count:
    """First moment 3, second moment 4, denominator 3, update 3: 13 (Kingma, Ba, 2015, algorithm 1).

    Decay takes two more, decoupled from the gradient one (Loshchilov, Hutter, 2019), amsgrad one.
    """
    decay = (1 if "adamw" in call.name else 2) if call["weight_decay"] else 0
    return _count(call, 13 + decay + bool(call["amsgrad"]))


@formula("_fused_sgd")
def _sgd(call: OperatorCall) -> Count:
    """The update 2; momentum 3; Nesterov's 2; decay 2."""
    steps = 2 + 2 * bool(call["weight_decay"])
    if call["momentum"]:
        steps += 3 + 2 * bool(call["nesterov"])
    return _count(call, steps)


@formula("_fused_adagrad")
def _adagrad(call: OperatorCall) -> Count:
    """The sum of squares 2, the root and update 5; decay 2 (Duchi et al., 2011)."""
    return _count(call, 7 + 2 * bool(call["weight_decay"]))
