# SPDX-License-Identifier: Apache-2.0
"""How a model that is an object is called: modules without gradients, in each thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def is_module(model: Any) -> bool:
    """Whether a model is a torch.nn.Module."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def inference_call(model: Any) -> Callable[..., Any]:
    """Return a function that calls a model; a module without recording gradients.

    Whether gradients are recorded is a setting of each thread, so it is set in each call.
    """
    if not is_module(model):
        call: Callable[..., Any] = model
        return call
    torch = sys.modules["torch"]

    def call_module(*inputs: Any, **named: Any) -> Any:
        with torch.inference_mode():
            return model(*inputs, **named)

    return call_module
