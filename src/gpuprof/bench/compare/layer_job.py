# SPDX-License-Identifier: Apache-2.0
"""Where a variant departs: both models in one launch, layer by layer, on a few samples of the data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.measure.memory import memory_failures
from gpuprof.bench.models.dataset import Dataset, open_dataset
from gpuprof.bench.models.recipes import choice_of
from gpuprof.bench.workers.launcher import Event, run_launch
from gpuprof.bench.workers.samples import Send
from gpuprof.errors import GpuprofError

SAMPLES = 8
_FRAMEWORKS = ("pytorch", "torch-compile")


def can_be_compared(baseline: SystemSpec, variant: SystemSpec) -> bool:
    """Whether both may be modules of PyTorch with the same layers: neither was changed by a recipe."""
    return not any(_is_changed(each) for each in (baseline, variant))


def _is_changed(spec: SystemSpec) -> bool:
    choice = choice_of(spec)
    is_other = spec.framework not in ("auto", *_FRAMEWORKS)
    return is_other or (choice is not None and choice.recipe.changes_module)


def layers_that_depart(
    baseline: SystemSpec, variant: SystemSpec, dataset: Dataset, *, time_limit_s: float
) -> tuple[list[str], str | None]:
    """Return what is found layer by layer, a line each, and why there is nothing. Interrupts go through."""
    found: list[str] = []

    def take(event: Event) -> None:
        if event["event"] == "layers":
            found.extend(event["findings"])

    job = {
        "layers": {
            "dataset": dataset.asked,
            "specs": [baseline.to_dict(), variant.to_dict()],
            "samples": min(SAMPLES, dataset.samples),
        }
    }
    try:
        run_launch(job, time_limit_s=time_limit_s, on_event=take)
    except GpuprofError as error:
        return [], f"not compared layer by layer: {error}"
    return found, None


# --- inside the launch ---------------------------------------------------------------------------


def run_layer_job(values: Mapping[str, Any], send: Send) -> None:
    """Load both models and compare their layers, in a process that is a launch. Raises GpuprofError."""
    asked = values["layers"]
    dataset, count = open_dataset(**asked["dataset"]), int(asked["samples"])
    systems = [make_system(SystemSpec.from_dict(each)) for each in asked["specs"]]
    try:
        with memory_failures(count):
            for system in systems:
                _load(system, dataset, count, send)
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
    send("layers", findings=list(found.findings))


def _load(system: FrameworkSystem, dataset: Dataset, count: int, send: Send) -> None:
    system.import_framework()
    send("imported")
    system.load()
    send("loaded")
    size = system.fixed_batch_size or count
    send("preparing", batch_size=size)
    system.prepare(size)
    if not (dataset.text == "synthetic" and system.makes_inputs):
        rows = dataset.rows(0, count, system.input_spec())
        system.feed(rows[np.arange(size) % len(rows)])
    send("prepared", batch_size=size)
