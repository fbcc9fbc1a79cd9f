# SPDX-License-Identifier: Apache-2.0
"""How large and how quick the page of a large run is, in a headless Chromium on this machine.

    python benchmarks/page.py [--slices N] [--shapes N] [--repeats N] [--json FILE|-] [--check]

The budgets apply to a million slices or more. With several shapes of a step, the run has about a thousand
different paths for each. Run it on an idle machine; the table shows the interquartile range.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import gpuprof
from benchmarks._machine import describe_code, describe_machine, load_average
from benchmarks._measure import Figure
from benchmarks._output import show
from benchmarks._page_browser import measure_page
from benchmarks._page_run import write_run

FULL = 1_000_000
BUDGETS = {"size_mb": 15.0, "ready_ms": 1000.0, "redraw_ms": 35.0}
WHAT = {
    "write_s": "making the page",
    "size_mb": "size of the page",
    "ready_ms": "opened until both pictures can be used",
    "redraw_ms": "full redraw of the timeline, whole run",
    "zoomed_redraw_ms": "full redraw of the timeline, a tenth of the run",
    "flame_redraw_ms": "full redraw of the flame graph",
    "search_ms": "search, with marks in both pictures",
    "range_ms": "totals by name of half the run",
    "heap_mb": "JavaScript heap and array buffers after a collection",
}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _parse(arguments)
    machine, code = describe_machine(), describe_code()
    started = datetime.datetime.now(datetime.timezone.utc)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="gpuprof-page-") as folder:
        page, written = _make_page(Path(folder), options.slices, options.shapes)
        values: dict[str, list[float]] = {
            "write_s": [written],
            "size_mb": [page.stat().st_size / 1e6],
            **measure_page(page, options.repeats),
        }
    machine["load_average_at_end"] = load_average()
    figures = {name: Figure.of(found) for name, found in values.items() if found}
    rows = [_row(name, figures.get(name), options.slices) for name in WHAT]
    result = {
        "benchmark": "page",
        "started": started.isoformat(timespec="seconds"),
        "slices": options.slices,
        "shapes": options.shapes,
        "machine": machine,
        "gpuprof": code,
        "rows": rows,
    }
    show(result, _table(result), options.json, indent=2)
    missed = [row["name"] for row in rows if row["within"] is False]
    if missed:
        print(f"over budget: {', '.join(missed)}", file=sys.stderr)
    return 1 if options.check and missed else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How large and how quick the page of a large run is.")
    parser.add_argument("--slices", type=int, default=FULL, help="slices of the run (default: %(default)s)")
    parser.add_argument("--shapes", type=int, default=1, help="different steps (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=7, help="how often each is measured")
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON; - is standard output")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a budget is not kept")
    parser.add_argument("--folder", help="where the run and the page are written; default: temporary")
    return parser.parse_args(arguments)


def _make_page(folder: Path, slices: int, shapes: int) -> tuple[Path, float]:
    """Return the page of a run, and the seconds that it took to make it of the run."""
    write_run(folder / "large.gpuprof", slices, shapes)
    run = gpuprof.open(folder / "large.gpuprof")
    begin = time.perf_counter()
    page = run.flamegraph(folder / "large.html")
    return page, time.perf_counter() - begin


def _row(name: str, figure: Figure | None, slices: int) -> dict[str, Any]:
    budget = BUDGETS.get(name) if slices >= FULL else None
    return {
        "name": name,
        "what": WHAT[name],
        "median": None if figure is None else figure.median,
        "iqr": None if figure is None else figure.iqr,
        "repeats": 0 if figure is None else figure.repeats,
        "budget": budget,
        "within": None if budget is None or figure is None else figure.median <= budget,
    }


def _table(result: dict[str, Any]) -> str:
    machine, code = result["machine"], result["gpuprof"]
    revision = (code["revision"] or "unknown revision")[:12] + (" with changes" if code["dirty"] else "")
    lines = [
        f"gpuprof {code['version']} at {revision}, {result['slices']:,} slices",
        f"{machine['cpu'] or machine['architecture']}, {machine['cores_usable']} cores, "
        f"load average {machine['load_average']} at the start, {machine['load_average_at_end']} at the end",
        "",
        f"{'':<54}{'median':>10}{'IQR':>10}{'n':>4}{'budget':>9}",
    ]
    for row in result["rows"]:
        unit = row["name"].rpartition("_")[2].replace("mb", "MB")
        label = f"{row['what']} [{unit}]"
        if row["median"] is None:
            lines.append(f"{label:<54}{'unavailable':>10}")
            continue
        budget = "-" if row["budget"] is None else f"{row['budget']:g}"
        lines.append(f"{label:<54}{row['median']:>10,.2f}{row['iqr']:>10,.2f}{row['repeats']:>4}{budget:>9}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
