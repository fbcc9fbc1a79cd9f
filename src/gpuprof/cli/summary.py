# SPDX-License-Identifier: Apache-2.0
"""`gpuprof summary`: facts about a run, and a table of its time."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from gpuprof.cli.options import SidesCommand, WholeNumber, check_sides
from gpuprof.cli.usage import BadParameter, UsageError
from gpuprof.cli.windows import print_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuprof.analyze.call_tree import ProcessShare
    from gpuprof.analyze.devices import DeviceUse
    from gpuprof.analyze.difference import Scaling
    from gpuprof.analyze.lines import LineSummary
    from gpuprof.analyze.phases import Phases
    from gpuprof.analyze.summary import Summary
    from gpuprof.api import Run, SummaryKind


def _parse_process(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> int | Literal["all"] | None:
    """Return a process id as a number, and "all" as it is."""
    if value is None:
        return None
    if value == "all":
        return "all"
    if not (value.isascii() and value.isdigit()):
        raise BadParameter("invalid_process", f"{value!r} is not a process id; hint: write a number, or all.")
    return int(value)


@click.command(
    "summary",
    cls=SidesCommand,
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--by",
    type=click.Choice(["layer", "operator", "kernel", "span", "python", "line"]),
    help="List these rows. Default: layer, or what the run has.",
)
@click.option("--top", type=WholeNumber(min=1), metavar="N", help="Print the N largest rows. Default: 30.")
@click.option(
    "--process",
    metavar="PID|all",
    callback=_parse_process,
    help="Summarize this process. Default: the first one; all ranks of a launcher; all of an imported run.",
)
@click.option(
    "--against",
    metavar="OLD",
    multiple=True,
    help="Compare with this older run, and with those after it.",
)
@click.option(
    "--scale",
    type=click.Choice(["none", "calls", "total"]),
    default="none",
    help="With --against: compare times as measured, for the same number of calls, or for the same total. "
    "Default: none.",
)
@click.option("--full-names", is_flag=True, help="Print the full names of kernels, not their labels.")
@click.option("--flat", is_flag=True, help="Print repeated layers one by one, not as one row.")
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
def summary(
    runs: tuple[str, ...],
    by: SummaryKind | Literal["line"] | None,
    top: int | None,
    process: int | Literal["all"] | None,
    against: tuple[str, ...],
    scale: Scaling,
    full_names: bool,
    flat: bool,
    as_json: bool,
) -> None:
    """Print where the time of RUN went.

    With --against, RUN is one new run or several, and the table shows which changes are significant.
    """
    from gpuprof import api

    check_sides(runs, against)
    if against:
        if by == "line":
            raise UsageError("line_conflict", "--by line compares no runs; hint: leave --against out.")
        if process is not None:
            raise UsageError("all_processes", "--against compares all processes; hint: leave --process out.")
        _print_difference(runs, against, by or "layer", top, scale, as_json)
        return
    if scale != "none":
        raise UsageError(
            "needs_against", "--scale needs --against; hint: add --against OLD, or leave it out."
        )
    from gpuprof.run.windows import is_windows_folder

    if is_windows_folder(Path(runs[0])):
        print_windows(Path(runs[0]), as_json=as_json)
        return
    recorded = api.open(runs[0])
    from gpuprof.analyze.call_tree import processes_of

    table = _table(recorded, by, process)
    devices = _devices(recorded)
    phases = recorded.phases()
    processes = processes_of(recorded.call_tree) if recorded.meta.get("imported") else []
    if as_json:
        _print_json(recorded, phases, devices, processes, table.to_dict(top))
        return
    from gpuprof.analyze.lines import LineSummary
    from gpuprof.analyze.summary import DEFAULT_TOP
    from gpuprof.cli.header import first_findings, header

    findings = first_findings(recorded, phases)
    click.echo(header(recorded.path, recorded.meta, devices, processes, phases, findings))
    click.echo()
    if isinstance(table, LineSummary):
        click.echo(table.to_text(top or DEFAULT_TOP))
    else:
        click.echo(table.to_text(top or DEFAULT_TOP, full_names=full_names, flat=flat))


def _print_json(
    recorded: Run,
    phases: Phases | None,
    devices: Sequence[DeviceUse],
    processes: Sequence[ProcessShare],
    table: dict[str, Any],
) -> None:
    values = {
        "run": str(recorded.path),
        "meta": recorded.meta,
        "phases": None if phases is None else phases.to_dict(),
        "devices": [dataclasses.asdict(use) for use in devices],
        "processes": [dataclasses.asdict(each) for each in processes],
        "summary": table,
    }
    click.echo(json.dumps(values, indent=2))


def _table(
    recorded: Run, by: SummaryKind | Literal["line"] | None, process: int | Literal["all"] | None
) -> Summary | LineSummary:
    """Return the table that was asked for; times of lines are all that a run of line_profiler has."""
    if by == "line" or (by is None and "line" in recorded.meta.get("sources", {})):
        return recorded.lines()
    return recorded.summary(by, process=process)


def _print_difference(
    runs: tuple[str, ...],
    against: tuple[str, ...],
    by: SummaryKind,
    top: int | None,
    scale: Scaling,
    as_json: bool,
) -> None:
    from gpuprof import api
    from gpuprof.analyze.summary import DEFAULT_TOP
    from gpuprof.text.sanitize import escape_text

    new, old = ([api.open(run) for run in side] for side in (runs, against))
    found = api.summary_difference(new, old, by, scaling=scale)
    paths = {"new": [str(run.path) for run in new], "old": [str(run.path) for run in old]}
    if as_json:
        click.echo(json.dumps({**paths, "difference": found.to_dict(top)}, indent=2))
        return
    for side, names in paths.items():
        click.echo(f"{side:<9} {escape_text(', '.join(names))}")
    click.echo()
    click.echo(found.to_text(top or DEFAULT_TOP))


def _devices(recorded: Run) -> list[DeviceUse]:
    from gpuprof.analyze.devices import device_use

    described = recorded.meta.get("devices")
    return device_use(recorded, described, path=recorded.path) if described else []
