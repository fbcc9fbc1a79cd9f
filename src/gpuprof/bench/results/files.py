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
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.bench.results.batch import COLUMNS, MORE_COLUMNS, BatchResult, Stamp, row_of
from gpuprof.bench.results.result import Result
from gpuprof.bench.results.target import QUANTILES
from gpuprof.errors import BenchmarkError, UnavailableError
from gpuprof.stats.quantiles import samples_needed

if TYPE_CHECKING:
    import pandas


FORMAT_VERSION = 1
FORMATS = ("csv", "json", "md")
_FORMULA = ("=", "+", "-", "@", "\t")


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
                f"--output-dir {folder}: cannot be written ({error.strerror})",
                hint="use another folder",
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
                failures.append(f"cannot write {path}: {error.strerror or error}")
        if failures:
            with contextlib.suppress(OSError):
                if self.paths[0].stat().st_size == 0:
                    self.discard()
            raise BenchmarkError(
                "cannot_write", "; ".join(failures), hint="free disk space, or use another --output-dir"
            )
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
    results = [_plain_batch(batch, stamp) for batch in batches]
    return {"format": FORMAT_VERSION, **asdict(stamp), **more, "results": results}


def _plain_batch(batch: BatchResult, stamp: Stamp) -> dict[str, Any]:
    result = batch.result
    plain = result.to_dict()
    plain["figures"]["warnings"] = [each.to_dict() for each in batch.warnings]
    return {"row": row_of(batch, stamp), "insufficient": _too_few_samples(result), **plain}


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
            "not_installed", "reading results as a data frame needs pandas", hint="pip install pandas"
        ) from error
    place = Path(path)
    # An empty file is of a benchmark that is not done.
    found = sorted(place.glob("benchmark_results_*.csv")) if place.is_dir() else []
    files = [path for path in found if path.stat().st_size] if place.is_dir() else [place]
    if not files:
        raise BenchmarkError(
            "no_results",
            f"{place} holds no benchmark_results_*.csv with results",
            hint="specify another folder",
        )
    frames = [_read_one(pandas, file) for file in files]
    return frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)


def _read_one(pandas: Any, file: Path) -> Any:
    try:
        frame = pandas.read_csv(file)
    except (OSError, ValueError) as error:
        raise BenchmarkError(
            "cannot_read",
            f"{file}: no result file that can be read ({error})",
            hint="specify a .csv of gpuprof bench",
        ) from error
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise BenchmarkError(
            "not_a_result",
            f"{file}: no result file: the column {missing[0]} is missing",
            hint="specify a .csv of gpuprof bench",
        )
    return frame
