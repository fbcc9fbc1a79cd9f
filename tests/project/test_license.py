# SPDX-License-Identifier: Apache-2.0
"""Every source file names the license in its first line."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "csrc", "tests", "tools", "benchmarks", "examples")
# Their text is part of what golden files show.
INPUTS = ROOT / "tests" / "golden" / "inputs"
LANGUAGES = (".py", ".pyi", ".cpp", ".hpp", ".cu")


def test_every_source_file_names_the_license() -> None:
    files = [each for name in FOLDERS for each in (ROOT / name).rglob("*") if each.suffix in LANGUAGES]
    without = [
        str(file.relative_to(ROOT))
        for file in files
        if INPUTS not in file.parents and "SPDX-License-Identifier: Apache-2.0" not in first_lines(file)
    ]
    assert len(files) > 500
    assert not without, "begin these files with `SPDX-License-Identifier: Apache-2.0` in a comment"


def first_lines(file: Path) -> str:
    return "\n".join(file.read_text(encoding="utf-8").splitlines()[:3])
