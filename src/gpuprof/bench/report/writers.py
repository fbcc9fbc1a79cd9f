# SPDX-License-Identifier: Apache-2.0
"""The files of a report: HTML, Markdown, CSV, JSON and PDF."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.bench.compare.document import BatchFigures, ComparisonDocument, VariantFigures, plain_document
from gpuprof.bench.messages import message
from gpuprof.bench.report.pdf import find_chromium, print_pdf
from gpuprof.bench.report.plots import LAYER_BOUNDS, LayerBound, bound_of
from gpuprof.bench.report.sections import Content, Section, content_of
from gpuprof.bench.report.tables import Cell, Table
from gpuprof.bench.results.files import to_csv, to_json, write_whole
from gpuprof.bench.results.text import escaped_markdown
from gpuprof.errors import BenchmarkError, GpuprofError, UnavailableError
from gpuprof.render.page import asset, page_script, page_style, policy, readable, safe_json
from gpuprof.stats.quantiles import Estimate

if TYPE_CHECKING:
    import jinja2


FORMATS = ("html", "md", "csv", "json", "pdf")


def check_formats(formats: Sequence[str]) -> None:
    """Raise UnavailableError for what a format needs and is missing, before hours of measuring."""
    if {"html", "pdf"} & set(formats):
        required_packages()
    if "pdf" in formats:
        find_chromium()


def write_report(document: ComparisonDocument, formats: Sequence[str], folder: Path, stem: str) -> list[Path]:
    """Write a comparison as files `stem.html` and so on; returns their paths.

    A format that cannot be written does not prevent the others: its error is raised after them,
    UnavailableError where something optional is missing, else BenchmarkError.
    """
    wanted = list(dict.fromkeys(formats))
    wrong = [each for each in wanted if each not in FORMATS]
    if wrong:
        raise BenchmarkError(f"{wrong[0]!r} is not a format of a report: take {', '.join(FORMATS)}")
    content = content_of(document)
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
            _WRITERS[each](content, path)
            paths.append(path)
        except GpuprofError as error:
            failures.append(error)
        except OSError as error:
            failures.append(BenchmarkError(f"cannot write {path}: {error.strerror or error}; make room"))
        except (TypeError, ValueError) as error:
            failures.append(
                BenchmarkError(f"{path}: the comparison cannot be written ({error}): compare again")
            )
    if failures:
        raise _joined(failures)
    return paths


def _joined(failures: Sequence[GpuprofError]) -> GpuprofError:
    lines = "; ".join(dict.fromkeys(map(str, failures)))
    is_missing = all(isinstance(each, UnavailableError) for each in failures)
    return UnavailableError(lines) if is_missing else BenchmarkError(lines)


def _html(content: Content, path: Path) -> None:
    write_whole(path, report_page(content))


def _markdown(content: Content, path: Path) -> None:
    write_whole(path, markdown(content))


def _csv(content: Content, path: Path) -> None:
    write_whole(path, to_csv(csv_rows(content.document), COLUMNS))


def _json(content: Content, path: Path) -> None:
    write_whole(path, to_json(plain_document(content.document)))


def _pdf(content: Content, path: Path) -> None:
    print_pdf(report_page(content, for_paper=True), path)


_WRITERS: dict[str, Callable[[Content, Path], None]] = {
    "html": _html,
    "md": _markdown,
    "csv": _csv,
    "json": _json,
    "pdf": _pdf,
}


# Names that the files of `gpuprof bench` have too mean the same here.
COLUMNS = (
    "variant", "is_baseline", "is_choice", "status", "technique", "framework", "model", "device",
    "device_type", "dtype", "batch_size", "latency_p50_ms", "latency_p50_low_ms", "latency_p50_high_ms",
    "latency_p90_ms", "latency_p95_ms", "latency_p99_ms", "latency_mean_ms", "latency_std_ms",
    "latency_min_ms", "latency_max_ms", "spread", "throughput_ips", "speedup", "speedup_low",
    "speedup_high", "verdict", "variant_speedup", "variant_speedup_low", "variant_speedup_high",
    "variant_verdict", "host_peak_bytes", "device_peak_bytes", "energy_per_sample_j", "model_bytes",
    "parameters", "startup_s", "compile_s", "cost_per_million", "currency", "accuracy",
    "accuracy_change", "accuracy_change_low", "accuracy_change_high", "accuracy_verdict",
    "agreement_top1", "agreement_top5", "cosine", "relative_error", "max_absolute_error", "launches",
    "samples", "warnings", "failure", "accuracy_unavailable", "run", "timestamp", "git_commit",
)  # fmt: skip
_MILLISECONDS = 1e3


def csv_rows(document: ComparisonDocument) -> Iterator[dict[str, Any]]:
    """Yield the rows; None, an empty cell, is what is unavailable or has too few samples."""
    for variant in document.variants:
        for batch in variant.batches or (None,):
            row = _variant(variant, document) | ({} if batch is None else _batch(batch))
            # As on the page: no character that hides or turns text, none that ends a file early.
            yield {
                name: readable(str(value)) if isinstance(value, str) else value
                for name, value in ((name, row.get(name)) for name in COLUMNS)
            }


def _variant(variant: VariantFigures, document: ComparisonDocument) -> dict[str, Any]:
    accuracy, why_no_accuracy = variant.accuracy, variant.accuracy_unavailable
    same = (
        "status", "technique", "framework", "model", "device", "device_type", "dtype", "model_bytes",
        "parameters", "startup_s", "compile_s", "run",
    )  # fmt: skip
    row = {name: getattr(variant, name) for name in same}
    row |= {
        "variant": variant.name,
        "is_baseline": variant.name == document.baseline,
        "is_choice": variant.name == document.summary.choice,
        "variant_verdict": variant.verdict,
        "failure": None if variant.failure is None else message(variant.failure),
        "accuracy_unavailable": None if why_no_accuracy is None else message(why_no_accuracy),
        "currency": document.method.currency,
        "timestamp": document.timestamp,
        "git_commit": document.git_commit,
    }
    row |= _interval("variant_speedup", variant.speedup)
    if accuracy is not None:
        row |= {name: getattr(accuracy, name) for name in _ACCURACY}
        row |= _interval("accuracy_change", accuracy.change) | {"accuracy_verdict": accuracy.verdict}
    return row


_ACCURACY = (
    "accuracy", "agreement_top1", "agreement_top5", "cosine", "relative_error", "max_absolute_error",
)  # fmt: skip


def _batch(batch: BatchFigures) -> dict[str, Any]:
    same = (
        "batch_size", "spread", "host_peak_bytes", "device_peak_bytes", "energy_per_sample_j",
        "cost_per_million", "launches", "samples", "verdict",
    )  # fmt: skip
    row = {name: getattr(batch, name) for name in same}
    row |= {
        f"latency_{name}_ms": _ms(None if found is None else found.value)
        for name, found in batch.quantiles.items()
    }
    row |= {f"latency_{name}_ms": _ms(getattr(batch, f"{name}_s")) for name in ("mean", "std", "min", "max")}
    if batch.median_s is not None:
        row["latency_p50_low_ms"], row["latency_p50_high_ms"] = (
            _ms(batch.median_s.low),
            _ms(batch.median_s.high),
        )
    row["throughput_ips"] = None if batch.throughput_per_s is None else batch.throughput_per_s.value
    row["warnings"] = "; ".join(dict.fromkeys(each.code for each in batch.warnings)) or None
    return row | _interval("speedup", batch.speedup)


def _interval(name: str, found: Estimate | None) -> dict[str, float | None]:
    if found is None:
        return {}
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * _MILLISECONDS


def markdown(content: Content) -> str:
    """Return the whole report."""
    return "\n".join([*_summary(content), *(line for each in content.sections for line in _section(each))])


def _text(text: str) -> str:
    return escaped_markdown(readable(text))


def _summary(content: Content) -> Iterator[str]:
    yield f"# {_text(content.title)}"
    yield ""
    yield f"**{_text(content.headline)}**"
    yield ""
    if content.cards and content.choice is not None:
        for card in content.cards:
            note = f" ({_text(card.note)})" if card.note else ""
            yield f"- {_text(card.title)} of {_text(content.choice.name)}: {_text(card.text)}{note}"
        yield ""
    yield from _list(content.lines)
    yield from _list(content.failures)
    if content.recommendations:
        yield "## What to do next"
        yield ""
        for text, because in content.recommendations:
            yield f"- {_text(text)}{f' Why: {_text(because)}' if because else ''}"
        yield ""


def _list(lines: tuple[str, ...]) -> Iterator[str]:
    if lines:
        yield from (f"- {_text(line)}" for line in lines)
        yield ""


def _section(section: Section) -> Iterator[str]:
    yield f"## {_text(section.title)}"
    yield ""
    if section.lead:
        yield _text(section.lead)
        yield ""
    for table in section.tables:
        yield from _table(table)
    yield from _list(section.lines)
    if section.single_lines:
        yield f"<details><summary>{_text(section.single_title)}</summary>"
        yield ""
        yield from _list(section.single_lines)
        yield "</details>"
        yield ""


def _table(table: Table) -> Iterator[str]:
    yield _text(table.caption)
    yield ""
    yield _row([_text(head) for head in table.heads])
    yield _row([":---" if table.is_words(place) else "---:" for place in range(len(table.heads))])
    for row in table.rows:
        yield _row([_cell(cell) for cell in row.cells])
    yield ""


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    return f"{_text(cell.text)} ({_text(cell.note)})" if cell.note else _text(cell.text)


INSTALL = "pip install 'gpuprof-native[report]'"
_ASSETS = Path(__file__).parent / "assets"


def report_page(content: Content, *, for_paper: bool = False) -> str:
    """Return the page; `for_paper` draws the plots as wide as paper from the start.

    Raises UnavailableError where jinja2 or plotly is missing.
    """
    jinja = _required("jinja2")
    library = _required("plotly.offline").get_plotlyjs()
    script = page_script(_ASSETS / "report.js")
    template = _environment(jinja).from_string(asset(_ASSETS / "report.html"))
    return template.render(
        content=content,
        document=content.document,
        looks=content.plots.looks,
        places={variant.name: place for place, variant in enumerate(content.document.variants)},
        bounds=_bounds(content),
        for_paper=for_paper,
        # Plots of a library that writes styles of its own; scripts are those two and no other.
        policy=policy(script, None, library),
        style=_markup(page_style("kit/page.css", "roofline/roofline.css", _ASSETS / "report.css")),
        library=_markup(library),
        script=_markup(script),
        data=_markup(safe_json(_data(content))),
    )


def required_packages() -> None:
    """Raise UnavailableError where a page could not be made."""
    for module in ("jinja2", "plotly.offline"):
        _required(module)


def _required(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".", maxsplit=1)[0]
        raise UnavailableError(f"an HTML or PDF report needs {package}: {INSTALL}") from error


def _environment(jinja: Any) -> jinja2.Environment:
    """Return an environment in which no text of the document is HTML, or hides or turns what is near."""
    environment: jinja2.Environment = jinja.Environment(
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: readable(value) if type(value) is str else value,
    )
    return environment


def _markup(text: str) -> Any:
    """Mark text of ours as HTML."""
    return importlib.import_module("markupsafe").Markup(text)


def _data(content: Content) -> dict[str, Any]:
    """Return the data of the plots; variants are numbers, as in the legends."""
    places = {variant.name: place for place, variant in enumerate(content.document.variants)}
    figures = []
    for figure in content.figures:
        plain = json.loads(json.dumps(figure.to_dict()))
        for trace in plain["traces"]:
            if "meta" in trace:
                trace["meta"] = {"variant": places[trace["meta"]["variant"]]}
        figures.append(plain)
    return {"figures": figures}


def _bounds(content: Content) -> list[LayerBound]:
    """Return the bounds in use."""
    used = {bound_of(layer) for each in content.document.variants for layer in each.layers or ()}
    return [each for each in LAYER_BOUNDS if each in used]
