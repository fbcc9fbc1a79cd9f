# SPDX-License-Identifier: Apache-2.0
"""The JSON of a comparison as a side of a gate: its variants have accuracies, which a benchmark has not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuprof.bench.compare.document import (
    KIND,
    BatchFigures,
    ComparisonDocument,
    VariantFigures,
    read_document,
)
from gpuprof.bench.measure.diagnostics import BACKGROUND_LOAD
from gpuprof.bench.results.readers import read_side_of, result_kind
from gpuprof.bench.results.run_figures import RunFigures, RunMetric
from gpuprof.bench.results.stored import MACHINE, Configuration, ResultFile, read_result_file
from gpuprof.errors import BenchmarkError


def read_gate_side(paths: Sequence[Path]) -> ResultFile:
    """Read a side of a gate: the JSON of a benchmark or a comparison, or folders of loads.

    Raises GpuprofError for anything else.
    """
    return read_side_of(paths, read_gate_file)


def read_gate_file(path: Path) -> ResultFile:
    """Read the JSON of a benchmark or of a comparison. Raises BenchmarkError for any other file."""
    is_comparison = result_kind(path) == KIND
    return _side_of(path, read_document(path)) if is_comparison else read_result_file(path)


def _side_of(path: Path, document: ComparisonDocument) -> ResultFile:
    batches = dict(_batches(document))
    if not batches:
        raise BenchmarkError("no_results", f"{path} holds no measured variants", hint="compare again")
    environment, method = document.environment, document.method
    settings = method.settings
    way = str(settings.get("mode", "latency")), str(settings.get("caches", "warm"))
    machine: dict[str, Any] = {name: environment.get(name) for name in MACHINE}
    machine |= {"device": document.measured[0].device, "threads": environment.get("threads")}
    return ResultFile(
        path=path,
        timestamp=document.timestamp,
        revision=document.git_commit,
        machine=machine,
        data=method.data,
        versions={str(key): str(value) for key, value in (environment.get("versions") or {}).items()},
        profile=None,
        medians_s={each: batch.launch_medians_s for each, (batch, _) in batches.items()},
        ways=dict.fromkeys(batches, way),
        more={each: _figures(batch, variant) for each, (batch, variant) in batches.items()},
    )


def _batches(
    document: ComparisonDocument,
) -> Iterator[tuple[Configuration, tuple[BatchFigures, VariantFigures | None]]]:
    """Yield each measured batch size; the first of a variant with the variant, which has one accuracy."""
    for variant in document.measured:
        for number, batch in enumerate(variant.batches):
            kind = variant.framework, variant.name, variant.device_type, variant.dtype
            yield Configuration(*kind, None, batch.batch_size), (batch, None if number else variant)


def _figures(batch: BatchFigures, variant: VariantFigures | None) -> RunFigures:
    found = None if variant is None else variant.accuracy
    accuracy, samples = (None, 0) if found is None else (found.accuracy, found.samples)
    affected = (
        int(each.values.get("affected_runs", 0)) for each in batch.warnings if each.code in BACKGROUND_LOAD
    )
    return RunFigures(
        values={RunMetric.ACCURACY: (accuracy,)} if accuracy else {},
        busy=max(affected, default=0),
        completed=batch.launches,
        labeled_samples=samples if accuracy else 0,
    )
