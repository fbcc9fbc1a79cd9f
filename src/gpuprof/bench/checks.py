# SPDX-License-Identifier: Apache-2.0
"""A model is measured only if it answers: numbers, and with its inputs left as they were."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from gpuprof.bench.systems.common import FrameworkSystem
from gpuprof.errors import BenchmarkError, GpuprofError

DEEPEST_NESTING = 8


class InputGuard:
    """Remembers the inputs of a system, to tell later whether a call has changed them."""

    def __init__(self, system: FrameworkSystem) -> None:
        self._system = system
        self._digests = _digests(system.arguments)

    def check(self) -> None:
        """Raise BenchmarkError where an input is not what it was."""
        now = _digests(self._system.arguments)
        changed = [number for number, pair in enumerate(zip(self._digests, now, strict=True)) if pair[0] != pair[1]]
        if changed:
            raise BenchmarkError(
                f"{self._system.source.text} changes its input {changed[0]}: later calls would measure other "
                "data; let the model work on a copy"
            )


def answer(system: FrameworkSystem) -> Any:
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
    """Raise BenchmarkError where an output holds a NaN."""
    for place, array in _arrays(outputs, "output"):
        count = _nans(array)
        if count:
            raise BenchmarkError(
                f"{system.source.text} returns {count:,} NaN in {place} (batch size {system.batch_size}, "
                f"{system.dtype}): its times would be those of a broken model; mend it or take another --dtype"
            )


def _arrays(value: Any, place: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > DEEPEST_NESTING or value is None or isinstance(value, (str, bytes)):
        return
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        yield place, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _arrays(each, f"{place}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _arrays(each, f"{place}[{number}]", depth + 1)
    elif isinstance(value, float):
        import numpy as np

        yield place, np.asarray(value)


def _nans(array: Any) -> int:
    if type(array).__module__.split(".")[0] == "torch":
        return int(array.isnan().sum()) if array.is_floating_point() else 0
    import numpy as np

    plain = np.asarray(array)
    # NumPy knows the short types of JAX only as numbers that differ from themselves.
    return int((plain != plain).sum()) if plain.dtype.kind in "fcV" else 0


def _digests(arguments: tuple[Any, ...]) -> list[str]:
    return [_digest(each) for each in arguments]


def _digest(value: Any) -> str:
    import numpy as np

    if type(value).__module__.split(".")[0] == "torch":
        value = value.detach().cpu()
        value = value.float().numpy() if value.is_floating_point() else value.numpy()
    if not hasattr(value, "dtype"):
        return ""
    return hashlib.blake2b(np.ascontiguousarray(np.asarray(value)).tobytes()).hexdigest()
