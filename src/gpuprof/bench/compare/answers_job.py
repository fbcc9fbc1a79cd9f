# SPDX-License-Identifier: Apache-2.0
"""A pass over a data set in its process: load the variant, run each batch once, store what it returns."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof.bench.accuracy.tolerance import UNIT_ROUNDOFF, coarsest
from gpuprof.bench.accuracy.variants import kept_random_states
from gpuprof.bench.compare.answers import AnswersJob, AnswerWriter
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.measure.memory import memory_failures
from gpuprof.bench.measure.outputs import Outputs, named_arrays
from gpuprof.bench.models.data import Dataset, open_dataset
from gpuprof.bench.serialization import to_plain
from gpuprof.bench.workers.events import Event, Send, State
from gpuprof.bench.workers.measuring import load_system, prepare_system


def run_answers_job(job: AnswersJob, send: Send) -> None:
    """Run each sample of a data set once. Raises GpuprofError."""
    dataset = open_dataset(**job.dataset)
    system = make_system(job.spec)
    try:
        load_system(system, send)
        size = system.fixed_batch_size or min(job.batch_size, dataset.samples)
        with memory_failures(size):
            _Pass(system, dataset, size, send).run(Path(job.folder), job.spec)
    finally:
        system.close()


class _Pass:
    """One pass over a data set."""

    def __init__(self, system: FrameworkSystem, dataset: Dataset, size: int, send: Send) -> None:
        self._system, self._dataset, self._size, self._send = system, dataset, size, send
        # Of several inputs only the factory knows how to make them.
        self._draws = dataset.text == "synthetic" and system.makes_inputs
        self._dtypes: set[str] = set()

    def run(self, folder: Path, spec: SystemSpec) -> None:
        """Store all answers."""
        system, dataset, size = self._system, self._dataset, self._size
        with kept_random_states(system.spec.seed):
            prepare_system(system, size, self._send)
        writer = AnswerWriter(folder, dataset.labels)
        for number, first in enumerate(range(0, dataset.samples, size)):
            last = min(first + size, dataset.samples)
            writer.add(self._answered(number, first, last), size, last - first)
            self._send(Event(State.PREDICTING, batch_size=size, calls=last))
        writer.finish(self._said(spec))

    def _answered(self, number: int, first: int, last: int) -> Outputs:
        system = self._system
        with kept_random_states(system.spec.seed + number):
            self._feed(first, last)
            outputs = named_arrays(system.first_inference())
        self._dtypes |= {each.dtype for each in outputs.arrays.values()}
        return outputs

    def _feed(self, first: int, last: int) -> None:
        """Put the samples in; a last batch is filled up with its own samples, whose answers are dropped.

        Its own, since what quantizes looks at the largest number of a batch.
        """
        system = self._system
        if self._draws:
            system.feed(None)
            return
        system.check_one_input()
        rows = self._dataset.rows(first, last, system.input_spec())
        with system.explaining():
            system.feed(rows[np.arange(self._size) % len(rows)])

    def _said(self, spec: SystemSpec) -> dict[str, Any]:
        system, dataset = self._system, self._dataset
        made = f", made by the factory, {self._size} at once" if self._draws else ""
        described = dataclasses.asdict(system.describe())
        return {
            "spec": to_plain(spec),
            "description": described,
            "samples": dataset.samples,
            "batch_size": self._size,
            "data": f"{dataset.identity}{made}",
            "classes": dataset.classes,
            "computes_in": self._computes_in(described["dtype"]),
        }

    def _computes_in(self, dtype: str) -> str | None:
        named = self._system.computes_in()
        names = (name for name in (dtype, *sorted(self._dtypes)) if "float" in name)
        return named or coarsest([name for name in names if name in UNIT_ROUNDOFF])
