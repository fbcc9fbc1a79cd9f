# SPDX-License-Identifier: Apache-2.0
"""Metrics as text: OpenMetrics 1.0, and the format 0.0.4 of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum

from gpuprof.live.metrics.definitions import MetricDefinition, MetricKind
from gpuprof.live.metrics.families import Exemplar, Family, HistogramSeries, label_text

MOST_EXEMPLAR_CHARACTERS = 128  # of names and values, by OpenMetrics


class TextFormat(str, Enum):
    """A format, by its content type."""

    OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def chosen_format(accept: str) -> TextFormat:
    """Return the format that a header `Accept` prefers; without a preference that of Prometheus."""
    quality = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.split(","):
        name, *parameters = (each.strip() for each in part.split(";"))
        values = dict(each.partition("=")[::2] for each in parameters)
        if name in quality and values.get("version", "1.0.0") in ("1.0.0", "0.0.4"):
            quality[name] = max(quality[name], _number(values.get("q", "1")))
    wanted, plain = quality.values()
    return TextFormat.OPEN_METRICS if wanted > 0 and wanted >= plain else TextFormat.PROMETHEUS


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def exposition(families: Iterable[Family], text_format: TextFormat) -> bytes:
    """Return the text of metrics; one without series is left out."""
    is_open = text_format is TextFormat.OPEN_METRICS
    parts: list[str] = []
    for family in families:
        if not family.series and not family.histograms:
            continue
        parts.append(_head(family.definition, is_open=is_open))
        parts += [f"{each.head}{each.value!r}\n" for each in family.series.values()]
        for histogram in family.histograms.values():
            parts += _histogram(histogram, is_open=is_open)
    if is_open:
        parts.append("# EOF\n")
    return "".join(parts).encode()


def _head(definition: MetricDefinition, *, is_open: bool) -> str:
    if not is_open:
        kind = "gauge" if definition.kind is MetricKind.INFO else definition.kind.value
        return f"# HELP {definition.name} {definition.help}\n# TYPE {definition.name} {kind}\n"
    family = definition.family
    unit = f"# UNIT {family} {definition.unit}\n" if definition.unit else ""
    return f"# TYPE {family} {definition.kind.value}\n{unit}# HELP {family} {definition.help}\n"


def _histogram(histogram: HistogramSeries, *, is_open: bool) -> Iterator[str]:
    total = 0
    for bucket, (head, count) in enumerate(zip(histogram.heads, histogram.counts, strict=True)):
        total += count
        exemplar = histogram.exemplars.get(bucket) if is_open else None
        yield f"{head}{total}{'' if exemplar is None else _exemplar(exemplar)}\n"
    yield f"{histogram.sum_head}{histogram.sum_ns / 1e9!r}\n"
    yield f"{histogram.count_head}{total}\n"


def _exemplar(exemplar: Exemplar) -> str:
    labels = list(exemplar.labels)
    while labels and sum(len(name) + len(value) for name, value in labels) > MOST_EXEMPLAR_CHARACTERS:
        labels.pop(0)
    return f" # {{{label_text(labels)}}} {exemplar.value_ns / 1e9!r} {exemplar.unix_ns / 1e9:.3f}"
