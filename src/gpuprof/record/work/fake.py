# SPDX-License-Identifier: Apache-2.0
"""Running a model on shapes alone: its tensors are replaced by ones without memory while it is counted."""

from __future__ import annotations

from typing import Any

import torch


def fake_mode() -> Any:
    """Return a mode in which operators give shapes and no values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_values(mode: Any, value: Any) -> Any:
    """Return `value` with the tensors in it, inside lists, tuples and dictionaries, replaced."""
    if isinstance(value, torch.Tensor):
        return mode.from_tensor(value)
    if isinstance(value, dict):
        return {key: fake_values(mode, each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(fake_values(mode, each) for each in value)
    return value


def fake_parts(mode: Any, root: torch.nn.Module) -> None:
    """Replace the tensors that are attributes of modules; the caller has kept the attributes."""
    for module in root.modules():
        for holder in (vars(module), module._parameters, module._buffers):
            for name, value in list(holder.items()):
                if isinstance(value, torch.Tensor):
                    holder[name] = mode.from_tensor(value)
        for value in vars(module).values():
            if type(value) is list and any(isinstance(each, torch.Tensor) for each in value):
                value[:] = fake_values(mode, value)
