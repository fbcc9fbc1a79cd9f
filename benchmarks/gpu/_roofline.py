# SPDX-License-Identifier: Apache-2.0
"""The roofline's cases on a GPU, one after the other: `python -m benchmarks.gpu._roofline CASE...`.

Each is an item of the call's journal when it has ended. A case that takes too long ends the process: the step
continues with the next one in a new process.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from dataclasses import asdict

from benchmarks.gpu._journal import Entry, Journal, State
from benchmarks.roofline_cases import Result, run_case

# isort: split
import torch

LIMIT_S = 35
_STATES: dict[bool | None, State] = {True: "ok", False: "failed", None: "failed"}


def main(names: list[str]) -> None:
    """Run the cases whose names contain these texts."""
    from benchmarks._roofline_gpu_cases import gpu_cases

    journal = Journal.of_environment()
    cases = gpu_cases()
    for name in names:
        begin = time.monotonic()
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        result = run_case(next(case for case in cases if name in case.name), "cuda")
        faulthandler.cancel_dump_traceback_later()
        torch.cuda.empty_cache()
        if journal is not None:
            journal.add(_entry(name, result, time.monotonic() - begin))


def _entry(name: str, result: Result, seconds: float) -> Entry:
    problem = None
    if result.passed is False:
        problem = f"{result.bound}, and must be {result.must}: {result.evidence}"
    elif result.passed is None:
        problem = f"no verdict: {'; '.join(result.disturbed)}"
    return Entry("roofline", name, _STATES[result.passed], round(seconds, 2), problem, asdict(result))


if __name__ == "__main__":
    main(sys.argv[1:])
