# SPDX-License-Identifier: Apache-2.0
"""The stages around an inference, each timed on its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpuprof.errors import BenchmarkError


def _same(value: Any) -> Any:
    return value


def _nothing() -> None:
    return None


@dataclass(slots=True)
class StageTimes:
    """Seconds of each stage of each item, in order; `total_s` holds what passed between the stages too."""

    preprocess_s: list[float] = field(default_factory=list)
    inference_s: list[float] = field(default_factory=list)
    postprocess_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Preprocess, inference and postprocess of one item, each timed on its own.

    `synchronize` waits for the device after the preprocess stage and after the inference, so that what one
    stage enqueued is not paid for by the next.
    """

    inference: Callable[[Any], Any]
    preprocess: Callable[[Any], Any] = _same
    postprocess: Callable[[Any], Any] = _same
    synchronize: Callable[[], object] = _nothing

    def __call__(self, item: Any) -> Any:
        """Run all stages."""
        return self.postprocess(self.inference(self.preprocess(item)))

    def measure(
        self, items: Iterable[Any], *, warmup: int = 0, clock: Callable[[], float] = time.perf_counter
    ) -> StageTimes:
        """Time the stages of each item; the first `warmup` ones are run and not kept.

        Raises BenchmarkError where no item is left to be measured.
        """
        times = StageTimes()
        for number, marks in enumerate(self._marks(items, clock)):
            if number < warmup:
                continue
            begin, prepared, inferred, end = marks
            times.preprocess_s.append(prepared - begin)
            times.inference_s.append(inferred - prepared)
            times.postprocess_s.append(end - inferred)
            times.total_s.append(end - begin)
        if not times.total_s:
            raise BenchmarkError(
                "no_samples", "the pipeline got no samples after the warm-up", hint="give more items"
            )
        return times

    def _marks(
        self, items: Iterable[Any], clock: Callable[[], float]
    ) -> Iterator[tuple[float, float, float, float]]:
        for item in items:
            begin = clock()
            prepared = self.preprocess(item)
            self.synchronize()
            middle = clock()
            inferred = self.inference(prepared)
            self.synchronize()
            inferred = clock()
            self.postprocess(inferred)
            yield begin, middle, inferred, clock()
