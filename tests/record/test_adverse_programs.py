# SPDX-License-Identifier: Apache-2.0
"""`gpuprof run`: what a program takes from Python, from its memory, and from the run's folder."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from compared_programs import RUN, Files, spans_of
from refusals import check_form

import gpuprof

TAKEN = {
    "importlib": "import importlib, sys\ndel sys.modules['importlib']",
    "os.stat": "import os\nos.stat = None",
    "open": "import builtins\nbuiltins.open = None",
    "all modules": "import sys\nsys.modules.clear()",
}


@pytest.mark.parametrize("source", TAKEN.values(), ids=list(TAKEN))
def test_a_run_is_complete_whatever_the_program_takes_from_python(
    files: Files, same_as_python: Any, source: str
) -> None:
    folder = files({"main.py": f"print('ran', flush=True)\n{source}"})
    same_as_python("main.py")
    assert gpuprof.open(folder / "main.gpuprof").meta["complete"]


@pytest.mark.parametrize(
    ("error", "also"),
    [("ZeroDivisionError", ""), ("SystemExit", ""), ("KeyboardInterrupt", "import os\nos.write = None\n")],
)
def test_a_recording_that_cannot_end_in_order_is_one_line(
    files: Files, run_python: Any, error: str, also: str
) -> None:
    raising = f"{also}def fail(*_a, **_k):\n    raise {error}\nio.open = fail\n"
    folder = files({"main.py": f"import io\nprint('ran')\n{raising}exit(3)"})
    done = run_python(*RUN, "main.py", cwd=folder)
    assert (done.returncode, done.stdout) == (3, "ran\n")
    lines = done.stderr.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["gpuprof", "gpuprof"]
    assert error in lines[0]
    check_form(lines[0])
    assert not gpuprof.open(folder / "main.gpuprof").meta["complete"]


BUSY, ASLEEP = "while True: pass", "while True: time.sleep(0.3)"


@pytest.mark.parametrize("body", [BUSY, ASLEEP], ids=["busy", "asleep"])
def test_a_thread_that_outlives_the_program_leaves_no_warning_of_pytorch(
    files: Files, run_python: Any, body: str
) -> None:
    source = f"""
        import threading, time, torch
        def forever():
            torch.ones(3).sum()
            ran.set()
            {body}
        ran = threading.Event()
        threading.Thread(target=forever, daemon=True).start()
        ran.wait()
    """
    folder = files({"main.py": textwrap.dedent(source)})
    done = run_python(*RUN, "main.py", cwd=folder)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if not line.startswith("gpuprof: ")] == []
    assert ("aten::sum",) in spans_of(folder / "main.gpuprof")


LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]) << 20,) * 2)
os.execv(sys.executable, [sys.executable, "-m", "gpuprof", *sys.argv[2:]])
"""


@pytest.mark.parametrize("megabytes", [150, 300])
def test_too_little_memory_to_close_a_run_keeps_the_recording(
    files: Files, run_python: Any, megabytes: int
) -> None:
    source = "import gpuprof\nwith gpuprof.span('a'): print('ran')\nexit(3)"
    folder = files({"main.py": source, "limited.py": LIMITED})
    done = run_python("limited.py", megabytes, "run", "main.py", cwd=folder)
    assert (done.returncode, done.stdout) == (3, "ran\n"), done.stderr
    assert "main.gpuprof" in done.stderr
    check_form(done.stderr)
    assert spans_of(folder / "main.gpuprof") == [("a",)]


def test_too_little_memory_to_read_a_run_is_no_damage(files: Files, run_with_codes: Any) -> None:
    folder = files({"limited.py": LIMITED})
    with gpuprof.profile(out=folder / "r.gpuprof", layers=False, operators=False), gpuprof.span("a"):
        pass
    done = run_with_codes("limited.py", 300, "summary", "r.gpuprof", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "out_of_memory" in done.stderr
    assert len(done.stderr.splitlines()) == 1


REMOVED = {
    "folder": ("shutil.rmtree(run)", "main.gpuprof"),
    "segments": ("shutil.rmtree(run / 'segments')", "main.gpuprof/segments"),
    "files": ("[file.unlink() for file in (run / 'segments').iterdir()]", "main.gpuprof/segments"),
}


@pytest.mark.parametrize(("statement", "named"), REMOVED.values(), ids=list(REMOVED))
def test_a_recording_that_is_removed_while_it_is_written_is_one_line(
    files: Files, run_python: Any, statement: str, named: str
) -> None:
    source = f"import pathlib, shutil\nrun = pathlib.Path('main.gpuprof')\n{statement}\nprint('ran')\nexit(3)"
    done = run_python(*RUN, "main.py", cwd=files({"main.py": source}))
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert f"{named} " in done.stderr
    check_form(done.stderr)
