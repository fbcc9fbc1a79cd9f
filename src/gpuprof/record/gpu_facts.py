# SPDX-License-Identifier: Apache-2.0
"""What a roofline of a GPU must know besides the counted work: which GPU, and whether fp32 is TF32 there."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def gpu_of_call(torch: Any, module: torch.nn.Module, tensors: Iterable[Any]) -> dict[str, Any] | None:
    """Return the GPU that a call is made on and how it multiplies there; None where it is on none."""
    on_gpu = (each for each in chain(module.parameters(), tensors) if each.is_cuda)
    found = next(on_gpu, None)
    if found is None:
        return None
    return {"device": f"cuda:{found.get_device()}", "tf32": _tf32(torch)}


def _tf32(torch: Any) -> dict[str, bool | None]:
    """Return whether fp32 products may be made of shortened numbers; None where PyTorch will not say."""
    backends = torch.backends
    return {
        "matmul": _allowed(backends.cuda.matmul, backends.cuda.matmul),
        "convolution": _allowed(backends.cudnn, getattr(backends.cudnn, "conv", None)),
    }


def _allowed(old: Any, new: Any) -> bool | None:
    # Once a program has used the newer setting, asking for the older one is an error.
    try:
        return bool(old.allow_tf32)
    except RuntimeError:
        precision = getattr(new, "fp32_precision", None)
    return None if precision is None else precision == "tf32"


def gpu_facts(torch: Any, calls: Iterable[tuple[str, dict[str, Any] | None]]) -> dict[str, Any] | None:
    """Return what a run keeps of the GPUs of its counted calls (root, `gpu_of_call`); None without one."""
    used = {root: gpu for root, gpu in calls if gpu is not None}
    if not used:
        return None
    names = sorted({gpu["device"] for gpu in used.values()})
    return {
        "roots": {root: gpu["device"] for root, gpu in used.items()},
        "devices": [_describe(torch, int(name.partition(":")[2])) for name in names],
        "tf32": {
            kind: _same([gpu["tf32"][kind] for gpu in used.values()]) for kind in ("matmul", "convolution")
        },
    }


def _describe(torch: Any, ordinal: int) -> dict[str, Any]:
    try:
        properties = torch.cuda.get_device_properties(ordinal)
    except (RuntimeError, AssertionError):  # a GPU that does not answer any more
        return {"ordinal": ordinal, "name": None, "uuid": None}
    uuid = getattr(properties, "uuid", None)
    return {"ordinal": ordinal, "name": str(properties.name), "uuid": None if uuid is None else str(uuid)}


def _same(values: list[bool | None]) -> bool | None:
    return values[0] if len(set(values)) == 1 else None
