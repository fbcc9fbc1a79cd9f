# SPDX-License-Identifier: Apache-2.0
"""Embedding, gather and scatter: only the rows that are asked for move, each of them once."""

from __future__ import annotations

import math

import torch

from gpuprof.record.work.call import Count, OperatorCall, tensors_in
from gpuprof.record.work.registry import formula
from gpuprof.record.work.rows import Exactness
from gpuprof.record.work.sizes import Traffic, elements


def _size_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _distinct(indices: torch.Tensor) -> tuple[int, Exactness]:
    """Return how many different indices there are; where the values are not at hand, at most how many."""
    from torch._subclasses.fake_tensor import FakeTensor

    if indices.is_meta or isinstance(indices, FakeTensor):
        return int(indices.numel()), "estimated"
    return int(torch.unique(indices).numel()), "exact"


def _rows_of(table: torch.Tensor, indices: torch.Tensor) -> tuple[int, Exactness]:
    """Return the bytes of the rows that are looked up, and how exact that is."""
    rows, exactness = _distinct(indices)
    row_bytes = _size_bytes(table) // max(int(table.shape[0]), 1)
    return min(rows, int(table.shape[0])) * row_bytes, exactness


@formula("embedding")
def _embedding(call: OperatorCall) -> Count:
    """A copy of rows: no FLOPs."""
    row_bytes, exactness = _rows_of(call["weight"], call["indices"])
    return Count(0, exactness, reads=[row_bytes, call["indices"]])


@formula("embedding_dense_backward")
def _embedding_backward(call: OperatorCall) -> Count:
    """One sum for each element of the gradient."""
    return Count(elements(call["grad_output"]))


@formula("_embedding_bag _embedding_bag_forward_only")
def _embedding_bag(call: OperatorCall) -> Count:
    """Each row that is looked up is summed into its bag, for a mean divided, with weights multiplied."""
    depth, indices = int(call["weight"].shape[1]), call["indices"]
    looked_up, bags = int(indices.numel()) * depth, elements(call.output)
    flops = max(looked_up - bags, 0) + (bags if call["mode"] == 1 else 0)
    if call["per_sample_weights"] is not None:
        flops += looked_up
    row_bytes, exactness = _rows_of(call["weight"], indices)
    others = [tensor for tensor in call.inputs if tensor is not call["weight"]]
    return Count(flops, exactness, reads=[row_bytes, *others])


@formula("_embedding_bag_backward _embedding_bag_dense_backward")
def _embedding_bag_backward(call: OperatorCall) -> Count:
    """A sum for each element of each row that was looked up; a product with weights or for a mean."""
    depth = int(call["grad"].shape[1])
    weighted = call["mode"] == 1 or call["per_sample_weights"] is not None
    return Count((1 + weighted) * int(call["indices"].numel()) * depth)


@formula("_embedding_bag_per_sample_weights_backward")
def _bag_weights_backward(call: OperatorCall) -> Count:
    """The product of a row and its bag's gradient."""
    depth = int(call["grad"].shape[1])
    row_bytes, exactness = _rows_of(call["weight"], call["indices"])
    return Count(
        2 * int(call["indices"].numel()) * depth, exactness, reads=[row_bytes, call["grad"], call["indices"]]
    )


def _looked_up(call: OperatorCall) -> int:
    """Return the bytes read from the indexed tensor: as many as come out, at most all of it."""
    return min(_size_bytes(call.output), _size_bytes(call.inputs[0]))


@formula("index _unsafe_index gather index_select take masked_select _unsafe_masked_index take_along_dim")
def _gather(call: OperatorCall) -> Count:
    """No FLOPs; as many values are read as come out."""
    return Count(0, reads=[_looked_up(call), *call.inputs[1:]])


def _written_bytes(call: OperatorCall, target: torch.Tensor) -> int:
    """Return how many bytes of the target are touched: those of the values, or of the index."""
    values = call.get("values", call.get("src", call.get("source")))
    if isinstance(values, torch.Tensor) and values.numel() > 1:
        count = int(values.numel())
    elif isinstance(call.get("indices"), (list, tuple)):
        shapes = [tensor.shape for tensor in tensors_in(call["indices"])]
        count = int(math.prod(torch.broadcast_shapes(*shapes))) if shapes else 1
    else:
        count = (
            int(call["index"].numel()) if isinstance(call.get("index"), torch.Tensor) else int(target.numel())
        )
    return min(count * int(target.element_size()), _size_bytes(target))


def _scatter_count(call: OperatorCall, *, flops: int, adds: bool) -> Count:
    target = call["self"]
    touched = _written_bytes(call, target)
    sources: list[Traffic] = [tensor for tensor in call.inputs if tensor is not target]
    if call.written:
        return Count(flops, reads=[*sources, *([touched] if adds else [])], writes=[touched])
    return Count(flops, reads=[target, *sources])


@formula("scatter index_copy index_fill masked_scatter")
def _scatter(call: OperatorCall) -> Count:
    """No FLOPs, or one a value where it reduces; in place only the places of the values are written."""
    reduces = call.get("reduce") is not None
    flops = int(call["index"].numel()) if reduces else 0
    return _scatter_count(call, flops=flops, adds=reduces)


@formula("scatter_add index_add scatter_reduce index_reduce")
def _scatter_add(call: OperatorCall) -> Count:
    """One sum for each value; a product more where it is scaled."""
    values = call.get("src", call.get("source"))
    count = elements(values) if call.base_name.startswith("index") else int(call["index"].numel())
    return _scatter_count(call, flops=count * (1 + (call.get("alpha", 1) != 1)), adds=True)


@formula("index_put _index_put_impl _unsafe_index_put put _unsafe_masked_index_put_accumulate")
def _put(call: OperatorCall) -> Count:
    """No FLOPs, or one sum for each value where it accumulates."""
    adds = bool(call.get("accumulate", "accumulate" in call.name))
    values = call.get("values", call.get("source"))
    return _scatter_count(call, flops=elements(values) if adds else 0, adds=adds)
