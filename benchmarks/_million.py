# SPDX-License-Identifier: Apache-2.0
"""One million operators: the time in the loop, the time until the summary is there, memory, disk.

Memory is the resident high water (VmHWM of /proc/self/status, reset before the measured loop through
/proc/self/clear_refs) less that of the bare program, so that libraries which a profiler loads count too.
The kernel keeps one high water for all kinds of pages; the parts (RssAnon: the heap; RssFile and RssShmem:
mapped files, which the kernel can take back) are read from outside every few milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._machine import REPOSITORY
from benchmarks._measure import Entry, Figure, Role, Row, Settings

Results = dict[str, list[dict[str, Any]]]
_PARTS = ("RssAnon", "RssFile", "RssShmem")
_SAMPLED = "gpuprof_sampled"
_WITH_SAMPLES = "gpuprof with Python samples, as gpuprof run"
_FULL = 1_000_000
_MOST_OF_PEERS = 3 * _FULL


def million_rows(settings: Settings) -> list[Row]:
    """Record a million operators, every contestant in processes of its own, in random order."""
    wanted = settings.operators or settings.iterations(_FULL, 50_000)
    per_forward = int(_launch("count", 0, settings.folder)["operators"])
    forwards = -(-wanted // per_forward)
    operators = forwards * per_forward
    # torch.profiler keeps its operators in memory: 10M are more than most machines have.
    peers = ["torch.profiler"] if operators < _MOST_OF_PEERS else []
    launches = ["bare", "gpuprof", _SAMPLED, *peers] * settings.launches
    launches += ["key_averages"] * (1 if settings.slow and peers else 0)
    results: Results = {name: [] for name in launches}
    for name in random.Random(settings.seed).sample(launches, len(launches)):
        results[name].append(_launch(name, forwards, settings.folder))
    _check(results["gpuprof"] + results[_SAMPLED], operators)
    return [make(results, operators) for make in (_loop_row, _finish_row, _memory_row, _disk_row)]


def _check(results: Sequence[dict[str, Any]], operators: int) -> None:
    for result in results:
        if result["recorded"] != operators:
            raise RuntimeError(f"gpuprof recorded {result['recorded']} operators of {operators}")


def _loop_row(results: Results, operators: int) -> Row:
    others = [
        _entry(_WITH_SAMPLES, results, _SAMPLED, _extra_loop, "scale"),
        _entry("torch.profiler", results, "torch.profiler", _extra_loop),
        _entry("bare again: what is not resolved", results, "bare", _extra_loop, "scale"),
    ]
    measured = _figure(results, "gpuprof", _extra_loop)
    return _row("loop", "extra loop time", "s", operators, measured, None, others)


def _finish_row(results: Results, operators: int) -> Row:
    others = [
        _entry(_WITH_SAMPLES, results, _SAMPLED, _finish, "scale"),
        _entry(
            "torch.profiler: stop alone",
            results,
            "torch.profiler",
            lambda each: float(each["stop_s"]),
            "scale",
        ),
        _entry("torch.profiler: stop, export_chrome_trace", results, "torch.profiler", _finish),
        _entry("torch.profiler: stop, key_averages().table()", results, "key_averages", _finish),
    ]
    notes = [] if results.get("key_averages") else ["key_averages takes about a minute: --slow runs it"]
    stop = _figure(results, "gpuprof", lambda each: float(each["stop_s"]))
    start = _figure(results, "gpuprof", lambda each: float(each["start_s"]))
    if stop is not None and start is not None:
        notes.append(f"of it stop {stop.median:.3f} s; starting took {start.median:.3f} s")
    measured = _figure(results, "gpuprof", _finish)
    return _row(
        "finish", "stop and summary", "s", operators, measured, _budget(operators, 0.5, 3), others, notes
    )


def _memory_row(results: Results, operators: int) -> Row:
    bare = _figure(results, "bare", lambda each: _megabytes(each["memory_high_water_kb"]))
    base = bare.median if bare is not None else 0.0

    def above(field: str) -> Callable[[dict[str, Any]], float | None]:
        def value(each: dict[str, Any]) -> float | None:
            size = _megabytes(each[field])
            return None if size is None else size - base

        return value

    high_water = above("memory_high_water_kb")
    others = [
        _entry(_WITH_SAMPLES, results, _SAMPLED, high_water, "scale"),
        _entry("torch.profiler: stopped", results, "torch.profiler", above("memory_when_stopped_kb")),
        _entry("torch.profiler: exported", results, "torch.profiler", high_water),
        _entry("torch.profiler: key_averages", results, "key_averages", high_water),
    ]
    notes = [f"the bare program: {base:.0f} MB"]
    parts = [
        f"{part} {_peak(results, 'gpuprof', part) - _peak(results, 'bare', part):+.0f}" for part in _PARTS
    ]
    notes.append(f"peaks of the parts, MB over bare: {', '.join(parts)}")
    measured = _figure(results, "gpuprof", high_water)
    return _row(
        "memory", "extra memory", "MB", operators, measured, _budget(operators, 100, 150), others, notes
    )


def _disk_row(results: Results, operators: int) -> Row:
    def size(each: dict[str, Any]) -> float:
        return float(each["disk_bytes"]) / 1e6

    others = [
        _entry(_WITH_SAMPLES, results, _SAMPLED, size, "scale"),
        _entry("torch.profiler: chrome trace", results, "torch.profiler", size),
    ]
    measured = _figure(results, "gpuprof", size)
    budget = _budget(operators, 15, 55)
    return _row("disk", "closed run on disk", "MB", operators, measured, budget, others)


def _short(operators: int) -> str:
    return f"{operators // _FULL}M" if operators % _FULL == 0 else f"{operators:,}"


def _budget(operators: int, of_one_million: float, of_ten_million: float) -> float | None:
    if operators >= 10 * _FULL:
        return of_ten_million
    return of_one_million if operators >= _FULL else None


def _row(
    name: str,
    what: str,
    unit: str,
    operators: int,
    measured: Figure | None,
    budget: float | None,
    others: Sequence[Entry],
    notes: Sequence[str] = (),
) -> Row:
    return Row(
        name=f"million.{name}",
        what=f"{_short(operators)} operators, {what}",
        unit=unit,
        measured=measured,
        budget=budget,
        others=tuple(entry for entry in others if entry.figure is not None),
        notes=tuple(notes),
    )


def _entry(
    name: str,
    results: Results,
    contestant: str,
    value: Callable[[dict[str, Any]], float | None],
    role: Role = "peer",
) -> Entry:
    return Entry(name, _figure(results, contestant, value), role)


def _figure(
    results: Results, contestant: str, value: Callable[[dict[str, Any]], float | None]
) -> Figure | None:
    values = [found for each in results.get(contestant, ()) if (found := value(each)) is not None]
    return Figure.of(values) if values else None


def _extra_loop(each: dict[str, Any]) -> float:
    return float(each["loop_s"]) - float(each["bare_loop_s"])


def _finish(each: dict[str, Any]) -> float:
    return float(each["finish_s"])


def _megabytes(kilobytes: int | None) -> float | None:
    return None if kilobytes is None else kilobytes * 1024 / 1e6


def _peak(results: Results, contestant: str, part: str) -> float:
    figure = _figure(results, contestant, lambda each: _megabytes(each["peaks_kb"].get(part)))
    return figure.median if figure is not None else float("nan")


def _launch(contestant: str, forwards: int, folder: str) -> dict[str, Any]:
    """Run one contestant in a fresh process and return what it measured."""
    with tempfile.TemporaryDirectory(dir=folder) as own_folder:
        command = [sys.executable, "-m", "benchmarks._million_child", contestant, str(forwards), own_folder]
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        # What this process set for itself by importing gpuprof is not for the others.
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("INTEL_LIBITTNOTIFY")
        }
        environment["PYTHONPATH"] = path
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            ) as process,
        ):
            lines, peaks = _watch(process)
            if process.wait() != 0:
                errors.seek(0)
                raise RuntimeError(f"{contestant} ended with {process.returncode}:\n{errors.read()[-2000:]}")
    return {**json.loads(lines[-1]), "peaks_kb": peaks}


def _watch(process: subprocess.Popen[str]) -> tuple[list[str], dict[str, int]]:
    peaks: dict[str, int] = {}
    ended = threading.Event()
    sampler = threading.Thread(target=_sample, args=(process.pid, peaks, ended))
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "measure\n":
            sampler.start()
    ended.set()
    if sampler.ident is not None:
        sampler.join()
    return lines, peaks


def _sample(process_id: int, peaks: dict[str, int], ended: threading.Event) -> None:
    path = Path(f"/proc/{process_id}/status")
    while not ended.wait(0.003):
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            return
        for line in text.splitlines():
            part, _, value = line.partition(":")
            if part in _PARTS:
                peaks[part] = max(peaks.get(part, 0), int(value.split()[0]))
