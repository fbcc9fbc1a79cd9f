# SPDX-License-Identifier: Apache-2.0
"""What holds for the labels of any names, those that no demangler ever wrote included."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpuprof.analyze.cpp_names import CppName, plain_spelling
from gpuprof.analyze.kernel_labels import LONGEST_LABEL, kernel_label, kernel_labels

words = st.sampled_from(
    (
        *(
            "void ",
            "at::native::",
            "kernel",
            "reduce_kernel",
            "float",
            "MulFunctor",
            "operator()",
            "const",
            "4",
        ),
        *(
            "<",
            ">",
            ">>",
            "(",
            ")",
            "::",
            ", ",
            " ",
            "{lambda(float)#1}",
            "[lambda(int) (instance 2)]",
            "(int)4",
        ),
        *(
            "(anonymous namespace)::",
            "<unnamed>::",
            "_ZN",
            "12Rmsnorm2dFwd",
            "operator<",
            "->",
            "\u202e",
            "x" * 90,
        ),
    )
)
texts = st.one_of(st.text(max_size=200), st.lists(words, max_size=30).map("".join))


@given(texts)
def test_any_text_has_a_label_that_fits(name: str) -> None:
    label = kernel_label(name)
    assert len(label) <= LONGEST_LABEL
    assert bool(label.strip()) or not plain_spelling(name)


@given(st.lists(texts, max_size=12))
def test_no_two_names_of_a_listing_have_the_same_label(names: list[str]) -> None:
    labels = kernel_labels(names)
    assert set(labels) == set(names)
    assert len(set(labels.values())) == len(labels)
    assert all(len(label) <= LONGEST_LABEL for label in labels.values())


@given(st.lists(texts, max_size=8), st.randoms())
def test_the_order_of_a_listing_does_not_matter(names: list[str], random: Random) -> None:
    shuffled = list(names)
    random.shuffle(shuffled)
    assert kernel_labels(names) == kernel_labels(shuffled)


identifiers = st.from_regex(r"[a-z][a-z_]{0,12}", fullmatch=True)


@given(identifiers, st.lists(identifiers, min_size=1, max_size=3), st.integers(0, 9))
def test_both_spellings_of_a_name_are_one(function: str, spaces: list[str], number: int) -> None:
    scope = "::".join(spaces)
    nsight = (
        f"void {scope}::<unnamed>::{function}<(int){number}, {scope}::[lambda(float) (instance 1)]>(T1 *, T2)"
    )
    cupti = (
        f"void {scope}::(anonymous namespace)::{function}<{number}, {scope}::{{lambda(float)#1}}>(T1*, T2)"
    )
    assert plain_spelling(nsight) == plain_spelling(cupti)
    assert kernel_label(nsight) == kernel_label(cupti)
    assert CppName(plain_spelling(cupti)).name == function
