# SPDX-License-Identifier: Apache-2.0
"""`gpuprof flamegraph` and `gpuprof roofline`: offline pages of a run, or of the difference of runs."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.options import SidesCommand, WholeNumber, check_sides
from gpuprof.errors import GpuprofError, RunError

if TYPE_CHECKING:
    from gpuprof.analyze.metrics import WeightName
    from gpuprof.analyze.roofline.rows import RooflineKind
    from gpuprof.api import Run


_SECONDS = r"\d{1,9}(?:\.\d{1,9})?"
_LONGEST_NAME = 255  # bytes, on all usual file systems


@click.command(
    "flamegraph",
    cls=SidesCommand,
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    metavar="F.html",
    help="Write to this file. Default: the name of the run, or NEW-against-OLD.html.",
)
@click.option(
    "--against",
    metavar="OLD",
    multiple=True,
    help="Compare with this older run, and with those after it.",
)
@click.option(
    "--weight",
    type=click.Choice(["main", "cpu", "gpu", "wall", "bytes", "flops", "launches"]),
    help="Show this weight first. Default: gpu for a run with GPU work, otherwise main."
    " cpu is the time of all threads.",
)
@click.option(
    "--range",
    "time_range",
    metavar="T1:T2",
    help="Show this part of the timeline only, in seconds, as in 2.5:3. Default: all of it.",
)
@click.option(
    "--full",
    is_flag=True,
    help="Draw each call and each path. Default: sum up short calls and rare paths of a large run.",
)
@click.option("--flat", is_flag=True, help="Begin with repeated layers one by one, not as one cell.")
def flamegraph(
    runs: tuple[str, ...],
    output: str | None,
    against: tuple[str, ...],
    weight: WeightName | None,
    time_range: str | None,
    full: bool,
    flat: bool,
) -> None:
    """Write the flame graph and timeline of RUN as one HTML file and print its path.

    With --against, RUN is one new run or several, and the page shows which changes are significant.
    """
    from gpuprof import api

    check_sides(runs, against)
    window = None if time_range is None else _window(time_range)
    if against and (full or flat or window):
        raise GpuprofError(
            "not_for_differences",
            "--range, --full and --flat are for the page of one run",
            hint="omit them: a difference has no timeline, and each path has a cell",
        )
    new = [api.open(run) for run in runs]
    old = [api.open(run) for run in against]
    path = Path(output) if output is not None else default_output(*(run.path for run in (*new[:1], *old[:1])))
    check_output(path)
    if old:
        api.flamegraph_difference(path, new, old, weight=weight)
    else:
        _write_page(path, new[0], weight, window, full=full, flat=flat)
    echo_path(path)


def _window(text: str) -> tuple[float, float]:
    """Read `2.5:3`, seconds since the begin of the run. Raises GpuprofError."""
    found = re.fullmatch(rf"({_SECONDS}):({_SECONDS})", text)
    if found is None:
        raise GpuprofError(
            "invalid_range_text",
            f"--range {text!r} is not a range of time",
            hint="write it in seconds, as in 2.5:3",
        )
    return float(found[1]), float(found[2])


def _write_page(
    path: Path,
    run: Run,
    weight: WeightName | None,
    window: tuple[float, float] | None,
    *,
    full: bool,
    flat: bool,
) -> None:
    """Write the page of one run, and print what the page does not contain."""
    from gpuprof import api
    from gpuprof.text.sanitize import escape_text

    left_out = api.write_flamegraph(path, run, weight=weight, full=full, flat=flat, time_range=window)
    if left_out is not None:
        click.echo(f"gpuprof: {escape_text(left_out)}", err=True)


def default_output(run: Path, old: Path | None = None) -> Path:
    """Return the page's path next to the run: demo.gpuprof gives demo.html, or demo-against-old.html."""
    stems = [_named(path).name.removesuffix(".gpuprof") for path in (run, old) if path is not None]
    name = "-against-".join(stems) + ".html"
    return _named(run).with_name(name if len(os.fsencode(name)) <= _LONGEST_NAME else f"{stems[0]}.html")


def _named(run: Path) -> Path:
    return run.resolve() if run.name in ("", "..") else run


def echo_path(path: Path) -> None:
    """Print a path: its own bytes for a script, on a terminal nothing that moves the cursor."""
    from gpuprof.text.sanitize import escape_text

    is_terminal = sys.stdout.isatty()
    click.echo(escape_text(str(path)) if is_terminal else os.fsencode(path) + b"\n", nl=is_terminal)


def check_output(path: Path) -> None:
    """Refuse a path that cannot be a file, before any work."""
    if path.is_dir():
        raise GpuprofError(
            "is_a_folder", f"{path} is a folder", hint="give -o the name of a file, such as flame.html"
        )
    if not path.parent.is_dir():
        raise GpuprofError(
            "no_such_folder",
            f"cannot write {path}: the folder {path.parent} does not exist",
            hint="create it",
        )


@click.command("roofline")
@click.argument("run", metavar="RUN")
@click.option("-o", "--output", metavar="F.html", help="Also write the plot to F.html as one offline page.")
@click.option(
    "--by",
    type=click.Choice(["layer", "operator", "kernel"]),
    default="operator",
    help="List these rows. Default: operator.",
)
@click.option(
    "--top",
    type=WholeNumber(min=1),
    metavar="N",
    help="Print the N longest rows. Default: all above 0.5% of the time.",
)
@click.option("--flat", is_flag=True, help="Print repeated layers one by one, not as one row.")
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
def roofline(
    run: str, output: str | None, by: RooflineKind, top: int | None, flat: bool, as_json: bool
) -> None:
    """Print the bottleneck of each layer and operator of RUN, with utilization and confidence.

    The run needs counted work: gpuprof run --work, or gpuprof.profile(model, work=True).
    """
    from gpuprof import api
    from gpuprof.text.sanitize import escape_text

    path = Path(output) if output is not None else None
    if path is not None:
        if path.is_dir():
            raise GpuprofError(
                "is_a_folder",
                f"{path} is a folder",
                hint="give -o the name of a file, such as roofline.html",
            )
        check_output(path)
    recorded = api.open(run)
    found = recorded.roofline(path)
    if by == "kernel" and not found.kernels:
        raise RunError(
            "no_kernels", f"{recorded.path}: no kernel was recorded", hint="use --by operator or --by layer"
        )
    if as_json:
        click.echo(json.dumps({"run": str(recorded.path), "roofline": found.to_dict()}, indent=2))
        return
    click.echo(found.to_text(by, top, flat=flat))
    if path is not None:
        click.echo(f"\nwrote {escape_text(str(path))}")
