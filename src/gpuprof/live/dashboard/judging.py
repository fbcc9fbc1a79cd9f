# SPDX-License-Identifier: Apache-2.0
"""Change points and comparisons, as `gpuprof gate`, `compare` and `summary --against` have them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.errors import GpuprofError, RunError
from gpuprof.live.dashboard.folder import checked_path
from gpuprof.live.dashboard.items import ItemKind, Plain

if TYPE_CHECKING:
    from gpuprof.analyze.difference_summary import DifferenceSummary
    from gpuprof.bench.gate.result import GateRow
    from gpuprof.bench.results.stored import Configuration, ResultFile
    from gpuprof.load.compared_loads import LoadComparison

_ROWS = 12
_RESULTS = (ItemKind.BENCHMARK, ItemKind.COMPARISON)


def levels(runs: list[list[float]], higher_is_better: bool) -> Plain:
    """Return the figure of each file, and the changes of level with their intervals."""
    from gpuprof.bench.gate.history import levels_of
    from gpuprof.stats.quantiles import CONFIDENCE

    found = levels_of([np.log(np.asarray(each)) for each in runs])
    figures = found.figures
    changes = []
    for number, at in enumerate(found.changes):
        ratio = found.change(number)
        assert ratio is not None  # a segment has two files at the least
        low, high = ratio.interval(1 - CONFIDENCE)
        change = {"at": at, "ratio": math.exp(ratio.value), "low": low, "high": high}
        changes.append({**change, "is_worse": (change["ratio"] > 1) is not higher_is_better})
    return {
        "figures": [math.exp(each) for each in figures],
        "levels": [[a, b, math.exp(float(figures[a:b].mean()))] for a, b in found.segments if b > a],
        "changes": changes,
    }


def compare(root: str, old: list[str], new: list[str]) -> Plain:
    """Compare two entries, which are [path, kind]. Raises GpuprofError."""
    kinds = ItemKind(old[1]), ItemKind(new[1])
    paths = [checked_path(Path(root), each[0]) for each in (old, new)]
    if kinds == (ItemKind.RUN, ItemKind.RUN):
        return _compared_runs(*paths)
    if kinds == (ItemKind.LOAD, ItemKind.LOAD):
        return _plain_loads(compared_loads(root, old[0], new[0]))
    if all(each in _RESULTS for each in kinds):
        return _compared_results(*paths)
    raise GpuprofError(
        "not_comparable",
        f"a {kinds[0].value} and a {kinds[1].value} cannot be compared",
        hint="choose two runs, two load tests, or two results of gpuprof bench or gpuprof compare",
    )


def compared_loads(root: str, old: str, new: str) -> LoadComparison:
    """Compare two folders of load tests, as `gpuprof compare` does. Raises GpuprofError."""
    from gpuprof.load.compared_loads import compare_loads
    from gpuprof.load.gate_side import read_run

    sides = {f"A: {old}": checked_path(Path(root), old), f"B: {new}": checked_path(Path(root), new)}
    for path in sides.values():
        if not path.is_dir():
            raise GpuprofError(
                "no_requests",
                f"{path.name} has figures of a load test and not its requests",
                hint="choose the folder that gpuprof load wrote",
            )
    return compare_loads({name: [read_run(path)] for name, path in sides.items()}, any_machine=True)


def _plain_loads(found: LoadComparison) -> Plain:
    return {
        "kind": ItemKind.LOAD.value,
        "outcome": str(found.verdict_of(found.others[0].name)),
        "rows": [{**_plain_row(row), "name": row.configuration.load} for row in found.gate.rows],
        "notes": [str(each) for each in found.gate.notes],
    }


def _compared_runs(old: Path, new: Path) -> Plain:
    """Compare two runs as `gpuprof summary NEW --against OLD` does, so that both have the same verdicts."""
    from gpuprof.opened_run import Run, SummaryKind, summary_difference

    runs = [Run(new)], [Run(old)]
    kinds: tuple[SummaryKind, ...] = ("layer", "operator", "span")
    tables = [table for table in (summary_difference(*runs, by) for by in kinds) if table.rows]
    if not tables:
        raise RunError(
            "nothing_shared",
            "the runs have no layers, operators or spans to compare",
            hint="choose runs of the same program",
        )
    return {"kind": ItemKind.RUN.value, "tables": [_plain_table(each) for each in tables]}


def _plain_table(table: DifferenceSummary) -> Plain:
    from gpuprof.analyze.kernel_labels import label_of

    sums = {
        f"{side}_sum_ns": sum(getattr(row, f"{side}_ns") for row in table.rows) for side in ("old", "new")
    }
    plain = table.to_dict(_ROWS)
    for row in plain["rows"]:
        row["name"] = label_of(row["name"], row["kind"]) or row["name"]
    return {**plain, **sums}


def _compared_results(old: Path, new: Path) -> Plain:
    from gpuprof.bench.gate.comparison_file import read_gate_file
    from gpuprof.bench.gate.gate import judge

    files = read_gate_file(old), read_gate_file(new)
    if not files[0].medians_s.keys() & files[1].medians_s.keys():
        return _compared_techniques(*files)
    found = judge(*files, any_machine=True)
    return {
        "kind": "results",
        "outcome": str(found.outcome),
        "margin": found.margin,
        "rows": [_plain_row(row) for row in found.rows],
        "notes": [str(each) for each in found.notes],
    }


def _compared_techniques(old: ResultFile, new: ResultFile) -> Plain:
    """Compare the medians of a model that was run in two ways, of the same inputs and batch size."""
    from gpuprof.bench.gate.gate import nothing_shared
    from gpuprof.stats.ratio_test import compare as compare_runs
    from gpuprof.stats.ratio_test import geometric_mean

    def subject(each: Configuration) -> tuple[object, ...]:
        return each.model, each.input_shape, each.batch_size

    pairs = [(a, b) for a in old.medians_s for b in new.medians_s if subject(a) == subject(b)]
    pairs = [(a, b) for a, b in pairs if old.medians_s[a] and new.medians_s[b]]
    if not pairs:
        raise nothing_shared(new, old.path.name, next(iter(old.medians_s)))
    rows, margin = [], 0.0
    for a, b in pairs:
        found = compare_runs(old.medians_s[a], new.medians_s[b])
        margin = found.margin
        rows.append(
            {
                "name": f"{a} against {b.framework} {b.dtype}",
                "metric": "p50",
                "unit": "s",
                "old": geometric_mean(old.medians_s[a]),
                "new": geometric_mean(new.medians_s[b]),
                "ratio": found.ratio,
                "low": found.low,
                "high": found.high,
                "verdict": found.verdict,
                "reason": None,
            }
        )
    return {"kind": "results", "outcome": None, "margin": margin, "rows": rows, "notes": []}


def _plain_row(row: GateRow) -> Plain:
    judged = row.judgement
    return {
        "name": str(row.configuration),
        "metric": str(row.metric),
        "unit": row.metric.unit,
        "old": row.baseline,
        "new": row.candidate,
        "ratio": row.ratio,
        "low": None if judged is None else judged.low,
        "high": None if judged is None else judged.high,
        "margin": row.threshold,
        "verdict": str(row.verdict),
        "reason": None if row.reason is None else str(row.reason),
    }
