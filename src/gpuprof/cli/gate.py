# SPDX-License-Identifier: Apache-2.0
"""`gpuprof gate`: let a change through, stop it, or say that nobody knows yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gpuprof.analyze.difference_summary import DifferenceSummary
    from gpuprof.api import Run, SummaryKind
    from gpuprof.bench.gate import Gate
    from gpuprof.bench.stored import StoredResults

EXITS = {"passed": 0, "failed": 1, "open": 3}
_SHOWN = 5
SUMMARY_ORDER = ("layer", "operator", "kernel", "span")


def share(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    """Read 2% or 0.02 as a share."""
    text = value.strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no share: write 2% or 0.02.") from None
    if not 0 <= share < 1:
        raise click.BadParameter(f"{value!r} is not between 0% and 100%.")
    return share


@click.command("gate", short_help="Fail where new results are slower than a baseline's.")
@click.option("--baseline", metavar="BASE.json", required=True, help="What gpuprof bench wrote before.")
@click.option("--candidate", metavar="NEW.json", required=True, help="What it wrote of the change.")
@click.option(
    "--margin",
    metavar="SHARE",
    default="1%",
    show_default=True,
    callback=share,
    help="The slow-down that matters.",
)
@click.option("--any-machine", is_flag=True, help="Compare results of different machines all the same.")
@click.option(
    "--flamegraph",
    metavar="F.html",
    help="Write the difference of the runs beside both results (gpuprof bench --profile).",
)
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
def gate(
    baseline: str, candidate: str, margin: float, any_machine: bool, flamegraph: str | None, as_json: bool
) -> None:
    """Compare the results NEW.json with BASE.json, launch by launch, and exit with 0, 1 or 3.

    0: nothing is slower by more than the margin. 1: something is. 3: too few launches, or too much noise,
    to say so. 2: the files cannot be compared.
    """
    from gpuprof.bench.gate import judge
    from gpuprof.bench.stored import read_stored

    old, new = read_stored(Path(baseline)), read_stored(Path(candidate))
    found = judge(old, new, margin=margin, any_machine=any_machine)
    cause = _cause(old, new, flamegraph) if found.slower or flamegraph else None
    if as_json:
        click.echo(json.dumps({**found.to_dict(), "cause": cause}, indent=1, allow_nan=False))
    else:
        click.echo(found)
        click.echo(_cause_text(found, cause), nl=False)
    click.get_current_context().exit(EXITS[found.outcome])


def _cause(old: StoredResults, new: StoredResults, flamegraph: str | None) -> dict[str, Any] | None:
    """Compare the runs beside the results; None where not both have one."""
    from gpuprof import api
    from gpuprof.cli.flamegraph import check_output
    from gpuprof.errors import BenchmarkError

    if old.profile is None or new.profile is None:
        if flamegraph is None:
            return None
        lacking = old.path if old.profile is None else new.path
        raise BenchmarkError(
            f"--flamegraph: no run beside {lacking}: measure it with gpuprof bench --profile"
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
    """Compare for the same number of calls, where it can be told how many the runs made."""
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
    from gpuprof.analyze.text_table import escape_text, format_duration, wrapped

    if cause is None:
        hint = "measure both with gpuprof bench --profile to see which layer it is"
        return f"\n{hint}\n" if found.slower else ""
    lines = []
    for by in SUMMARY_ORDER:
        rows = [row for row in cause.get(by, {}).get("rows", ()) if row["state"] in ("slower", "new")]
        for row in rows[:_SHOWN]:
            before, now = format_duration(row["old_ns"]), format_duration(row["new_ns"])
            more = format_duration(row["new_ns"] - row["old_ns"])
            lines.append(f"  {by} {escape_text(row['name'])}: +{more} ({before} before, {now} now)")
    head = "slower in the runs beside the results:" if lines else "no layer is slower in the runs beside them"
    lines += [wrapped(f"note: {note}") for note in cause["notes"]]
    if "flamegraph" in cause:
        lines.append(f"wrote {cause['flamegraph']}")
    return "\n" + "\n".join([head, *lines]) + "\n"
