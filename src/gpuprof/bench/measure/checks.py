# SPDX-License-Identifier: Apache-2.0
"""A model is measured only if it answers: numbers, and with its inputs left as they were."""

from __future__ import annotations

from typing import Any

from gpuprof.bench.frameworks.base import FrameworkSystem
from gpuprof.bench.measure.outputs import find_not_finite, fingerprint
from gpuprof.errors import BenchmarkError, GpuprofError


class InputGuard:
    """Remembers the inputs of a system, to tell later whether a call has changed them."""

    def __init__(self, system: FrameworkSystem) -> None:
        self._system = system
        self._fingerprint = fingerprint(system.arguments)

    def check(self) -> None:
        """Raise BenchmarkError where an input is not what it was."""
        if fingerprint(self._system.arguments) != self._fingerprint:
            raise BenchmarkError(
                f"{self._system.source.text} changes its input: later calls would measure other data; "
                "let the model work on a copy"
            )


def first_inference(system: FrameworkSystem) -> Any:
    """Make one call and wait for it; returns its outputs. Raises BenchmarkError in the model's words."""
    try:
        outputs = system.run()
        system.synchronize()
    except GpuprofError:
        raise
    except Exception as error:
        raise system.explained(error) from error
    return outputs


def check_outputs(system: FrameworkSystem, outputs: Any) -> None:
    """Raise BenchmarkError where an output holds a NaN or an infinity."""
    found = find_not_finite(system.readable(outputs))
    if found is not None:
        raise BenchmarkError(
            f"{system.source.text} returns {found} with batch size {system.batch_size} in {system.dtype}: "
            "its times would be those of a broken model; correct it, or take another --dtype"
        )
