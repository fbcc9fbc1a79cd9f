# SPDX-License-Identifier: Apache-2.0
"""Operators without arithmetic: copies, casts, factories, views, and random numbers."""

from __future__ import annotations

from gpuprof.record.work.call import Count, OperatorCall
from gpuprof.record.work.registry import formula
from gpuprof.record.work.sizes import elements


@formula(
    "copy clone _to_copy contiguous cat stack _stack _chunk_cat block_diag repeat roll flip rot90"
    " constant_pad_nd"
    " reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d"
    " replication_pad3d"
    " tril triu max_unpool2d max_unpool3d lu_unpack masked_scatter_backward diag_embed diagonal_copy"
    " diagonal_scatter slice_scatter select_scatter as_strided_scatter"
    " slice_backward select_backward diagonal_backward pixel_shuffle pixel_unshuffle channel_shuffle"
    " native_channel_shuffle im2col unfold_copy repeat_interleave nonzero nonzero_static fill zero"
    " _pin_memory"
    " _copy_from _copy_from_and_resize detach_copy alias_copy permute_copy transpose_copy t_copy expand_copy"
    " view_copy slice_copy select_copy squeeze_copy unsqueeze_copy split_copy split_with_sizes_copy"
    " unbind_copy"
    " as_strided_copy narrow_copy _reshape_copy to_padded_tensor _nested_from_padded _nested_tensor_from_mask"
    " _nested_tensor_from_tensor_list _nested_from_padded_tensor _jagged_to_padded_dense_forward lift"
    " lift_fresh_copy"
    " _padded_dense_to_jagged_forward to_mkldnn mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight"
    " _to_dense _to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc _mkldnn_reshape"
    " _mkldnn_transpose _pack_padded_sequence sparse_mask _cudnn_rnn_flatten_weight _conj_copy _neg_view_copy"
    " _fw_primal_copy view_as_real_copy view_as_complex_copy _lazy_clone _convert_indices_from_coo_to_csr"
    " _convert_indices_from_csr_to_coo ones zeros full eye scalar_tensor tril_indices"
    " triu_indices set resize _resize_output resize_as _nested_tensor_from_mask_left_aligned"
)
def _move(_: OperatorCall) -> Count:
    """Values are moved, not calculated with."""
    return Count(0)


@formula("zeros_like ones_like full_like _new_zeros_with_same_feature_meta new_zeros new_ones new_full")
def _fill_like(_: OperatorCall) -> Count:
    """The result is written; the tensor that it is like is not read."""
    return Count(0, reads=[])


@formula(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided _efficientzerotensor"
    " _empty_affine_quantized"
    " _empty_per_channel_affine_quantized empty_quantized sym_size sym_numel sym_stride sym_storage_offset"
    " sym_is_contiguous is_pinned _has_same_storage_numel _nested_tensor_size _nested_tensor_strides"
    " _nested_tensor_storage_offsets _nested_get_jagged_dummy _assert_tensor_metadata _assert_async"
    " _assert_scalar"
    " _functional_assert_async _functional_assert_scalar _fused_sdp_choice record_stream sym_constrain_range"
    " sym_constrain_range_for_size _use_cudnn_ctc_loss _use_miopen_ctc_loss _nnz sparse_dim dense_dim"
    " is_coalesced"
    " _coalesced q_scale q_zero_point qscheme q_per_channel_scales q_per_channel_zero_points"
    " q_per_channel_axis"
    " _validate_compressed_sparse_indices _sparse_coo_tensor_with_dims"
    " _sparse_coo_tensor_with_dims_and_tensors"
    " _sparse_compressed_tensor_with_dims sparse_coo_tensor sparse_compressed_tensor sparse_resize is_set_to"
    " _linalg_check_errors sparse_resize_and_clear _dimI _dimV _debug_has_internal_overlap is_complex"
    " is_floating_point"
    " is_inference"
)
def _nothing(_: OperatorCall) -> Count:
    """Memory is set aside, or a property is asked for: no value moves."""
    return Count(0, reads=[], writes=[])


@formula(
    "alias detach lift_fresh view _unsafe_view _reshape_alias expand permute transpose t numpy_T squeeze"
    " unsqueeze slice"
    " select split split_with_sizes unsafe_split unsafe_split_with_sizes unbind chunk unsafe_chunk"
    " as_strided diagonal"
    " unfold narrow view_as_real view_as_complex real imag values _values indices _indices crow_indices"
    " col_indices"
    " ccol_indices row_indices _conj _neg_view movedim expand_as view_as resolve_conj resolve_neg"
    " _nested_view_from_buffer"
    " _nested_view_from_jagged _nested_get_values _nested_get_offsets _nested_get_lengths"
    " _nested_get_min_seqlen"
    " _nested_get_max_seqlen _nested_get_ragged_idx _test_autograd_multiple_dispatch_view _fw_primal"
    " _make_dual"
    " _unpack_dual slice_inverse _sparse_broadcast_to positive _autocast_to_reduced_precision"
    " _autocast_to_full_precision"
)
def _view(_: OperatorCall) -> Count:
    """The same memory under another shape."""
    return Count(0, reads=[], writes=[])


@formula("_local_scalar_dense item")
def _read_one(call: OperatorCall) -> Count:
    """One value is read."""
    return Count(0, reads=[int(call["self"].element_size())])


@formula("arange range linspace logspace")
def _sequence(call: OperatorCall) -> Count:
    """A product and a sum for each value."""
    return Count(2 * elements(call.output), "estimated", reads=[])


@formula(
    "rand randn randint randperm rand_like randn_like randint_like normal uniform bernoulli random"
    " exponential cauchy"
    " geometric log_normal poisson multinomial binomial _standard_gamma _sample_dirichlet normal_functional"
)
def _random(call: OperatorCall) -> Count:
    """One FLOP a number, as for a transcendental function. The tensor whose shape it takes is not read."""
    likeness = call.base_name.endswith("_like")
    return Count(elements(call.output), "estimated", reads=[] if likeness else None)


@formula("col2im unfold_backward _coalesce")
def _add_up(call: OperatorCall) -> Count:
    """One sum for each value that goes in."""
    return Count(elements(call.inputs[0]))


@formula(
    "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward"
    " replication_pad2d_backward replication_pad3d_backward"
)
def _pad_backward(call: OperatorCall) -> Count:
    """One sum for each gradient at most. The values are not read."""
    gradient = call["grad_output"]
    return Count(elements(gradient), "estimated", reads=[gradient])
