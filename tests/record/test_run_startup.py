# SPDX-License-Identifier: Apache-2.0
"""What `gpuprof run` imports for a program without spans, in its own process and in the program's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpuprof

# Each takes longer to import than a short program runs.
HEAVY = ("numpy", "duckdb", "scipy", "rich", "torch", "pyinstrument", "asyncio", "importlib.resources")
OTHER_ROOMS = ("gpuprof.analyze", "gpuprof.bench", "gpuprof.doctor", "gpuprof.live", "gpuprof.load")
OTHER_ROOMS += ("gpuprof.render", "gpuprof.stats", "gpuprof.run.table_writer")


def heavy(modules: set[str]) -> set[str]:
    """Return those that are, or are in, one that takes long."""
    return {each for each in modules for room in (*HEAVY, *OTHER_ROOMS) if f"{each}.".startswith(f"{room}.")}


def test_no_process_imports_what_takes_long(run_python: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    words = ("-X", "importtime", "-m", "gpuprof", "run", "--no-gpu", "--out", "r.gpuprof", "empty.py")
    done = run_python(*words)
    assert done.returncode == 0, done.stderr
    lines = [line.split("|") for line in done.stderr.splitlines() if line.startswith("import time:")]
    imported = {parts[-1].strip() for parts in lines}
    # Both processes are in there.
    assert {"gpuprof.record.supervise", "gpuprof.record.launch", "gpuprof.run.spanless"} <= imported
    assert heavy(imported) == set()
    assert (tmp_path / "r.gpuprof" / "meta.json").exists()


def test_no_frame_of_an_empty_program_is_of_gpuprof(run_python: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    done = run_python("-m", "gpuprof", "run", "--no-gpu", "--out", "r.gpuprof", "empty.py")
    assert done.returncode == 0, done.stderr
    frames = gpuprof.open(tmp_path / "r.gpuprof").sql("SELECT DISTINCT unnest(frames) FROM stacks").fetchall()
    ours = ("contextlib", "gpuprof", "site", "zipimport", "pathlib", "json", "encodings")
    assert not [frame for (frame,) in frames if any(word in frame for word in ours)]


def test_the_program_finds_nothing_of_the_command_imported(run_python: Any, tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text("import sys\nprint(*sys.modules)\n")
    done = run_python("-m", "gpuprof", "run", "--no-gpu", "--out", "r.gpuprof", "names.py")
    modules = set(done.stdout.split())
    assert "gpuprof.record.launch" in modules
    assert heavy(modules) == set()
    assert not {each for each in modules if each.startswith(("click", "gpuprof.cli", "gpuprof.run"))}


def test_what_records_pytorch_is_imported_with_it(run_python: Any, tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text("import sys\nprint(*sys.modules)\n")
    done = run_python("-m", "gpuprof", "run", "--no-gpu", "--out", "r.gpuprof", "names.py")
    sources = {"backward_layers", "first_calls", "kernels", "layers", "operators", "program_settings"}
    others = {"other_profilers", "python_stacks", "window_options", "window_sampler"}
    assert not {f"gpuprof.record.{name}" for name in sources | others} & set(done.stdout.split())
