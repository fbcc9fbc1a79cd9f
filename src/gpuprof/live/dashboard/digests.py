# SPDX-License-Identifier: Apache-2.0
"""Reads the figures of a run or a result that lists and the history show; runs in the worker process."""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from gpuprof.errors import BenchmarkError, GpuprofError, RunError
from gpuprof.live.dashboard.folder import LOAD_FILES
from gpuprof.live.dashboard.items import ItemKind, Plain
from gpuprof.load.out_folder import SEVERAL_RESULTS, SINGLE_RESULT
from gpuprof.load.reasons import SOAK_QUESTION
from gpuprof.run.format import META_FILE, TABLES, check_meta, read_json
from gpuprof.run.parts import is_whole, problem_of_parts

LARGEST_FILE = 256 << 20
_SOAK = "soak"
_LOAD_KINDS = ("load", "max_rate", "mlperf_style", _SOAK, "concurrency_sweep")
# What gpuprof load and bench write; other files have names that the user chooses.
_RESULT_NAMES = (SINGLE_RESULT, *SEVERAL_RESULTS, "benchmark_results_*.json")
# What gpuprof compare and suite write, and a file that is next to it, since others use the name, too.
_REPORT, _JOURNAL = "report.json", "journal.jsonl"
# The keys by which `_file_digest` recognizes a result, in the text of a damaged one.
_HEAD = 64 << 10
_KINDS = "|".join(("comparison", *_LOAD_KINDS)).encode()
_MARKS = (
    (rb'"kind"\s*:\s*"(%s)"' % _KINDS,),
    (rb'"format"\s*:\s*\d', rb'"timestamp"\s*:\s*"'),
    (rb'"outcome"\s*:\s*"', rb'"margin"\s*:'),
)


def digest_of(root: Path, path: str, kind: ItemKind) -> Plain | None:
    """Return kind and figures of an entry; None for a JSON file of other software. Raises GpuprofError."""
    whole = root / path
    if kind is ItemKind.RUN:
        return _run_digest(whole)
    if kind is ItemKind.LOAD:
        found = _load_digest(_json(whole / LOAD_FILES[0]))
        _check_requests(whole / LOAD_FILES[1])
        return found
    return _file_digest(root, whole)


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _json(path: Path) -> Any:
    """Read a JSON file that is not a link."""
    try:
        with _opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST_FILE:
                raise GpuprofError(
                    "too_large",
                    f"{path.name} has {size:,} bytes, more than {LARGEST_FILE:,}",
                    hint="read it with the command",
                )
            content = file.read()
            if not content.strip():
                raise GpuprofError(
                    "not_json",
                    f"{path.name} is empty",
                    hint="wait until its program has ended, or measure again",
                )
            return json.loads(content)
    except OSError as error:
        raise GpuprofError(
            "cannot_read",
            f"{path.name} cannot be read: {error.strerror}",
            hint="check the permissions of the file",
        ) from None
    except (ValueError, RecursionError) as error:
        raise GpuprofError(
            "not_json", f"{path.name} is not JSON: {error}", hint="restore it from a copy, or measure again"
        ) from None


# --- runs ----------------------------------------------------------------------------------------


def _run_digest(path: Path) -> Plain:
    if path.is_symlink() or (path / META_FILE).is_symlink() or not (path / META_FILE).is_file():
        raise RunError(
            "not_a_run",
            f"{path.name} has neither {META_FILE} nor a recording",
            hint="restore it from a copy, or remove the folder",
        )
    meta = read_json(path / META_FILE)
    check_meta(meta, path)
    _check_tables(path, meta)
    machine, totals, versions = (meta.get(key) or {} for key in ("machine", "totals", "versions"))
    command = [str(each) for each in meta.get("command") or ()]
    devices = sorted({str(each.get("name")) for each in meta.get("devices") or () if each.get("name")})
    return {
        "kind": ItemKind.RUN.value,
        "unix_ms": _milliseconds(meta.get("origin_unix_ns")),
        "summary": {
            "title": " ".join(Path(each).name if not number else each for number, each in enumerate(command))[
                :300
            ],
            "duration_ns": meta.get("duration_ns"),
            "complete": bool(meta.get("complete")),
            "spans": totals.get("spans"),
            "processes": len(meta.get("processes") or ()),
            "device": ", ".join(devices) or machine.get("processor"),
            "torch": versions.get("torch"),
            "has_work": bool(meta.get("work")),
            "damage": len(meta.get("damage") or ()),
        },
    }


def _check_tables(path: Path, meta: Mapping[str, Any]) -> None:
    """Raise RunError where a table is missing or cut, as opening the run does; no table is read for it."""
    parts = meta.get("parts")
    entries = parts if isinstance(parts, dict) else {}
    if not (path / "spans").is_dir() and not any(each.startswith("spans/") for each in entries):
        raise RunError("no_spans", f"{path.name} has no spans table", hint="restore it from a copy")
    for table in TABLES:
        if (path / table).is_dir() or any(each.startswith(f"{table}/") for each in entries):
            problem = problem_of_parts(path, table, entries, is_quick=True)
            if problem is not None:
                raise RunError(
                    "damaged",
                    f"the table {table} of {path.name} is damaged ({problem})",
                    hint="restore it from a copy",
                )


def _milliseconds(unix_ns: Any) -> int | None:
    try:
        return int(unix_ns) // 1_000_000
    except (TypeError, ValueError):
        return None


# --- results -------------------------------------------------------------------------------------


def _file_digest(root: Path, path: Path) -> Plain | None:
    try:
        plain = _json(path)
    except GpuprofError as error:
        if error.code in ("not_json", "too_large") and not _looks_like_result(path):
            return None
        raise
    if not isinstance(plain, dict):
        return None
    if plain.get("kind") == "comparison":
        return _comparison_digest(root, path)
    if plain.get("kind") in _LOAD_KINDS:
        return _load_digest(plain)
    if isinstance(plain.get("results"), list) and "format" in plain and "timestamp" in plain:
        return _benchmark_digest(root, path)
    if {"outcome", "margin", "rows", "notes"} <= plain.keys():
        return _gate_digest(plain)
    return None


def _looks_like_result(path: Path) -> bool:
    """Whether a file that cannot be parsed has a name or the first keys of a result."""
    if any(fnmatch.fnmatchcase(path.name, each) for each in _RESULT_NAMES):
        return True
    if path.name == _REPORT and (path.parent / _JOURNAL).is_file():
        return True
    with _opened(path) as file:
        head = file.read(_HEAD)
    return any(all(re.search(key, head) for key in keys) for keys in _MARKS)


def _benchmark_digest(root: Path, path: Path) -> Plain:
    from gpuprof.bench.results.stored import read_configurations, read_result_file

    file = read_result_file(path)
    results = read_configurations(path)
    figures = []
    for configuration, result in results.items():
        estimate = result.estimate(0.5)
        figures.append(
            {
                **configuration._asdict(),
                "technique": " ".join(filter(None, (configuration.framework, configuration.dtype))),
                "values": _metric_values(file, configuration),
                "p50_s": None if estimate is None else [estimate.low, estimate.value, estimate.high],
                "way": list(file.ways[configuration]),
            }
        )
    return _result_digest(ItemKind.BENCHMARK, file, figures, root)


def _comparison_digest(root: Path, path: Path) -> Plain:
    from gpuprof.bench.compare.document import read_document
    from gpuprof.bench.gate.comparison_file import read_gate_file

    file, document = read_gate_file(path), read_document(path)
    variants = {each.name: each for each in document.variants}
    figures = []
    for configuration in file.medians_s:
        variant = variants[configuration.model or ""]
        batch = variant.batch(configuration.batch_size or 1)
        estimate = None if batch is None else batch.median_s
        figures.append(
            {
                **configuration._asdict(),
                "model": variant.model or document.name,
                "technique": variant.name,
                "values": _metric_values(file, configuration),
                "p50_s": None if estimate is None else [estimate.low, estimate.value, estimate.high],
                "way": list(file.ways[configuration]),
            }
        )
    found = _result_digest(ItemKind.COMPARISON, file, figures, root)
    found["summary"] |= {"choice": document.summary.choice, "baseline": document.baseline}
    return found


def _metric_values(file: Any, configuration: Any) -> Plain:
    from gpuprof.bench.results.run_figures import RunMetric

    values = {metric.value: list(file.figures(configuration, metric)) for metric in RunMetric}
    return {name: each for name, each in values.items() if each}


def _result_digest(kind: ItemKind, file: Any, figures: list[Plain], root: Path) -> Plain:
    models = list(dict.fromkeys(str(each["model"]) for each in figures))
    techniques = list(dict.fromkeys(each["technique"] for each in figures))
    profile = None if file.profile is None else file.profile.absolute()
    return {
        "kind": kind.value,
        "unix_ms": int(file.at.timestamp() * 1000),
        "summary": {
            "title": ", ".join(models)[:300],
            "techniques": techniques[:20],
            "configurations": len(figures),
            "p50_s": next((each["p50_s"] for each in figures if each["p50_s"]), None),
            "revision": file.revision,
        },
        "figures": figures,
        "machine": {str(key): None if value is None else str(value) for key, value in file.machine.items()},
        "data": file.data,
        "versions": file.versions,
        # A run outside of the folder is not shown.
        "run": str(profile.relative_to(root))
        if profile is not None and profile.is_relative_to(root)
        else None,
    }


def _load_digest(plain: Any) -> Plain:
    settings = plain.get("settings") if isinstance(plain, Mapping) else None
    if not isinstance(settings, Mapping):
        raise BenchmarkError(
            "damaged", "the result of a load test has no settings", hint="run the load again"
        )
    run = plain.get("run") or {}
    latency = plain.get("latency_s") or {}
    return {
        "kind": ItemKind.LOAD.value,
        "unix_ms": None,
        "summary": {
            "title": f"{settings.get('target') or plain.get('target')}, {settings.get('scenario')}"[:300],
            "requests": plain.get("requests"),
            "rate": plain.get("achieved_rate") or plain.get("value"),
            "p50_s": _three(latency.get("p50")),
            "p99_s": _three(latency.get("p99")),
            "date": (run.get("environment") or {}).get("date"),
            "outcome": f"{SOAK_QUESTION}: {plain.get('verdict')}" if plain.get("kind") == _SOAK else None,
        },
    }


def _check_requests(path: Path) -> None:
    """Raise BenchmarkError where the requests of a load test are cut; they are not read for it."""
    if not path.is_symlink() and not is_whole(path):
        raise BenchmarkError(
            "damaged",
            f"{path.name} of {path.parent.name} is no whole Parquet file",
            hint="restore it from a copy, or run the load again",
        )


def _three(value: Any) -> list[float | None] | None:
    return [None, value, None] if isinstance(value, (int, float)) else None


def _gate_digest(plain: Plain) -> Plain:
    rows = [each for each in plain["rows"] if isinstance(each, dict)]
    return {
        "kind": ItemKind.GATE.value,
        "unix_ms": None,
        "summary": {
            "title": ", ".join(dict.fromkeys(str(each.get("model")) for each in rows))[:300],
            "outcome": str(plain["outcome"]),
            "configurations": len(rows),
        },
    }
