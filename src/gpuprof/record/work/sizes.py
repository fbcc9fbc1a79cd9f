# SPDX-License-Identifier: Apache-2.0
"""How many elements a tensor holds, and how many bytes a perfect memory would move for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

# A tensor, or a number of bytes where only a part of a tensor is touched.
Traffic = Any


def is_sparse(tensor: torch.Tensor) -> bool:
    """Whether only the nonzero values are stored (COO, CSR, CSC, BSR, BSC)."""
    return tensor.layout in _SPARSE_LAYOUTS


_SPARSE_LAYOUTS = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


def elements(tensor: torch.Tensor) -> int:
    """Return how many values are calculated with: of a sparse tensor those that are stored."""
    if is_sparse(tensor):
        return int(_sparse_parts(tensor)[0].numel())
    return int(tensor.numel())


def _sparse_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.layout is torch.sparse_coo:
        return [tensor._values(), tensor._indices()]
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    if by_row:
        return [tensor.values(), tensor.crow_indices(), tensor.col_indices()]
    return [tensor.values(), tensor.ccol_indices(), tensor.row_indices()]


def nested_sizes(tensor: torch.Tensor) -> list[list[int]]:
    """Return the sizes of each part of a nested tensor."""
    sizes: list[list[int]] = tensor._nested_tensor_size().tolist()
    return sizes


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape; -1 is a dimension in which the parts of a nested tensor differ."""
    if not tensor.is_nested:
        return tuple(int(size) for size in tensor.shape)
    sizes = nested_sizes(tensor)
    same = (column[0] if len(set(column)) == 1 else -1 for column in zip(*sizes, strict=True))
    return (len(sizes), *same)


def sequence_lengths(tensor: torch.Tensor) -> list[int]:
    """Return the number of tokens of each sequence in a (batch, tokens, features) tensor, nested or not."""
    if tensor.is_nested:
        return [sizes[0] for sizes in nested_sizes(tensor)]
    batch, tokens, _ = tensor.shape
    return [int(tokens)] * int(batch)


def traffic_bytes(parts: Iterable[Traffic]) -> int:
    """Return the bytes of tensors and byte amounts: each piece of memory once, broadcast dimensions once.

    Views of one storage that overlap count at most the range that they span together.
    """
    total = 0
    regions: dict[int, dict[object, tuple[int, int, int]]] = {}
    for part in parts:
        if isinstance(part, int):
            total += part
        elif is_sparse(part):
            total += sum(piece.numel() * piece.element_size() for piece in _sparse_parts(part))
        else:
            storage, key, region = _region(part)
            regions.setdefault(storage, {})[key] = region
    return total + sum(_union_bytes(list(views.values())) for views in regions.values())


def _region(tensor: torch.Tensor) -> tuple[int, object, tuple[int, int, int]]:
    """Return the storage, what distinguishes views of it, and (bytes, first byte, end byte)."""
    size = tensor.element_size()
    storage = storage_key(tensor)
    if tensor.is_nested or storage is None:
        return id(tensor), None, (tensor.numel() * size, 0, tensor.numel() * size)
    start = int(tensor.storage_offset()) * size
    if tensor.numel() == 0:
        return storage, ("empty",), (0, start, start)
    dims = sorted((abs(int(s)), int(n)) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    stored = [(stride, count) for stride, count in dims if stride != 0]
    span, count = 1, 1
    for stride, number in stored:
        span += (number - 1) * stride
        count *= number
    return storage, (start, size, *stored), (min(count, span) * size, start, start + span * size)


def _union_bytes(regions: list[tuple[int, int, int]]) -> int:
    reach = max(end for _, _, end in regions) - min(start for _, start, _ in regions)
    return min(sum(size for size, _, _ in regions), reach)


def storage_key(tensor: torch.Tensor) -> int | None:
    """Return what identifies the memory of a tensor while it lives; None for one without such memory."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None  # sparse, opaque and functorch tensors
