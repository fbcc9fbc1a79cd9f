# SPDX-License-Identifier: Apache-2.0
"""The program that `gpuprof run --model` records: it loads a model and calls it with batches.

`python -m gpuprof.bench.model_program REQUEST` with the request as JSON. It has the spans `load`, `prepare`,
`warm-up`, and for each call `data` (with a data set) and `call`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof import _native
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.measure.streaming import EndOfDataError
from gpuprof.bench.serialization import decode, encode
from gpuprof.bench.workers.job import CALL
from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    from gpuprof.bench.frameworks.base import FrameworkSystem

CALLS = 20
EXIT_FAILED = 2


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model, and how often it is called with batches of which size."""

    spec: SystemSpec
    batch_size: int = 1
    calls: int = CALLS

    def to_words(self) -> list[str]:
        """Return the arguments of the program."""
        return [encode(self).decode()]


def run_model(request: ModelRequest) -> None:
    """Load, prepare, warm up, call. Raises GpuprofError."""
    system = make_system(request.spec)
    try:
        with _native.span("load"):
            system.import_framework()
            system.load()
        with _native.span("prepare"):
            system.prepare(request.batch_size)
        with _native.span("warm-up"):
            system.first_inference()
        for _ in range(request.calls):
            if request.spec.data != "synthetic" and not _load_next(system):
                break
            with _native.span(CALL):
                system.first_inference()
    finally:
        system.close()


def _load_next(system: FrameworkSystem) -> bool:
    """Load the next batch; returns whether there is one."""
    with _native.span("data"):
        try:
            system.next_inputs()
        except EndOfDataError:
            return False
    return True


if __name__ == "__main__":
    try:
        run_model(decode(sys.argv[1], ModelRequest))
    except GpuprofError as error:
        print(f"gpuprof: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
