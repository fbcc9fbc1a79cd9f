# SPDX-License-Identifier: Apache-2.0
"""SIGTERM to `gpuprof run` after the program has ended, while its run is written."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import gpuprof
from gpuprof.cli.termination import named_when_terminated

# Waits in the middle of closing, as native code does for a long run.
SLOW_TO_CLOSE = """
import sys, time
from gpuprof.cli.main import main
from gpuprof.run import folder

def close_run(*_arguments, **_named):
    print("closing", flush=True)
    time.sleep(60)

folder.close_run = close_run
sys.argv[1:] = ["run", "--no-gpu", "--out", "a run.gpuprof", "program.py"]
main()
"""


def test_it_names_the_command_that_completes_the_run(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import signal\nprint(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_TO_CLOSE],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    assert process.stdout.readline() == "closing\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 143
    assert errors == (
        "gpuprof: terminated before a run.gpuprof was completely written; "
        "this completes it: gpuprof summary 'a run.gpuprof'\n"
    )
    assert gpuprof.open(tmp_path / "a run.gpuprof").meta["complete"] is True


def test_the_handlers_of_before_are_back_after_it(tmp_path: Path) -> None:
    with named_when_terminated(tmp_path):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with named_when_terminated(tmp_path):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
