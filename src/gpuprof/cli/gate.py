# SPDX-License-Identifier: Apache-2.0
"""`gpuprof gate`: report as an exit code whether a change is slower than a baseline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.cli.options import fraction
from gpuprof.cli.usage import UsageError

if TYPE_CHECKING:
    from gpuprof.analyze.difference_summary import DifferenceSummary
    from gpuprof.api import Run, SummaryKind
    from gpuprof.bench.gate.gate import Gate
    from gpuprof.bench.results.stored import ResultFile

EXITS = {"passed": 0, "failed": 1, "inconclusive": 3}
_SHOWN = 5
SUMMARY_ORDER = ("layer", "operator", "kernel", "span")


@click.command("gate", short_help="Fail if new results are slower than a baseline.")
@click.option("--baseline", metavar="BASE.json", help="Compare with this result file of gpuprof bench.")
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
    metavar="NEW.json",
    help="Check this result file. With --history, repeatable: files of separate measurements.",
)
@click.option(
    "--margin",
    metavar="PERCENT",
    default="1%",
    show_default=True,
    callback=fraction,
    help="Set the equivalence margin: smaller slowdowns pass.",
)
@click.option("--any-machine", is_flag=True, help="Also compare results of different machines.")
@click.option(
    "--flamegraph",
    metavar="F.html",
    help="Write the flame graph of the difference between the recorded runs (gpuprof bench --profile).",
)
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
def gate(
    baseline: str | None,
    history: tuple[str, ...],
    candidates: tuple[str, ...],
    margin: float,
    any_machine: bool,
    flamegraph: str | None,
    as_json: bool,
) -> None:
    """Compare the results NEW.json with BASE.json, or with a history.

    Exit with 0 if nothing is slower by more than the margin, with 1 if something is slower, with 3 if the
    result is inconclusive (too few process runs, too much noise), with 2 if the files cannot be compared.
    """
    if (baseline is None) == (not history):
        raise UsageError(
            "no_baseline", "no baseline; hint: name either --baseline BASE.json or --history FOLDER."
        )
    if baseline is not None and len(candidates) > 1:
        raise UsageError(
            "needs_history", "several --candidate need --history; hint: name one with --baseline."
        )
    found, old, new = (
        _with_history(history, candidates, margin, any_machine)
        if baseline is None
        else _with_baseline(baseline, candidates[0], margin, any_machine)
    )
    from gpuprof.bench.gate.text import gate_text

    cause = _cause(old, new, flamegraph) if found.slower or flamegraph else None
    if as_json:
        click.echo(json.dumps({**found.to_dict(), "cause": cause}, indent=1, allow_nan=False))
    else:
        click.echo(gate_text(found))
        click.echo(_cause_text(found, cause), nl=False)
    click.get_current_context().exit(EXITS[found.outcome])


def _with_baseline(
    baseline: str, candidate: str, margin: float, any_machine: bool
) -> tuple[Gate, ResultFile, ResultFile]:
    from gpuprof.bench.gate.gate import judge
    from gpuprof.bench.results.stored import read_result_file

    old, new = read_result_file(Path(baseline)), read_result_file(Path(candidate))
    return judge(old, new, margin=margin, any_machine=any_machine), old, new


def _with_history(
    history: tuple[str, ...], candidates: tuple[str, ...], margin: float, any_machine: bool
) -> tuple[Gate, ResultFile, ResultFile]:
    """Compare with a history; the newest recorded runs of both sides are compared."""
    from gpuprof.bench.gate.gate import judge_history
    from gpuprof.bench.results.stored import read_history

    read = read_history(history, [Path(each) for each in candidates], any_machine=any_machine)
    found = judge_history(read, margin=margin)
    row = (found.slower or found.rows)[0]
    return found, _newest_with_run(row.files), _newest_with_run(read.candidates)


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
            "no_run", f"--flamegraph: no run next to {lacking}; hint: measure it with gpuprof bench --profile"
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
        return f"\n{hint}\n" if found.slower else ""
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
