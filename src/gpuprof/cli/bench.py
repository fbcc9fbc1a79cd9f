# SPDX-License-Identifier: Apache-2.0
"""`gpuprof bench`: latency, throughput, memory, energy and start-up of one model."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.bench.options import MeasuringOptions
from gpuprof.cli.measuring import (
    EXIT_INCONCLUSIVE,
    EXIT_MISSED,
    EXIT_TERMINATED,
    OccasionalLines,
    exit_for_targets,
    progress_bar,
    terminated_like_interrupted,
)
from gpuprof.cli.options import measuring_options, typed
from gpuprof.cli.usage import BadParameter
from gpuprof.errors import BenchmarkError, GpuprofError

if TYPE_CHECKING:
    import datetime

    from gpuprof.bench.benchmark_run import Benchmark, Request
    from gpuprof.bench.results.files import ResultFiles
    from gpuprof.bench.results.session import BenchFinding
    from gpuprof.bench.workers.schedule import RunEvent

UNTIL_OUT_OF_MEMORY = tuple(1 << power for power in range(11))
PROCESS_RUNS = 3


def _formats(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in value.split(","))
    wrong = [word for word in words if word not in ("csv", "json", "md")]
    if wrong:
        raise BadParameter("unknown_format", f"{wrong[0]!r} is not a format; hint: use csv, json, md.")
    return words


REPORTS = ("html", "md", "pdf")


def _reports(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    words = () if value is None else tuple(dict.fromkeys(word.strip() for word in value.split(",")))
    words = tuple("md" if word == "markdown" else word for word in words)
    wrong = [word for word in words if word not in REPORTS]
    if wrong:
        raise BadParameter("unknown_format", f"{wrong[0]!r} is not a report; hint: use {', '.join(REPORTS)}.")
    return words


@dataclass(frozen=True, kw_only=True)
class BenchOptions(MeasuringOptions):
    """The options of `gpuprof bench`."""

    model: str
    recipe: str | None
    output_dir: str
    formats: tuple[str, ...]
    reports: tuple[str, ...]
    find_max_batch: bool
    startup: bool
    as_json: bool

    def request(self) -> Request:
        """Return the request. Raises GpuprofError for invalid options; no process is started."""
        from gpuprof.bench.benchmark_run import Request
        from gpuprof.bench.config import JobSettings
        from gpuprof.bench.frameworks import with_recipe
        from gpuprof.bench.validation import check_spec

        spec, target, measuring = self.spec(self.model), self.target(), self.measuring()
        if self.recipe is not None:
            spec = with_recipe(spec, self.recipe)
        if target is not None and target.share is not None:
            measuring = dataclasses.replace(measuring, quantile=target.share)
        sizes = tuple(dict.fromkeys(self.batch_sizes or UNTIL_OUT_OF_MEMORY))
        request = Request(
            spec=spec,
            job=JobSettings(sizes, measuring, self.budget_bytes()),
            runs=self.launches,
            time_limit_s=self.time_limit,
            target=target,
            find_largest=self.find_max_batch,
            until_memory_ends=not self.batch_sizes,
            cold_start=self.startup,
        )
        check_spec(spec)
        return request


@click.command("bench", short_help="Measure latency, throughput, memory and energy of a model.")
@click.argument("model", metavar="MODEL")
@measuring_options(process_runs=PROCESS_RUNS)
@click.option(
    "--recipe",
    metavar="NAME",
    help="Apply a recipe: bf16, compile, int8-dynamic, pruned:0.5, ... Default: none.",
)
@click.option(
    "--output-dir",
    default="results/raw",
    show_default=True,
    metavar="DIR",
    help="Write the result files to DIR.",
)
@click.option(
    "--format",
    "formats",
    default="csv,json,md",
    callback=_formats,
    show_default=True,
    help="Write these formats.",
)
@click.option(
    "--report",
    "reports",
    metavar="html,md,pdf",
    callback=_reports,
    help="Also write a report with plots in these formats. Default: none.",
)
@click.option(
    "--find-max-batch",
    is_flag=True,
    help="Find the largest batch size that meets --slo and fits into memory.",
)
@click.option("--startup", is_flag=True, help="Also measure a cold and a warm start, in two more processes.")
@typed(BenchOptions)
def bench(options: BenchOptions) -> None:
    """Measure latency, throughput, memory and energy of MODEL for each batch size.

    MODEL is a name (resnet50, vit_b_16), file.py:factory, or a file (.pt2, .pt, .onnx, .engine).
    """
    from gpuprof.bench.benchmark_run import now
    from gpuprof.bench.results.files import ResultFiles

    at = now()
    request = options.request()
    if options.reports:
        from gpuprof.bench.report import check_formats

        check_formats(options.reports)
    files = ResultFiles(Path(options.output_dir), options.formats, at)
    if options.profile:
        request = _with_profile(request, files.stem)
    try:
        benchmark, interrupted = _carried_out(request)
    except BaseException:
        files.discard()
        raise
    finding = benchmark.finding
    failure: GpuprofError | None = finding.session.failure
    try:
        _hand_out(finding, files, at, as_json=options.as_json)
        _write_reports(finding, files, at, options)
    except GpuprofError as error:
        failure = error if failure is None else BenchmarkError("failed", f"{failure}; {error}")
    if interrupted == signal.SIGTERM:
        click.get_current_context().exit(EXIT_TERMINATED)
    if interrupted:
        raise KeyboardInterrupt
    if failure is not None:
        raise failure
    _exit(finding)


def _with_profile(request: Request, stem: Path) -> Request:
    path = str(stem.resolve().with_name(f"{stem.name}.gpuprof"))
    return dataclasses.replace(request, job=dataclasses.replace(request.job, profile=path))


def _carried_out(request: Request) -> tuple[Benchmark, int]:
    """Run a request with a progress bar; return the signal that interrupted it, or 0."""
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
    """Show the progress: a bar on a terminal, otherwise an occasional line on standard error.

    Yields the callbacks for events and for probes.
    """
    from gpuprof.bench.workers.events import State

    doing_at = {State.UP: "importing", State.IMPORTED: "loading", State.DESCRIBED: "warming up"}
    with progress_bar() as bar:
        task = bar.add_task("starting", total=request.runs * len(request.job.batch_sizes))
        lines = OccasionalLines(partial(click.echo, err=True))

        def show(description: str) -> None:
            bar.update(task, description=description)
            if bar.disable:
                lines.add(description)

        def watch(seen: RunEvent) -> None:
            event = seen.event
            size = "" if event.batch_size is None else f", batch size {event.batch_size}"
            calls = "" if event.calls is None else f", {event.calls:,} calls"
            doing = doing_at.get(event.state, event.state.value)
            show(f"process run {seen.number} of {request.runs}{size}: {doing}{calls}")
            if event.state is State.MEASURED:
                bar.advance(task)

        def probed(batch_size: int, outcome: str) -> None:
            show(f"searching: batch size {batch_size}: {outcome}")

        yield watch, probed


def _hand_out(finding: BenchFinding, files: ResultFiles, at: datetime.datetime, *, as_json: bool) -> None:
    """Print the table, then write the files; do neither without a measurement.

    A full disk does not prevent the table, and a closed pipe does not prevent the files.
    """
    from gpuprof.bench.benchmark_run import result_texts
    from gpuprof.bench.results.text import finding_notes

    if not finding.session.batches:
        files.discard()
        return
    more = finding_notes(finding)
    try:
        _print(finding, files, at, more, as_json=as_json)
    finally:
        paths = files.write(result_texts([finding.session], at, more, **finding.more()))
    if not as_json:
        for path in paths:
            click.echo(f"wrote {path}")


def _write_reports(
    finding: BenchFinding, files: ResultFiles, at: datetime.datetime, options: BenchOptions
) -> None:
    """Write the reports that were asked for next to the result files."""
    if not options.reports or not finding.session.batches:
        return
    from gpuprof.bench.report.benchmark import benchmark_content
    from gpuprof.bench.report.writers import write_content
    from gpuprof.text.sanitize import escape_text

    content = benchmark_content(finding, at, options.target())
    stem = f"{files.stem.name}.report"
    for path in write_content(content, options.reports, files.stem.parent, stem):
        if not options.as_json:
            click.echo(escape_text(f"wrote {path}"))


def _print(
    finding: BenchFinding, files: ResultFiles, at: datetime.datetime, more: list[str], *, as_json: bool
) -> None:
    from gpuprof.bench.benchmark_run import stamp_of
    from gpuprof.bench.results.files import document_of, to_json
    from gpuprof.bench.results.text import notes_of, results_table, title_of
    from gpuprof.text.sanitize import escape_text

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


def _exit(finding: BenchFinding) -> None:
    """Exit with the verdict of the target: the worst of the batch sizes, or that of the largest."""
    verdicts = set(finding.verdicts.values())
    if finding.largest is not None:
        size = finding.largest.batch_size
        if size is None:
            code = EXIT_INCONCLUSIVE if finding.largest.open_sizes else EXIT_MISSED
            click.get_current_context().exit(code)
        verdicts = {verdict for each, verdict in finding.verdicts.items() if each == size}
    exit_for_targets(verdicts)
