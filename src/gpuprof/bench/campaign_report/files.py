# SPDX-License-Identifier: Apache-2.0
"""The files of a report, and the document read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpuprof.bench.campaign_report.csv_rows import COLUMNS, csv_rows
from gpuprof.bench.campaign_report.markdown import markdown
from gpuprof.bench.campaign_report.page import report_page, required_packages
from gpuprof.bench.campaign_report.pdf import find_chromium, print_pdf
from gpuprof.bench.campaign_report.reading import FORMAT_VERSION, KIND, report_of
from gpuprof.bench.campaign_report.sections import Content, content_of
from gpuprof.bench.results import to_csv, to_json, write_whole
from gpuprof.errors import BenchmarkError, GpuprofError, UnavailableError

FORMATS = ("html", "md", "csv", "json", "pdf")
_MEND = "compare again, or name the .json of gpuprof compare"


def check_formats(formats: Sequence[str]) -> None:
    """Raise UnavailableError for what a format needs and is missing, before hours of measuring."""
    if {"html", "pdf"} & set(formats):
        required_packages()
    if "pdf" in formats:
        find_chromium()


def write_report(document: dict[str, Any], formats: Sequence[str], folder: Path, stem: str) -> list[Path]:
    """Write a comparison as files `stem.html` and so on; returns their paths.

    A format that cannot be written does not take the others with it: its error is raised behind them,
    UnavailableError where something optional is missing, else BenchmarkError.
    """
    wanted = list(dict.fromkeys(formats))
    wrong = [each for each in wanted if each not in FORMATS]
    if wrong:
        raise BenchmarkError(f"{wrong[0]!r} is no format of a report: take {', '.join(FORMATS)}")
    content = _content(document, "the comparison")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchmarkError(
            f"{folder}: cannot be written ({error.strerror}): name a folder that can"
        ) from error
    paths, failures = [], []
    for each in wanted:
        path = folder / f"{stem}.{each}"
        try:
            _WRITERS[each](document, content, path)
            paths.append(path)
        except GpuprofError as error:
            failures.append(error)
        except OSError as error:
            failures.append(BenchmarkError(f"cannot write {path}: {error.strerror or error}; make room"))
        except ValueError as error:
            failures.append(BenchmarkError(f"{path}: the comparison cannot be written ({error}): {_MEND}"))
    if failures:
        raise _joined(failures)
    return paths


def _joined(failures: Sequence[GpuprofError]) -> GpuprofError:
    lines = "; ".join(dict.fromkeys(map(str, failures)))
    is_missing = all(isinstance(each, UnavailableError) for each in failures)
    return UnavailableError(lines) if is_missing else BenchmarkError(lines)


def _content(document: dict[str, Any], where: str) -> Content:
    try:
        return content_of(report_of(document))
    except KeyError as error:
        raise BenchmarkError(f"{where} is damaged: {error.args[0]!r} is missing: {_MEND}") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BenchmarkError(f"{where} is damaged: {error}: {_MEND}") from error


def _html(_document: dict[str, Any], content: Content, path: Path) -> None:
    write_whole(path, report_page(content))


def _markdown(_document: dict[str, Any], content: Content, path: Path) -> None:
    write_whole(path, markdown(content))


def _csv(_document: dict[str, Any], content: Content, path: Path) -> None:
    write_whole(path, to_csv(csv_rows(content.report), COLUMNS))


def _json(document: dict[str, Any], _content: Content, path: Path) -> None:
    write_whole(path, to_json(document))


def _pdf(_document: dict[str, Any], content: Content, path: Path) -> None:
    print_pdf(report_page(content, for_paper=True), path)


_WRITERS: dict[str, Callable[[dict[str, Any], Content, Path], None]] = {
    "html": _html,
    "md": _markdown,
    "csv": _csv,
    "json": _json,
    "pdf": _pdf,
}


def read_document(path: Path) -> dict[str, Any]:
    """Read the JSON of a comparison. Raises BenchmarkError, in one line, for any other file."""
    document = _loaded(path)
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise BenchmarkError(f"{path} is no comparison: name the .json of gpuprof compare")
    if document.get("format") != FORMAT_VERSION:
        raise BenchmarkError(
            f"{path} has format {document.get('format')!r}, and this version reads {FORMAT_VERSION}: "
            "compare again, or upgrade gpuprof"
        )
    _content(document, str(path))
    return document


def _loaded(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise BenchmarkError(
            f"{path} cannot be read ({error.strerror}): name the .json of a comparison"
        ) from error
    except ValueError as error:
        raise BenchmarkError(
            f"{path} is no comparison: {error}; name the .json of gpuprof compare"
        ) from error
    except RecursionError as error:
        raise BenchmarkError(f"{path} is no comparison: it is nested too deep") from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no figure")
