# SPDX-License-Identifier: Apache-2.0
"""A message can be reworded without breaking anything: tests of behavior pass where texts are codes.

The words of errors are in tests/golden/texts/errors.txt; other tests compare codes and values. This runs a
part of each package; `pytest --texts-as-codes` runs all of them.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpuprof
from gpuprof.errors import GpuprofError

ROOT = Path(__file__).resolve().parents[2]
# A file of each package, chosen for its speed.
PARTS = (
    "tests/analyze/roofline/test_roofline_text.py",
    "tests/analyze/test_layer_groups.py",
    "tests/bench/compare/test_suite_file.py",
    "tests/bench/gate/test_gate.py",
    "tests/bench/test_messages.py",
    "tests/cli/test_commands.py",
    "tests/cli/test_summary_command.py",
    "tests/doctor/test_doctor_ceilings.py",
    "tests/record/test_sample_files.py",
    "tests/render/test_finding_cards.py",
    "tests/run/imports/test_import_kineto.py",
    "tests/run/test_facts.py",
    "tests/stats/test_quantiles.py",
    "tests/text/test_text.py",
)
# These simulate, start processes, or try many files: they take half of the time, and are not about texts.
LEFT_OUT = "apart or alarms or simulations or stub or promise or process_runs or truth or often or twenty "
LEFT_OUT += "or agree or noise or every_cut or no_figure_is_lost"


@pytest.mark.slow
def test_behavior_does_not_depend_on_the_words_of_texts() -> None:
    options = ["-q", "-p", "no:cacheprovider", "--texts-as-codes", "-k", f"not ({LEFT_OUT})"]
    command = [sys.executable, "-m", "pytest", *options, *PARTS]
    # Of the run that this test is part of.
    outer = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT")
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-1_000:]


def test_no_test_compares_the_words_of_an_error() -> None:
    errors = {"FailedRunError", "DoesNotFitError", "TimeLimitError", "SuiteError"} | {
        each.__name__
        for each in vars(gpuprof.errors).values()
        if isinstance(each, type) and issubclass(each, GpuprofError)
    }
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises" and node.args:
                is_error = ast.unparse(node.args[0]).rpartition(".")[2] in errors
                if is_error and any(each.arg == "match" for each in node.keywords):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: use refused(...) of tests/support")
    assert not found
