# SPDX-License-Identifier: Apache-2.0
"""The `inputs` that a user hands over with a model, as the arguments of one call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Positional and keyword arguments together, for what calls with both."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments.

    A tuple holds positional arguments, a mapping with names keyword arguments, a function makes either of
    them; everything else, named tuples and lists too, is the one argument.
    """
    if isinstance(inputs, CallArguments):
        return inputs.args, inputs.kwargs
    if inspect.isroutine(inputs):
        inputs = inputs()
    if isinstance(inputs, tuple) and not hasattr(inputs, "_fields"):
        return inputs, {}
    if isinstance(inputs, Mapping) and all(isinstance(key, str) for key in inputs):
        return (), dict(inputs)
    return (inputs,), {}
