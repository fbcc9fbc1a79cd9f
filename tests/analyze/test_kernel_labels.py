# SPDX-License-Identifier: Apache-2.0
"""Labels of kernels. `kernel_names.json` has names of recorded kernels, and what a reader sees of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuprof.analyze.kernel_labels import LONGEST_LABEL, kernel_label, kernel_labels

RECORDED: dict[str, str] = {
    each["name"]: each["label"]
    for each in json.loads(Path(__file__).with_name("kernel_names.json").read_text(encoding="utf-8"))
}
ADD = (
    "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<"
    "at::native::CUDAFunctor_add<{}>>(at::TensorIteratorBase &)::[lambda(int) (instance 1)]>(int, T3)"
)
POW = (
    "void at::native::vectorized_elementwise_kernel<(int)4, void at::native::<unnamed>::"
    "pow_tensor_scalar_kernel_impl<float, float>(at::TensorIteratorBase &)::[lambda(float) (instance {})], "
    "std::array<char *, (unsigned long)2>>(int, T2, T3)"
)


@pytest.mark.parametrize(("name", "label"), RECORDED.items(), ids=RECORDED.values())
def test_a_label_shows_the_function_and_what_it_applies(name: str, label: str) -> None:
    assert kernel_label(name) == label
    assert len(label) <= LONGEST_LABEL


def test_the_names_are_of_nsight_and_of_cupti() -> None:
    assert {"(int)" in name for name in RECORDED} == {True, False}
    assert len(RECORDED) > 25


def test_names_of_one_listing_differ_by_their_types() -> None:
    labels = kernel_labels([ADD.format("float"), ADD.format("long"), "scan<1>(int)"])
    assert list(labels.values()) == [
        "elementwise_kernel<CUDAFunctor_add, float>",
        "elementwise_kernel<CUDAFunctor_add, long>",
        "scan<1>",
    ]


def test_names_of_one_listing_keep_the_words_that_differ() -> None:
    assert list(kernel_labels([POW.format(1), POW.format(2)]).values()) == [
        "vectorized_elementwise_kernel<pow_tensor_scalar_kernel_impl> [1]",
        "vectorized_elementwise_kernel<pow_tensor_scalar_kernel_impl> [2]",
    ]
    warp = "void softmax_warp_forward<float, float, float, {}, true>(float*, float const*, int)"
    assert list(kernel_labels([warp.format(6), warp.format(7)]).values()) == [
        "softmax_warp_forward<float, float, float, 6, true>",
        "softmax_warp_forward<float, float, float, 7, true>",
    ]


def test_names_that_differ_in_their_namespaces_alone_show_them() -> None:
    labels = kernel_labels(["cask_cudnn::offsets(int)", "cask_cudnn_infer::offsets(int)"])
    assert list(labels.values()) == ["cask_cudnn::offsets", "cask_cudnn_infer::offsets"]


def test_a_mark_distinguishes_what_nothing_else_does() -> None:
    labels = kernel_labels(["f(int)", "f(int) "])
    assert len(set(labels.values())) == 2
    assert all(label.startswith("f") for label in labels.values())
