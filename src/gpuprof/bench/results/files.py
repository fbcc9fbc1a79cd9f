# SPDX-License-Identifier: Apache-2.0
"""Result files: CSV with a row a batch size, JSON with every sample, Markdown; a reader for data frames.

An empty cell is unavailable, or has too few samples; the JSON has the reason.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.bench.measure.measurement import Measurement
from gpuprof.bench.models.data import shape_text
from gpuprof.bench.results.result import Result
from gpuprof.bench.results.session import BatchResult
from gpuprof.bench.results.target import QUANTILES
from gpuprof.errors import BenchmarkError, UnavailableError
from gpuprof.stats.quantiles import samples_needed

if TYPE_CHECKING:
    import pandas


FORMAT_VERSION = 1
FORMATS = ("csv", "json", "md")
# The contract's columns, in its order; others come after them.
COLUMNS = (
    "framework", "model", "device", "device_type", "batch_size", "input_shape", "dtype",
    "latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latency_mean_ms", "latency_std_ms",
    "latency_min_ms", "latency_max_ms", "throughput_ips", "memory_mb", "compilation_time_ms",
    "timestamp", "git_commit",
)  # fmt: skip
LOADING_COLUMNS = (
    "data_loading_p50_ms", "data_loading_share", "streamed_samples", "io_wait_share",
    "machine_io_wait_share", "read_call_bytes", "network_received_bytes", "network_sent_bytes",
)  # fmt: skip
MORE_COLUMNS = (
    "latency_p90_ms", "latency_p50_low_ms", "latency_p50_high_ms", "samples", "launches", "tokens_per_s",
    "memory_kind", "allocator_peak_bytes", "device_used_bytes", "host_peak_bytes", "model_bytes",
    "parameters", "energy_per_sample_j", "power_mean_w", "utilization_mean_percent", "cpu_share",
    "read_bytes", "written_bytes", "first_call_ms", "enqueue_p50_ms", "device_p50_ms", "recipe",
    "host_own_bytes", "host_calls_bytes", "host_baseline_bytes", *LOADING_COLUMNS,
)  # fmt: skip


_FORMULA = ("=", "+", "-", "@", "\t")


@dataclass(frozen=True, slots=True)
class Stamp:
    """When something was measured, and of which revision of the user's code; None outside a repository."""

    timestamp: str
    git_commit: str | None


def row_of(batch: BatchResult, stamp: Stamp) -> dict[str, Any]:
    """Return the CSV row of one batch size, None where a figure is missing."""
    result, system = batch.result, batch.description
    rate = result.items_per_s
    row: dict[str, Any] = {
        "framework": system.framework,
        "model": system.model,
        "device": system.device,
        "device_type": system.device_type,
        "batch_size": batch.batch_size,
        "input_shape": None if system.input_shape is None else shape_text(system.input_shape),
        "dtype": system.dtype,
        "throughput_ips": rate,
        "tokens_per_s": batch.tokens_per_s(rate),
        "samples": len(result.samples),
        "launches": len(result.measurements),
        "recipe": system.details.get("recipe"),
        "model_bytes": system.model_bytes,
        "parameters": system.parameters,
        "compilation_time_ms": _ms(batch.middle("compile_s")),
        "first_call_ms": _ms(batch.middle("first_call_s")),
        "enqueue_p50_ms": _ms(batch.enqueue_s),
        "device_p50_ms": _ms(batch.device_s),
        **asdict(stamp),
        **_memory(batch),
        **loading_row(batch.result.measurements),
        **_latency(result),
        **{name: batch.middle("usage", name) for name in ("cpu_share", "read_bytes", "written_bytes")},
        **{name: batch.middle("energy", name) for name in _ENERGY},
    }
    return {name: row[name] for name in (*COLUMNS, *MORE_COLUMNS)}


_ENERGY = ("energy_per_sample_j", "power_mean_w", "utilization_mean_percent")


def _latency(result: Result) -> dict[str, float | None]:
    summary, median = result.summary, result.estimate(0.5)
    plain = {"mean": "mean", "std": "std", "min": "minimum", "max": "maximum"}
    seconds = {name: result.quantile(q) for name, q in QUANTILES.items()}
    seconds |= {name: getattr(summary, field, None) for name, field in plain.items()}
    seconds |= {f"p50_{end}": getattr(median, end, None) for end in ("low", "high")}
    return {f"latency_{name}_ms": _ms(value) for name, value in seconds.items()}


def loading_row(measurements: Sequence[Measurement]) -> dict[str, float | None]:
    """Return the columns of data loading and I/O while samples were taken: medians of the process runs."""
    loadings = [(each.loading, each.elapsed_s) for each in measurements if each.loading is not None]
    uses = [(each.machine.io, each.machine) for each in measurements if each.machine is not None]
    counters = [(io, use) for io, use in uses if io is not None]
    found: dict[str, list[float | None]] = {
        "data_loading_p50_ms": [_ms(each.loading_s) for each, _ in loadings],
        "data_loading_share": [each.fraction_of(elapsed_s) for each, elapsed_s in loadings],
        "streamed_samples": [each.samples for each, _ in loadings],
        "io_wait_share": [_share(io.wait_s, use.elapsed_s) for io, use in counters],
        "machine_io_wait_share": [
            _share(io.machine_wait_s, use.elapsed_s * use.processors) for io, use in counters
        ],
    }
    for name in ("read_call_bytes", "network_received_bytes", "network_sent_bytes"):
        found[name] = [getattr(io, name) for io, _ in counters]
    known = {name: [each for each in values if each is not None] for name, values in found.items()}
    return {name: statistics.median(values) if values else None for name, values in known.items()}


def _share(seconds: float | None, of_s: float) -> float | None:
    return None if seconds is None or of_s <= 0 else seconds / of_s


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _memory(batch: BatchResult) -> dict[str, Any]:
    """Return the figures of memory, and the one of the model with its kind."""
    peak, (host, is_after_larger) = batch.largest("memory", "allocator_peak_bytes"), batch.host_peak
    own, is_own_after = batch.host_own
    kinds = (
        (peak, "allocator peak", False),
        (own, "model and calls", is_own_after),
        (host, "host peak", is_after_larger),
    )
    shown, name, is_after = next((each for each in kinds if each[0] is not None), kinds[-1])
    kind = f"{name}, after larger batches" if is_after else name
    return {
        "memory_mb": None if shown is None else shown / 1e6,
        "memory_kind": None if shown is None else kind,
        "allocator_peak_bytes": peak,
        "device_used_bytes": batch.largest("memory", "device_used_bytes"),
        "host_peak_bytes": host,
        "host_own_bytes": own,
        "host_calls_bytes": batch.largest("memory", "host_calls_bytes"),
        "host_baseline_bytes": batch.largest("memory", "host_baseline_bytes"),
    }


# --- files ---------------------------------------------------------------------------------------


class ResultFiles:
    """The files of one benchmark, `benchmark_results_YYYYmmdd_HHMMSS.csv` and so on. They overwrite none."""

    def __init__(self, folder: Path, formats: Sequence[str], now: datetime) -> None:
        self._formats = list(dict.fromkeys(formats))
        self.stem = self._reserve(folder, f"benchmark_results_{now:%Y%m%d_%H%M%S}")

    def _reserve(self, folder: Path, name: str) -> Path:
        """Make the first file, so that no other benchmark takes the name; raises BenchmarkError."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for number in itertools.count(1):
                stem = folder / (name if number == 1 else f"{name}_{number}")
                if not any(_with_extension(stem, each).exists() for each in FORMATS):
                    with contextlib.suppress(FileExistsError):
                        _with_extension(stem, self._formats[0]).touch(exist_ok=False)
                        return stem
        except OSError as error:
            raise BenchmarkError(
                "cannot_write",
                f"--output-dir {folder}: cannot be written ({error.strerror}); hint: use another folder",
            ) from error
        raise AssertionError("unreachable")

    @property
    def paths(self) -> list[Path]:
        """Where the formats go that are wanted."""
        return [_with_extension(self.stem, each) for each in self._formats]

    def discard(self) -> None:
        """Give the name back where nothing was measured."""
        self.paths[0].unlink(missing_ok=True)

    def write(self, texts: dict[str, str]) -> list[Path]:
        """Write the formats that are wanted; returns their paths.

        Raises BenchmarkError where one cannot be written, after the others.
        """
        failures = []
        for extension, path in zip(self._formats, self.paths, strict=True):
            try:
                write_whole(path, texts[extension])
            except OSError as error:
                failures.append(f"cannot write {path}: {error.strerror or error}; make room")
        if failures:
            with contextlib.suppress(OSError):
                if self.paths[0].stat().st_size == 0:
                    self.discard()
            raise BenchmarkError("cannot_write", "; ".join(failures))
        return self.paths


def write_whole(path: Path, text: str) -> None:
    """Replace a file as a whole; raises OSError. Names that are no UTF-8 are written escaped."""
    draft = path.with_name(f".{path.name}.new")
    try:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _with_extension(stem: Path, extension: str) -> Path:
    return stem.with_name(f"{stem.name}.{extension}")


def to_csv(rows: Iterable[dict[str, Any]], columns: Sequence[str] = (*COLUMNS, *MORE_COLUMNS)) -> str:
    """Return the rows as CSV with a head; a missing value is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Put a quote before a text that a spreadsheet would run as a formula; a text is one line."""
    if not isinstance(value, str):
        return value
    line = " ".join(value.splitlines())
    return f"'{line}" if line.startswith(_FORMULA) else line


def to_json(document: dict[str, Any]) -> str:
    """Return the document with everything."""
    return json.dumps(document, indent=1, allow_nan=False, default=str) + "\n"


def document_of(batches: Sequence[BatchResult], stamp: Stamp, **more: Any) -> dict[str, Any]:
    """Return everything as plain values: the row of each batch size, why cells are empty, all samples."""
    results = [
        {"row": row_of(batch, stamp), "insufficient": _too_few_samples(result), **result.to_dict()}
        for batch in batches
        for result in [batch.result]
    ]
    return {"format": FORMAT_VERSION, **asdict(stamp), **more, "results": results}


def _too_few_samples(result: Result) -> dict[str, str]:
    """Return for each quantile that the samples do not suffice for why that is."""
    return {
        f"latency_{name}_ms": f"too few samples (n={result.count}, needs {samples_needed(q)})"
        for name, q in QUANTILES.items()
        if result.estimate(q) is None
    }


def read_results(path: str | os.PathLike[str]) -> pandas.DataFrame:
    """Read a result file (.csv), or all of a folder, as a pandas frame: a row for each batch size.

    An empty cell is NaN. Raises BenchmarkError where there are no results, UnavailableError without pandas.
    """
    try:
        import pandas
    except ImportError as error:
        raise UnavailableError(
            "not_installed", "reading results as a data frame needs pandas: pip install pandas"
        ) from error
    place = Path(path)
    # An empty file is of a benchmark that is not done.
    found = sorted(place.glob("benchmark_results_*.csv")) if place.is_dir() else []
    files = [path for path in found if path.stat().st_size] if place.is_dir() else [place]
    if not files:
        raise BenchmarkError(
            "no_results",
            f"{place} holds no benchmark_results_*.csv with results; hint: specify another folder",
        )
    frames = [_read_one(pandas, file) for file in files]
    return frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)


def _read_one(pandas: Any, file: Path) -> Any:
    try:
        frame = pandas.read_csv(file)
    except (OSError, ValueError) as error:
        raise BenchmarkError("cannot_read", f"{file}: no result file that can be read ({error})") from error
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise BenchmarkError("not_a_result", f"{file}: no result file: the column {missing[0]} is missing")
    return frame
