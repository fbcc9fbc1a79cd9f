# SPDX-License-Identifier: Apache-2.0
"""`gpuprof gate`: report as an exit code whether a change is slower than a baseline."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gpuprof.cli.options import fraction, typed
from gpuprof.cli.usage import BadParameter, UsageError

if TYPE_CHECKING:
    from gpuprof.analyze.difference_summary import DifferenceSummary
    from gpuprof.api import Run, SummaryKind
    from gpuprof.bench.gate.result import Gate, Thresholds
    from gpuprof.bench.results.stored import ResultFile

EXITS = {"passed": 0, "failed": 1, "inconclusive": 3}
_SHOWN = 5
SUMMARY_ORDER = ("layer", "operator", "kernel", "span")


METRICS = (
    "p50", "p95", "p99", "mean", "throughput", "memory", "process-memory", "energy", "accuracy",
    "service-p50", "service-p99", "ttft-p99", "success", "goodput",
)  # fmt: skip


def _thresholds(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    """Parse p99=20% or p99=0.2, with one value for each metric."""
    found: dict[str, float] = {}
    for value in values:
        name, equals, percent = value.partition("=")
        if name not in METRICS or not equals:
            known = ", ".join(METRICS)
            raise BadParameter("no_threshold", f"{value!r}; hint: write METRIC=PERCENT, with one of {known}.")
        if name in found:
            raise BadParameter(
                "repeated_threshold", f"{name} has two thresholds; hint: name each metric once."
            )
        found[name] = fraction(context, parameter, percent)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """The options of `gpuprof gate`."""

    baseline: tuple[str, ...]
    history: tuple[str, ...]
    candidates: tuple[str, ...]
    margin: float
    thresholds: dict[str, float]
    metrics: tuple[str, ...]
    any_machine: bool
    any_load: bool
    flamegraph: str | None
    as_json: bool

    def limits(self) -> Thresholds:
        """Return the threshold of each metric."""
        from gpuprof.bench.gate.result import Thresholds
        from gpuprof.bench.results.run_figures import RunMetric

        own = {RunMetric(name): value for name, value in self.thresholds.items()}
        metrics = tuple(map(RunMetric, self.metrics)) or None
        source = click.get_current_context().get_parameter_source("margin")
        if source is ParameterSource.DEFAULT:
            return Thresholds(self.margin, own, metrics)
        return Thresholds(self.margin, own, metrics, load_margin=self.margin)


@click.command("gate")
@click.option(
    "--baseline",
    multiple=True,
    metavar="BASE.json|FOLDER",
    help="Compare with this result file of gpuprof bench, or folder of gpuprof load. Repeatable for folders: "
    "each is an independent run.",
)
@click.option(
    "--history",
    multiple=True,
    metavar="FOLDER|'*.json'",
    help="Compare with many earlier results, from their last change point on. Repeatable.",
)
@click.option(
    "--candidate",
    "candidates",
    multiple=True,
    required=True,
    metavar="NEW.json|FOLDER",
    help="Check this result file, or folder of gpuprof load. Repeatable for folders, and with --history: "
    "files of separate measurements.",
)
@click.option(
    "--margin",
    metavar="PERCENT",
    default="1%",
    show_default=True,
    callback=fraction,
    help="Set the equivalence margin of the median (p50): smaller slowdowns pass. Default of loads: 5%.",
)
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="METRIC=PERCENT",
    callback=_thresholds,
    help="Set the threshold of a metric, as in p99=20%. Repeatable. Defaults: p95 10%, p99 20%, accuracy and "
    "goodput 1%, success 0.5%, others 5%.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    type=click.Choice(METRICS),
    help="Judge only this metric. Repeatable. Default: all that the results have.",
)
@click.option("--any-machine", is_flag=True, help="Also compare results of different machines.")
@click.option("--any-load", is_flag=True, help="Also judge times of a machine with background load.")
@click.option(
    "--flamegraph",
    metavar="F.html",
    help="Write the flame graph of the difference between the recorded runs (gpuprof bench --profile).",
)
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
@typed(GateOptions)
def gate(options: GateOptions) -> None:
    """Compare the results NEW.json with BASE.json, or with a history.

    Compares the median, mean and tail of the times, memory, throughput and energy, the accuracies of
    two reports of gpuprof compare (.json), and of loads latency, service time, throughput, and the
    fractions of requests that succeeded and that met the target. Exit with 0 if nothing is
    worse by more than its threshold, with 1 if something is, with 3 if the result is inconclusive (too few
    process runs, too much noise, a busy machine), with 2 if the files cannot be compared.
    """
    if bool(options.baseline) == bool(options.history):
        raise UsageError(
            "no_baseline", "no baseline; hint: name either --baseline BASE.json or --history FOLDER."
        )
    found, old, new = _with_baseline(options) if options.baseline else _with_history(options)
    from gpuprof.bench.gate.text import gate_text

    cause = _cause(old, new, options.flamegraph) if found.worse or options.flamegraph else None
    if options.as_json:
        click.echo(json.dumps({**found.to_dict(), "cause": cause}, indent=1, allow_nan=False))
    else:
        click.echo(gate_text(found))
        click.echo(_cause_text(found, cause), nl=False)
    click.get_current_context().exit(EXITS[found.outcome])


def _with_baseline(options: GateOptions) -> tuple[Gate, ResultFile, ResultFile]:
    from gpuprof.bench.gate.comparison_file import read_gate_side
    from gpuprof.bench.gate.gate import judge
    from gpuprof.bench.results.readers import has_folder_reader

    places = [Path(each) for each in options.candidates]
    if len(places) > 1 and not has_folder_reader(places[0]):
        raise UsageError(
            "needs_history", "several --candidate need --history; hint: name one with --baseline."
        )
    old, new = read_gate_side([Path(each) for each in options.baseline]), read_gate_side(places)
    limits = options.limits()
    return judge(old, new, limits, any_machine=options.any_machine, any_load=options.any_load), old, new


def _with_history(options: GateOptions) -> tuple[Gate, ResultFile, ResultFile]:
    """Compare with a history; the newest recorded runs of both sides are compared."""
    from gpuprof.bench.gate.history import judge_history
    from gpuprof.bench.results.stored_history import read_history

    candidates = [Path(each) for each in options.candidates]
    read = read_history(options.history, candidates, any_machine=options.any_machine)
    found = judge_history(read, options.limits(), any_load=options.any_load)
    files = next((row.files for row in (*found.worse, *found.rows) if row.files), read.files)
    return found, _newest_with_run(files), _newest_with_run(read.candidates)


def _newest_with_run(files: tuple[ResultFile, ...]) -> ResultFile:
    return next((each for each in reversed(files) if each.profile is not None), files[-1])


def _cause(old: ResultFile, new: ResultFile, flamegraph: str | None) -> dict[str, Any] | None:
    """Compare the runs next to the results; None if a result has none."""
    from gpuprof import api
    from gpuprof.cli.pages import check_output
    from gpuprof.errors import BenchmarkError

    if old.profile is None or new.profile is None:
        if flamegraph is None:
            return None
        lacking = old.path if old.profile is None else new.path
        raise BenchmarkError(
            "no_run",
            f"--flamegraph: no run next to {lacking}",
            hint="measure it with gpuprof bench --profile",
        )
    runs = [api.open(new.profile)], [api.open(old.profile)]
    tables = {by: _compared(*runs, by) for by in _kinds(*runs)}
    cause: dict[str, Any] = {by: table.to_dict(_SHOWN) for by, table in tables.items()}
    cause["notes"] = list(dict.fromkeys(note for table in tables.values() for note in table.notes))
    if flamegraph is not None:
        check_output(Path(flamegraph))
        cause["flamegraph"] = str(api.flamegraph_difference(Path(flamegraph), *runs))
    return cause


def _compared(new: list[Run], old: list[Run], by: SummaryKind) -> DifferenceSummary:
    """Compare for the same number of calls if the runs contain it."""
    from gpuprof import api
    from gpuprof.errors import RunError

    try:
        return api.summary_difference(new, old, by, scaling="calls")
    except RunError:
        return api.summary_difference(new, old, by)


def _kinds(new: list[Run], old: list[Run]) -> tuple[SummaryKind, ...]:
    has_kernels = all("kernels" in run.tables for run in (*new, *old))
    return ("layer", "operator", "kernel") if has_kernels else ("layer", "operator")


def _cause_text(found: Gate, cause: dict[str, Any] | None) -> str:
    from gpuprof.text.sanitize import escape_text
    from gpuprof.text.table import wrapped
    from gpuprof.text.units import format_duration

    if cause is None:
        hint = "hint: measure both with gpuprof bench --profile to find the slower layer"
        of_calls = any(row.configuration.load is None for row in found.worse)
        return f"\n{hint}\n" if of_calls else ""
    lines = []
    for by in SUMMARY_ORDER:
        rows = [row for row in cause.get(by, {}).get("rows", ()) if row["state"] in ("slower", "new")]
        for row in rows[:_SHOWN]:
            before, now = format_duration(row["old_ns"]), format_duration(row["new_ns"])
            more = format_duration(row["new_ns"] - row["old_ns"])
            lines.append(f"  {by} {escape_text(row['name'])}: +{more} ({before} before, {now} now)")
    head = (
        "slower in the runs next to the results:" if lines else "no layer is slower in the runs next to them"
    )
    lines += [wrapped(f"note: {note}") for note in cause["notes"]]
    if "flamegraph" in cause:
        lines.append(f"wrote {cause['flamegraph']}")
    return "\n" + "\n".join([head, *lines]) + "\n"
