# SPDX-License-Identifier: Apache-2.0
"""The process of a re-run: reads an experiment, executes both sides in turns, and writes a line a pair.

python -m gpuprof.analyze.rerun.worker < experiment.json
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Clock = Callable[[], int]  # nanoseconds
_LEAST_SAMPLE_NS = 2_000_000  # shorter calls are repeated within a sample
_MOST_REPEATS = 1_000
_LONGEST_ERROR = 300


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: `prepare` is executed before a sample, outside of the timed part."""

    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


def alternate(
    before: Side, after: Side, *, pairs: int, seconds: float, clock: Clock = time.perf_counter_ns
) -> Iterator[tuple[float, float]]:
    """Execute both sides in turns, in pairs of changing order; yield the times of a call in nanoseconds.

    It ends after `pairs`, or after the first pair that ends later than `seconds`. The first calls of each
    side are not measured.
    """
    end_ns = clock() + round(seconds * 1e9)
    repeats = [_repeats(side, clock) for side in (before, after)]
    for pair in range(pairs):
        order = (0, 1) if pair % 2 else (1, 0)
        found = {side: sample((before, after)[side], repeats[side], clock) for side in order}
        yield found[0], found[1]
        if clock() >= end_ns:
            return


def sample(side: Side, repeats: int, clock: Clock) -> float:
    """Return the time of a call in nanoseconds, of so many in a row."""
    side.prepare()
    begin_ns = clock()
    for _ in itertools.repeat(None, repeats):
        side.run()
    return (clock() - begin_ns) / repeats


def _repeats(side: Side, clock: Clock) -> int:
    sample(side, 1, clock)  # the first call makes what the later ones reuse
    duration_ns = max(sample(side, 1, clock), 1.0)
    return max(1, min(_MOST_REPEATS, round(_LEAST_SAMPLE_NS / duration_ns)))


def main() -> None:
    """Execute the experiment of standard input."""
    request = json.load(sys.stdin)
    from gpuprof.analyze.rerun import replicas

    try:
        replica = replicas.make(request["kind"], request["threads"], request["values"])
        _write(operators=replica.operators)
        if replica.ordinary is not None:
            repeats = _repeats(replica.ordinary, time.perf_counter_ns)
            times = sorted(sample(replica.ordinary, repeats, time.perf_counter_ns) for _ in range(5))
            _write(ordinary_ns=times[2])
        for pair in alternate(
            replica.before, replica.after, pairs=request["pairs"], seconds=request["seconds"]
        ):
            _write(pair=pair)
    except replicas.ReplicaError as error:
        _write(problem=error.problem.value)
    except Exception as error:  # whatever PyTorch refuses
        _write(problem="refused", error=str(error)[:_LONGEST_ERROR])


def _write(**values: Any) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
