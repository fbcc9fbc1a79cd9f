# SPDX-License-Identifier: Apache-2.0
"""The text of 1,000 metrics series against `prometheus_client.generate_latest`, in one run.

    python benchmarks/metrics_cost.py [--series 1000] [--rounds 51] [--json FILE|-]

Both have the same counters with the same labels. Rounds alternate, and the median of each is compared. Needs
prometheus_client (extra `dev`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics

from benchmarks._machine import describe_code, describe_machine
from benchmarks._output import Column, plain_table, show
from gpuprof.live.metrics.definitions import ALL
from gpuprof.live.metrics.exposition import TextFormat, exposition
from gpuprof.live.metrics.families import Family

_PER_RUN = 20
_COLUMNS = [
    Column("format", 12, lambda row: str(row["format"])),
    Column("gpuprof ms", 11, lambda row: f"{row['gpuprof_ms']:.3f}"),
    Column("prometheus_client ms", 21, lambda row: f"{row['prometheus_client_ms']:.3f}"),
    Column("ratio", 6, lambda row: f"{row['ratio']:.3f}"),
    Column("bytes", 8, lambda row: f"{row['bytes']:,}"),
]


def labels_of(series: int) -> list[tuple[str, str]]:
    return [(f"run{number // _PER_RUN}", f"layers.{number % _PER_RUN}.mlp") for number in range(series)]


def ours(series: int) -> list[Family]:
    (definition,) = (each for each in ALL if each.name == "gpuprof_layer_seconds_total")
    family = Family(definition)
    for number, labels in enumerate(labels_of(series)):
        family.add(labels, 0.001 * number, 0)
    return [family]


def theirs(series: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    counter = Counter("gpuprof_layer_seconds", "Time.", ["run", "layer"], registry=registry)
    for number, labels in enumerate(labels_of(series)):
        counter.labels(*labels).inc(0.001 * number)
    return registry


def timed_ms(call: Callable[[], object]) -> float:
    begin_ns = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin_ns) / 1e6


def measure(series: int, rounds: int) -> list[dict[str, Any]]:
    families, registry = ours(series), theirs(series)
    rows = []
    for name, text_format, generate in (
        ("Prometheus", TextFormat.PROMETHEUS, generate_latest),
        ("OpenMetrics", TextFormat.OPEN_METRICS, generate_open_metrics),
    ):

        def own(text_format: TextFormat = text_format) -> bytes:
            return exposition(families, text_format)

        def other(generate: Callable[[Any], bytes] = generate) -> bytes:
            return generate(registry)

        pairs = [(timed_ms(own), timed_ms(other)) for _ in range(rounds)]
        mine, peer = (statistics.median(each) for each in zip(*pairs, strict=True))
        rows.append(
            {
                "format": name,
                "gpuprof_ms": mine,
                "prometheus_client_ms": peer,
                "ratio": mine / peer,
                "bytes": len(own()),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--series", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rows = measure(options.series, options.rounds)
    result = {"machine": describe_machine(), "code": describe_code(), "series": options.series, "rows": rows}
    show(result, plain_table(_COLUMNS, rows), options.json)


if __name__ == "__main__":
    main()
