# SPDX-License-Identifier: Apache-2.0
"""The language check finds a planted word in each kind of text, and nothing in code."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_language.py"
RULES = """
[files]
include = ["*.py", "*.cpp", "*.md"]
exclude = ["kept/*"]

[[word]]
pattern = "by the clock"
use = "wall time"

[[word]]
pattern = "mend(s|ed)?"
use = "fix"
allow = [{ file = "tree.py", line = "mend a tree" }]
"""


@pytest.fixture(scope="module")
def language() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_language", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_language"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.toml"
    path.write_text(RULES)
    return path


PLANTED = {
    "prose": ("a.md", "one\nto mend it\n", ["a.md:2: mend: use fix"]),
    "two lines": ("a.md", "time by\nthe clock\n", ["a.md:1: by the clock: use wall time"]),
    "docstring": ("a.py", '"""One.\n\nMend it.\n"""\n', ["a.py:3: Mend: use fix"]),
    "comment": ("a.py", "x = 1  # Mends.\n", ["a.py:1: Mends: use fix"]),
    "comment of two lines": ("a.py", "# It is by\n# the clock.\n", ["a.py:1: by the clock: use wall time"]),
    "string": ("a.py", "x = f'mended {x}'\n", ["a.py:1: mended: use fix"]),
    "joined strings": ("a.py", "x = ('by the '\n  'clock')\n", ["a.py:1: by the clock: use wall time"]),
    "name": ("a.py", "def test_it_mends() -> None: ...\n", ["a.py:1: mends: use fix"]),
    "C++ comment": ("a.cpp", "int x;  // by\n  // the clock\n", ["a.cpp:1: by the clock: use wall time"]),
    "C++ block": ("a.cpp", "/* one\n * mend */ int x;\n", ["a.cpp:2: mend: use fix"]),
    "C++ string": ("a.cpp", 'auto x = "mend \\"it\\"";\n', ["a.cpp:1: mend: use fix"]),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_word_is_found(language: ModuleType, words: Path, case: str) -> None:
    file, content, expected = PLANTED[case]
    assert [str(found) for found in language.find(language.read_rules(words), file, content)] == expected


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("a.py", "mend = tree.mended(by, the, clock)\n"),
        ("a.py", "f('by the', clock, 'by', 'the clock')\n"),
        ("a.py", "x = f'{mend}'\n"),
        ("a.cpp", "int mend = 1'000; mend();\n"),
        ("a.md", "amend, recommended\n"),
        ("tree.py", "# Mend a tree.\n"),
    ],
)
def test_code_other_words_and_exceptions_are_not_findings(
    language: ModuleType, words: Path, file: str, content: str
) -> None:
    assert list(language.find(language.read_rules(words), file, content)) == []


def test_the_command_checks_the_files_of_the_repository(
    language: ModuleType, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "repository"
    (repository / "kept").mkdir(parents=True)
    for name in ("a.md", "b.txt", "kept/c.md"):
        (repository / name).write_text("mend\n")
    (repository / "tree.py").write_text("# mend a tree\n")
    subprocess.run(["git", "init", "--quiet"], cwd=repository, check=True)
    assert language.main([], repository, words) == 1
    assert capsys.readouterr().out == "a.md:1: mend: use fix\n"
    (repository / "a.md").write_text("fix\n")
    assert (language.main([], repository, words), capsys.readouterr().out) == (0, "")
    (repository / "tree.py").unlink()
    assert language.main([], repository, words) == 1
    assert "an exception of mend(s|ed)? is not used: tree.py mend a tree" in capsys.readouterr().out
