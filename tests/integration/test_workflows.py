# SPDX-License-Identifier: Apache-2.0
"""The files that GitHub reads: they are valid, and their jobs call targets that exist."""

from __future__ import annotations

import re
import sys

import pytest
from environments import REPOSITORY, run

GITHUB = REPOSITORY / ".github"


@pytest.mark.needs("check_jsonschema")
@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", "workflows/*.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", "ISSUE_TEMPLATE/config.yml"),
    ],
)
def test_files_are_valid(schema: str, pattern: str) -> None:
    files = sorted(GITHUB.glob(pattern))
    assert files
    run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files)


def test_jobs_call_targets_of_make() -> None:
    text = (GITHUB / "workflows" / "ci.yml").read_text(encoding="utf-8")
    called = {target for line in re.findall(r"run: make (.*)", text) for target in line.split()}
    assert called >= {"lint", "run-tests", "wheel", "integration"}
    for target in called:
        run("make", "--dry-run", target, cwd=REPOSITORY)
