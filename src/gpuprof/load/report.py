# SPDX-License-Identifier: Apache-2.0
"""The report of a load: HTML, Markdown and PDF as of a benchmark, and a CSV of its figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from gpuprof.analyze.requests.text import TITLES as PART_TITLES
from gpuprof.analyze.requests.text import cause_text, notes_of, parts_of, request_text
from gpuprof.bench.report import formatting
from gpuprof.bench.report.sections import Content, Link, Section, section_of
from gpuprof.bench.report.table import Table, facts_table, figure, table_of, whole, words
from gpuprof.bench.report.writers import check_formats as check_packages
from gpuprof.bench.report.writers import write_content
from gpuprof.bench.results.files import to_csv, to_json, write_whole
from gpuprof.errors import BenchmarkError
from gpuprof.load.figures import Distribution
from gpuprof.load.plots import heat_map, latency_over_time, rates_over_time, tail
from gpuprof.load.result import LoadResult, status_text, verdict_text
from gpuprof.load.server_result import ServerResult
from gpuprof.load.streaming_summary import METRIC_TITLES, QUANTILES, StreamSummary
from gpuprof.render.page import readable
from gpuprof.render.tail_page import TAIL_PAGE
from gpuprof.text.units import counted

FORMATS = ("html", "md", "csv", "json", "pdf")
_OWN = ("csv", "json")
_TITLES = {
    "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9", "maximum": "Max", "mean": "Mean",
}  # fmt: skip


def check_formats(formats: Sequence[str]) -> None:
    """Raise BenchmarkError for what is no format, UnavailableError for what one needs and is missing."""
    unknown = [each for each in formats if each not in FORMATS]
    if unknown:
        raise BenchmarkError(
            "unknown_format", f"{unknown[0]!r} is not a report format", hint=f"use {', '.join(FORMATS)}"
        )
    check_packages([each for each in formats if each not in _OWN])


def write_report(
    result: LoadResult, formats: Sequence[str], folder: Path, stem: str = "report"
) -> list[Path]:
    """Write a load as files `stem.html` and so on; returns their paths. Raises GpuprofError."""
    rows = list(csv_rows(result))
    return write_formats(load_content(result), rows, result.to_dict(), formats, folder, stem)


def write_formats(
    content: Content,
    rows: Sequence[dict[str, Any]],
    plain: dict[str, Any],
    formats: Sequence[str],
    folder: Path,
    stem: str = "report",
) -> list[Path]:
    """Write a report: `rows` as CSV, `plain` as JSON, and the content. Raises GpuprofError."""
    check_formats(formats)
    paths = write_content(content, [each for each in formats if each not in _OWN], folder, stem)
    for each in dict.fromkeys(formats):
        if each not in _OWN:
            continue
        path = folder / f"{stem}.{each}"
        try:
            write_whole(
                path, to_csv(rows, tuple(rows[0]) if rows else ()) if each == "csv" else to_json(plain)
            )
        except OSError as error:
            raise BenchmarkError(
                "cannot_write", f"cannot write {path} ({error.strerror})", hint="use another folder"
            ) from error
        paths.append(path)
    return paths


def load_content(result: LoadResult) -> Content:
    """Return the content of the report of one load."""
    settings = result.settings
    return Content(
        document=None,
        looks={},
        title=f"Load on {readable(settings.target)}",
        subtitle=", ".join(filter(None, (settings.scenario, settings.pattern, _when(result)))),
        headline=_headline(result),
        lines=tuple(map(str, result.warnings)),
        recommendations=(),
        cards=(),
        failures=(),
        sections=tuple(each for each in _sections(result) if each.figures or each.tables or each.lines),
    )


def _when(result: LoadResult) -> str | None:
    found = result.run.environment.get("date")
    return None if found is None else str(found)


def _headline(result: LoadResult) -> str:
    rates = f"{counted(len(result.rows), 'request')}, {formatting.rate(result.achieved_rate)} achieved"
    if result.planned_rate is not None:
        rates += f" of {formatting.rate(result.planned_rate)} planned"
    streams = streams_of(result)
    verdicts = [verdict_text(result)] if streams is None else streams.verdict_texts
    return ". ".join([rates, *filter(None, verdicts)])


def streams_of(result: LoadResult) -> StreamSummary | None:
    """Return the figures of streams; None where responses are none."""
    return result.streams if isinstance(result, ServerResult) else None


def _sections(result: LoadResult) -> Iterator[Section]:
    rows, end_ns = result.rows, result.run.end_ns
    yield section_of(
        "latency",
        "Latency",
        latency_table(result),
        figures=(latency_over_time(rows, None if result.target is None else result.target.limit_s),),
        lead="What a request waits for before it is sent is part of its latency.",
    )
    yield from _stream_section(streams_of(result))
    lead = "How many requests took longer; the distance of both lines is the time before sending."
    yield section_of("tail", "Tail", figures=(tail(rows),), lead=lead)
    yield section_of("heat", "Latency over time", figures=(heat_map(rows),))
    yield section_of("rates", "Rates", status_table(result), figures=(rates_over_time(rows, end_ns),))
    yield section_of("batches", "Batches", batch_table(result))
    yield from _slow_section(result)
    yield section_of("environment", "Test environment", facts_table("Where.", result.run.environment))
    yield section_of("method", "Methodology", facts_table("What was sent.", _method(result)))


def _stream_section(streams: StreamSummary | None) -> Iterator[Section]:
    if streams is not None:
        section = section_of("streams", "Tokens", stream_table(streams))
        yield dataclasses.replace(section, lines=tuple(streams.lines))


def _slow_section(result: LoadResult) -> Iterator[Section]:
    """Yield the slowest requests of a load that was profiled, with what they spent their time on."""
    if result.profile is None:
        return
    slow = result.slowest()
    parts = parts_of(slow)
    columns: dict[str, Any] = {
        name: lambda each, key=key: figure(getattr(each, key) / 1e9, formatting.time)
        for name, key in (("Latency", "latency_ns"), ("Queued", "queued_ns"), ("Service", "service_ns"))
    }
    for part in parts:
        title = PART_TITLES[part]
        columns[title[0].upper() + title[1:]] = lambda each, part=part: figure(
            None if each.parts_ns is None else each.parts_ns[part] / 1e9, formatting.time
        )
    columns["Evidence"] = lambda each: words(readable(cause_text(each.cause)))
    rows = [(request_text(each), each) for each in slow]
    caption = "Slowest requests by service time; the last column is what took longer than around the median."
    link = Link("Flame graph of the slow requests against those around the median", TAIL_PAGE)
    section = section_of("slow", "Slow requests", table_of(caption, columns, rows, first="Request"))
    yield dataclasses.replace(
        section,
        lines=tuple(notes_of(slow, result.profiled.tail_wait())),
        link=link if result.profiled.has_tail() else None,
    )


def _method(result: LoadResult) -> dict[str, object]:
    law = result.littles_law
    return {
        **{name: value for name, value in asdict(result.settings).items() if value is not None},
        "generator's ceiling per second": result.run.ceiling_per_s,
        "requests in the system (Little's law)": None if law is None else law.in_system,
        "rate times latency": None if law is None else law.rate_times_latency,
    }


def latency_table(result: LoadResult) -> Table | None:
    """Return the figures of the latency, and of its two parts."""
    columns: dict[str, Any] = {"Requests": lambda found: whole(found.count)}
    for name, title in _TITLES.items():
        columns[title] = lambda found, name=name: figure(getattr(found, name), formatting.time)
    parts = {
        "latency": result.latency,
        "service": result.service,
        "lateness": result.lateness,
    }
    caption = (
        "Latency is from the planned arrival to the end, service from sending to the end, lateness from the "
        "planned arrival to sending. Failed requests are the longest, and have no service time."
    )
    return table_of(caption, columns, parts.items(), first="Time")


def stream_table(streams: StreamSummary) -> Table | None:
    """Return the quantiles of each metric of streams."""
    columns: dict[str, Any] = {"Values": lambda found: whole(found.count)}
    for at, q in enumerate(QUANTILES):
        columns[f"p{q * 100:g}"] = lambda found, at=at: figure(found.quantiles[at], formatting.time)
    caption = (
        "The time to the first token and to the end is from the planned arrival. The time per output token "
        "is the time from the first token to the end, divided by the tokens after the first. The inter-token "
        "latency is the time between two tokens."
    )
    rows = ((METRIC_TITLES[each.metric], each) for each in streams.figures)
    return table_of(caption, columns, rows, first="Time")


def status_table(result: LoadResult) -> Table | None:
    """Return how requests ended."""
    total = max(len(result.rows), 1)
    columns: dict[str, Any] = {
        "Requests": whole,
        "Of all": lambda count: figure(count / total, formatting.share),
    }
    ends = {status_text(status): count for status, count in result.statuses.items()}
    return table_of("How requests ended.", columns, ends.items(), first="End")


def batch_table(result: LoadResult) -> Table | None:
    """Return how many batches had which size; None where requests were not batched."""
    sizes = result.batch_sizes or {}
    total = max(sum(sizes.values()), 1)
    columns: dict[str, Any] = {
        "Batches": whole,
        "Of all": lambda count: figure(count / total, formatting.share),
    }
    rows = ((str(size), count) for size, count in sizes.items())
    return table_of("Sizes of batches.", columns, rows, first="Size")


# --- CSV -----------------------------------------------------------------------------------------


def csv_rows(result: LoadResult) -> Iterator[dict[str, Any]]:
    """Yield one row for the run; times are in milliseconds, an empty cell is unavailable."""
    row: dict[str, Any] = {
        **{name: readable(str(value)) if isinstance(value, str) else value
           for name, value in asdict(result.settings).items() if name != "system"},
        "requests": len(result.rows),
        "failed": sum(count for status, count in result.statuses.items() if status.name != "OK"),
        "planned_rate": result.planned_rate,
        "achieved_rate": result.achieved_rate,
        "units_per_s": result.units_per_s,
    }  # fmt: skip
    for kind in ("latency", "service", "lateness"):
        found: Distribution = getattr(result, kind)
        for each in fields(Distribution):
            value = getattr(found, each.name)
            if each.name != "count":
                row[f"{kind}_{each.name}_ms"] = None if value is None else value * 1e3
    if (streams := streams_of(result)) is not None:
        row["tokens"], row["goodput_per_s"] = streams.tokens, streams.goodput.per_second
        for own in streams.figures:
            for q, seconds in zip(QUANTILES, own.quantiles, strict=True):
                row[f"{own.metric.value}_p{q * 100:g}_ms"] = None if seconds is None else seconds * 1e3
    row["verdict"] = None if result.verdict is None else str(result.verdict)
    row["warnings"] = "; ".join(dict.fromkeys(each.code for each in result.warnings)) or None
    yield row
