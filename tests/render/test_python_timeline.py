# SPDX-License-Identifier: Apache-2.0
"""Sampled functions and the spans between them in the timeline of the page, read back by its own reader."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cpu_work import busy
from page_reader import PageTimeline, timeline_of
from run_edits import forget_parts, parquet_of

import gpuprof
from gpuprof.run.format import KINDS

pytest.importorskip("pyinstrument")

Paths = list[tuple[str, ...]]


# Samples before the first span and after the last show which function has those between them.
def train() -> None:
    busy()
    for _ in range(5):
        with gpuprof.span("step"):
            busy(0.02)
            with gpuprof.span("inner"):
                busy(0.02)
    busy()


def evaluate() -> None:
    busy()
    for _ in range(5):
        with gpuprof.span("step"):
            busy(0.02)
    busy()


def program() -> None:
    train()
    evaluate()


@pytest.fixture(name="run", scope="module")
def sampled_run(tmp_path_factory: pytest.TempPathFactory) -> gpuprof.Run:
    with gpuprof.profile(python=True, out=tmp_path_factory.mktemp("run") / "r.gpuprof") as recording:
        program()
    return recording.run


@pytest.fixture(name="found")
def timeline_of_run(run: gpuprof.Run, tmp_path: Path) -> PageTimeline:
    return timeline_of(run.flamegraph(tmp_path / "page.html").read_text(encoding="utf-8"))


def path_of_class(found: PageTimeline, number: int) -> tuple[str, ...]:
    path: list[str] = []
    while number >= 0:
        name, _, number, _ = found.classes[number]
        path.append(name.partition(" ")[0])
    return tuple(reversed(path))


def calls_by_path(run: gpuprof.Run) -> Counter[tuple[str, ...]]:
    """Return the calls of spans by their paths in the tree."""
    tree = run.call_tree
    paths: Paths = []
    calls: Counter[tuple[str, ...]] = Counter()
    for row, (parent, name) in enumerate(zip(tree.parent.tolist(), tree.name.tolist(), strict=True)):
        paths.append((*(paths[parent] if parent >= 0 else ()), tree.names[name].partition(" ")[0]))
        if KINDS[tree.kind[row]] == "span":
            calls[paths[-1]] += int(tree.calls[row])
    return calls


def test_functions_have_the_kind_function(found: PageTimeline) -> None:
    kinds = {each.name.partition(" ")[0]: KINDS[each.kind] for each in found.slices}
    assert {kinds["program"], kinds["train"], kinds["busy"]} == {"python"}
    assert (kinds["step"], kinds["inner"]) == ("span", "span")


def test_spans_below_functions_refer_to_their_cells(run: gpuprof.Run, found: PageTimeline) -> None:
    spans = [each for each in found.slices if KINDS[each.kind] == "span"]
    assert len(spans) == 15
    assert all(found.classes[each.class_number][3] >= 0 for each in spans)
    slices = Counter(path_of_class(found, each.class_number) for each in spans)
    assert slices == calls_by_path(run)
    # On a busy machine a sample may be late or torn, so that a span of the 15 has no function.
    assert sum(count for path, count in slices.items() if {"train", "step"} <= set(path)) >= 8
    assert sum(count for path, count in slices.items() if "evaluate" in path) >= 4
    assert not any({"train", "evaluate"} <= set(path) for path in slices)


def test_functions_above_spans_refer_to_their_cells(found: PageTimeline) -> None:
    tied = {
        each.name.partition(" ")[0]: found.classes[each.class_number][3] >= 0
        for each in found.slices
        if KINDS[each.kind] == "python"
    }
    assert [tied[name] for name in ("program", "train", "evaluate")] == [True] * 3


def test_a_run_without_paths_has_its_timeline(run: gpuprof.Run, tmp_path: Path) -> None:
    """Runs of versions that wrote no `path_id`."""
    import duckdb

    copy = tmp_path / "old.gpuprof"
    for file in sorted(run.path.rglob("*")):
        to = copy / file.relative_to(run.path)
        to.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file():
            to.write_bytes(file.read_bytes())
    part = parquet_of(copy, "spans")
    rows: Any = duckdb.sql(
        f"SELECT * EXCLUDE (path_id) FROM read_parquet('{part}', hive_partitioning = false)"
    )
    rows.write_parquet(str(tmp_path / "part.parquet"))
    (tmp_path / "part.parquet").replace(part)
    for other in (copy / "spans").rglob("*.parquet"):
        if other != part:
            other.unlink()
    forget_parts(copy)
    page = gpuprof.open(copy).flamegraph(tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(timeline_of(page).slices) > 15
