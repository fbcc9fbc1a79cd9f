# SPDX-License-Identifier: Apache-2.0
"""Golden files: what the commands print and write on fixed inputs, compared with `texts/`.

`pytest tests/golden --update-golden` writes them again; the differences are then reviewed with `git diff`.
"""

from __future__ import annotations

import datetime
import difflib
import functools
import importlib.metadata
import json
import math
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

TEXTS = Path(__file__).parent / "texts"
INPUTS = Path(__file__).parent / "inputs"
MOST_DIFFERENT_LINES = 80
# Longer lists of numbers are samples and coordinates: their count, sum and order are enough.
LONGEST_LIST = 12
_TIME_OF_DAY = r"[T ][\d:]{8}(?:[+-]\d\d:\d\d|Z)?"
_MANY_DIGITS = re.compile(r"-?\d+\.\d{6,}(?:e[-+]?\d+)?")


class GoldenFiles:
    """Compares texts with the files of one folder, or writes these."""

    def __init__(self, update: bool, folder: Path) -> None:
        self._update, self._folder = update, folder

    def check(self, name: str, text: str, facts: Mapping[str, str] | None = None) -> None:
        """Fail with a difference where `text` is not that of the golden file `name`."""
        found = normalized(text, {str(self._folder): "<folder>", **(facts or {})})
        path = TEXTS / name
        if self._update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path} does not exist: write it with `pytest {path.parents[1]} --update-golden`")
        expected = path.read_text(encoding="utf-8")
        if found != expected:
            pytest.fail(_difference(name, expected, found), pytrace=False)

    def check_json(self, name: str, value: Any, facts: Mapping[str, str] | None = None) -> None:
        """Compare plain data, one value a line."""
        self.check(name, json.dumps(shortened(value), indent=1, ensure_ascii=False) + "\n", facts)


def _difference(name: str, expected: str, found: str) -> str:
    lines = list(
        difflib.unified_diff(
            expected.splitlines(), found.splitlines(), f"texts/{name}", "found now", lineterm="", n=2
        )
    )
    more = len(lines) - MOST_DIFFERENT_LINES
    shown = [*lines[:MOST_DIFFERENT_LINES], *([f"... and {more} more lines"] if more > 0 else [])]
    hint = "If the new text is right: pytest tests/golden --update-golden, and review the change."
    return "\n".join([f"{name} differs from its golden file.", *shown, hint])


# --- what depends on the machine and on the moment -----------------------------------------------


@functools.cache
def _times_of_inputs() -> frozenset[str]:
    """Return the times in the inputs: they stay as they are, also within a day of their recording."""
    texts = (path.read_text(encoding="utf-8") for path in INPUTS.rglob("*.json"))
    return frozenset(time for text in texts for time in re.findall(rf"\d{{4}}-\d\d-\d\d{_TIME_OF_DAY}", text))


def normalized(text: str, facts: Mapping[str, str], today: datetime.date | None = None) -> str:
    """Replace facts, today's times, and digits that rounding errors decide."""
    for fact, replacement in sorted(facts.items(), key=lambda each: -len(each[0])):
        text = text.replace(fact, replacement)
    today = today or datetime.datetime.now(datetime.timezone.utc).date()
    # The local date may be another one, and so may be that of a moment ago.
    for days in (-1, 0, 1):
        day = today + datetime.timedelta(days=days)
        text = re.sub(
            rf"{day:%Y-%m-%d}{_TIME_OF_DAY}",
            lambda found: found[0] if found[0] in _times_of_inputs() else "<time>",
            text,
        )
        text = re.sub(rf"{day:%Y%m%d}_\d{{6}}(?:_\d+)?", "<time>", text)
    return _MANY_DIGITS.sub(lambda found: f"{float(found[0]):.6g}", text)


def shortened(value: Any) -> Any:
    """Replace long lists of numbers by their count and by two sums."""
    if isinstance(value, Mapping):
        return {key: shortened(each) for key, each in value.items() if not _is_of_torch(key, value)}
    if not isinstance(value, list):
        return value
    if len(value) > LONGEST_LIST and all(type(each) in (int, float) for each in value):
        finite = [(place, each) for place, each in enumerate(value, 1) if math.isfinite(each)]
        total, moment = sum(each for _, each in finite), sum(place * each for place, each in finite)
        return f"{len(value)} numbers, {len(finite)} finite, sum {total:.6g}, sum by place {moment:.6g}"
    return [shortened(each) for each in value]


def _is_of_torch(key: str, around: Mapping[str, Any]) -> bool:
    """Whether this is a fact of the machine that only a process with PyTorch knows."""
    return key == "threads" and "usable_cores" in around


def invent_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Python's own libraries describe a machine that does not exist, and clocks that do not move."""
    files = {
        Path("/proc/cpuinfo"): "model name\t: Invented CPU 9000\n",
        Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"): "performance\n",
    }
    read_text, sysconf = Path.read_text, os.sysconf
    memory = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 4_000_000}
    monkeypatch.setattr(
        Path, "read_text", lambda path, *words, **more: files.get(path) or read_text(path, *words, **more)
    )
    monkeypatch.setattr(os, "sysconf", lambda name: memory.get(name) or sysconf(name))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(4)), raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.25, 0.25, 0.25))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "release", lambda: "6.8.0")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "python_version", lambda: "3.12.1")
    _invent_versions(monkeypatch)
    if "torch" in sys.modules:
        # Another test has imported it; else the threads are those that a process run reports.
        monkeypatch.setattr(sys.modules["torch"], "get_num_threads", lambda: 4)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    # No revision: the folder of a test may lie in a repository.
    monkeypatch.setenv("GIT_DIR", "/nonexistent")


_VERSIONS = {"gpuprof-native": "0.0.1", "numpy": "2.0.0"}
# Packages of which it does not matter whether they are installed here.
_HIDDEN_PACKAGES = ("torch", "onnxruntime", "jax", "jaxlib", "tensorrt")


class _Distribution:
    """An installed package with an invented version."""

    def __init__(self, real: importlib.metadata.Distribution, version: str) -> None:
        self._real, self.version = real, version

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _invent_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.distribution

    def distribution(name: str) -> Any:
        if name in _HIDDEN_PACKAGES:
            raise importlib.metadata.PackageNotFoundError(name)
        return _Distribution(real(name), _VERSIONS[name]) if name in _VERSIONS else real(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)


# --- pages ---------------------------------------------------------------------------------------

_LINES = (
    "h1",
    "h2",
    "h3",
    "p",
    "li",
    "tr",
    "summary",
    "caption",
    "button",
    "option",
    "label",
    "title",
    "dt",
    "dd",
)
_CELLS = ("td", "th")
_HIDDEN = ("script", "style", "svg")
_READ_ALOUD = ("aria-label", "title", "alt", "placeholder", "content")


class PageOutline(HTMLParser):
    """What a reader sees of a page, a line for each piece of text; and its data by the script's id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.data: dict[str, str] = {}
        self._lines: list[str] = []
        self._line, self._script = "", ""
        self._hidden = 0
        self.feed(page)
        self._end_line()

    @property
    def text(self) -> str:
        """The outline."""
        return "\n".join(self._lines) + "\n"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in _HIDDEN:
            self._hidden += 1
            self._script = (values.get("id") or "") if tag == "script" else ""
            return
        if self._hidden:
            return
        if tag in _LINES:
            self._end_line()
            self._line = f"{tag}: "
        elif tag in _CELLS:
            self._line += "| "
        for name in _READ_ALOUD:
            if values.get(name) and tag != "meta":
                self._line += f"[{name}: {values[name]}] "

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden -= 1
            self._script = ""
        elif tag in _LINES:
            self._end_line()

    def handle_data(self, data: str) -> None:
        if self._script:
            self.data[self._script] = self.data.get(self._script, "") + data
        elif not self._hidden and data.strip():
            self._line += " ".join(data.split()) + " "

    def _end_line(self) -> None:
        if self._line.strip() and not self._line.rstrip().endswith(":"):
            self._lines.append(self._line.strip())
        self._line = ""
