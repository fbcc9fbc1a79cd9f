# SPDX-License-Identifier: Apache-2.0
"""How many tokens of a model's first batch are padding, by its mask or by the index of its embedding."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gpuprof.record.first_calls import FirstCall

# In a mask of the first kind, a token is not 0; in one of the second kind, padding is not 0.
_OF_TOKENS = ("attention_mask", "input_mask")
_OF_PADDING = ("src_key_padding_mask", "key_padding_mask", "padding_mask", "tgt_key_padding_mask")
_TOKENS = ("input_ids", "tokens", "ids", "src", "x", "inputs")
_DEEPEST = 2  # dictionaries in dictionaries


def padding_of(call: FirstCall) -> dict[str, Any] | None:
    """Return the facts of a call, as plain data; None if it has no batch of token sequences.

    `argument` is the mask, or the argument with the tokens, None without a mask and without a padding index.
    `tokens` are all, `padded` those that are padding. `kept_by_trimming` remain if the batch is as long as
    its longest sequence.
    """
    with torch.no_grad():
        given = dict(_named(call))
        found = _mask(given) or _by_index(call.module, given)
        if found is None:
            has_tokens = any(_is_of_tokens(each) for each in given.values())
            return {"root": call.root, "argument": None} if has_tokens else None
        argument, is_token = found
        used = is_token.any(0).nonzero()
        length = int(used.max() - used.min()) + 1 if len(used) else 0
        return {
            "root": call.root,
            "argument": argument,
            "tokens": is_token.numel(),
            "padded": int((~is_token).sum()),
            "kept_by_trimming": length * len(is_token),
        }


def _named(call: FirstCall) -> Iterator[tuple[str, Tensor]]:
    """Yield the unchanged tensors that a call was given, by the names of the model's parameters."""
    try:
        bound = inspect.signature(call.module.forward).bind_partial(*call.args, **call.kwargs)
    except (TypeError, ValueError):
        arguments: Mapping[str, Any] = call.kwargs
    else:
        arguments = bound.arguments
    versions = {id(tensor): version for tensor, version in call.versions}
    for name, tensor in _tensors(arguments, 0):
        version = versions.get(id(tensor))
        if version is None or version == tensor._version:
            yield name, tensor


def _tensors(arguments: Mapping[Any, Any], depth: int) -> Iterator[tuple[str, Tensor]]:
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            yield str(name), value
        elif depth < _DEEPEST and isinstance(value, Mapping):
            yield from _tensors(value, depth + 1)


def _mask(given: Mapping[str, Tensor]) -> tuple[str, Tensor] | None:
    """Return the name of a mask, and which positions have a token."""
    for names, marks_tokens in ((_OF_TOKENS, True), (_OF_PADDING, False)):
        for name in names:
            mask = given.get(name)
            if mask is not None and mask.dim() == 2 and mask.numel() and _is_of_flags(mask):
                return name, (mask != 0) == marks_tokens
    return None


def _is_of_flags(mask: Tensor) -> bool:
    """Whether a mask has values 0 and 1 only; others are added to the scores."""
    return mask.dtype is torch.bool or bool(((mask == 0) | (mask == 1)).all())


def _by_index(module: torch.nn.Module, given: Mapping[str, Tensor]) -> tuple[str, Tensor] | None:
    """Return the name of the tokens, and which ones are not the index of padding of all embeddings."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    indices = {each.padding_idx for each in module.modules() if isinstance(each, kinds)} - {None}
    named = sorted(given, key=lambda name: _TOKENS.index(name) if name in _TOKENS else len(_TOKENS))
    tokens = next((name for name in named if _is_of_tokens(given[name])), None)
    if len(indices) != 1 or tokens is None:
        return None
    return tokens, given[tokens] != indices.pop()


def _is_of_tokens(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32) and tensor.dim() == 2 and tensor.numel() > 0
