# SPDX-License-Identifier: Apache-2.0
"""Values of metrics by their labels. The text of the labels is made once, when a series begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from gpuprof.live.metrics.definitions import MetricDefinition, MetricKind
from gpuprof.text.sanitize import shorten

MOST_LABEL_CELLS = 200
Labels: TypeAlias = tuple[str, ...]


@dataclass(slots=True)
class MetricSeries:
    """One series: the text before its value, and the value."""

    head: str
    value: float
    begin_unix_ns: int


@dataclass(frozen=True, slots=True)
class Exemplar:
    """A step that a bucket counts, and where to find it in its run."""

    value_ns: int
    labels: tuple[tuple[str, str], ...]
    unix_ns: int


class HistogramSeries:
    """Counts of one histogram: one for each bound, and one for what is above all of them."""

    def __init__(self, definition: MetricDefinition, labels: Labels, begin_unix_ns: int) -> None:
        pairs = list(zip(definition.labels, labels, strict=True))
        self.bounds_ns = definition.bounds_ns
        bounds = [*(repr(bound / 1e9) for bound in self.bounds_ns), "+Inf"]
        self.heads = [f"{head_text(definition.name + '_bucket', [*pairs, ('le', le)])}" for le in bounds]
        self.sum_head, self.count_head = (
            head_text(definition.name + suffix, pairs) for suffix in ("_sum", "_count")
        )
        self.counts = [0] * len(bounds)
        self.sum_ns = 0
        self.exemplars: dict[int, Exemplar] = {}
        self.begin_unix_ns = begin_unix_ns

    def observe(self, values_ns: Sequence[int]) -> dict[int, int]:
        """Count values; returns for each bucket the index of its last value."""
        buckets = np.searchsorted(self.bounds_ns, values_ns, side="left").tolist()
        for bucket in buckets:
            self.counts[bucket] += 1
        self.sum_ns += sum(values_ns)
        return {bucket: index for index, bucket in enumerate(buckets)}

    def raise_to(self, buckets: Sequence[tuple[int, int]], sum_ns: int) -> None:
        """Set the totals of a source, which may not lower them: upper bounds with their counts."""
        if sum(count for _, count in buckets) < self.count:
            return
        places = np.searchsorted(self.bounds_ns, [bound for bound, _ in buckets], side="left").tolist()
        self.counts = [0] * len(self.counts)
        for place, (_, count) in zip(places, buckets, strict=True):
            self.counts[place] += count
        self.sum_ns = sum_ns

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


class Family:
    """The series of one metric."""

    def __init__(self, definition: MetricDefinition) -> None:
        self.definition = definition
        self.series: dict[Labels, MetricSeries] = {}
        self.histograms: dict[Labels, HistogramSeries] = {}

    def set(self, labels: Labels, value: float, unix_ns: int) -> None:
        """Set a gauge."""
        self._series(labels, unix_ns).value = value

    def add(self, labels: Labels, amount: float, unix_ns: int) -> None:
        """Add to a counter."""
        self._series(labels, unix_ns).value += amount

    def raise_to(self, labels: Labels, total: float, unix_ns: int) -> None:
        """Set a counter to the total of its source, which may not lower it."""
        series = self._series(labels, unix_ns)
        series.value = max(series.value, total)

    def histogram(self, labels: Labels, unix_ns: int) -> HistogramSeries:
        """Return the histogram of labels, which begins with its first use."""
        found = self.histograms.get(labels)
        if found is None:
            found = self.histograms[labels] = HistogramSeries(self.definition, labels, unix_ns)
        return found

    def remove(self, labels: Labels) -> None:
        """End a series."""
        self.series.pop(labels, None)
        self.histograms.pop(labels, None)

    def _series(self, labels: Labels, unix_ns: int) -> MetricSeries:
        found = self.series.get(labels)
        if found is None:
            pairs = list(zip(self.definition.labels, labels, strict=True))
            start = 1 if self.definition.kind is MetricKind.INFO else 0
            found = self.series[labels] = MetricSeries(head_text(self.definition.name, pairs), start, unix_ns)
        return found


def head_text(name: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Return the name and labels of a series as both formats have them; an empty label is none."""
    inner = label_text(pairs)
    return f"{name}{{{inner}}} " if inner else f"{name} "


def label_text(pairs: Sequence[tuple[str, str]]) -> str:
    """Return labels with escaped values."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs if value)


def label_value(text: str) -> str:
    """Return a name as the value of a label: of limited length, and valid UTF-8."""
    if len(text) > MOST_LABEL_CELLS:
        text = shorten(text, MOST_LABEL_CELLS)
    return text.encode("utf-8", "backslashreplace").decode()


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
