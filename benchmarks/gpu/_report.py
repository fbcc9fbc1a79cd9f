# SPDX-License-Identifier: Apache-2.0
"""The report of one or several calls, made of their journals."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import _rounds
from benchmarks.gpu._journal import Entry, read
from benchmarks.gpu._processes import REPOSITORY
from benchmarks.gpu._questions import QUESTIONS, conclude

FORMAT = 2
PACKAGE_SOURCES = ("CMakeLists.txt", "pyproject.toml", "cmake", "csrc", "src")
# What a call runs: the tests of tests/gpu import from tests/support, programs are built of tests/native.
TEST_SOURCES = ("tests/conftest.py", "tests/gpu", "tests/support", "tests/native", "tests/golden/capture.cpp")
SOURCES = (*PACKAGE_SOURCES, *TEST_SOURCES, "benchmarks")
_EXTENSIONS = {".txt", ".toml", ".cmake", ".cpp", ".hpp", ".cu", ".in", ".py", ".pyi", ".js", ".css", ".html"}


def source_digest(roots: Sequence[str] = SOURCES) -> str:
    """Return a number for the sources as they are here, also where there is no repository around them."""
    digest = hashlib.sha256()
    for root in roots:
        path = REPOSITORY / root
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file() and file.suffix in _EXTENSIONS:
                digest.update(f"{file.relative_to(REPOSITORY).as_posix()}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


class MergeError(ValueError):
    """Journals that are not of one subject."""


def merge(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the report of calls of the same sources, device and driver, however far each came.

    Of an item that several calls ran, the last is taken. Raises MergeError, OSError.
    """
    calls = [read(path) for path in paths]
    facts = [_facts_of(entries, "begin") for entries in calls]
    machines = [_facts_of(entries, "machine") for entries in calls]
    for path, found in zip(paths, facts, strict=True):
        if found is None:
            raise MergeError(f"no journal of a call: {path}\nhint: name files that run.py wrote, NAME.jsonl")
        if found["source_digest"] != facts[0]["source_digest"]:
            raise MergeError(f"other sources than {paths[0]}: {path}\nhint: merge calls of the same code")
    devices = {device for machine in machines if (device := _device(machine)) is not None}
    if len(devices) > 1:
        names = " and ".join(sorted(f"{name}, driver {driver}" for name, driver in devices))
        raise MergeError(f"calls of several machines: {names}\nhint: make one report for each machine")
    entries = _last_of_each(calls)
    return {
        "benchmark": "gpu",
        "format": FORMAT,
        "source_digest": facts[0]["source_digest"],
        "calls": [{**found, "end": _end_of(entries)} for found, entries in zip(facts, calls, strict=True)],
        "machine": next((machine for machine in machines if machine is not None), None),
        "steps": _steps(entries),
        "conclusions": _conclusions(entries),
        "workloads": _workloads(calls),
    }


def write(report: Mapping[str, Any], target: Path) -> None:
    """Write a report in place of an earlier one."""
    draft = target.with_suffix(".new")
    draft.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    draft.replace(target)


def _facts_of(entries: Iterable[Entry], item: str) -> Any:
    found = (entry.facts for entry in entries if entry.item == item and isinstance(entry.facts, dict))
    return next(found, None)


def _end_of(entries: Iterable[Entry]) -> str:
    ends = [entry.state for entry in entries if (entry.step, entry.item) == ("call", "end")]
    return ends[-1] if ends else "killed"


def _device(machine: Any) -> tuple[Any, Any] | None:
    gpu = (machine or {}).get("gpu")
    return None if gpu is None else (gpu.get("name"), gpu.get("driver"))


def _last_of_each(calls: Iterable[Sequence[Entry]]) -> dict[tuple[str, str], Entry]:
    """Return each item's last entry; one that was not run does not replace one that was."""
    found: dict[tuple[str, str], Entry] = {}
    for entries in calls:
        for entry in entries:
            key = entry.step, entry.item
            if key not in found or entry.state != "skipped":
                found[key] = entry
    return found


def _steps(entries: Mapping[tuple[str, str], Entry]) -> dict[str, Any]:
    steps: dict[str, Any] = {}
    for (step, item), entry in entries.items():
        if step == "call" or _is_round(entry):
            continue
        found = steps.setdefault(step, {"states": Counter(), "items": {}})
        found["states"][entry.state] += 1
        facts = {} if entry.facts is None else {"facts": entry.facts}
        problem = {} if entry.problem is None else {"problem": entry.problem}
        found["items"][item] = {"state": entry.state, "seconds": entry.seconds, **problem, **facts}
    return steps


def _is_round(entry: Entry) -> bool:
    return isinstance(entry.facts, dict) and "round" in entry.facts


def _conclusions(entries: Mapping[tuple[str, str], Entry]) -> list[dict[str, Any]]:
    asked = {item: entry for (step, item), entry in entries.items() if step == "questions"}
    figures = {item: entry.facts for item, entry in asked.items() if isinstance(entry.facts, dict)}
    problems = {item: entry.problem for item, entry in asked.items() if entry.problem is not None}
    return [conclude(name, figures, problems) for name in QUESTIONS] if asked else []


def _workloads(calls: Sequence[Sequence[Entry]]) -> dict[str, Any]:
    processes = [
        (number, entry.facts) for number, entries in enumerate(calls) for entry in entries if _is_round(entry)
    ]
    return _rounds.rows(processes)
