# SPDX-License-Identifier: Apache-2.0
"""Repeated layers are one row: which of them, and that no figure is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof.analyze.layer_groups import layer_groups
from gpuprof.analyze.summary import Summary, SummaryRow, folded, with_groups

BLOCK = {"": "Block", ".norm": "LayerNorm", ".mlp": "Mlp", ".mlp.up_proj": "Linear"}


def blocks(prefix: str, numbers: range) -> dict[str, str]:
    return {f"{prefix}{number}{path}": kind for number in numbers for path, kind in BLOCK.items()}


def test_blocks_of_a_list_are_one() -> None:
    classes = {"layers": "ModuleList", **blocks("layers.", range(4)), "head": "Linear"}
    groups = layer_groups(classes, classes)
    assert groups["layers.2.mlp.up_proj"] == "layers.*.mlp.up_proj"
    assert set(groups.values()) == {f"layers.*{path}" for path in BLOCK}
    assert groups.keys() == classes.keys() - {"layers", "head"}


def test_a_label_before_the_path_is_no_index() -> None:
    classes = blocks("Net#2/", range(3))
    assert layer_groups(classes, classes)["Net#2/1.norm"] == "Net#2/*.norm"


def test_elements_of_a_mixed_list_stay_apart() -> None:
    classes = {"net.0": "Linear", "net.1": "ReLU", "net.2": "Linear"}
    assert layer_groups(classes, classes) == {}
    alike = {"net.0": "Linear", "net.1": "Linear"}
    assert layer_groups(alike, alike) == dict.fromkeys(alike, "net.*")


def test_blocks_of_a_mixed_list_are_one_for_each_class() -> None:
    classes = {
        "0": "Mamba",
        "0.fc": "Linear",
        "1": "Attention",
        "1.fc": "Linear",
        "2": "Mamba",
        "2.fc": "Linear",
    }
    assert layer_groups(classes, classes) == {
        "0": "*",
        "2": "*",
        "0.fc": "*.fc",
        "1.fc": "*.fc",
        "2.fc": "*.fc",
    }


def test_paths_of_two_classes_are_distinguished() -> None:
    classes = {f"l.{n}.f": "Linear" if n < 2 else "Conv2d" for n in range(4)} | {
        f"l.{n}": "B" for n in range(4)
    }
    groups = layer_groups(classes, classes)
    assert groups["l.0.f"] != groups["l.3.f"]
    assert {groups["l.0.f"], groups["l.3.f"]} == {"l.*.f", "l.*.f (Linear)"}


def test_of_two_indices_the_one_with_more_layers_counts() -> None:
    classes = {f"layers.{n}.experts.{m}.w": "Linear" for n in range(2) for m in range(8)}
    groups = layer_groups(classes, classes)
    assert set(groups.values()) == {"layers.0.experts.*.w", "layers.1.experts.*.w"}


def test_layers_of_unknown_class_stay_apart() -> None:
    assert layer_groups(blocks("", range(4)), {}) == {}


PARTS = st.sampled_from(["a", "b", "0", "1", "2"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map(".".join)
FIGURES = st.integers(0, 1_000)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Summary, dict[str, str]]:
    names = draw(st.lists(NAMES, unique=True, max_size=30))
    classes = {name: draw(st.sampled_from(["A", "B"])) for name in names}
    own = {name: draw(FIGURES) for name in names}
    covered = sum(own.values())
    rows = tuple(
        SummaryRow(
            name=name,
            kind="layer",
            calls=(calls := draw(st.integers(0, 9))),
            total_ns=own[name] + draw(FIGURES),
            own_ns=own[name],
            mean_ns=draw(FIGURES) / calls if calls else None,
            share=own[name] / covered if covered else None,
            threads=1,
            processes=1,
            flops=draw(st.none() | FIGURES),
        )
        for name in names
    )
    return Summary("layer", rows, covered, covered, (1,)), classes


@settings(max_examples=300, deadline=None)
@given(drawn=tables())
def test_no_figure_is_lost(drawn: tuple[Summary, dict[str, str]]) -> None:
    flat = with_groups(*drawn).rows
    rows = folded(flat)
    for figure in ("calls", "total_ns", "own_ns", "members"):
        assert sum(getattr(row, figure) for row in rows) == sum(getattr(row, figure) for row in flat)
    assert sum(row.share or 0 for row in rows) == pytest.approx(sum(row.share or 0 for row in flat))
    inside = [sum((row.mean_ns or 0) * row.calls for row in each) for each in (rows, flat)]
    assert inside[0] == pytest.approx(inside[1])
    assert len({row.name for row in rows}) == len(rows)


@settings(max_examples=300, deadline=None)
@given(drawn=tables())
def test_members_of_a_group_are_of_one_class_and_differ_in_one_index(
    drawn: tuple[Summary, dict[str, str]],
) -> None:
    table, classes = drawn
    members: dict[str, list[str]] = {}
    for name, group in layer_groups((row.name for row in table.rows), classes).items():
        members.setdefault(group, []).append(name)
    for names in members.values():
        assert len(names) > 1
        assert len({classes[name] for name in names}) == 1
        columns = [set(parts) for parts in zip(*(name.split(".") for name in names), strict=True)]
        different = [parts for parts in columns if len(parts) > 1]
        assert len(different) == 1
        assert all(part.isdigit() for part in different[0])
