# SPDX-License-Identifier: Apache-2.0
"""The one file that a run leaves, written anew after each step, and how several are joined."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu._processes import REPOSITORY

FORMAT = 1
PACKAGE_SOURCES = ("CMakeLists.txt", "pyproject.toml", "cmake", "csrc", "src")
SOURCES = (*PACKAGE_SOURCES, "tests/gpu", "benchmarks/gpu")
_ENDINGS = {".txt", ".toml", ".cmake", ".cpp", ".hpp", ".cu", ".in", ".py", ".pyi", ".js", ".css", ".html"}


def source_digest(roots: Sequence[str] = SOURCES) -> str:
    """Return a number for the sources as they lie here, also where there is no repository around them."""
    digest = hashlib.sha256()
    for root in roots:
        path = REPOSITORY / root
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file() and file.suffix in _ENDINGS:
                digest.update(f"{file.relative_to(REPOSITORY).as_posix()}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


class Report:
    """Sections by name, on disk as soon as they are known."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path = path
        self.content: dict[str, Any] = {"benchmark": "gpu", "format": FORMAT, **facts, "steps": {}}

    def put(self, step: str, section: dict[str, Any]) -> None:
        """Write a step's section in place of an earlier one."""
        self.content["steps"][step] = section
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.path)


def merge(paths: Sequence[Path], target: Path) -> None:
    """Join reports of the same sources, device and driver into one. Raises ValueError with the mend."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    first = reports[0]
    for path, report in zip(paths, reports, strict=True):
        for key in ("format", "source_digest"):
            if report.get(key) != first.get(key):
                raise ValueError(f"{path} is of another {key} than {paths[0]}: merge runs of the same code")
        if _device(report) != _device(first):
            raise ValueError(f"{path} is of another device or driver than {paths[0]}: keep them apart")
    joined = {**first, "steps": {}, "arguments": [report.get("arguments") for report in reports]}
    for report in reports:
        for step, section in report["steps"].items():
            if step not in joined["steps"] or section.get("state") == "ok":
                joined["steps"][step] = section
    target.write_text(json.dumps(joined, indent=1) + "\n", encoding="utf-8")


def _device(report: dict[str, Any]) -> Any:
    gpu = report.get("machine", {}).get("gpu") or {}
    return gpu.get("name"), gpu.get("driver")
