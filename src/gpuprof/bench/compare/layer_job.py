# SPDX-License-Identifier: Apache-2.0
"""Where a variant diverges: both models in one process, layer by layer, on a few samples of the data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.facts import Diagnostic
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.frameworks.base import FrameworkSystem, choice_of
from gpuprof.bench.measure.memory import memory_failures
from gpuprof.bench.models.data import Dataset, open_dataset
from gpuprof.bench.serialization import from_plain, to_plain
from gpuprof.bench.workers.events import Event, Found, Send
from gpuprof.bench.workers.measuring import load_system, prepare_system
from gpuprof.bench.workers.process import run_process

SAMPLES = 8
_FRAMEWORKS = ("auto", "pytorch", "torch-compile")


@dataclass(frozen=True, slots=True)
class LayersJob:
    """Compare both models layer by layer; `dataset` are arguments of `open_dataset`."""

    entry: ClassVar[str] = "gpuprof.bench.compare.layer_job:run_layers_job"
    keeps_collector: ClassVar[bool] = False

    specs: tuple[SystemSpec, SystemSpec]
    dataset: dict[str, Any]
    samples: int


def can_be_compared(baseline: SystemSpec, variant: SystemSpec) -> bool:
    """Whether both may be modules of PyTorch with the same layers: neither was changed by a recipe."""
    for each in (baseline, variant):
        choice = choice_of(each)
        if each.combination is not None:
            return False
        if each.framework not in _FRAMEWORKS or (choice is not None and choice.recipe.changes_module):
            return False
    return True


def diverging_layers(
    baseline: SystemSpec, variant: SystemSpec, dataset: Dataset, time_limit_s: float
) -> list[Diagnostic]:
    """Return what is found layer by layer. Raises GpuprofError. Interrupts go through."""
    found: list[Diagnostic] = []

    def take(event: Event) -> None:
        if isinstance(event, Found):
            found.extend(from_plain(event.value, list[Diagnostic]))

    job = LayersJob((baseline, variant), dataset.asked, min(SAMPLES, dataset.samples))
    run_process(job, time_limit_s=time_limit_s, on_event=take)
    return found


# --- in the worker process -----------------------------------------------------------------------


def run_layers_job(job: LayersJob, send: Send) -> None:
    """Load both models and compare their layers. Raises GpuprofError."""
    dataset = open_dataset(**job.dataset)
    systems = [make_system(each) for each in job.specs]
    try:
        with memory_failures(job.samples):
            for system in systems:
                _load(system, dataset, job.samples, send)
            # Imports PyTorch.
            from gpuprof.bench.accuracy.layers import compare_layers

            baseline, variant = systems
            found = compare_layers(
                baseline.model,
                variant.model,
                baseline.arguments,
                optimized_dtype=variant.computes_in(),
            )
    finally:
        for system in systems:
            system.close()
    send(Found(value=to_plain(found.findings)))


def _load(system: FrameworkSystem, dataset: Dataset, count: int, send: Send) -> None:
    load_system(system, send)
    size = system.fixed_batch_size or count
    prepare_system(system, size, send)
    if not (dataset.text == "synthetic" and system.makes_inputs):
        rows = dataset.rows(0, count, system.input_spec())
        system.feed(rows[np.arange(size) % len(rows)])
