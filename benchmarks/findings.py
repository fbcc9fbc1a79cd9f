# SPDX-License-Identifier: Apache-2.0
"""The time that all rules of `gpuprof explain` take on a training with a million operators.

    python benchmarks/findings.py [--operators 1000000] [--tries 5] [--json FILE|-]

The steps of a small transformer are recorded with stacks. Each try opens the run again and asks all rules;
`all rules` is the least of the tries, and the goal is 1 s on an idle core. The other rows are the rules one
by one: what several of them read counts for the first one. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import gpuprof
from benchmarks._machine import describe_code, describe_machine
from benchmarks._output import Column, plain_table, show
from benchmarks.planted_programs import Training
from gpuprof.analyze.findings.engine import RULES
from gpuprof.analyze.findings.record import ProgramRecord
from gpuprof.run.folder import RunFolder


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", type=int, default=1_000_000)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run = _record(Path(folder) / "r.gpuprof", options.operators)
        rows = [_all_rules(run.path, options.tries), *_each_rule(run.path)]
        operators = run.sql("SELECT count(*) FROM spans WHERE kind = 'operator'").fetchall()[0][0]
    columns = [
        Column("rule", 24, lambda row: row["rule"]),
        Column("time", 10, lambda row: f"{row['time_s'] * 1e3:.0f} ms"),
    ]
    table = f"{operators:,} operators\n" + plain_table(columns, rows)
    result = {"machine": describe_machine(), "code": describe_code(), "operators": operators, "rows": rows}
    show(result, table, options.json, indent=2)
    return 0


def _record(path: Path, operators: int) -> gpuprof.Run:
    training = Training(layers=2)
    training.step()
    with gpuprof.profile(training.model, python=True, out=path.with_name("probe.gpuprof")) as probe:
        training.step()
    of_step = probe.run.sql("SELECT count(*) FROM spans WHERE kind = 'operator'").fetchall()[0][0]
    with gpuprof.profile(training.model, python=True, out=path) as recording:
        training.steps(-(-operators // of_step))
    return recording.run


def _all_rules(path: Path, tries: int) -> dict[str, Any]:
    times = []
    for _ in range(tries):
        begin = time.perf_counter()
        gpuprof.open(path).findings()
        times.append(time.perf_counter() - begin)
    return {"rule": "all rules", "time_s": min(times)}


def _each_rule(path: Path) -> list[dict[str, Any]]:
    rows = []
    begin = time.perf_counter()
    record = ProgramRecord(RunFolder(path))
    rows.append({"rule": "phases", "time_s": time.perf_counter() - begin})
    for rule, look in RULES.items():
        begin = time.perf_counter()
        look(record)
        rows.append({"rule": rule.value, "time_s": time.perf_counter() - begin})
    return rows


if __name__ == "__main__":
    sys.exit(main())
