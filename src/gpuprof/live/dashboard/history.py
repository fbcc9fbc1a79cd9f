# SPDX-License-Identifier: Apache-2.0
"""The history of results: a series for each model and technique, which only results of one kind make up.

A series has one machine, way of measuring, data, device, input shape and batch size, as `gpuprof gate
--history` demands; so a change in it is one of the code or its libraries. Its change points come from the
worker process.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpuprof.live.dashboard.items import Item, ItemState, Plain
from gpuprof.live.dashboard.workers import Worker
from gpuprof.text.sanitize import visible_text

LONGEST = 500  # newest results of a series; the search for change points takes time with the square of it
_MOST_KNOWN = 256
METRICS = ("p50", "p95", "p99", "mean", "throughput", "memory", "process-memory", "energy", "accuracy")
HIGHER_IS_BETTER = ("throughput", "accuracy")
UNITS = {"throughput": "/s", "memory": "B", "process-memory": "B", "energy": "J", "accuracy": ""}


@dataclass(slots=True)
class TrendSeries:
    """The results of one model and technique in the order of time."""

    model: str
    technique: str
    where: dict[str, str]  # what else its results have in common, by name
    metric: str
    points: list[Plain] = field(default_factory=list)


def models_of(items: Iterable[Item]) -> Plain:
    """Return the models that results have, with their metrics and the number of their results."""
    found: Plain = {}
    for item in _results(items):
        for figures in (item.digest or {})["figures"]:
            model = found.setdefault(visible_text(str(figures["model"])), {"metrics": [], "results": 0})
            model["results"] += 1
            model["metrics"] += [each for each in figures["values"] if each not in model["metrics"]]
    for model in found.values():
        model["metrics"].sort(key=METRICS.index)
    return dict(sorted(found.items(), key=lambda each: -each[1]["results"]))


def series_of(items: Iterable[Item], model: str, metric: str) -> list[TrendSeries]:
    """Return the series of a model, those with the most results first."""
    found: dict[str, TrendSeries] = {}
    for item in _results(items):
        digest = item.digest or {}
        for figures in digest["figures"]:
            # Of a figure that is 0 there is no ratio.
            runs = figures["values"].get(metric, (0,))
            if visible_text(str(figures["model"])) == model and min(runs) > 0:
                where = _where(digest, figures)
                technique = visible_text(figures["technique"])
                key = json.dumps([technique, where])
                series = found.setdefault(key, TrendSeries(model, technique, where, metric))
                series.points.append(_point(item, digest, figures, metric))
    for series in found.values():
        series.points.sort(key=lambda each: (each["t"], each["id"]))
        series.points = series.points[-LONGEST:]
    return sorted(found.values(), key=lambda each: (-len(each.points), each.technique))


def _results(items: Iterable[Item]) -> Iterator[Item]:
    return (each for each in items if each.state is ItemState.READY and "figures" in (each.digest or {}))


def _where(digest: Plain, figures: Plain) -> dict[str, str]:
    values = {name: figures[name] for name in ("device_type", "dtype", "input_shape", "batch_size")}
    values |= {
        "mode": figures["way"][0],
        "caches": figures["way"][1],
        "data": digest["data"],
        **digest["machine"],
    }
    return {name: visible_text(str(value)) for name, value in values.items() if value is not None}


def _point(item: Item, digest: Plain, figures: Plain, metric: str) -> Plain:
    runs = figures["values"][metric]
    interval = figures["p50_s"] if metric == "p50" else None
    return {
        "id": item.item_id,
        "t": digest["unix_ms"],
        "runs": runs,
        # The median of all calls, as in the report: the interval is around it, and not around the runs' mean.
        "value": None if interval is None else interval[1],
        "low": None if interval is None else interval[0],
        "high": None if interval is None else interval[2],
        "revision": digest["summary"].get("revision"),
        "versions": digest["versions"],
    }


class Trends:
    """TrendSeries with their change points. Those of an unchanged series are known."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._known: OrderedDict[str, Plain] = OrderedDict()

    async def of(self, items: Iterable[Item], model: str, metric: str) -> Plain:
        """Return the series of a model for the page. Raises GpuprofError."""
        found = []
        for series in series_of(items, model, metric):
            levels = await self._levels(series)
            found.append(_plain_series(series, levels))
        return {
            "model": model,
            "metric": metric,
            "unit": UNITS.get(metric, "s"),
            "higher_is_better": metric in HIGHER_IS_BETTER,
            "series": _with_labels(found),
        }

    async def _levels(self, series: TrendSeries) -> Plain:
        runs = [each["runs"] for each in series.points]
        is_higher = series.metric in HIGHER_IS_BETTER
        key = hashlib.blake2s(json.dumps([runs, is_higher]).encode("ascii")).hexdigest()
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        found: Plain = await self._worker.call("levels", runs=runs, higher_is_better=is_higher)
        self._known[key] = found
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return found


def _plain_series(series: TrendSeries, levels: Plain) -> Plain:
    points = [
        {
            **{name: each[name] for name in ("id", "t", "low", "high", "revision")},
            "value": mean if each["value"] is None else each["value"],
        }
        for each, mean in zip(series.points, levels["figures"], strict=True)
    ]
    changes = [
        {**each, "versions": _changed_versions(series.points[each["at"] - 1], series.points[each["at"]])}
        for each in levels["changes"]
    ]
    return {
        "technique": series.technique,
        "where": series.where,
        "points": points,
        "levels": levels["levels"],
        "changes": changes,
    }


def _changed_versions(before: Plain, after: Plain) -> list[str]:
    old, new = before["versions"], after["versions"]
    names = sorted(each for each in old.keys() | new.keys() if old.get(each) != new.get(each))
    return [visible_text(f"{each} {old.get(each, 'none')} to {new.get(each, 'none')}") for each in names]


def _with_labels(found: list[Plain]) -> list[Plain]:
    """Give each series a label: its technique, and what distinguishes it from others with the same one."""
    for each in found:
        same = [other["where"] for other in found if other["technique"] == each["technique"]]
        names = [name for name in each["where"] if len({other.get(name) for other in same}) > 1]
        more = [
            each["where"][name] if name != "batch_size" else f"batch {each['where'][name]}" for name in names
        ]
        each["label"] = " · ".join([each["technique"], *more])
    return found
