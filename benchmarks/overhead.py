# SPDX-License-Identifier: Apache-2.0
"""Compare the overhead of gpuprof with that of its peers, on this machine in one run.

    python benchmarks/overhead.py [--quick] [--row NAME]... [--json FILE|-] [--check]

The budgets are the design's. Run it on an idle machine; the table shows the interquartile range.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

with contextlib.suppress(ImportError):
    # NVTX looks for a tool at its first call: before gpuprof could offer itself as one, since the peer
    # that is wanted here is NVTX without a tool.
    import nvtx

    nvtx.push_range("first call")
    nvtx.pop_range()

import gpuprof  # noqa: F401, I001 - before torch, so that PyTorch finds its operator collector

from benchmarks._machine import describe_code, describe_machine, load_average
from benchmarks._measure import Row, Settings
from benchmarks._output import show
from benchmarks._report import as_json, table


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked for, print it, and return the exit code."""
    options = _parse(arguments)
    machine, code = describe_machine(), describe_code()
    started = datetime.datetime.now(datetime.timezone.utc)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="gpuprof-overhead-") as folder:
        settings = Settings(
            quick=options.quick,
            slow=options.slow,
            rounds=options.rounds or (3 if options.quick else 25),
            launches=options.launches or (1 if options.quick else 5),
            seed=options.seed,
            folder=folder,
            operators=options.operators,
        )
        rows = [row for name in options.row or list(GROUPS) for row in _measure(name, settings)]
    machine["load_average_at_end"] = load_average()
    result = {
        "benchmark": "overhead",
        "started": started.isoformat(timespec="seconds"),
        "quick": options.quick,
        "rounds": settings.rounds,
        "launches": settings.launches,
        "seed": options.seed,
        "machine": machine,
        "gpuprof": code,
        "rows": as_json(rows),
    }
    show(result, table(rows, machine, code), options.json, indent=1)
    missed = [row.name for row in rows if row.within is False]
    if missed:
        print(f"over budget: {', '.join(missed)}", file=sys.stderr)
    return 1 if options.check and missed else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the overhead of gpuprof with that of its peers.")
    parser.add_argument(
        "--row", action="append", choices=list(GROUPS), help="measure this only; may be repeated"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write the results as JSON; - is standard output, no table"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run of a few seconds; its figures mean little"
    )
    parser.add_argument(
        "--slow", action="store_true", help="also what takes minutes: key_averages of a million"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when a budget is missed")
    parser.add_argument("--rounds", type=int, help="repeats of the rows in this process (25, quick 3)")
    parser.add_argument(
        "--launches", type=int, help="processes for each contestant of row million (5, quick 1)"
    )
    parser.add_argument(
        "--operators", type=int, metavar="N", help="operators of row million (1000000, quick 50000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the order in which contestants run")
    parser.add_argument("--folder", help="where runs are written meanwhile (the temporary folder)")
    return parser.parse_args(arguments)


def _measure(name: str, settings: Settings) -> list[Row]:
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    return GROUPS[name](settings)


def _idle(settings: Settings) -> list[Row]:
    from benchmarks._span_rows import idle_rows

    return idle_rows(settings)


def _span(settings: Settings) -> list[Row]:
    from benchmarks._span_rows import span_rows

    return span_rows(settings)


def _layer(settings: Settings) -> list[Row]:
    from benchmarks._torch_rows import layer_rows

    return layer_rows(settings)


def _operator(settings: Settings) -> list[Row]:
    from benchmarks._torch_rows import operator_rows

    return operator_rows(settings)


def _python(settings: Settings) -> list[Row]:
    from benchmarks._python_rows import python_rows

    return python_rows(settings)


def _million(settings: Settings) -> list[Row]:
    from benchmarks._million import million_rows

    return million_rows(settings)


def _model(settings: Settings) -> list[Row]:
    from benchmarks._torch_rows import model_rows

    return model_rows(settings)


def _work(settings: Settings) -> list[Row]:
    from benchmarks._torch_rows import work_rows

    return work_rows(settings)


# Idle first: nothing was recorded in this process yet.
GROUPS: dict[str, Callable[[Settings], list[Row]]] = {
    "idle": _idle,
    "span": _span,
    "layer": _layer,
    "operator": _operator,
    "python": _python,
    "million": _million,
    "model": _model,
    "work": _work,
}

if __name__ == "__main__":
    sys.exit(main())
