# SPDX-License-Identifier: Apache-2.0
"""`gpuprof bench`: latency, throughput, memory, energy and start-up of one model."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.bench.config import DEVICES, DTYPES
from gpuprof.cli.options import numbers, seconds
from gpuprof.cli.termination import EXIT_TERMINATED, terminated_like_interrupted
from gpuprof.errors import BenchmarkError, GpuprofError

if TYPE_CHECKING:
    import datetime

    from gpuprof.bench.benchmark_run import Benchmark, Finding, Request
    from gpuprof.bench.results.files import ResultFiles

EXIT_MISSED, EXIT_INCONCLUSIVE = 1, 3
UNTIL_MEMORY_ENDS = tuple(1 << power for power in range(11))
LAUNCHES = 3


def _formats(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in value.split(","))
    wrong = [word for word in words if word not in ("csv", "json", "md")]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is no format: take csv, json, md.")
    return words


@click.command("bench", short_help="Measure latency, throughput, memory and energy of a model.")
@click.argument("model", metavar="MODEL")
@click.option(
    "--framework",
    default="auto",
    metavar="NAME",
    help="What runs the model: pytorch, jax, onnxruntime, ...; the default suits MODEL.",
)
@click.option(
    "--batch-sizes",
    default="1",
    callback=numbers,
    metavar="1,8",
    help="Samples in a call; auto doubles until memory ends.",
)
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    metavar="N",
    help="Calls to measure; without, until the median's interval is narrow.",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    metavar="N",
    help="Calls before; without, until the times have settled.",
)
@click.option(
    "--duration",
    type=float,
    callback=seconds,
    metavar="S",
    help="Longest time for a batch size in a launch; 10 without --iterations.",
)
@click.option(
    "--launches",
    type=click.IntRange(min=1),
    default=LAUNCHES,
    show_default=True,
    metavar="N",
    help="Fresh processes that measure.",
)
@click.option(
    "--dtype", type=click.Choice(DTYPES), help="Type of weights and inputs; the default is the model's."
)
@click.option(
    "--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Where it runs."
)
@click.option(
    "--recipe", metavar="NAME", help="A ready variant: bf16, compile, int8-dynamic, pruned:0.5, ..."
)
@click.option("--input-shape", callback=numbers, metavar="3,224,224", help="Shape of one sample.")
@click.option(
    "--data",
    default="synthetic",
    metavar="D",
    help="synthetic, a folder of images in class folders, or a .npz file.",
)
@click.option(
    "--output-dir", default="results/raw", show_default=True, metavar="DIR", help="Where result files go."
)
@click.option(
    "--format", "formats", default="csv,json,md", callback=_formats, show_default=True, help="Which files."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and synthetic data.")
@click.option("--profile", is_flag=True, help="Leave a run of a few calls beside the results.")
@click.option(
    "--slo", metavar="'p99<20ms'", help="A target; exit code 1 where it is missed, 3 where that is open."
)
@click.option(
    "--find-max-batch", is_flag=True, help="Search the largest batch size under --slo and in memory."
)
@click.option("--memory-budget", metavar="12GiB", help="The most memory that a batch may take.")
@click.option("--startup", is_flag=True, help="Measure a cold and a warm start too, in two more processes.")
@click.option("--trust-pickle", is_flag=True, help="Read pickled files and .pt2, which can run any code.")
@click.option(
    "--time-limit",
    type=float,
    callback=seconds,
    default=600.0,
    show_default=True,
    metavar="S",
    help="The longest that a step may take: loading, compiling, a call.",
)
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
def bench(model: str, *, output_dir: str, formats: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Measure MODEL: a name (resnet50, vit_b_16), file.py:factory, or a file (.pt2, .pt, .onnx, .engine)."""
    from gpuprof.bench.benchmark_run import now
    from gpuprof.bench.results.files import ResultFiles

    at = now()
    request = _request(model, asked)
    files = ResultFiles(Path(output_dir), formats, at)
    if asked["profile"]:
        request = _with_profile(request, files.stem)
    try:
        benchmark, interrupted = _carried_out(request)
    except BaseException:
        files.discard()
        raise
    finding = benchmark.finding
    failure: GpuprofError | None = finding.session.failure
    try:
        _hand_out(finding, files, at, as_json=as_json)
    except GpuprofError as error:
        failure = error if failure is None else BenchmarkError(f"{failure}; {error}")
    if interrupted == signal.SIGTERM:
        click.get_current_context().exit(EXIT_TERMINATED)
    if interrupted:
        raise KeyboardInterrupt
    if failure is not None:
        raise failure
    _exit(finding)


def _request(model: str, asked: dict[str, Any]) -> Request:
    """Turn options into a request; what can be refused without starting anything is refused here."""
    from gpuprof.bench.benchmark_run import Request
    from gpuprof.bench.config import SystemSpec, settings_for
    from gpuprof.bench.frameworks import framework_name
    from gpuprof.bench.measure.memory import parse_bytes
    from gpuprof.bench.models.recipes import with_recipe
    from gpuprof.bench.models.sources import parse_model
    from gpuprof.bench.results.target import parse_target
    from gpuprof.bench.workers.job import JobSettings

    parse_model(model, trust_pickle=asked["trust_pickle"])
    keys = ("device", "dtype", "input_shape", "data", "seed", "trust_pickle")
    spec = SystemSpec(model, framework_name(asked["framework"]), **{key: asked[key] for key in keys})
    if asked["recipe"] is not None:
        spec = with_recipe(spec, asked["recipe"])
    budget = None if asked["memory_budget"] is None else parse_bytes(asked["memory_budget"])
    target = None if asked["slo"] is None else parse_target(asked["slo"])
    sizes = tuple(dict.fromkeys(asked["batch_sizes"] or UNTIL_MEMORY_ENDS))
    share = None if target is None else target.share
    measuring = dataclasses.replace(
        settings_for(asked["iterations"], asked["warmup"], asked["duration"]),
        quantile=0.5 if share is None else share,
    )
    return Request(
        spec=spec,
        job=JobSettings(sizes, measuring, budget),
        launches=asked["launches"],
        time_limit_s=asked["time_limit"],
        target=target,
        find_largest=asked["find_max_batch"],
        until_memory_ends=not asked["batch_sizes"],
        cold_start=asked["startup"],
    )


def _with_profile(request: Request, stem: Path) -> Request:
    import dataclasses

    path = str(stem.resolve().with_name(f"{stem.name}.gpuprof"))
    return dataclasses.replace(request, job=dataclasses.replace(request.job, profile=path))


def _carried_out(request: Request) -> tuple[Benchmark, int]:
    """Run a request with a progress bar; returns the signal that ended it early, or 0."""
    from gpuprof.bench.benchmark_run import Benchmark

    with _progress(request) as (watch, probed), terminated_like_interrupted() as came:
        benchmark = Benchmark(request, watch, probed)
        try:
            benchmark.run()
        except KeyboardInterrupt:
            return benchmark, came[-1] if came else signal.SIGINT
    return benchmark, 0


@contextlib.contextmanager
def _progress(request: Request) -> Iterator[tuple[Callable[..., None], Callable[..., None]]]:
    """Show how far a benchmark is: a bar on a terminal, else a line on standard error now and then.

    Yields who is told of events and of probes.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from gpuprof.cli.seldom_lines import SeldomLines

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    # Drawn seldom: what draws takes a processor that the model may want.
    options: dict[str, Any] = {"transient": True, "refresh_per_second": 1}
    with Progress(*columns, console=console, disable=not console.is_terminal, **options) as bar:
        task = bar.add_task("starting", total=request.launches * len(request.job.batch_sizes))
        lines = SeldomLines(partial(click.echo, err=True))

        def show(description: str) -> None:
            bar.update(task, description=description)
            if not console.is_terminal:
                lines.tell(description)

        def watch(launch: int, event: dict[str, Any]) -> None:
            size = f", batch size {event['batch_size']}" if "batch_size" in event else ""
            calls = f", {event['calls']:,} calls" if "calls" in event else ""
            name = {
                "up": "importing",
                "imported": "loading",
                "answered": "warming up",
                "progress": "measuring",
            }
            doing = name.get(event["event"], event["event"])
            show(f"launch {launch} of {request.launches}{size}: {doing}{calls}")
            if event["event"] == "measured":
                bar.advance(task)

        def probed(batch_size: int, outcome: str) -> None:
            show(f"searching: batch size {batch_size}: {outcome}")

        yield watch, probed


def _hand_out(finding: Finding, files: ResultFiles, at: datetime.datetime, *, as_json: bool) -> None:
    """Print the table, then write the files; nothing of either where nothing was measured.

    Neither is lost by the other's failure: a full disk, or a pipe that nobody reads.
    """
    from gpuprof.bench.benchmark_run import write_finding
    from gpuprof.bench.results.text import finding_notes

    if not finding.session.batches:
        files.discard()
        return
    more = finding_notes(finding)
    try:
        _print(finding, files, at, more, as_json=as_json)
    finally:
        paths = write_finding(finding, files, at, more)
    if not as_json:
        for path in paths:
            click.echo(f"wrote {path}")


def _print(
    finding: Finding, files: ResultFiles, at: datetime.datetime, more: list[str], *, as_json: bool
) -> None:
    from gpuprof.analyze.text_table import escape_text
    from gpuprof.bench.benchmark_run import stamp_of
    from gpuprof.bench.results.files import document_of, to_json
    from gpuprof.bench.results.text import notes_of, results_table, title_of

    session = finding.session
    if as_json:
        document = document_of(session.batches, stamp_of(session, at), **finding.more())
        click.echo(to_json({**document, "files": [str(path) for path in files.paths]}), nl=False)
        return
    click.echo(click.wrap_text(escape_text(title_of(session)), 100) + "\n")
    click.echo(results_table(session.batches) + "\n")
    for note in [*notes_of(session), *more]:
        click.echo(click.wrap_text(escape_text(note), 100, subsequent_indent="  "))
    click.echo()


def _exit(finding: Finding) -> None:
    """End with what the target's verdict says: the worst of the batch sizes, or that of the largest."""
    verdicts = set(finding.verdicts.values())
    context = click.get_current_context()
    if finding.largest is not None:
        size = finding.largest.batch_size
        if size is None:
            context.exit(EXIT_INCONCLUSIVE if finding.largest.open_sizes else EXIT_MISSED)
        verdicts = {verdict for each, verdict in finding.verdicts.items() if each == size}
    if "missed" in verdicts:
        context.exit(EXIT_MISSED)
    if "inconclusive" in verdicts:
        context.exit(EXIT_INCONCLUSIVE)
