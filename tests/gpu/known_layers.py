# SPDX-License-Identifier: Apache-2.0
"""The layers of the models whose kernels are known: labels, paths in the model, grids."""

from __future__ import annotations

LABELS = ("a", "b", "c", "d", "e")
LAYERS = dict(zip(LABELS, ("first", "body.0", "body.1", "body.2.0", "last"), strict=True))
BLOCKS = {label: 3 * place + 2 for place, label in enumerate(LABELS)}
# The model of PyTorch's own operators: a layer each, a kernel each.
OPERATORS = ("exp", "sin", "cos", "tanh", "sigmoid")


def is_known(name: str) -> bool:
    """Return whether a kernel is the test's own, and not one that PyTorch launches before a capture."""
    return name.startswith(("forward_", "backward_"))
