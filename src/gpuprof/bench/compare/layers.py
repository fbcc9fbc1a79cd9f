# SPDX-License-Identifier: Apache-2.0
"""The layers of a variant's run that take longest, and their bottlenecks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuprof.analyze.ceilings.of_run import add_ceilings
from gpuprof.analyze.load_tree import load_tree
from gpuprof.analyze.roofline.build import build_roofline
from gpuprof.analyze.summary import summarize
from gpuprof.bench.workers.job import CALL
from gpuprof.errors import RunError
from gpuprof.run.folder import RunFolder

SHOWN = 8


def top_layers(path: Path) -> list[dict[str, Any]]:
    """Return the layers with the most time of their own, as rows of the document; times are those of a call.

    `bound` and `bound_share` (of the roof that is nearest) are None where no work was counted. Raises
    RunError.
    """
    run = RunFolder(path)
    tree = load_tree(run)
    rows = summarize(tree, "layer").rows[:SHOWN]
    recorded = next((row.calls for row in summarize(tree, "span").rows if row.name == CALL), 1)
    bounds = _bounds(run) if rows else {}
    return [
        {
            "name": row.name,
            "calls": row.calls,
            "self_s": row.own_ns / recorded / 1e9,
            "total_s": row.total_ns / recorded / 1e9,
            "share": row.share,
            **bounds.get(row.name, {"bound": None, "bound_share": None, "evidence": None}),
        }
        for row in rows
    ]


def _bounds(run: RunFolder) -> dict[str, dict[str, Any]]:
    """Return the bottleneck of each layer; nothing for a model without modules."""
    work = run.meta.get("work")
    if not work:
        return {}
    try:
        add_ceilings(run.path, work)
        found = build_roofline(RunFolder(run.path))
    except RunError:
        return {}
    return {
        row.layer: {"bound": row.bound_text, "bound_share": row.roof_share, "evidence": row.evidence_text}
        for row in found.layers
    }
