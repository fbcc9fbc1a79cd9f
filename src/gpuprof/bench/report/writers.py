# SPDX-License-Identifier: Apache-2.0
"""The files of a report: HTML, Markdown, CSV, JSON and PDF."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof.bench.compare.document import BatchFigures, ComparisonDocument, VariantFigures, plain_document
from gpuprof.bench.facts import Diagnostic
from gpuprof.bench.failures import joined
from gpuprof.bench.report.markdown import markdown, recommendations
from gpuprof.bench.report.pdf import find_chromium, print_pdf
from gpuprof.bench.report.plots import LAYER_BOUNDS, bound_of
from gpuprof.bench.report.sections import Content, content_of
from gpuprof.bench.results.files import to_csv, to_json, write_whole
from gpuprof.errors import BenchmarkError, GpuprofError, UnavailableError
from gpuprof.render.page import asset, page_script, page_style, policy, readable, safe_json

FORMATS = ("html", "md", "csv", "json", "pdf", "recommendations")
_EXTENSIONS = {"recommendations": "recommendations.md"}


def check_formats(formats: Sequence[str]) -> None:
    """Raise BenchmarkError for what is no format, UnavailableError for what one needs and is missing."""
    wanted = set(_known(formats))
    if wanted & {"html", "pdf"}:
        required_packages()
    if "pdf" in wanted:
        find_chromium()


def _known(formats: Sequence[str]) -> list[str]:
    wrong = [each for each in formats if each not in FORMATS]
    if wrong:
        raise BenchmarkError(
            "unknown_format", f"{wrong[0]!r} is not a report format", hint=f"use {', '.join(FORMATS)}"
        )
    return list(dict.fromkeys(formats))


def write_report(document: ComparisonDocument, formats: Sequence[str], folder: Path, stem: str) -> list[Path]:
    """Write a comparison as files `stem.html` and so on; returns their paths.

    A format that cannot be written does not prevent the others: its error is raised after them,
    UnavailableError where something optional is missing, else BenchmarkError.
    """
    return write_content(content_of(document), formats, folder, stem)


def write_content(content: Content, formats: Sequence[str], folder: Path, stem: str) -> list[Path]:
    """Write any report as files `stem.html` and so on; as `write_report`."""
    wanted = _known(formats)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchmarkError(
            "cannot_write", f"{folder}: cannot be written ({error.strerror})", hint="use another folder"
        ) from error
    paths, failures = [], []
    for each in wanted:
        path = folder / f"{stem}.{_EXTENSIONS.get(each, each)}"
        try:
            _WRITERS[each](content, path)
            paths.append(path)
        except GpuprofError as error:
            failures.append(error)
        except OSError as error:
            failures.append(
                BenchmarkError(
                    "cannot_write",
                    f"cannot write {path}: {error.strerror or error}",
                    hint="free disk space, or use another folder",
                )
            )
        except (TypeError, ValueError) as error:
            failures.append(
                BenchmarkError(
                    "cannot_write",
                    f"{path}: the comparison cannot be written ({error})",
                    hint="compare again",
                )
            )
    if failures:
        raise joined(failures)
    return paths


_WRITERS: dict[str, Callable[[Content, Path], None]] = {
    "html": lambda content, path: write_whole(path, report_page(content)),
    "md": lambda content, path: write_whole(path, markdown(content)),
    "recommendations": lambda content, path: write_whole(path, recommendations(content, _compared(content))),
    "csv": lambda content, path: write_whole(path, to_csv(csv_rows(_compared(content)), tuple(_COLUMNS))),
    "json": lambda content, path: write_whole(path, to_json(plain_document(_compared(content)))),
    "pdf": lambda content, path: print_pdf(report_page(content, for_paper=True), path),
}


def _compared(content: Content) -> ComparisonDocument:
    if content.document is None:
        raise BenchmarkError(
            "unknown_format", f"{content.title}: only a comparison has this format", hint="use html, md, pdf"
        )
    return content.document


# --- CSV -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _CsvRow:
    """What the columns of a row are read from."""

    document: ComparisonDocument
    variant: VariantFigures
    batch: BatchFigures | None

    @property
    def is_baseline(self) -> bool:
        return self.variant.name == self.document.baseline

    @property
    def is_choice(self) -> bool:
        return self.variant.name == self.document.summary.choice

    @property
    def warnings(self) -> str | None:
        found = () if self.batch is None else self.batch.warnings
        return "; ".join(dict.fromkeys(each.code for each in found)) or None

    def read(self, path: str) -> Any:
        """Return a value; None, an empty cell, is what is unavailable or has too few samples."""
        value: Any = self
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        # As on the page: no character that hides or turns text, none that ends a file early.
        return readable(str(value)) if isinstance(value, (str, Diagnostic)) else value


def _of(owner: str, *names: str) -> dict[str, str]:
    return {name: f"{owner}.{name}" for name in names}


def _estimate(name: str, path: str) -> dict[str, str]:
    return {name: f"{path}.value", f"{name}_low": f"{path}.low", f"{name}_high": f"{path}.high"}


# The path of each column's value. Names that the files of `gpuprof bench` have too mean the same here.
_COLUMNS: dict[str, str] = {
    "variant": "variant.name",
    "is_baseline": "is_baseline",
    "is_choice": "is_choice",
    **_of("variant", "status", "technique", "framework", "model", "device", "device_type", "dtype"),
    **_of("batch", "batch_size"),
    "latency_p50_ms": "batch.median_s.value",
    "latency_p50_low_ms": "batch.median_s.low",
    "latency_p50_high_ms": "batch.median_s.high",
    **{f"latency_{name}_ms": f"batch.{name}_s.value" for name in ("p90", "p95", "p99")},
    **{f"latency_{name}_ms": f"batch.{name}_s" for name in ("mean", "std", "min", "max")},
    **_of("batch", "spread"),
    "throughput_ips": "batch.throughput_per_s.value",
    **_estimate("speedup", "batch.speedup"),
    **_of("batch", "verdict"),
    **_estimate("variant_speedup", "variant.speedup"),
    "variant_verdict": "variant.verdict",
    **_of("batch", "host_peak_bytes", "host_own_bytes", "host_baseline_bytes"),
    **_of("batch", "device_peak_bytes", "energy_per_sample_j"),
    **_of("variant", "model_bytes", "parameters", "startup_s", "compile_s"),
    **_of("batch", "cost_per_million"),
    **_of("document.method", "currency"),
    **_of("variant.accuracy", "accuracy"),
    **_estimate("accuracy_change", "variant.accuracy.change"),
    "accuracy_verdict": "variant.accuracy.verdict",
    **_of("variant.accuracy", "agreement_top1", "agreement_top5", "cosine"),
    **_of("variant.accuracy", "relative_error", "max_absolute_error"),
    **_of("batch", "launches", "samples"),
    "warnings": "warnings",
    **_of("variant", "failure", "accuracy_unavailable", "run"),
    **_of("document", "timestamp", "git_commit"),
}


def csv_rows(document: ComparisonDocument) -> Iterator[dict[str, Any]]:
    """Yield a row for each variant and batch size; times in columns of `_ms` are in milliseconds."""
    for variant in document.variants:
        for batch in variant.batches or (None,):
            row = _CsvRow(document, variant, batch)
            values = {name: row.read(path) for name, path in _COLUMNS.items()}
            yield {
                name: value * 1e3 if name.endswith("_ms") and value is not None else value
                for name, value in values.items()
            }


# --- HTML ----------------------------------------------------------------------------------------

INSTALL = "pip install 'gpuprof-native[report]'"
_ASSETS = Path(__file__).parent / "assets"


def report_page(content: Content, *, for_paper: bool = False) -> str:
    """Return the page; `for_paper` draws the plots as wide as paper from the start.

    Raises UnavailableError where jinja2 or plotly is missing.
    """
    jinja, plotly = required_packages()
    environment = jinja.Environment(
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # No text of the document is HTML, or hides or turns what is near.
        finalize=lambda value: readable(value) if type(value) is str else value,
    )
    as_html = importlib.import_module("markupsafe").Markup
    script, library = page_script(_ASSETS / "report.js"), plotly.get_plotlyjs()
    variants = () if content.document is None else content.document.variants
    bounds = {bound_of(layer) for each in variants for layer in each.layers or ()}
    page: str = environment.from_string(asset(_ASSETS / "report.html")).render(
        content=content,
        looks=content.looks,
        bounds=[each for each in LAYER_BOUNDS if each in bounds],
        for_paper=for_paper,
        # Plots of a library that writes styles of its own; scripts are those two and no other.
        policy=policy(script, None, library),
        style=as_html(
            page_style("kit/page.css", "kit/bounds.css", "roofline/roofline.css", _ASSETS / "report.css")
        ),
        library=as_html(library),
        script=as_html(script),
        data=as_html(safe_json({"figures": [each.to_dict() for each in content.figures]})),
    )
    return page


def required_packages() -> tuple[Any, Any]:
    """Return jinja2 and plotly.offline. Raises UnavailableError where a page could not be made."""
    jinja, plotly = (_required(module) for module in ("jinja2", "plotly.offline"))
    return jinja, plotly


def _required(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".", maxsplit=1)[0]
        raise UnavailableError(
            "not_installed", f"an HTML or PDF report needs {package}", hint=INSTALL
        ) from error
