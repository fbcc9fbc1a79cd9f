# SPDX-License-Identifier: Apache-2.0
"""What kind of interval a name of PyTorch stands for, wherever it was announced."""

from __future__ import annotations

import re

BACKWARD_PREFIX = "autograd::engine::evaluate_function: "
_LAYER_PREFIX = "nn.Module: "  # torch.profiler with modules and stacks
_QUALIFIED = re.compile(r"[A-Za-z_]\w*::\w[\w:.]*\Z")


def operator_kind(name: str) -> str:
    """Return the kind of something that is known to be an operator."""
    return "backward" if name.startswith(BACKWARD_PREFIX) else "operator"


def named_kind(name: str) -> str | None:
    """Return `operator` or `backward` for a name that only an operator has, else None."""
    if name.startswith(BACKWARD_PREFIX):
        return "backward"
    return "operator" if _QUALIFIED.match(name) else None


def python_function(name: str) -> tuple[str, str]:
    """Return kind and name of a Python function of torch.profiler: calls of modules are layers."""
    if name.startswith(_LAYER_PREFIX):
        return "layer", name[len(_LAYER_PREFIX) :]
    return "span", name
