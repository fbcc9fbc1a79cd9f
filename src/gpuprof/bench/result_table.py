# SPDX-License-Identifier: Apache-2.0
"""A result as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuprof.analyze.text_table import Column, escape_text, format_duration, text_table
from gpuprof.bench.statistics import samples_needed

if TYPE_CHECKING:
    from gpuprof.bench.result import Result

_WIDTH = 100
_COLUMNS = (Column("", right=False), Column("time"), Column("95% interval"), Column("width"))


def result_table(result: Result) -> str:
    """Return the figures, how they came about, and what speaks against them."""
    lines = [escape_text(result.name), "", text_table(_COLUMNS, [*_quantile_rows(result)])]
    lines.append("")
    for line in (*_figure_lines(result), *_origin_lines(result)):
        lines += textwrap.wrap(line, _WIDTH, subsequent_indent="  ")
    for flag in result.flags:
        lines += textwrap.wrap(f"! {escape_text(str(flag))}", _WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def _quantile_rows(result: Result) -> Iterator[tuple[str, str, str, str]]:
    from gpuprof.bench.result import QUANTILES

    for quantile in QUANTILES:
        name = f"p{quantile * 100:.6g}"
        found = result.estimate(quantile)
        if found is None:
            needed = f"needs {samples_needed(quantile):,}"
            yield name, f"insufficient (n={result.count:,})", needed, "-"
            continue
        width = found.relative_width
        ends = f"{_time(found.low)} to {_time(found.high)}"
        yield name, _time(found.value), ends, _width(width)


def _figure_lines(result: Result) -> Iterator[str]:
    figures = result.summary
    if figures is None:
        yield "no samples"
        return
    parts = [f"mean {_time(figures.mean)}", f"std {_time(figures.std)}"]
    parts += [
        f"min {_time(figures.minimum)}",
        f"max {_time(figures.maximum)}",
        f"spread {figures.spread:.1%}",
    ]
    yield "  ".join(parts)
    rate = f"{result.calls_per_s:,.4g} calls/s, one after the other"
    yield rate if result.items_per_s is None else f"{rate}, {result.items_per_s:,.4g} items/s"


def _origin_lines(result: Result) -> Iterator[str]:
    settings, measured = result.settings, result.measurements
    calls = sum(each.calls for each in measured)
    kinds = f"{settings.mode} mode, {settings.caches} caches"
    yield f"{len(result.samples):,} samples of {calls:,} calls in {_launches(len(result.launches))}, {kinds}"
    if measured and measured[0].calls_per_sample > 1:
        yield f"each sample is the mean of {measured[0].calls_per_sample:,} calls: quantiles are of those"
    for launch in result.launches[:1]:
        each = launch.measurement
        if each is not None:
            yield f"warm-up: {each.warmup}"
            yield f"stopped: {escape_text(each.stop_reason)}"
            first = None if each.warmup is None else each.warmup.first_call_s
            parts = {
                "load": launch.extra.get("load_s"),
                "prepare": launch.extra.get("prepare_s"),
                "first call": first,
            }
            yield "  ".join(f"{name} {_time(value)}" for name, value in parts.items() if value is not None)
            yield f"a call that does nothing reads {_time(each.timer_ns / 1e9)}; {'; '.join(each.notes)}"


def _launches(count: int) -> str:
    return "1 launch" if count == 1 else f"{count:,} launches"


def _width(width: float | None) -> str:
    if width is None:
        return "-"
    return f"{width:.2%}" if width < 1 else f"{width:.1f}x"


def _time(seconds: float | None) -> str:
    return "?" if seconds is None else format_duration(seconds * 1e9)
