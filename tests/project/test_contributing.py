# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md names files and targets that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_its_files_exist() -> None:
    named = set(re.findall(r"`([\w/.-]+\.(?:py|css|md))`", TEXT))
    assert len(named) > 10
    folders = (ROOT / "src", ROOT / "tests", ROOT / "docs")
    files = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.*"))]
    there = ["/" + path.relative_to(ROOT).as_posix() for path in files]
    assert not {name for name in named if not any(path.endswith(f"/{name}") for path in there)}


def test_its_targets_exist() -> None:
    called = set(re.findall(r"make ([a-z-]+)", TEXT))
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"demo", "test", "integration"} <= called <= rules
