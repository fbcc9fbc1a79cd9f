# SPDX-License-Identifier: Apache-2.0
"""Writes the pages and files of an entry to a file of the server's own; runs in the worker process."""

from __future__ import annotations

from pathlib import Path

from gpuprof.errors import GpuprofError
from gpuprof.live.dashboard.folder import LOAD_FILES, checked_path
from gpuprof.live.dashboard.items import ItemKind, Plain
from gpuprof.run.format import META_FILE

PAGES = {
    ItemKind.RUN: ("flamegraph", "roofline"),
    ItemKind.COMPARISON: ("report",),
    ItemKind.LOAD: ("report",),
}


def render(root: str, path: str, kind: str, page: str, out: str) -> None:
    """Write a page of an entry. Raises GpuprofError."""
    whole = checked_path(Path(root), path)
    if page not in PAGES.get(ItemKind(kind), ()):
        raise GpuprofError("no_such_page", f"a {kind} has no page {page}", hint="use a page of its list")
    if kind == ItemKind.RUN.value:
        _render_run(whole, page, Path(out))
    else:
        Path(out).write_text(_report(whole, ItemKind(kind)), encoding="utf-8", errors="backslashreplace")


def _render_run(path: Path, page: str, out: Path) -> None:
    from gpuprof.opened_run import Run, write_flamegraph

    if not (path / META_FILE).is_file():
        # Opening it would close it, which is a change.
        raise GpuprofError(
            "unclosed", f"{path.name} was not closed", hint=f"gpuprof summary {path.name} closes it"
        )
    run = Run(path)
    if page == "roofline":
        run.roofline(out)
    else:
        write_flamegraph(out, run)


def _report(path: Path, kind: ItemKind) -> str:
    from gpuprof.bench.report.writers import report_page

    if kind is ItemKind.LOAD:
        from gpuprof.load.report import load_content
        from gpuprof.load.result import open_result

        return report_page(load_content(open_result(path)))
    from gpuprof.bench.compare.document import read_document
    from gpuprof.bench.report.sections import content_of

    return report_page(content_of(read_document(path)))


def render_difference(root: str, old: str, new: str, kind: str, out: str) -> None:
    """Write the flame graph of two runs, or the report of two load tests. Raises GpuprofError."""
    if kind == ItemKind.LOAD.value:
        from gpuprof.bench.report.writers import report_page
        from gpuprof.live.dashboard.judging import compared_loads
        from gpuprof.load.comparison_report import comparison_content

        page = report_page(comparison_content(compared_loads(root, old, new)))
        Path(out).write_text(page, encoding="utf-8", errors="backslashreplace")
        return
    from gpuprof.opened_run import Run, flamegraph_difference

    runs = [checked_path(Path(root), each) for each in (new, old)]
    for run in runs:
        if not (run / META_FILE).is_file():
            raise GpuprofError(
                "unclosed", f"{run.name} was not closed", hint=f"gpuprof summary {run.name} closes it"
            )
    flamegraph_difference(out, [Run(runs[0])], [Run(runs[1])])


def table(columns: list[str], rows: list[Plain]) -> str:
    """Return rows as CSV, in which no text is a formula of a spreadsheet."""
    from gpuprof.bench.results.files import to_csv

    return to_csv(rows, columns)


def source_of(root: str, path: str, kind: str) -> str:
    """Return the path of the JSON file of an entry. Raises GpuprofError."""
    whole = checked_path(Path(root), path)
    name = {ItemKind.RUN: META_FILE, ItemKind.LOAD: LOAD_FILES[0]}.get(ItemKind(kind))
    return str(whole if name is None or whole.is_file() else whole / name)
