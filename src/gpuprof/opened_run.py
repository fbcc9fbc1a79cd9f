# SPDX-License-Identifier: Apache-2.0
"""A finished run: open, query, draw, compare, export, or import it from another tool's trace.

This module is above the packages, because the methods of a run use all of them.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpuprof.errors import RunError
from gpuprof.record.facts import Method, Note, SourceStatus
from gpuprof.run.damage import Damage
from gpuprof.run.database import check_memory, enough_memory
from gpuprof.run.facts import damage_in, notes_of, statuses_of
from gpuprof.run.messages import incomplete_text, method_text, reason_text
from gpuprof.run.quick_switching import quick_switching

if TYPE_CHECKING:
    import duckdb

    from gpuprof.analyze.call_tree import CallTree
    from gpuprof.analyze.difference import Scaling
    from gpuprof.analyze.difference_summary import DifferenceSummary
    from gpuprof.analyze.findings.engine import Findings
    from gpuprof.analyze.findings.promises import Score
    from gpuprof.analyze.lines import LineSummary
    from gpuprof.analyze.metrics import WeightName
    from gpuprof.analyze.phases import Phases
    from gpuprof.analyze.requests.slowest import ProfiledRequests
    from gpuprof.analyze.roofline.build import Roofline
    from gpuprof.analyze.summary import Summary
    from gpuprof.analyze.whatif.prediction import WhatIf
    from gpuprof.render.timeline import Slices
    from gpuprof.run.folder import RunFolder

SummaryKind = Literal["layer", "operator", "kernel", "span", "python"]
PathLike = str | os.PathLike[str]


class Run:
    """A finished run.

    Attributes: `path`, the folder; `meta`, the content of meta.json (see docs/run-format.md).
    """

    def __init__(self, path: PathLike) -> None:
        from gpuprof.run.folder import RunFolder

        self._folder = RunFolder(path)
        self._temporary: object = None  # kept alive as long as the run
        self.path: Path = self._folder.path
        self.meta: dict[str, Any] = self._folder.meta

    def __repr__(self) -> str:
        return f"gpuprof.open({str(self.path)!r})"

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Query the tables of the run (`spans`, `call_tree`, ...) with SQL; returns a DuckDB relation."""
        return self._folder.sql(query)

    @property
    def tables(self) -> list[str]:
        """Names of the tables that `sql` can query."""
        return self._folder.tables

    @property
    def sources(self) -> dict[str, SourceStatus]:
        """The status of each source: on or off, its method, and the reason."""
        return statuses_of(self.meta)

    @property
    def notes(self) -> list[Note]:
        """Notes and warnings about the run."""
        return notes_of(self.meta)

    @property
    def damage(self) -> list[Damage]:
        """Damage: what is missing in the run's files."""
        return damage_in(self.meta)

    @cached_property
    def call_tree(self) -> CallTree:
        """All calls merged by path, with calls, total time and self time in nanoseconds."""
        from gpuprof.analyze.call_tree import load_tree

        with self._folder.reading():
            return load_tree(self._folder)

    @quick_switching()
    def summary(
        self, by: SummaryKind | None = None, *, process: int | Literal["all"] | None = None
    ) -> Summary:
        """Time by layer, operator or span; prints as a table, and has `rows` and `to_dict()`.

        Without `by`, the first of layer, operator, span, python and kernel that has rows. `process` is a
        process id or "all"; without it, the process that started the recording, all ranks of a launcher, or
        all of an imported capture. Raises RunError.
        """
        from gpuprof.analyze.summary import first_with_rows

        if by is not None:
            return self._summary(by, process)
        return first_with_rows(lambda kind: self._summary(kind, process))

    def lines(self) -> LineSummary:
        """Time of source lines, of a run of `gpuprof run --profiler line`; prints as a table.

        Raises RunError, also where no line was timed.
        """
        from gpuprof.analyze.lines import summarize_lines

        return summarize_lines(self)

    @quick_switching()
    def phases(self) -> Phases | None:
        """Wall time of the main process by phase: start-up and imports, steps, between and after them.

        None for an imported run. Raises RunError.
        """
        from gpuprof.analyze.phases import read_phases

        return read_phases(self._folder)

    def _summary(self, by: str, process: int | Literal["all"] | None) -> Summary:
        from gpuprof.analyze.phases import ranks_of
        from gpuprof.analyze.summary import added_up_note, summarize

        is_capture = process is None and bool(self.meta.get("imported"))
        chosen = "all" if is_capture else process
        ranks = tuple(each for _, each in ranks_of(self.meta))
        table = summarize(
            self.call_tree,
            by,
            process=chosen,
            default=ranks,
            why_empty=self._why_off(by if by == "python" else f"{by}s"),
        )
        if (is_capture or ranks) and (added_up := added_up_note(table)):
            table = dataclasses.replace(table, notes=(*table.notes, added_up))
        if (note := incomplete_text(self.meta)) is not None:
            table = dataclasses.replace(table, notes=(*table.notes, note))
        if by == "layer":
            from gpuprof.analyze.layer_groups import classes_of_layers
            from gpuprof.analyze.summary import with_groups

            table = with_groups(table, classes_of_layers(self.meta))
        if by == "layer" and self.meta.get("work") and table.processes == (self.meta.get("process_id"),):
            from gpuprof.analyze.tree_work import with_work

            with self._folder.reading():
                return with_work(table, self._folder, self.call_tree)
        return table

    def _why_off(self, source: str) -> str | None:
        """Return why a source has no rows in a table, or None if that is not known."""
        status = statuses_of(self.meta).get(source)
        if status is None:
            return None
        if status.method is Method.CUDA_EVENTS:
            return f"GPU times are of layers only ({method_text(status)})"
        if status.is_on and source == "python":
            return "no sample has a function of the program"
        return None if status.is_on else reason_text(status)

    def flamegraph(
        self,
        path: PathLike,
        *,
        weight: WeightName | None = None,
        against: Run | Sequence[Run] = (),
        full: bool = False,
        flat: bool = False,
        time_range: tuple[float, float] | None = None,
    ) -> Path:
        """Write the flame graph and the timeline as one offline HTML page; returns its path.

        `weight` is the weight that is shown first: "main" (wall time of the main process, the default), "cpu"
        (time of all threads), "gpu" (time of the kernels and transfers that they launched; the default for a
        run with GPU work), "wall", "bytes", "flops" or "launches" (docs/commands/flamegraph.md).
        The page can switch between all of them. With `against`, one older run or a list, the page shows the
        difference (docs/difference.md), without a timeline.

        Of a large run, short calls of the timeline and rare paths are summed up, unless the page is `full`.
        Repeated layers are one cell until they are unfolded; with `flat`, each has its own. `time_range`
        (begin and end in seconds since the begin of the run) limits the timeline, so that it has more of what
        is inside. Warns if the page of a run has no timeline. Raises RunError for a weight that the run
        lacks.
        """
        old = [against] if isinstance(against, Run) else list(against)
        if old:
            return flamegraph_difference(path, [self], old, weight=weight)
        left_out = write_flamegraph(path, self, weight=weight, full=full, flat=flat, time_range=time_range)
        if left_out is not None:
            warnings.warn(f"gpuprof: {left_out}", RuntimeWarning, stacklevel=2)
        return Path(path)

    def _loaded(self) -> tuple[RunFolder, CallTree]:
        return self._folder, self.call_tree

    @quick_switching()
    def export(self, path: PathLike) -> Path:
        """Write the run for another tool; returns the path. Raises RunError.

        The extension selects the format, as in `.pftrace` for Perfetto; docs/commands/export.md lists all.
        """
        from gpuprof.render.export import export_run

        return export_run(self._folder, Path(path))

    @quick_switching()
    def requests(self) -> ProfiledRequests:
        """Return the requests of a run that `gpuprof load --profile` recorded; prints the slowest.

        `slowest(10)` has them with what they spent their time on, `rows` the columns of all. Raises RunError.
        """
        from gpuprof.analyze.requests.slowest import ProfiledRequests

        with self._folder.reading():
            return ProfiledRequests(self._folder)

    @quick_switching()
    def whatif(
        self,
        *,
        remove: str | Sequence[str] = (),
        speed_up: Mapping[str, float] | None = None,
        workers: int | None = None,
    ) -> WhatIf:
        """Predict the wall time of the main process, or of one rank, with changes (docs/commands/whatif.md).

        `remove` names what is removed, `speed_up` how many times faster something becomes, as in
        `{"layers.*.mlp": 2}`. A name may contain `*` and begin with a kind: `operator:aten::mm`,
        `python:DataLoader.__next__`. `workers` is a number of data loader workers. Raises RunError if nothing
        has such a name.
        """
        from gpuprof.analyze.whatif.prediction import predict

        removed = (remove,) if isinstance(remove, str) else tuple(remove)
        return predict(self._folder, remove=removed, speed_up=speed_up, workers=workers)

    @quick_switching()
    def findings(self, *, rerun: bool = False) -> Findings:
        """Find causes of lost time, the largest gain first (docs/commands/explain.md).

        A sequence of `Finding`; `results` has the result of each rule. With `rerun`, recorded work is
        executed again without and with the fix, in another process, to measure the gain; an interruption
        ends that and keeps what was measured. Raises RunError for a damaged run.
        """
        from gpuprof.analyze.findings.engine import find

        rerunner = None
        if rerun:
            from gpuprof.analyze.rerun.rerunner import Rerunner

            rerunner = Rerunner()
        with self._folder.reading():
            return find(self._folder, rerunner)

    @quick_switching()
    def score(self, old: Run) -> Score:
        """Compare this run with the gains that an older run's findings predict; also written to this run.

        Raises RunError.
        """
        from gpuprof.analyze.findings.promises import score

        return score(self._folder, old._folder)

    @quick_switching()
    def roofline(self, path: PathLike | None = None) -> Roofline:
        """Find the bottleneck of each layer and operator; with a path, also write the plot as a page.

        The run must have been recorded with `work=True`. Raises RunError otherwise, or if the run is damaged.
        """
        from gpuprof.analyze.roofline.build import build_roofline

        with self._folder.reading():
            found = build_roofline(self._folder)
        if path is not None:
            from gpuprof.render.page import page_subtitle, page_title
            from gpuprof.render.roofline import roofline_page

            page = roofline_page(
                found, title=page_title(self.path, self.meta), subtitle=page_subtitle(self.meta)
            )
            _write_page(Path(path), page)
        return found


def _slices(
    run: RunFolder, target: Path, tree: CallTree, time_range: tuple[float, float] | None, *, is_full: bool
) -> Slices | str:
    from gpuprof.render.timeline import read_timeline

    window = None if time_range is None else (round(time_range[0] * 1e9), round(time_range[1] * 1e9))

    try:
        # Sort next to the page, because the data may be larger than a temporary folder.
        return read_timeline(run, target.parent, tree, window=window, is_full=is_full)
    except OSError as error:
        raise RunError(
            "cannot_write",
            f"cannot write {target}: {error.strerror}",
            hint="specify a file that can be written",
        ) from None


def _write_page(target: Path, page: str) -> None:
    try:
        with target.open("w", encoding="utf-8") as file:
            try:
                file.write(page)
                file.flush()
            except OSError:
                if target.is_file():  # a partial page looks complete until it is opened
                    target.unlink()
                raise
    except OSError as error:
        raise RunError(
            "cannot_write",
            f"cannot write {target}: {error.strerror}",
            hint="specify a file that can be written",
        ) from None


def open(path: PathLike) -> Run:  # noqa: A001 - the contract's name
    """Open a run folder; one that was never closed is recovered first. Raises RunError."""
    run = Run(path)
    with enough_memory(f"to read {run.path}"):
        check_memory()
    return run


@quick_switching()
def write_flamegraph(
    path: PathLike,
    run: Run,
    *,
    weight: WeightName | None = None,
    full: bool = False,
    flat: bool = False,
    time_range: tuple[float, float] | None = None,
) -> str | None:
    """Write the page of one run as `Run.flamegraph` does; returns why it has no timeline, or None.

    Raises RunError.
    """
    from gpuprof.render.flame_page import run_page

    if time_range is not None and not 0 <= time_range[0] < time_range[1]:
        raise RunError(
            "invalid_range",
            f"a range from {time_range[0]:g} s to {time_range[1]:g} s contains no time",
            hint="name a begin and a later end, in seconds since the begin of the run",
        )

    target = Path(path)
    folder, tree = run._loaded()
    slices = _slices(folder, target, tree, time_range, is_full=full)
    with folder.reading():
        page = run_page(folder, tree, weight, slices=slices, is_full=full, is_flat=flat)
    _write_page(target, page)
    return slices if isinstance(slices, str) else None


@quick_switching()
def flamegraph_difference(
    path: PathLike, new: Sequence[Run], old: Sequence[Run], *, weight: WeightName | None = None
) -> Path:
    """Write the flame graph of what changed from `old` runs to `new` ones (docs/difference.md).

    Returns the path. With two or more runs on each side, a change is compared with the variation between
    runs. Raises RunError.
    """
    from gpuprof.render.flame_page import difference_page

    _check_sides(new, old)
    target = Path(path)
    _write_page(
        target, difference_page([run._loaded() for run in new], [run._loaded() for run in old], weight)
    )
    return target


@quick_switching()
def summary_difference(
    new: Sequence[Run], old: Sequence[Run], by: SummaryKind = "layer", *, scaling: Scaling = "none"
) -> DifferenceSummary:
    """Compare the self times of runs by name; prints as a table (docs/difference.md).

    `scaling` is "none" for times as measured, "calls" for the same number of repetitions, "total" for the
    same total time. Raises RunError.
    """
    from gpuprof.analyze.difference_summary import compare_runs

    _check_sides(new, old)
    return compare_runs([run._loaded() for run in new], [run._loaded() for run in old], by, scaling)


def _check_sides(new: Sequence[Run], old: Sequence[Run]) -> None:
    if not new or not old:
        raise RunError(
            "no_runs", "a comparison needs at least one run on each side", hint="give new and old runs"
        )


@quick_switching()
def import_trace(trace: PathLike, out: PathLike) -> Run:
    """Convert another tool's trace to the run folder `out` and open it (docs/commands/import.md).

    Reads Chrome's JSON format as torch.profiler writes it, plain or gzip, and the SQLite export of Nsight
    Systems. Raises RunError for any other file, RecordingError if `out` cannot be created.
    """
    from gpuprof.analyze.ceilings.imported import add_imported_ceilings
    from gpuprof.run.imports.trace_file import import_trace as write_run

    meta = write_run(trace, out)
    add_imported_ceilings(Path(out), meta["devices"])
    return Run(out)
