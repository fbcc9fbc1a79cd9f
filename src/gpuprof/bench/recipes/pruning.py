# SPDX-License-Identifier: Apache-2.0
"""Magnitude pruning: in each layer's weights the share with the smallest magnitude becomes 0.

The weights stay dense: they take the bytes and the time that they took before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any


def prune(module: Any, share: float) -> dict[str, str]:
    """Prune a module of PyTorch in place; returns what to say of it."""
    torch: Any = sys.modules["torch"]
    zeros = total = 0
    with torch.no_grad():
        for weight in _weights(module):
            flat = weight.view(-1) if weight.is_contiguous() else weight.flatten()
            count = round(share * flat.numel())
            if count:
                flat[flat.abs().topk(count, largest=False, sorted=False).indices] = 0
                weight.copy_(flat.view(weight.shape))
            zeros += int((weight == 0).sum())
            total += weight.numel()
    if not total:
        return {}
    return {"zeros": f"{zeros / total:.2%} of {total:,} weights of its layers"}


def _weights(module: Any) -> Iterator[Any]:
    """Yield the weights of convolutions, linear, attention and recurrent layers, each once."""
    nn: Any = sys.modules["torch"].nn
    seen: set[int] = set()
    for layer in module.modules():
        for name, weight in layer.named_parameters(recurse=False):
            if _is_pruned(nn, layer, name) and weight.is_floating_point() and id(weight) not in seen:
                seen.add(id(weight))
                yield weight


def _is_pruned(nn: Any, layer: Any, name: str) -> bool:
    if isinstance(layer, nn.MultiheadAttention):
        return name.endswith("proj_weight")
    if isinstance(layer, nn.RNNBase):
        return name.startswith("weight_")
    return name == "weight" and isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd))
