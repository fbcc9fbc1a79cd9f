# SPDX-License-Identifier: Apache-2.0
"""`gpuprof compare` and `gpuprof suite`: variants of a model against each other, into a report."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.analyze.text_table import escape_text
from gpuprof.bench.config import DEVICES, DTYPES
from gpuprof.cli.options import numbers, seconds, share
from gpuprof.cli.termination import EXIT_TERMINATED, terminated_like_interrupted
from gpuprof.errors import BenchmarkError, GpuprofError

if TYPE_CHECKING:
    from gpuprof.bench.compare.plan import CampaignPlan
    from gpuprof.bench.compare.run import Finished

REPORTS = ("html", "md", "json", "csv", "pdf")
EXIT_MISSED, EXIT_INCONCLUSIVE = 1, 3
_DEFAULT_REPORT = "md,json,csv"


def _reports(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in value.split(",") if word.strip()))
    wrong = [word for word in words if word not in REPORTS]
    if wrong or not words:
        raise click.BadParameter(f"{value!r}: take some of {','.join(REPORTS)}.")
    return words


def _output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what both commands do with what they found."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print machine-readable results."),
        click.option("--fresh", is_flag=True, help="Measure all of it, though a part was measured before."),
        click.option(
            "--resume", is_flag=True, help="Keep what was measured before, though that had come to its end."
        ),
        click.option(
            "--report",
            "reports",
            metavar="html,md,json,csv,pdf",
            default=_DEFAULT_REPORT,
            show_default=True,
            callback=_reports,
            help="Which reports to write.",
        ),
        click.option(
            "--output-dir", metavar="DIR", help="Where all of it goes; results/NAME where not told."
        ),
    ):
        command = option(command)
    return command


@click.command("compare", short_help="Hold variants of a model against each other.")
@click.argument("variants", metavar="NAME:MODEL,NAME:MODEL...")
@click.option("--baseline", metavar="NAME", help="What the others are held against; the first one.")
@click.option("--name", default="comparison", metavar="TEXT", help="The title of the report.")
@click.option(
    "--batch-size", "--batch-sizes", "batch_sizes", default="1", callback=numbers, metavar="1,8",
    help="Samples in a call.",
)  # fmt: skip
@click.option(
    "--launches", type=click.IntRange(min=1), default=10, show_default=True, metavar="N",
    help="Fresh processes that measure each variant.",
)  # fmt: skip
@click.option("--iterations", type=click.IntRange(min=1), metavar="N", help="Calls to measure in a launch.")
@click.option("--warmup", type=click.IntRange(min=0), metavar="N", help="Calls before.")
@click.option("--duration", type=float, callback=seconds, metavar="S", help="Longest time for a batch size.")
@click.option("--framework", default="auto", metavar="NAME", help="Of all variants; the default suits each.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Type of weights and inputs.")
@click.option(
    "--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Where it runs."
)
@click.option("--input-shape", callback=numbers, metavar="3,224,224", help="Shape of one sample.")
@click.option("--data", default="synthetic", metavar="D", help="Inputs for the timing.")
@click.option(
    "--dataset", metavar="D", default="synthetic",
    help="What the answers are compared on: a folder of images in class folders, or a .npz.",
)  # fmt: skip
@click.option(
    "--samples", type=click.IntRange(min=1), default=1000, show_default=True, metavar="N",
    help="The most samples that answers are compared on.",
)  # fmt: skip
@click.option("--no-accuracy", is_flag=True, help="Do not compare answers.")
@click.option("--metric", "metrics", multiple=True, metavar="FILE.py:NAME", help="A metric of your own.")
@click.option("--margin", metavar="SHARE", default="1%", show_default=True, callback=share,
              help="The change of latency that matters.")  # fmt: skip
@click.option("--accuracy-margin", metavar="SHARE", default="1%", show_default=True, callback=share,
              help="The change of accuracy that matters.")  # fmt: skip
@click.option("--slo", metavar="'p99<20ms'", help="A target; exit code 1 where the choice misses it.")
@click.option("--price-per-hour", type=float, metavar="P", help="What the machine costs.")
@click.option("--currency", default="USD", show_default=True, metavar="TEXT", help="Of the price.")
@click.option("--profile", is_flag=True, help="Record a run of each variant, for its layers.")
@click.option(
    "--interleave", is_flag=True,
    help="Let two variants share requests in one process too, as behind a traffic split.",
)  # fmt: skip
@click.option("--traffic", metavar="90,10", help="The split, in percent; 50,50 where not told.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights, data and order.")
@click.option("--memory-budget", metavar="12GiB", help="The most memory that a batch may take.")
@click.option("--trust-pickle", is_flag=True, help="Read pickled files and .pt2, which can run any code.")
@click.option("--time-limit", type=float, callback=seconds, default=600.0, show_default=True, metavar="S",
              help="The longest that a step may take.")  # fmt: skip
@_output_options
def compare(variants: str, *, output_dir: str | None, reports: tuple[str, ...], **asked: Any) -> None:
    """Measure variants in turn and in fresh processes, compare their answers, and say which one to take.

    NAME:MODEL is a variant; MODEL as gpuprof bench takes it, and MODEL@RECIPE optimizes it first:
    'fp32:model.py:build,int8:model.py:build@int8-dynamic'.
    """
    _run(_plan(variants, asked), output_dir, reports, asked)


@click.command("suite", short_help="Compare the variants that a TOML file names.")
@click.argument("suite_file", metavar="SUITE.toml")
@_output_options
def suite(suite_file: str, *, output_dir: str | None, reports: tuple[str, ...], **asked: Any) -> None:
    """Measure the variants of SUITE.toml, as gpuprof compare does. What was cut off goes on."""
    from gpuprof.bench.compare.plan import read_suite

    _run(read_suite(Path(suite_file)), output_dir, reports, asked)


def _plan(variants: str, asked: dict[str, Any]) -> CampaignPlan:
    from gpuprof.bench.compare.plan import AccuracyPlan, CampaignPlan, parse_split, parse_variants
    from gpuprof.bench.config import SystemSpec, settings_for
    from gpuprof.bench.frameworks import framework_name
    from gpuprof.bench.measure.memory import parse_bytes
    from gpuprof.bench.results.target import parse_target

    like = SystemSpec(
        model="",
        framework=framework_name(asked["framework"]),
        device=asked["device"],
        dtype=asked["dtype"],
        input_shape=asked["input_shape"],
        data=asked["data"],
        seed=asked["seed"],
        trust_pickle=asked["trust_pickle"],
    )
    accuracy = AccuracyPlan(
        asked["dataset"], asked["samples"], margin=asked["accuracy_margin"], metrics=asked["metrics"]
    )
    budget, slo = asked["memory_budget"], asked["slo"]
    if asked["traffic"] is not None and not asked["interleave"]:
        raise click.UsageError("--traffic splits what --interleave serves: add --interleave.")
    return CampaignPlan(
        variants=parse_variants(variants, like),
        baseline_name=asked["baseline"],
        name=asked["name"],
        batch_sizes=tuple(dict.fromkeys(asked["batch_sizes"])),
        launches=asked["launches"],
        measuring=settings_for(asked["iterations"], asked["warmup"], asked["duration"]),
        time_limit_s=asked["time_limit"],
        memory_budget_bytes=None if budget is None else parse_bytes(budget),
        seed=asked["seed"],
        margin=asked["margin"],
        target=None if slo is None else parse_target(slo),
        accuracy=None if asked["no_accuracy"] else accuracy,
        profile=asked["profile"],
        price_per_hour=asked["price_per_hour"],
        currency=asked["currency"],
        traffic_split=parse_split(asked["traffic"] or "50,50") if asked["interleave"] else None,
    )


def _run(plan: CampaignPlan, output_dir: str | None, reports: tuple[str, ...], asked: dict[str, Any]) -> None:
    from gpuprof.bench.compare.run import carry_out, file_name

    if asked["fresh"] and asked["resume"]:
        raise click.UsageError("--fresh and --resume contradict each other: take one.")
    from gpuprof.bench.report import check_formats

    check_formats(reports)
    folder = Path("results") / file_name(plan.name) if output_dir is None else Path(output_dir)
    with terminated_like_interrupted() as came:
        try:
            with _progress() as watch:
                finished = carry_out(plan, folder, watch=watch, fresh=asked["fresh"], resume=asked["resume"])
            # Within, so that a browser that prints is ended too.
            _hand_out(finished, folder, reports, as_json=asked["as_json"])
            if finished.interrupted:
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            if came and came[-1] == signal.SIGTERM:
                click.get_current_context().exit(EXIT_TERMINATED)
            raise
    _exit(finished.document)


def _hand_out(finished: Finished, folder: Path, reports: tuple[str, ...], *, as_json: bool) -> None:
    from gpuprof.bench.compare.run import REPORT_NAME
    from gpuprof.bench.compare.runner import mark_finished
    from gpuprof.bench.compare.text import document_text
    from gpuprof.bench.report import write_report

    document = finished.document
    failure: GpuprofError | None = None
    # Before anything is printed, which a closed pipe ends.
    try:
        paths = write_report(document, reports, folder, REPORT_NAME)
        if not finished.interrupted:
            mark_finished(folder)
    except GpuprofError as error:
        paths, failure = [], error
    if as_json:
        click.echo(json.dumps(document, indent=1, allow_nan=False, default=str))
    else:
        click.echo(document_text(document) + "\n")
        for path in paths:
            click.echo(escape_text(f"wrote {path}"))
        if finished.interrupted:
            told = f"interrupted: the same command goes on where this one ended ({folder})"
            click.echo(escape_text(told), err=True)
    if failure is not None:
        raise failure


def _exit(document: dict[str, Any]) -> None:
    """End with what it says: 2 where a variant failed, 1 for a missed target, 3 where it is open."""
    failed = [each for each in document["variants"] if each["status"] != "measured"]
    if failed:
        first = failed[0]
        raise BenchmarkError(
            f"{len(failed)} of {len(document['variants'])} variants failed, {first['name']} first: "
            f"{first['failure']}"
        )
    context = click.get_current_context()
    chosen = _chosen(document)
    if not chosen:
        context.exit(EXIT_INCONCLUSIVE)
    verdicts = {batch["target"] for batch in chosen}
    if "missed" in verdicts:
        context.exit(EXIT_MISSED)
    if "inconclusive" in verdicts:
        context.exit(EXIT_INCONCLUSIVE)


def _chosen(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the batch sizes of what is to be taken, of several variants where that depends on the size."""
    summary, variants = document["summary"], document["variants"]
    taken = summary["by_batch_size"] or {}
    if summary["choice"] is None and len(variants) > 1:
        return [
            batch
            for each in variants
            for batch in each["batches"]
            if taken.get(batch["batch_size"]) == each["name"]
        ]
    chosen = next((each for each in variants if each["name"] == summary["choice"]), variants[0])
    return list(chosen["batches"])


def _outcome(event: dict[str, Any]) -> str:
    if event["skipped"]:
        return ": skipped, since it failed before"
    return f": failed: {event['failure']}" if event["failure"] else ""


def _left(elapsed_s: float, made: int, left: int) -> str:
    """Return how long the rest may take, judged by what has been made."""
    if not made or not left:
        return ""
    minutes = elapsed_s / made * left / 60
    return f" (about {minutes:.0f} min left)" if minutes >= 1 else " (less than a minute left)"


@contextlib.contextmanager
def _progress() -> Iterator[Callable[..., None]]:
    """Show how far it is: a bar on a terminal, else a line on standard error behind each launch."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    options: dict[str, Any] = {"transient": True, "refresh_per_second": 1}
    with Progress(*columns, console=console, disable=not console.is_terminal, **options) as bar:
        task = bar.add_task("starting", total=None)
        begin_s, made = time.monotonic(), 0

        def watch(variant: str, done: int, planned: int, event: dict[str, Any]) -> None:
            size = f", batch size {event['batch_size']}" if "batch_size" in event else ""
            doing = event["event"]
            description = escape_text(f"{variant}{size}: {doing}")
            bar.update(task, description=description, completed=done, total=planned)
            nonlocal made
            if doing == "ended" and not console.is_terminal:
                made += not event["skipped"]
                left = _left(time.monotonic() - begin_s, made, planned - done)
                click.echo(
                    escape_text(f"launch {done} of {planned}: {variant}{_outcome(event)}{left}"), err=True
                )

        yield watch
