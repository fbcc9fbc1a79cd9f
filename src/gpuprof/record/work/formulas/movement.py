# SPDX-License-Identifier: Apache-2.0
"""Operators that move values: copies, casts, factories, views, random numbers, embedding, gather and scatter.

Of a table or an indexed tensor only the rows that are asked for move, each of them once.
"""

from __future__ import annotations

import math

import torch

from gpuprof.record.work.call import Count, OperatorCall, formula, per_element, tensors_in
from gpuprof.record.work.rows import Exactness
from gpuprof.record.work.sizes import Traffic, elements

# Values are moved, not calculated with.
per_element(
    0,
    "copy clone _to_copy contiguous cat stack _stack _chunk_cat block_diag repeat roll flip rot90"
    " constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d"
    " replication_pad2d replication_pad3d tril triu max_unpool2d max_unpool3d lu_unpack"
    " masked_scatter_backward diag_embed diagonal_copy diagonal_scatter slice_scatter select_scatter"
    " as_strided_scatter slice_backward select_backward diagonal_backward pixel_shuffle pixel_unshuffle"
    " channel_shuffle native_channel_shuffle im2col unfold_copy repeat_interleave nonzero nonzero_static"
    " fill zero _pin_memory _copy_from _copy_from_and_resize detach_copy alias_copy permute_copy"
    " transpose_copy t_copy expand_copy view_copy slice_copy select_copy squeeze_copy unsqueeze_copy"
    " split_copy split_with_sizes_copy unbind_copy as_strided_copy narrow_copy _reshape_copy"
    " to_padded_tensor _nested_from_padded _nested_tensor_from_mask _nested_tensor_from_tensor_list"
    " _nested_from_padded_tensor _jagged_to_padded_dense_forward lift lift_fresh_copy"
    " _padded_dense_to_jagged_forward to_mkldnn mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight"
    " _to_dense _to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc _mkldnn_reshape"
    " _mkldnn_transpose _pack_padded_sequence sparse_mask _cudnn_rnn_flatten_weight _conj_copy"
    " _neg_view_copy _fw_primal_copy view_as_real_copy view_as_complex_copy _lazy_clone"
    " _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo ones zeros full eye scalar_tensor"
    " tril_indices triu_indices set resize _resize_output resize_as"
    " _nested_tensor_from_mask_left_aligned where masked_fill complex _foreach_copy _foreach_zero"
    " _foreach_clone",
)
# The result is written; the tensor that it is like is not read.
per_element(
    0,
    "zeros_like ones_like full_like _new_zeros_with_same_feature_meta new_zeros new_ones new_full",
    reads="",
)


@formula(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided _efficientzerotensor"
    " _empty_affine_quantized _empty_per_channel_affine_quantized empty_quantized sym_size sym_numel"
    " sym_stride sym_storage_offset sym_is_contiguous is_pinned _has_same_storage_numel"
    " _nested_tensor_size _nested_tensor_strides _nested_tensor_storage_offsets"
    " _nested_get_jagged_dummy _assert_tensor_metadata _assert_async _assert_scalar"
    " _functional_assert_async _functional_assert_scalar _fused_sdp_choice record_stream"
    " sym_constrain_range sym_constrain_range_for_size _use_cudnn_ctc_loss _use_miopen_ctc_loss _nnz"
    " sparse_dim dense_dim is_coalesced _coalesced q_scale q_zero_point qscheme q_per_channel_scales"
    " q_per_channel_zero_points q_per_channel_axis _validate_compressed_sparse_indices"
    " _sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors"
    " _sparse_compressed_tensor_with_dims sparse_coo_tensor sparse_compressed_tensor sparse_resize"
    " is_set_to _linalg_check_errors sparse_resize_and_clear _dimI _dimV _debug_has_internal_overlap"
    " is_complex is_floating_point is_inference"
)
@formula(
    "alias detach lift_fresh view _unsafe_view _reshape_alias expand permute transpose t numpy_T squeeze"
    " unsqueeze slice select split split_with_sizes unsafe_split unsafe_split_with_sizes unbind chunk"
    " unsafe_chunk as_strided diagonal unfold narrow view_as_real view_as_complex real imag values _values"
    " indices _indices crow_indices col_indices ccol_indices row_indices _conj _neg_view movedim expand_as"
    " view_as resolve_conj resolve_neg _nested_view_from_buffer _nested_view_from_jagged"
    " _nested_get_values _nested_get_offsets _nested_get_lengths _nested_get_min_seqlen"
    " _nested_get_max_seqlen _nested_get_ragged_idx _test_autograd_multiple_dispatch_view _fw_primal"
    " _make_dual _unpack_dual slice_inverse _sparse_broadcast_to positive"
    " _autocast_to_reduced_precision _autocast_to_full_precision"
)
def _nothing(_: OperatorCall) -> Count:
    """No value moves: memory is set aside, a property is asked for, or the same memory has another shape."""
    return Count(0, reads=[], writes=[])


@formula("_local_scalar_dense item")
def _read_one(call: OperatorCall) -> Count:
    """One value is read."""
    return Count(0, reads=[int(call["self"].element_size())])


# A product and a sum for each value.
per_element(2, "arange range linspace logspace", exactness="estimated", reads="")
# One FLOP a number, as for a transcendental function. The tensor whose shape it takes is not read.
per_element(1, "rand_like randn_like randint_like", exactness="estimated", reads="")
per_element(
    1,
    "rand randn randint randperm normal uniform bernoulli random exponential cauchy geometric log_normal"
    " poisson multinomial binomial _standard_gamma _sample_dirichlet normal_functional",
    exactness="estimated",
)
per_element(1, "col2im unfold_backward _coalesce", "*")  # one sum for each value that goes in
# One sum for each gradient at most. The values are not read.
per_element(
    1,
    "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward"
    " replication_pad2d_backward replication_pad3d_backward",
    "grad_output",
    "estimated",
    reads="grad_output",
)


# ---- embedding -------------------------------------------------------------------------------


def _size_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _rows_of(table: torch.Tensor, indices: torch.Tensor) -> tuple[int, Exactness]:
    """Return the bytes of the rows that are looked up, at most how many where the indices are not at hand."""
    from torch._subclasses.fake_tensor import FakeTensor

    exactness: Exactness = "exact"
    if indices.is_meta or isinstance(indices, FakeTensor):
        distinct, exactness = int(indices.numel()), "estimated"
    else:
        distinct = int(torch.unique(indices).numel())
    rows = int(table.shape[0])
    return min(distinct, rows) * (_size_bytes(table) // max(rows, 1)), exactness


@formula("embedding")
def _embedding(call: OperatorCall) -> Count:
    """A copy of rows: no FLOPs."""
    row_bytes, exactness = _rows_of(call["weight"], call["indices"])
    return Count(0, exactness, reads=[row_bytes, call["indices"]])


per_element(1, "embedding_dense_backward", "grad_output")  # one sum for each element of the gradient


@formula("_embedding_bag _embedding_bag_forward_only")
def _embedding_bag(call: OperatorCall) -> Count:
    """Each row that is looked up is summed into its bag, for a mean divided, with weights multiplied."""
    depth, indices = int(call["weight"].shape[1]), call["indices"]
    looked_up, bags = int(indices.numel()) * depth, elements(call.output)
    flops = max(looked_up - bags, 0) + (bags if call["mode"] == 1 else 0)
    if call["per_sample_weights"] is not None:
        flops += looked_up
    row_bytes, exactness = _rows_of(call["weight"], indices)
    return Count(flops, exactness, reads=[row_bytes, *call.inputs_except(call["weight"])])


@formula("_embedding_bag_backward _embedding_bag_dense_backward")
def _embedding_bag_backward(call: OperatorCall) -> Count:
    """A sum for each element of each row that was looked up; a product with weights or for a mean."""
    depth = int(call["grad"].shape[1])
    weighted = call["mode"] == 1 or call["per_sample_weights"] is not None
    return Count((1 + weighted) * int(call["indices"].numel()) * depth)


@formula("_embedding_bag_per_sample_weights_backward")
def _bag_weights_backward(call: OperatorCall) -> Count:
    """The product of a row and its bag's gradient."""
    gradient, indices = call["grad"], call["indices"]
    row_bytes, exactness = _rows_of(call["weight"], indices)
    flops = 2 * int(indices.numel()) * int(gradient.shape[1])
    return Count(flops, exactness, reads=[row_bytes, gradient, indices])


# ---- gather and scatter ----------------------------------------------------------------------


@formula("index _unsafe_index gather index_select take masked_select _unsafe_masked_index take_along_dim")
def _gather(call: OperatorCall) -> Count:
    """No FLOPs; as many values are read as come out, at most all of the indexed tensor."""
    source, *others = call.inputs
    return Count(0, reads=[min(_size_bytes(call.output), _size_bytes(source)), *others])


def _written_bytes(call: OperatorCall, target: torch.Tensor) -> int:
    """Return how many bytes of the target are touched: those of the values, or of the index."""
    values = call.first("values", "src", "source")
    if isinstance(values, torch.Tensor) and values.numel() > 1:
        count = int(values.numel())
    elif isinstance(call.get("indices"), (list, tuple)):
        shapes = [tensor.shape for tensor in tensors_in(call["indices"])]
        count = int(math.prod(torch.broadcast_shapes(*shapes))) if shapes else 1
    else:
        index = call.get("index")
        count = int((index if isinstance(index, torch.Tensor) else target).numel())
    return min(count * int(target.element_size()), _size_bytes(target))


def _scatter_count(call: OperatorCall, *, flops: int, adds: bool) -> Count:
    target = call["self"]
    touched = _written_bytes(call, target)
    sources: list[Traffic] = [*call.inputs_except(target)]
    if call.written:
        return Count(flops, reads=[*sources, *([touched] if adds else [])], writes=[touched])
    return Count(flops, reads=[target, *sources])


@formula("scatter index_copy index_fill masked_scatter")
def _scatter(call: OperatorCall) -> Count:
    """No FLOPs, or one a value where it reduces; in place only the places of the values are written."""
    reduces = call.get("reduce") is not None
    return _scatter_count(call, flops=int(call["index"].numel()) if reduces else 0, adds=reduces)


@formula("scatter_add index_add scatter_reduce index_reduce")
def _scatter_add(call: OperatorCall) -> Count:
    """One sum for each value; a product more where it is scaled."""
    values = call.first("src", "source")
    count = elements(values) if call.base_name.startswith("index") else int(call["index"].numel())
    return _scatter_count(call, flops=count * (1 + (call.get("alpha", 1) != 1)), adds=True)


@formula("index_put _index_put_impl _unsafe_index_put put _unsafe_masked_index_put_accumulate")
def _put(call: OperatorCall) -> Count:
    """No FLOPs, or one sum for each value where it accumulates."""
    adds = bool(call.get("accumulate", "accumulate" in call.name))
    return _scatter_count(call, flops=elements(call.first("values", "source")) if adds else 0, adds=adds)
