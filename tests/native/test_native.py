# SPDX-License-Identifier: Apache-2.0
"""Builds the core without Python and runs its own tests, plain and under the sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNTIMES = {"asan": "address", "tsan": "thread"}
# Under the thread sanitizer, next to other work.
LONGEST_STEP_S = 1500
# Building everything twice more takes minutes there; `make sanitize` does it anywhere.
FEW_PROCESSORS = 4
WANTED = "GPUPROF_SANITIZERS"


def call(*command: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_STEP_S,
    )


def lacks_runtime(sanitizer: str, folder: Path) -> str | None:
    source = folder / "empty.cpp"
    source.write_text("int main() { return 0; }\n")
    compiler = os.environ.get("CXX", "c++")
    made = call(compiler, f"-fsanitize={sanitizer}", str(source), "-o", str(folder / "empty"))
    if made.returncode != 0:
        return f"{compiler} has no runtime for -fsanitize={sanitizer}"
    ran = call(str(folder / "empty"))
    return None if ran.returncode == 0 else f"a program with -fsanitize={sanitizer} does not start here"


@pytest.mark.parametrize("preset", ["default", "asan", "tsan"])
def test_the_native_tests_pass(preset: str, tmp_path: Path) -> None:
    if preset in RUNTIMES and (os.cpu_count() or 1) < FEW_PROCESSORS and not os.environ.get(WANTED):
        pytest.skip(f"fewer than {FEW_PROCESSORS} processors: `make sanitize` runs it all the same")
    if preset in RUNTIMES and (reason := lacks_runtime(RUNTIMES[preset], tmp_path)):
        give_up = pytest.fail if os.environ.get(WANTED) else pytest.skip
        give_up(reason)
    for command in (
        ("cmake", "--preset", preset),
        ("cmake", "--build", f"build/{preset}", "--parallel"),
        (
            "ctest",
            "--test-dir",
            f"build/{preset}",
            "--output-on-failure",
            "--parallel",
            str(os.cpu_count() or 1),
        ),
    ):
        done = call(*command)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-20000:]}\n{done.stderr[-5000:]}"
