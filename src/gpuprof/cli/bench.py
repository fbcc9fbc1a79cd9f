# SPDX-License-Identifier: Apache-2.0
"""`gpuprof bench`: latency, throughput, memory, energy and start-up of one model."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.bench.options import (
    DOCUMENT_BATCH_SIZES,
    DOCUMENT_ITERATIONS,
    DOCUMENT_WARMUP,
    RESULTS_FOLDER,
    MeasuringOptions,
    each_framework,
    each_model,
)
from gpuprof.cli.measuring import OccasionalLines, exit_for_targets, progress_bar
from gpuprof.cli.options import ListsCommand, measuring_options, typed
from gpuprof.cli.termination import EXIT_TERMINATED, terminated_like_interrupted
from gpuprof.cli.usage import BadParameter, UsageError
from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    import datetime

    from gpuprof.bench.benchmark_run import Benchmark, Request
    from gpuprof.bench.results.files import ResultFiles
    from gpuprof.bench.results.session import BenchFinding
    from gpuprof.bench.verdicts import TargetVerdict
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


class BenchCommand(ListsCommand):
    """`gpuprof bench`: with `--model` instead of MODEL it has the defaults of `BenchmarkConfig`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        if any(word.partition("=")[0] == "--model" for word in args):
            ctx.default_map = {
                "batch_sizes": ",".join(map(str, DOCUMENT_BATCH_SIZES)),
                "iterations": DOCUMENT_ITERATIONS,
                "warmup": DOCUMENT_WARMUP,
                "launches": 1,
            }
        return super().parse_args(ctx, args)


@dataclass(frozen=True, kw_only=True)
class BenchOptions(MeasuringOptions):
    """The options of `gpuprof bench`; `models` are those of `--model`, `model` is the argument."""

    model: str | None
    models: tuple[str, ...]
    recipe: str | None
    output_dir: str
    formats: tuple[str, ...]
    reports: tuple[str, ...]
    find_max_batch: bool
    startup: bool
    as_json: bool

    def requests(self) -> list[Request]:
        """Return a request for each model in each framework. Raises GpuprofError; no process is started."""
        if (self.model is None) == (not self.models):
            what = "no model" if self.model is None else "models in two places"
            raise UsageError(
                "one_model_option",
                f"{what}; hint: write gpuprof bench MODEL, or gpuprof bench --model NAME.",
            )
        models = each_model(self.models if self.model is None else [self.model])
        return [
            dataclasses.replace(self, framework=framework)._request(model)
            for framework in dict.fromkeys(each_framework([self.framework]))
            for model in dict.fromkeys(models)
        ]

    def _request(self, model: str) -> Request:
        from gpuprof.bench.benchmark_run import Request
        from gpuprof.bench.config import JobSettings
        from gpuprof.bench.frameworks import with_recipe
        from gpuprof.bench.validation import check_spec

        spec, target, measuring = self.spec(model), self.target(), self.measuring()
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


@click.command("bench", cls=BenchCommand)
@click.argument("model", metavar="[MODEL]", required=False)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help="Measure NAME in one process run: 10 warm-up and 50 measured calls at the batch sizes 1,8,32,128. "
    "both is resnet50 and vit_b_16. Repeatable. Replaces MODEL.",
)
@measuring_options(process_runs=PROCESS_RUNS)
@click.option(
    "--recipe",
    metavar="NAME",
    help="Apply a recipe: bf16, compile, int8-dynamic, pruned:0.5, ... Default: none.",
)
@click.option(
    "--output-dir",
    default=RESULTS_FOLDER,
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
    metavar="csv,json,md",
    help="Write result files in these formats.",
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
    requests = options.requests()
    if options.reports:
        from gpuprof.bench.report import check_formats

        check_formats(options.reports)
    files = ResultFiles(Path(options.output_dir), options.formats, at)
    if options.profile:
        requests = [_with_profile(each, files.stem, number) for number, each in enumerate(requests)]
    output = _Output(options, files, at)
    interrupted = 0
    try:
        for request in requests:
            output.begin(request)
            benchmark, interrupted = _carried_out(request)
            output.add(benchmark.finding)
            if interrupted:
                break
    finally:
        if not output.is_measured:
            files.discard()
    output.end()
    if interrupted == signal.SIGTERM:
        click.get_current_context().exit(EXIT_TERMINATED)
    if interrupted:
        raise KeyboardInterrupt
    if output.failures:
        from gpuprof.bench.failures import joined

        raise joined(output.failures)
    exit_for_targets({verdict for each in output.findings for verdict in _verdicts(each)})


def _with_profile(request: Request, stem: Path, number: int) -> Request:
    name = f"{stem.name}-{number + 1}" if number else stem.name
    path = str(stem.resolve().with_name(f"{name}.gpuprof"))
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
            # The profile is recorded after the runs that are measured.
            is_measured = seen.number <= request.runs
            place = f"process run {seen.number} of {request.runs}" if is_measured else "profile"
            show(f"{place}{size}: {doing}{calls}")
            if event.state is State.MEASURED:
                bar.advance(task)

        def probed(batch_size: int, outcome: str) -> None:
            show(f"searching: batch size {batch_size}: {outcome}")

        yield watch, probed


class _Output:
    """Prints and writes what was found, after each model."""

    def __init__(self, options: BenchOptions, files: ResultFiles, at: datetime.datetime) -> None:
        from gpuprof.bench.results.suite_text import SuiteText

        self.findings: list[BenchFinding] = []
        self.failures: list[GpuprofError] = []
        self._options, self._files, self._at = options, files, at
        is_document = bool(options.models) and not options.as_json
        self._blocks = SuiteText(partial(click.echo, nl=False)) if is_document else None
        self._written: list[Path] = []
        self._reports: list[Path] = []

    @property
    def is_measured(self) -> bool:
        """Whether there is a measurement."""
        return any(each.session.batches for each in self.findings)

    @property
    def is_interrupted(self) -> bool:
        """Whether the last model was interrupted."""
        return bool(self.findings) and self.findings[-1].interrupted

    def begin(self, request: Request) -> None:
        """Print which model is next."""
        if self._blocks is not None:
            self._blocks.begin(request.spec)

    def add(self, finding: BenchFinding) -> None:
        """Print a finding, then write the files; a closed pipe does not prevent the files."""
        self.findings.append(finding)
        failure = finding.session.failure
        self.failures += [] if failure is None else [failure]
        try:
            if not self._options.as_json:
                self._print(finding)
        finally:
            self._write()
            self._write_reports(finding)

    def end(self) -> None:
        """Print where the files are, or all of it as JSON."""
        from gpuprof.text.sanitize import escape_text

        if self._options.as_json:
            if self.is_measured:
                self._print_json()
        elif self._blocks is not None:
            self._blocks.complete(self._written, interrupted=self.is_interrupted)
        if not self._options.as_json:
            written = [] if self._blocks is not None else self._written
            for path in [*written, *self._reports]:
                click.echo(escape_text(f"wrote {path}"))
        if self.is_interrupted:
            from gpuprof.bench.results.text import interrupted_note

            click.echo(interrupted_note(self.findings[-1]), err=True)

    def _print(self, finding: BenchFinding) -> None:
        from gpuprof.bench.results.text import finding_notes, notes_of, results_table, title_of
        from gpuprof.bench.validation import available_devices
        from gpuprof.text.sanitize import escape_text

        session = finding.session
        notes = finding_notes(finding)
        if self._blocks is not None:
            self._blocks.show(session, available_devices)
            self._blocks.end(session, notes)
            return
        if not session.batches:
            return
        click.echo(click.wrap_text(escape_text(title_of(session)), 100) + "\n")
        click.echo(results_table(session.batches) + "\n")
        for note in [*notes_of(session), *notes]:
            click.echo(click.wrap_text(escape_text(note), 100, subsequent_indent="  "))
        click.echo()

    def _print_json(self) -> None:
        from gpuprof.bench.benchmark_run import stamp_of
        from gpuprof.bench.results.files import document_of, to_json

        measured = self._measured()
        batches = [batch for each in measured for batch in each.session.batches]
        document = document_of(batches, stamp_of(measured[0].session, self._at), **_more(measured))
        click.echo(to_json({**document, "files": [str(path) for path in self._files.paths]}), nl=False)

    def _measured(self) -> list[BenchFinding]:
        return [each for each in self.findings if each.session.batches]

    def _write(self) -> None:
        from gpuprof.bench.benchmark_run import result_texts
        from gpuprof.bench.results.text import finding_notes

        measured = self._measured()
        if not measured:
            return
        texts = result_texts(
            [each.session for each in measured],
            self._at,
            [note for each in measured for note in finding_notes(each)],
            **_more(measured),
        )
        try:
            self._written = self._files.write(texts)
        except GpuprofError as error:
            self.failures.append(error)

    def _write_reports(self, finding: BenchFinding) -> None:
        """Write the reports that were asked for next to the result files, one for each model."""
        if not self._options.reports or not finding.session.batches:
            return
        from gpuprof.bench.report.benchmark import benchmark_content
        from gpuprof.bench.report.writers import write_content

        stem, number = self._files.stem, len(self.findings)
        name = f"{stem.name}.report" if number == 1 else f"{stem.name}-{number}.report"
        content = benchmark_content(finding, self._at, self._options.target())
        try:
            self._reports += write_content(content, self._options.reports, stem.parent, name)
        except GpuprofError as error:
            self.failures.append(error)


def _more(findings: Sequence[BenchFinding]) -> dict[str, Any]:
    """Return what was found besides the batch sizes; of several models one after the other."""
    more = [each.more() for each in findings]
    return more[0] if len(more) == 1 else {"benchmarks": more}


def _verdicts(finding: BenchFinding) -> set[TargetVerdict]:
    """Return the verdicts of the target: those of all batch sizes, or that of the largest."""
    from gpuprof.bench.verdicts import TargetVerdict

    if finding.largest is None:
        return set(finding.verdicts.values())
    size = finding.largest.batch_size
    if size is None:
        return {TargetVerdict.INCONCLUSIVE if finding.largest.open_sizes else TargetVerdict.MISSED}
    return {verdict for each, verdict in finding.verdicts.items() if each == size}
