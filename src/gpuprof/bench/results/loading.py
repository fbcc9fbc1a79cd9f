# SPDX-License-Identifier: Apache-2.0
"""The columns of data loading, I/O wait and the bytes of a measurement, over its process runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from gpuprof.bench.measure.measurement import Measurement

LOADING_COLUMNS = (
    "data_loading_p50_ms", "data_loading_share", "streamed_samples", "io_wait_share",
    "machine_io_wait_share", "read_call_bytes", "network_received_bytes", "network_sent_bytes",
)  # fmt: skip


def loading_row(measurements: Sequence[Measurement]) -> dict[str, float | None]:
    """Return the columns of data loading and I/O while samples were taken: medians of the process runs."""
    loadings = [(each.loading, each.elapsed_s) for each in measurements if each.loading is not None]
    uses = [(each.machine.io, each.machine) for each in measurements if each.machine is not None]
    counters = [(io, use) for io, use in uses if io is not None]
    found: dict[str, list[float | None]] = {
        "data_loading_p50_ms": [milliseconds(each.loading_s) for each, _ in loadings],
        "data_loading_share": [each.fraction_of(elapsed_s) for each, elapsed_s in loadings],
        "streamed_samples": [each.samples for each, _ in loadings],
        "io_wait_share": [_share(io.wait_s, use.elapsed_s) for io, use in counters],
        "machine_io_wait_share": [
            _share(io.machine_wait_s, use.elapsed_s * use.processors) for io, use in counters
        ],
    }
    for name in ("read_call_bytes", "network_received_bytes", "network_sent_bytes"):
        found[name] = [getattr(io, name) for io, _ in counters]
    return {name: median_of_known(values) for name, values in found.items()}


def median_of_known(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _share(seconds: float | None, of_s: float) -> float | None:
    return None if seconds is None or of_s <= 0 else seconds / of_s


def milliseconds(seconds: float | None) -> float | None:
    """Return a time in milliseconds; None if it is unknown."""
    return None if seconds is None else seconds * 1e3
