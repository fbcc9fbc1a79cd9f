# SPDX-License-Identifier: Apache-2.0
"""A message can be reworded without breaking anything: tests of behavior pass where texts are codes.

This runs a part of each room; `pytest --texts-as-codes` runs all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "tests/bench/compare/test_comparison.py",
    "tests/bench/compare/test_traffic.py",
    "tests/bench/results/test_result.py",
    "tests/cli/test_commands.py",
    "tests/run/imports/test_import_kineto.py",
    "tests/run/test_facts.py",
)
# These simulate, or start processes: they take half of the time, and texts are not what they are about.
LEFT_OUT = "apart or alarms or simulations or stub or promise or process_runs or truth or often"


def test_behavior_does_not_depend_on_the_words_of_texts() -> None:
    options = ["-q", "-p", "no:cacheprovider", "--texts-as-codes", "-k", f"not ({LEFT_OUT})"]
    command = [sys.executable, "-m", "pytest", *options, *PARTS]
    # Of the run that this test is part of.
    outer = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT")
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-1_000:]
