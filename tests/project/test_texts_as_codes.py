# SPDX-License-Identifier: Apache-2.0
"""A message can be reworded without breaking anything: tests of behaviour pass where texts are codes.

This runs a part of each room; `pytest --texts-as-codes` runs all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "tests/analyze/ceilings/test_ceilings.py",
    "tests/analyze/roofline/test_roofline_labels.py",
    "tests/bench/accuracy/test_accuracy_outputs.py",
    "tests/bench/compare/test_comparison.py",
    "tests/bench/gate/test_gate.py",
    "tests/bench/report/test_report.py",
    "tests/bench/results/test_result.py",
    "tests/doctor/test_doctor.py",
    "tests/run/imports/test_import_kineto.py",
    "tests/run/test_facts.py",
)


def test_behaviour_does_not_depend_on_the_words_of_texts() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--texts-as-codes", *PARTS]
    # Of the run that this test is part of.
    outer = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT")
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-1_000:]
