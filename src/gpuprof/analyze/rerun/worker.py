# SPDX-License-Identifier: Apache-2.0
"""The process of a re-run: reads an experiment, executes both sides in turns, and writes a line a pair.

python -m gpuprof.analyze.rerun.worker < experiment.json
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from gpuprof.analyze.rerun.turns import alternate, repeats_of, sample

_LONGEST_ERROR = 300


def main() -> None:
    """Execute the experiment of standard input."""
    request = json.load(sys.stdin)
    from gpuprof.analyze.rerun import replicas

    try:
        replica = replicas.make(request["kind"], request["threads"], request["values"])
        _write(operators=replica.operators)
        if replica.ordinary is not None:
            repeats = repeats_of(replica.ordinary, time.perf_counter_ns)
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
