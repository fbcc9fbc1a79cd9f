# SPDX-License-Identifier: Apache-2.0
"""Plots of a load: latency and rates over time, how many requests took longer, and a heat map."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuprof.bench.report import formatting
from gpuprof.bench.report.plot_parts import (
    COLORS,
    HEIGHT,
    PAGE,
    TEXT,
    Figure,
    Plain,
    axis,
    is_wide,
    layout,
    logarithmic_axis,
)
from gpuprof.load.requests import Rows, is_ok, latency_ns, service_ns

Floats = npt.NDArray[np.float64]
INTERVALS = 100
_LATENCIES = 40  # rows of the heat map
_TAIL_POINTS = 400
_FASTEST = 0.01  # of the requests: not shown where only slow ones matter
_COLOR = "var(--variant-{})"
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Equal parts of the time of the plan: their middles in seconds from the start, and their length."""

    middles_s: Floats
    length_s: float
    origin_ns: int

    def of(self, times_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of the interval of each time; the last one also has what is later."""
        place = (times_ns - self.origin_ns) / 1e9 / self.length_s
        return np.clip(place.astype(np.int64), 0, len(self.middles_s) - 1)


def _intervals(rows: Rows, end_ns: int) -> _Intervals | None:
    origin_ns = int(rows["planned_ns"].min()) if len(rows) else 0
    seconds = (end_ns - origin_ns) / 1e9
    if len(rows) < 2 or seconds <= 0:
        return None
    count = min(INTERVALS, len(rows))
    length_s = seconds / count
    middles_s: Floats = (np.arange(count, dtype=np.float64) + 0.5) * length_s
    return _Intervals(middles_s, length_s, origin_ns)


# --- over time -----------------------------------------------------------------------------------


def latency_over_time(rows: Rows, limit_s: float | None = None) -> Figure | None:
    """Return the median, p95 and maximum of the latency from the plan, by the time of the planned arrival.

    `limit_s` is that of the latency target.
    """
    answered = rows[is_ok(rows)]
    times = _intervals(answered, int(answered["planned_ns"].max(initial=0)))
    if times is None:
        return None
    latencies_s = latency_ns(answered) / 1e9
    parts = _split(times.of(answered["planned_ns"]), latencies_s, len(times.middles_s))
    figures: Mapping[str, Callable[[Floats], float]] = {
        "median": lambda part: float(np.median(part)),
        "p95": lambda part: float(np.quantile(part, 0.95, method="higher")),
        "maximum": lambda part: float(part.max()),
    }
    factor, unit = formatting.time.axis(float(latencies_s.max()))
    filled = [(at, part) for at, part in zip(times.middles_s.tolist(), parts, strict=True) if len(part)]
    traces = [
        line(
            name,
            number,
            [at for at, _ in filled],
            [value_of(part) * factor for _, part in filled],
            [f"{name} of {len(part):,} requests: {formatting.time(value_of(part))}" for _, part in filled],
        )
        for number, (name, value_of) in enumerate(figures.items())
    ]
    if limit_s is not None:
        ends, limit = [filled[0][0], filled[-1][0]], limit_s * factor
        traces.append(line("target", 3, ends, [limit, limit], [formatting.time(limit_s)] * 2))
    head = f"latency from the plan ({unit})"
    shown = [value for trace in traces for value in trace["y"]]
    y_axis = logarithmic_axis(head, shown) if is_wide(shown) else axis(head, rangemode="tozero")
    alternative = "Median, p95 and maximum of the latency by the time of the planned arrival."
    return plot_of("latency-over-time", alternative, traces, "time since the start (s)", y_axis)


def rates_over_time(rows: Rows, end_ns: int) -> Figure | None:
    """Return the requests per second that were planned, that succeeded, and that failed."""
    times = _intervals(rows, end_ns)
    if times is None:
        return None
    ok = is_ok(rows)
    counted = {"planned": rows["planned_ns"], "succeeded": rows["end_ns"][ok], "failed": rows["end_ns"][~ok]}
    traces = []
    for number, (name, moments_ns) in enumerate(counted.items()):
        if not len(moments_ns):
            continue
        counts = np.bincount(times.of(moments_ns), minlength=len(times.middles_s))
        rates = (counts / times.length_s).tolist()
        texts = [f"{name}: {formatting.rate(rate)}" for rate in rates]
        traces.append(line(name, number, times.middles_s.tolist(), rates, texts))
    alternative = "Planned, succeeded and failed requests per second over time."
    y_axis = axis("requests per second", rangemode="tozero")
    return plot_of("rates-over-time", alternative, traces, "time since the start (s)", y_axis)


def heat_map(rows: Rows) -> Figure | None:
    """Return how many requests had which latency when."""
    answered = rows[is_ok(rows)]
    times = _intervals(answered, int(answered["planned_ns"].max(initial=0)))
    if times is None:
        return None
    latencies_s = np.maximum(latency_ns(answered) / 1e9, 1e-9)
    factor, unit = formatting.time.axis(float(latencies_s.max()))
    # Decades of the few fastest would take the room of the others, who are in the lowest row then.
    low = math.log10(float(np.quantile(latencies_s, _FASTEST)))
    high = math.log10(float(latencies_s.max()))
    edges = np.linspace(low - 0.01, high + 0.01, _LATENCIES + 1)
    place = np.clip(np.digitize(np.log10(latencies_s), edges) - 1, 0, _LATENCIES - 1)
    counts = np.zeros((_LATENCIES, len(times.middles_s)), np.int64)
    np.add.at(counts, (place, times.of(answered["planned_ns"])), 1)
    shown = _counts_of_key(int(counts.max()))
    middles = 10 ** ((edges[:-1] + edges[1:]) / 2) * factor
    trace = {
        "type": "heatmap",
        "x": times.middles_s.tolist(),
        "y": middles.tolist(),
        # Few slow requests are what a reader looks for: colors follow the logarithm of the count.
        "z": np.where(counts > 0, np.log10(np.maximum(counts, 1)) + 1, 0.0).tolist(),
        "colorscale": [[0, PAGE], [0.25, "var(--variant-0)"], [1, TEXT]],
        "zmin": 0,
        "zmax": 1.06 * (math.log10(int(counts.max())) + 1),  # its tick has room below the title
        "colorbar": {
            "title": {"text": "requests"},
            "tickvals": [math.log10(count) + 1 for count in shown],
            "ticktext": [f"{count:,}" for count in shown],
            "thickness": 12,
            "outlinewidth": 0,
        },
        "hoverinfo": "text",
        "hovertext": _heat_texts(counts, edges, times),
    }
    y_axis = logarithmic_axis(f"latency from the plan ({unit})", middles.tolist())
    alternative = (
        "Requests by the time of the planned arrival and by latency; the key has the number of a color."
    )
    return plot_of("heat-map", alternative, [trace], "time since the start (s)", y_axis)


def _counts_of_key(most: int) -> list[int]:
    """Return one, powers of ten, and the largest count; one in the middle where there are no powers."""
    powers = {10**power for power in range(1, len(str(most))) if 2 * 10**power <= most}
    return sorted({1, *(powers or {round(math.sqrt(most))}), most})


def _heat_texts(counts: npt.NDArray[np.int64], edges: Floats, times: _Intervals) -> list[list[str]]:
    between = [
        f"{formatting.time(10 ** float(low))} to {formatting.time(10 ** float(high))}"
        for low, high in itertools.pairwise(edges)
    ]
    return [
        [
            f"{count:,} requests of {words} at {at:.3g} s" if count else ""
            for at, count in zip(times.middles_s.tolist(), row, strict=True)
        ]
        for words, row in zip(between, counts.tolist(), strict=True)
    ]


# --- the tail ------------------------------------------------------------------------------------


def tail(rows: Rows) -> Figure | None:
    """Return the fraction of requests that took longer, on a logarithmic axis: the tail has its own room."""
    answered = rows[is_ok(rows)]
    if len(answered) < 2:
        return None
    kinds = {
        "latency from the plan": latency_ns(answered) / 1e9,
        "service time, from sending": service_ns(answered) / 1e9,
    }
    alternative = "The fraction of requests that took longer than each time, from the plan and from sending."
    return tails(kinds, alternative)


def tails(kinds: Mapping[str, Floats], alternative: str) -> Figure | None:
    """Return for several series of seconds the fraction that is longer, by their names."""
    kinds = {name: values_s for name, values_s in kinds.items() if len(values_s) > 1}
    if not kinds:
        return None
    largest = max(float(values.max()) for values in kinds.values())
    factor, unit = formatting.time.axis(largest)
    traces = []
    for number, (name, values_s) in enumerate(kinds.items()):
        points = list(_tail_points(values_s))
        texts = [f"{formatting.share(share)} took longer than {formatting.time(at)}" for at, share in points]
        x, y = [at * factor for at, _ in points], [share for _, share in points]
        traces.append(line(name, number, x, y, texts))
    shown = [value for trace in traces for value in trace["x"]]
    x_head = f"time ({unit})"
    x_axis = logarithmic_axis(x_head, shown) if is_wide(shown) else axis(x_head, rangemode="tozero")
    decades = range(math.ceil(math.log10(max(map(len, kinds.values())))) + 1)
    ticks: Plain = {
        "tickvals": [10.0**-each for each in decades],
        "ticktext": [f"{100 * 10.0**-each:.10g}%" for each in decades],
    }
    y_axis = axis("requests that took longer", type="log", range=[-len(decades) + 0.9, 0.05], **ticks)
    return plot_of("tail", alternative, traces, x_axis, y_axis)


def _tail_points(values_s: Floats) -> Iterator[tuple[float, float]]:
    """Yield times and the fraction of requests above them, dense in the tail."""
    ordered = np.sort(values_s)
    count = len(ordered)
    most = max(count * (1 - _FASTEST), 1)
    above = np.unique(np.geomspace(1, most, _TAIL_POINTS).astype(np.int64))[::-1]
    for longer in above.tolist():
        yield float(ordered[count - longer]), longer / count


# --- parts ---------------------------------------------------------------------------------------


def _split(group: npt.NDArray[np.int64], values: Floats, groups: int) -> list[Floats]:
    order = np.argsort(group, kind="stable")
    return np.split(values[order], np.searchsorted(group[order], np.arange(1, groups)))


def line(name: str, number: int, x: list[float], y: list[float], texts: list[str]) -> Plain:
    """Return the trace of a line, in the color and style of its number."""
    color = _COLOR.format(number % COLORS)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": color, "width": 2, "dash": _DASHES[number % len(_DASHES)]},
        "hoverinfo": "text",
        "hovertext": texts,
    }


def plot_of(key: str, alternative: str, traces: list[Plain], x_axis: str | Plain, y_axis: Plain) -> Figure:
    """Return a plot with a legend for more than one trace; `x_axis` may be its title."""
    horizontal = axis(x_axis, rangemode="tozero") if isinstance(x_axis, str) else x_axis
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    body = layout(HEIGHT, xaxis=horizontal, yaxis=y_axis, legend=legend)
    body["showlegend"] = len(traces) > 1
    return Figure(key, alternative, traces, body)
