# SPDX-License-Identifier: Apache-2.0
"""Attention in every backend, and the fused transformer layers.

Forward: two products over all pairs of a query and a key, Q K^T and P V:
2 * pairs * (depth + value_depth), which is 4 * batch * heads * queries * keys * depth (Dao et al.,
FlashAttention, 2022, section 3). Backward: five products, one of them Q K^T again, since the kernels
calculate the scores again: 2 * pairs * (3 * depth + 2 * value_depth) (FlashAttention-2, 2023, section 3.1).
With a causal mask only the pairs that it leaves count, which is an estimate: a kernel works in blocks.
A mask given as a tensor leaves the count as it is. Softmax, scale and dropout ride along uncounted.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.record.work.call import Count, OperatorCall, formula
from gpuprof.record.work.rows import Exactness
from gpuprof.record.work.sizes import elements, sequence_lengths


def causal_pairs(queries: int, keys: int, *, bottom_right: bool = False) -> int:
    """Return how many (query, key) pairs a causal mask leaves: query i sees the keys up to i.

    With `bottom_right` the last query sees the last key, instead of the first query the first key alone.
    """
    first = keys - queries + 1 if bottom_right else 1
    return sum(min(max(first + query, 0), keys) for query in range(queries))


def _attention(call: OperatorCall, heads: int, lengths: Sequence[tuple[int, int]]) -> Count:
    """Count the pairs of sequences with (queries, keys) tokens, times the products of the pass."""
    pairs = sum(queries * keys for queries, keys in lengths)
    exactness: Exactness = "exact"
    mask_type = call.get("custom_mask_type")
    if call.get("is_causal") or mask_type:
        bottom_right = mask_type == 2
        pairs = sum(causal_pairs(queries, keys, bottom_right=bottom_right) for queries, keys in lengths)
        exactness = "estimated"
    depth, value_depth = int(call["query"].shape[-1]), int(call["value"].shape[-1])
    products = 3 * depth + 2 * value_depth if "backward" in call.name else depth + value_depth
    return Count(2 * heads * pairs * products, exactness)


@formula(
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward"
    " _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward"
    " _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward"
    " _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward"
    " _scaled_dot_product_fused_attention_overrideable"
    " _scaled_dot_product_fused_attention_overrideable_backward _scaled_dot_product_attention_math_for_mps"
)
def _batched(call: OperatorCall) -> Count | None:
    """The pairs of (batch, heads, tokens, depth) tensors; query heads may share their keys."""
    query, key = call["query"], call["key"]
    if query.is_nested or key.is_nested:
        return None
    return _attention(call, int(query.shape[:-2].numel()), [(int(query.shape[-2]), int(key.shape[-2]))])


@formula(
    "_flash_attention_forward _efficient_attention_forward _cudnn_attention_forward"
    " _flash_attention_backward _efficient_attention_backward _cudnn_attention_backward"
)
def _packed(call: OperatorCall) -> Count | None:
    """The pairs of (batch, tokens, heads, depth) tensors, or of sequences packed one after another."""
    query, key = call["query"], call["key"]
    starts_q, starts_k = (call.first(f"cu_seqlens_{side}", f"cum_seq_{side}") for side in "qk")
    heads = int(query.shape[-2])
    if call.get("window_size") or (call.get("window_size_left") or -1) >= 0:
        return None
    if starts_q is None or starts_q.numel() == 0:
        batch, queries, keys = int(query.shape[0]), int(query.shape[1]), int(key.shape[1])
        return _attention(call, heads * batch, [(queries, keys)])
    if starts_q.is_meta or starts_k is None or starts_k.is_meta:
        return None
    return _attention(call, heads, list(zip(starts_q.diff().tolist(), starts_k.diff().tolist(), strict=True)))


@formula("_transformer_encoder_layer_fwd")
def _encoder_layer(call: OperatorCall) -> Count:
    """2 * tokens * weights for the four linear maps, 4 * width * sum(length^2) for attention.

    (Kaplan et al., Scaling laws for neural language models, 2020, table 1.) Tokens are those that are there:
    in a nested tensor no padding counts.
    """
    lengths = sequence_lengths(call["src"])
    names = ("qkv_weight", "proj_weight", "ffn_weight_1", "ffn_weight_2")
    weights = sum(elements(call[name]) for name in names)
    attention = 4 * int(call["embed_dim"]) * sum(length * length for length in lengths)
    return Count(2 * sum(lengths) * weights + attention)


@formula("_native_multi_head_attention _triton_multi_head_attention")
def _native_attention(call: OperatorCall) -> Count:
    """2 * tokens * width^2 for each of the four projections, 4 * width * queries * keys for attention."""
    queries, keys, values = (sequence_lengths(call[name]) for name in ("query", "key", "value"))
    width = int(call["embed_dim"])
    projected = 2 * sum(queries) + sum(keys) + sum(values)
    pairs = sum(query * key for query, key in zip(queries, keys, strict=True))
    return Count(2 * projected * width * width + 4 * width * pairs)


@formula("_transform_bias_rescale_qkv")
def _bias_and_rescale(call: OperatorCall) -> Count:
    """The bias for all, the scale for the queries: four FLOPs for every three elements."""
    return Count(elements(call["qkv"]) + elements(call["qkv"]) // 3)
