# SPDX-License-Identifier: Apache-2.0
"""The padding of a model's first batch, from masks and embeddings of recorded calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gpuprof

TOKENS = torch.tensor([[5, 6, 7, 0, 0, 0], [5, 0, 0, 0, 0, 0]])
FACTS = {"tokens": 12, "padded": 8, "kept_by_trimming": 6}


@pytest.fixture(autouse=True)
def no_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding needs no ceilings, which take seconds to measure."""
    monkeypatch.setattr("gpuprof.analyze.ceilings.of_run.add_ceilings", lambda *_: None)


class Model(torch.nn.Module):
    """Takes a mask and does not use it."""

    def __init__(self, padding_idx: int | None = None) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(8, 4, padding_idx=padding_idx)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return a vector for each token."""
        found: Tensor = self.embedding(input_ids)
        return found


def padding(folder: Path, model: torch.nn.Module, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    name = type(model).__name__
    with gpuprof.profile(model, work=True, out=folder / f"{name}.gpuprof") as recording:
        model(*args, **kwargs)
    (facts,) = [recording.run.meta["work"]["padding"]]
    for each in facts:
        del each["root"]
    return facts


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float32])
def test_a_mask_of_tokens_counts_what_is_padding(kind: torch.dtype, tmp_path: Path) -> None:
    mask = (TOKENS != 0).to(kind)
    assert padding(tmp_path, Model(), TOKENS, attention_mask=mask) == [
        {"argument": "attention_mask", **FACTS}
    ]


def test_a_mask_of_padding_is_the_opposite_and_may_be_positional(tmp_path: Path) -> None:
    expected = [{"argument": "src_key_padding_mask", **FACTS}]
    assert padding(tmp_path, Model(), TOKENS, None, TOKENS == 0) == expected


def test_without_a_mask_the_padding_index_of_the_embedding_counts(tmp_path: Path) -> None:
    assert padding(tmp_path, Model(padding_idx=0), TOKENS) == [{"argument": "input_ids", **FACTS}]


def test_tokens_on_the_right_are_trimmed_on_the_left(tmp_path: Path) -> None:
    (facts,) = padding(tmp_path, Model(), TOKENS, attention_mask=(TOKENS != 0).flip(1))
    assert facts["kept_by_trimming"] == 6


def test_tokens_without_a_mask_are_unknown_and_other_inputs_have_none(tmp_path: Path) -> None:
    assert padding(tmp_path, Model(), TOKENS) == [{"argument": None}]
    linear = torch.nn.Linear(4, 4)
    assert padding(tmp_path, linear, torch.ones(2, 4)) == []


def test_a_mask_that_is_added_to_scores_is_no_mask_of_tokens(tmp_path: Path) -> None:
    mask = torch.where(TOKENS != 0, 0.0, -1e9)
    assert padding(tmp_path, Model(), TOKENS, attention_mask=mask) == [{"argument": None}]


def test_a_mask_that_was_overwritten_after_the_call_is_left_out(tmp_path: Path) -> None:
    mask = (TOKENS != 0).long()
    model = Model()
    with gpuprof.profile(model, work=True, out=tmp_path / "r.gpuprof") as recording:
        model(TOKENS, attention_mask=mask)
        mask.zero_()
    (facts,) = recording.run.meta["work"]["padding"]
    assert facts["argument"] is None
