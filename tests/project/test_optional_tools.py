# SPDX-License-Identifier: Apache-2.0
"""The marker `needs`: a test is skipped without its package, or fails where the package is required."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import optional_tools
import pytest

SUPPORT = Path(optional_tools.__file__).parent
TESTS = """
import pytest

@pytest.mark.needs("json")
def test_of_a_package_that_is_here(): pass

@pytest.mark.needs("json", "no_such_package")
def test_of_another(): pass
"""


@pytest.mark.parametrize(
    ("option", "code", "outcome"), [([], 0, "1 passed, 1 skipped"), (["--require-optional"], 1, "1 error")]
)
def test_a_missing_package(tmp_path: Path, option: list[str], code: int, outcome: str) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    words = ["-p", "optional_tools", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), *option]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "test_it.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(SUPPORT), "PYTEST_ADDOPTS": "-W ignore::pytest.PytestUnknownMarkWarning"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert outcome in done.stdout.splitlines()[-1]
    assert "no_such_package" in done.stdout if code else True
