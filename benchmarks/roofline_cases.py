# SPDX-License-Identifier: Apache-2.0
"""Cases whose label is known beforehand, and whether two runs agree. Wants an otherwise idle machine.

python benchmarks/roofline_cases.py [--device cuda] [--json] [--only NAME] [--no-agreement]

Each case is a model of one operator, recorded with work=True and the ceilings of right before and after; PASS
where the bottleneck is the expected one. A case that fails while the machine is disturbed (other programs,
ceilings that change) is repeated, and has no verdict where that never ends. The exit code is 1 where a case
fails, 3 where one has no verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof  # noqa: F401

# isort: split
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._roofline_agreement import Agreement, agree, residual, transformer
from benchmarks._roofline_case import Case
from benchmarks._roofline_cpu_cases import cpu_cases
from benchmarks._roofline_tries import TRIES, record, until_undisturbed
from gpuprof.analyze.roofline.build import Roofline
from gpuprof.analyze.roofline.rows import RooflineRow
from gpuprof.record.processor import usable_processors


@dataclass(slots=True)
class Result:
    """`passed` is None where the machine was disturbed each time; `disturbed` lists the causes."""

    name: str
    must: str
    passed: bool | None
    bound: str = "-"
    roof_share: float | None = None
    confidence: float | None = None
    evidence: str = ""
    tries: int = 0
    disturbed: list[str] = field(default_factory=list)


def run_case(case: Case, device: str = "cpu") -> Result:
    """Run one case, again while the machine is disturbed."""
    torch.manual_seed(0)
    model, inputs = case.make()
    result = Result(case.name, case.must, None)

    def attempt() -> tuple[bool, list[str]]:
        roofline, disturbed = record(model, inputs, case.calls, backward=case.backward, device=device)
        result.tries += 1
        return _judge(case, roofline, result), disturbed

    result.passed, result.disturbed = until_undisturbed(attempt)
    return result


def _judge(case: Case, roofline: Roofline, result: Result) -> bool:
    row = find(roofline, case.operator, case.phase)
    if row is None:
        seen = ", ".join(sorted({str(each.operator) for each in roofline.operators}))
        result.evidence = f"no {case.operator} among {seen}"
        return False
    result.bound, result.roof_share = row.bound_text, row.roof_share
    result.confidence, result.evidence = row.confidence, row.evidence_text
    return case.holds(row)


def find(roofline: Roofline, operator: str, phase: str) -> RooflineRow | None:
    """Return the row of an operator, or of a layer where the name is no operator's."""
    if "::" not in operator:
        return next((row for row in roofline.layers if row.layer == operator), None)
    return next((row for row in roofline.operators if (row.operator, row.phase) == (operator, phase)), None)


_VERDICTS = {True: "PASS", False: "FAIL", None: "----"}


def main() -> int:
    """Run what is asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", help="run the cases whose name holds this")
    parser.add_argument("--no-agreement", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("roofline_cases.py: torch finds no CUDA device: leave out --device", file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    if not options.json:
        print(f"load average {load:.2f} on {len(usable_processors())} processors, torch {torch.__version__}")
    results = []
    for case in _cases(options.device):
        if options.only is None or options.only in case.name:
            results.append(run_case(case, options.device))
            if not options.json:
                print(line(results[-1]), flush=True)
    agreements = []
    if not options.no_agreement and options.only is None:
        for name, make in (("transformer", transformer), ("residual network", residual)):
            agreements.append(agree(name, make, options.device))
            if not options.json:
                print(agreement_line(agreements[-1]), flush=True)
    if options.json:
        values = {
            "load": load,
            "cases": list(map(asdict, results)),
            "agreement": list(map(asdict, agreements)),
        }
        print(json.dumps(values, indent=2))
    return exit_code([*(each.passed for each in results), *(each.passed for each in agreements)])


def exit_code(verdicts: list[bool | None]) -> int:
    """Return 1 where one failed, else 3 where one is open, else 0."""
    return 1 if False in verdicts else 3 if None in verdicts else 0


def _cases(device: str) -> list[Case]:
    if device == "cpu":
        return cpu_cases()
    from benchmarks._roofline_gpu_cases import gpu_cases

    return gpu_cases()


def line(result: Result) -> str:
    """Return a case in two lines."""
    share = "-" if result.roof_share is None else f"{result.roof_share:.0%}"
    confidence = "-" if result.confidence is None else f"{result.confidence:.2f}"
    lines = [
        f"{_VERDICTS[result.passed]}  {result.name}: must be {result.must}",
        f"      {result.bound}, {share} of the ceiling, confidence {confidence}: {result.evidence}",
    ]
    if result.disturbed:
        lines.append(f"      disturbed in each of {TRIES} tries, at last: {'; '.join(result.disturbed)}")
    return "\n".join(lines)


def agreement_line(result: Agreement) -> str:
    """Return the agreement of two runs, with what differs."""
    lines = [
        f"{_VERDICTS[result.passed]}  two runs, {result.model}: agree for {result.share:.1%} of the time"
    ]
    return "\n".join([*lines, *(f"      {each}" for each in result.differing)])


if __name__ == "__main__":
    sys.exit(main())
