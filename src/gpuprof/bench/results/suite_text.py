# SPDX-License-Identifier: Apache-2.0
"""What a suite prints while it measures: a block for each model, and where the results are.

Lines have one figure each, so that they can be read with `grep`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.frameworks.protocol import SystemDescription
from gpuprof.bench.results.batch import BatchResult
from gpuprof.bench.results.session import SessionResult
from gpuprof.bench.results.text import UNAVAILABLE, title_of, warning_notes
from gpuprof.text.sanitize import escape_text

RULE = "=" * 60
_TITLES = {"pytorch": "PyTorch", "jax": "JAX", "onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT"}
_IMAGE_AXES = 3


class SuiteText:
    """Writes the lines of a suite; `show` can be called again and again during a session."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._shown: set[int] = set()
        self._configurations = 0

    def begin(self, spec: SystemSpec) -> None:
        """Write the title of a model."""
        self._shown = set()
        framework = "" if spec.framework == "auto" else f"{_TITLES.get(spec.framework, spec.framework)} "
        self._ruled(f"{framework}Benchmark: {spec.model}")

    def show(self, session: SessionResult, devices_of: Callable[[str], Sequence[str]]) -> None:
        """Write the batch sizes that are new, below the device; `devices_of` a framework are available."""
        for batch in session.batches:
            if batch.batch_size in self._shown:
                continue
            if not self._shown:
                self._lines(_device_lines(batch.description, devices_of))
            self._shown.add(batch.batch_size)
            self._configurations += 1
            self._lines(_batch_lines(batch))

    def end(self, session: SessionResult, notes: Sequence[str] = ()) -> None:
        """Write the notes and warnings about a model, and what ended it."""
        lines = [title_of(session), *notes, *warning_notes(session.batches)] if session.batches else []
        lines += [f"error: {session.failure}"] if session.failure is not None else []
        self._lines(["", *lines])

    def complete(self, paths: Sequence[Path], *, interrupted: bool = False) -> None:
        """Write how many configurations were measured, and where their files are."""
        self._ruled(f"Benchmark Suite {'Interrupted' if interrupted else 'Complete'}")
        self._lines([f"Total configurations: {self._configurations}"])
        self._lines([f"Results saved to: {path}" for path in paths[:1]])

    def _ruled(self, title: str) -> None:
        self._lines(["", RULE, title, RULE])

    def _lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._write(escape_text(line) + "\n")


def _device_lines(system: SystemDescription, devices_of: Callable[[str], Sequence[str]]) -> list[str]:
    devices = devices_of(system.framework)
    return [
        f"Device: {system.device}",
        f"Type: {system.device_type}",
        f"Available: {', '.join(devices) or UNAVAILABLE}",
    ]


def _batch_lines(batch: BatchResult) -> list[str]:
    median_s, rate, memory_mb = batch.latency_s(0.5), batch.items_per_s, batch["memory_mb"]
    unit = "images/sec" if len(batch.description.input_shape or ()) == _IMAGE_AXES else "samples/sec"
    latency = UNAVAILABLE if median_s is None else f"{median_s * 1e3:.3f}ms"
    return [
        "",
        f"Benchmarking batch size: {batch.batch_size}",
        f"  Latency (p50): {latency}",
        f"  Throughput: {UNAVAILABLE if rate is None else f'{rate:.2f} {unit}'}",
        f"  Memory: {UNAVAILABLE if memory_mb is None else f'{memory_mb:.2f} MB'}",
    ]
