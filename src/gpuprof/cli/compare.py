# SPDX-License-Identifier: Apache-2.0
"""`gpuprof compare` and `gpuprof suite`: compare variants of a model and write a report."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from gpuprof.bench.options import ComparisonOptions
from gpuprof.cli.load_comparison import ReportOptions, run_loads
from gpuprof.cli.measuring import EXIT_INCONCLUSIVE, exit_for_targets, progress_bar
from gpuprof.cli.options import FINITE, ListsCommand, WholeNumber, fraction, measuring_options, typed
from gpuprof.cli.termination import EXIT_TERMINATED, terminated_like_interrupted
from gpuprof.cli.usage import BadParameter, UsageError
from gpuprof.errors import BenchmarkError, GpuprofError
from gpuprof.text.sanitize import escape_text
from gpuprof.text.units import counted

if TYPE_CHECKING:
    from gpuprof.bench.compare.document import BatchFigures, ComparisonDocument
    from gpuprof.bench.compare.plan import ComparisonPlan
    from gpuprof.bench.compare.run import Finished
    from gpuprof.bench.workers.events import Ended
    from gpuprof.bench.workers.schedule import RunEvent

REPORTS = ("html", "md", "json", "csv", "pdf", "recommendations")
_DEFAULT_REPORT = "md,json,csv"
_LONG_NAMES = {"markdown": "md"}


def _reports(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    given = (word.strip() for word in value.split(","))
    words = tuple(dict.fromkeys(_LONG_NAMES.get(word, word) for word in given if word))
    wrong = [word for word in words if word not in REPORTS]
    if wrong or not words:
        raise BadParameter(
            "unknown_format", f"{value!r} is not a list of formats; hint: use {','.join(REPORTS)}."
        )
    return words


def _report_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--fresh", is_flag=True, help="Discard earlier process runs and measure everything."),
        click.option(
            "--resume", is_flag=True, help="Reuse earlier process runs, also those of a completed comparison."
        ),
        click.option(
            "--report",
            "--report-format",
            "reports",
            metavar="html,md,json,csv,pdf,recommendations",
            default=_DEFAULT_REPORT,
            show_default=True,
            callback=_reports,
            help="Write reports in these formats.",
        ),
        click.option(
            "--output-dir",
            "--save-dir",
            "output_dir",
            metavar="DIR",
            help="Write all files to DIR. Default: results/NAME.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ReportOptions, ComparisonOptions):
    """The options of `gpuprof compare`."""

    variants: str | None
    models: str | None
    interleave: bool
    load: str | None

    def plan(self) -> ComparisonPlan:
        """Return the plan. Raises BenchmarkError for invalid options."""
        from gpuprof.bench.compare.plan import parse_variants, plan_of

        if self.traffic is not None and not self.interleave:
            raise UsageError("needs_interleave", "--traffic needs --interleave; hint: add --interleave.")
        given = self.models if self.variants is None else self.variants
        if given is None or (self.models is not None and self.variants is not None):
            raise UsageError(
                "one_variants_option",
                "name the variants once; hint: write gpuprof compare A:MODEL,B:MODEL, or add --models.",
            )
        split = (self.traffic or "50,50") if self.interleave else None
        variants = parse_variants(given, self.spec(""))
        return plan_of(dataclasses.replace(self, traffic=split), variants)


@click.command("compare", cls=ListsCommand)
@click.argument("variants", metavar="[NAME:MODEL,NAME:MODEL...]", required=False)
@click.option(
    "--models", metavar="NAME:MODEL,...", help="Compare these variants: another way to give the argument."
)
@click.option(
    "--baseline", metavar="NAME", help="Compare the others with this variant. Default: the first one."
)
@click.option("--name", default="comparison", metavar="TEXT", help="Set the title of the report.")
@measuring_options(process_runs=10, iterations_aliases=["--num-runs"])
@click.option(
    "--dataset", metavar="D", default="synthetic", show_default=True,
    help="Compare outputs on D: synthetic, a folder of images in class folders, or a .npz file.",
)  # fmt: skip
@click.option(
    "--split", metavar="NAME",
    help="Use this split of the data set: the folder in it that has the class folders, such as val.",
)  # fmt: skip
@click.option(
    "--samples", "accuracy_samples", type=WholeNumber(min=1), default=1000, show_default=True, metavar="N",
    help="Compare the outputs of at most N samples.",
)  # fmt: skip
@click.option(
    "--no-accuracy",
    "accuracy",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Do not compare outputs.",
)
@click.option(
    "--metric", "metrics", multiple=True, metavar="FILE.py:NAME", help="Add your own metric. Repeatable."
)
@click.option("--margin", metavar="PERCENT", default="1%", show_default=True, callback=fraction,
              help="Set the equivalence margin of latency.")  # fmt: skip
@click.option("--accuracy-margin", metavar="PERCENT", default="1%", show_default=True, callback=fraction,
              help="Set the equivalence margin of accuracy.")  # fmt: skip
@click.option(
    "--price-per-hour",
    type=FINITE,
    metavar="P",
    help="Compute costs with this price of the machine. Default: no costs.",
)
@click.option(
    "--currency", default="USD", show_default=True, metavar="TEXT", help="Set the currency of the price."
)
@click.option(
    "--interleave", is_flag=True,
    help="Also run an A/B test: send requests to two variants in one process.",
)  # fmt: skip
@click.option(
    "--traffic", metavar="90,10", help="Set the traffic split of the A/B test, in percent. Default: 50,50."
)
@click.option(
    "--load", metavar="'rate=200,duration=30s'",
    help="Compare the variants under this load: rate, duration, pattern, scenario, concurrency, slo, runs "
    "and others, as of gpuprof load.",
)  # fmt: skip
@_report_options
@typed(CompareOptions)
def compare(options: CompareOptions) -> None:
    """Measure variants in fresh processes, compare their speed and outputs, and recommend one.

    A variant is NAME:MODEL, with MODEL as in gpuprof bench. MODEL@RECIPE optimizes it first. Example:
    'fp32:model.py:build,int8:model.py:build@int8-dynamic'. Folders of gpuprof load are variants too:
    'old:loads/old,new:loads/new'.
    """
    from gpuprof.load.comparison_plan import plan_loads

    plan = options.plan()
    loads = plan_loads(plan, options.load)
    if loads is None:
        _run(plan, options)
    else:
        _refuse_options_of_calls()
        run_loads(loads, options)


@dataclass(frozen=True, kw_only=True)
class SuiteOptions(ReportOptions):
    """The options of `gpuprof suite`."""

    suite_file: str


@click.command("suite")
@click.argument("suite_file", metavar="SUITE.toml")
@_report_options
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
@typed(SuiteOptions)
def suite(options: SuiteOptions) -> None:
    """Compare the variants in SUITE.toml, as gpuprof compare does. Continue an interrupted suite."""
    from gpuprof.bench.compare.plan import read_suite
    from gpuprof.load.comparison_plan import read_load_suite

    path = Path(options.suite_file)
    loads = read_load_suite(path)
    if loads is None:
        _run(read_suite(path), options)
    else:
        run_loads(loads, options)


# What calls one after the other have, and requests have not.
_OF_CALLS = (
    "batch_sizes", "launches", "duration", "iterations", "warmup", "dataset", "split", "accuracy_samples",
    "accuracy", "metrics", "accuracy_margin", "price_per_hour", "interleave", "traffic", "profile", "slo",
)  # fmt: skip


def _refuse_options_of_calls() -> None:
    context = click.get_current_context()
    for name in _OF_CALLS:
        if name in context.params and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(each for each in context.command.params if each.name == name).opts[0]
            raise UsageError(
                "options_of_calls", f"{option} is not an option of loads; hint: omit it, or see --load."
            )


def _run(plan: ComparisonPlan, options: ReportOptions) -> None:
    from gpuprof.bench.compare.run import carry_out
    from gpuprof.bench.compare.runner import file_name
    from gpuprof.bench.report import check_formats

    if options.fresh and options.resume:
        raise UsageError(
            "fresh_and_resume", "--fresh and --resume contradict each other; hint: use one of them."
        )
    check_formats(options.reports)
    if len(plan.variants) == 1:
        raise BenchmarkError(
            "one_variant",
            f"there is one variant, {plan.baseline.name}, and nothing to compare it with",
            hint="add a variant, or measure it alone with gpuprof bench",
        )
    folder = (
        Path("results") / file_name(plan.name) if options.output_dir is None else Path(options.output_dir)
    )
    with terminated_like_interrupted() as came:
        try:
            with _progress() as watch:
                finished = carry_out(plan, folder, watch=watch, fresh=options.fresh, resume=options.resume)
            # Inside, so that a browser that prints a PDF is killed too.
            _hand_out(finished, folder, options.reports, as_json=options.as_json)
            if finished.interrupted:
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            if came and came[-1] == signal.SIGTERM:
                click.get_current_context().exit(EXIT_TERMINATED)
            raise
    _exit(finished.document)


def _hand_out(finished: Finished, folder: Path, reports: tuple[str, ...], *, as_json: bool) -> None:
    from gpuprof.bench.compare.document import plain_document
    from gpuprof.bench.compare.run import REPORT_NAME
    from gpuprof.bench.compare.runner import mark_finished
    from gpuprof.bench.report import write_report
    from gpuprof.bench.report.console import document_text

    document = finished.document
    failure: GpuprofError | None = None
    # Before anything is printed, because a closed pipe stops the command.
    try:
        paths = write_report(document, reports, folder, REPORT_NAME)
        if not finished.interrupted:
            mark_finished(folder)
    except GpuprofError as error:
        paths, failure = [], error
    if as_json:
        click.echo(json.dumps(plain_document(document), indent=1, allow_nan=False, default=str))
    else:
        click.echo(document_text(document) + "\n")
        for path in paths:
            click.echo(escape_text(f"wrote {path}"))
        if finished.interrupted:
            hint = f"interrupted: run the same command to continue ({folder})"
            click.echo(escape_text(hint), err=True)
    if failure is not None:
        raise failure


def _exit(document: ComparisonDocument) -> None:
    """Exit with 2 if a variant failed, 1 for a missed target, 3 for an inconclusive result."""
    from gpuprof.bench.verdicts import VariantStatus

    failed = [each for each in document.variants if each.status != VariantStatus.MEASURED]
    if failed:
        names = ", ".join(each.name for each in failed)
        variants = counted(len(document.variants), "variant")
        raise BenchmarkError(
            "variants_failed",
            f"{len(failed)} of {variants} failed ({names})",
            hint="correct what failed, or leave it out; --resume keeps the process runs of the others",
        )
    chosen = _chosen(document)
    if not chosen:
        click.get_current_context().exit(EXIT_INCONCLUSIVE)
    exit_for_targets({batch.target for batch in chosen})


def _chosen(document: ComparisonDocument) -> list[BatchFigures]:
    """Return the batch sizes of the recommended variant, or of the one for each batch size."""
    summary, variants = document.summary, document.variants
    if summary.choice is None and len(variants) > 1:
        taken = summary.by_batch_size or {}
        return [
            batch for each in variants for batch in each.batches if taken.get(batch.batch_size) == each.name
        ]
    return list((document.choice or variants[0]).batches)


def _outcome(event: Ended, before: Ended | None) -> str | None:
    """Return how a process run ended, `before` being the end of the one before it of the variant.

    None where nothing is to be printed: of runs that are skipped, only the first one is reported.
    """
    if event.skipped:
        is_reported = before is not None and before.skipped
        return None if is_reported else ": skipped, as all later ones, because it failed before"
    if event.failure is None:
        return ""
    is_same = before is not None and before.failure == event.failure
    return ": failed again, for the same reason" if is_same else f": failed: {event.failure}"


def _left(elapsed_s: float, made: int, left: int) -> str:
    """Return the estimated time of the remaining process runs."""
    if not made or not left:
        return ""
    minutes = elapsed_s / made * left / 60
    return f" (about {minutes:.0f} min left)" if minutes >= 1 else " (less than a minute left)"


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[RunEvent], None]]:
    """Show the progress: a bar on a terminal, otherwise a line on standard error after each process run."""
    from rich.progress import MofNCompleteColumn

    from gpuprof.bench.workers.events import Ended

    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("starting", total=None)
        begin_s, made = time.monotonic(), 0
        ends: dict[str, Ended] = {}

        def watch(seen: RunEvent) -> None:
            event, done, planned = seen.event, seen.done, seen.planned
            size = "" if event.batch_size is None else f", batch size {event.batch_size}"
            description = escape_text(f"{seen.name}{size}: {event.state.value}")
            bar.update(task, description=description, completed=done, total=planned)
            nonlocal made
            if isinstance(event, Ended) and bar.disable:
                made += not event.skipped
                left = _left(time.monotonic() - begin_s, made, planned - done)
                outcome = _outcome(event, ends.get(seen.name))
                ends[seen.name] = event
                if outcome is None:
                    return
                line = f"process run {done} of {planned}: {seen.name}{outcome}{left}"
                click.echo(escape_text(line), err=True)

        yield watch
