# SPDX-License-Identifier: Apache-2.0
"""The layers of a variant's run that take longest, and their bottlenecks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuprof.analyze.call_tree import load_tree
from gpuprof.analyze.ceilings.of_run import add_ceilings
from gpuprof.analyze.roofline.build import build_roofline
from gpuprof.analyze.summary import summarize
from gpuprof.bench.compare.document import LayerFigures
from gpuprof.bench.workers.job import CALL
from gpuprof.errors import RunError
from gpuprof.run.folder import RunFolder

SHOWN = 8


def top_layers(path: Path) -> tuple[LayerFigures, ...]:
    """Return the layers with the largest self time; times are those of a call. Raises RunError.

    What is known of their bottleneck is None where no work was counted.
    """
    run = RunFolder(path)
    tree = load_tree(run)
    rows = summarize(tree, "layer").rows[:SHOWN]
    recorded = next((row.calls for row in summarize(tree, "span").rows if row.name == CALL), 1)
    bounds = _bounds(run) if rows else {}
    return tuple(
        LayerFigures(
            name=row.name,
            calls=row.calls,
            self_s=row.own_ns / recorded / 1e9,
            total_s=row.total_ns / recorded / 1e9,
            share=row.share,
            **bounds.get(row.name, {}),
        )
        for row in rows
    )


def _bounds(run: RunFolder) -> dict[str, dict[str, Any]]:
    """Return the bottleneck of each layer; nothing where it is unknown, as for a model without modules."""
    work = run.meta.get("work")
    if not work:
        return {}
    try:
        add_ceilings(run.path, work)
        found = build_roofline(RunFolder(run.path))
    except RunError:
        return {}
    return {
        row.layer: {
            "bound": row.bound.value,
            "nearest": None if row.nearest is None else row.nearest.value,
            "memory_level": row.memory_level,
            "bound_share": row.roof_share,
            "evidence": row.evidence_text,
        }
        for row in found.layers
    }
