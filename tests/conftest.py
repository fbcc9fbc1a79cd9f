# SPDX-License-Identifier: Apache-2.0
"""Recording a few lines, running programs, a run left unclosed, and disks that are full or read-only."""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from unclosed_run import UNCLOSED

TEXTS_AS_CODES = Path(__file__).parent / "support" / "texts_as_codes"
if "--texts-as-codes" in sys.argv:
    # Before gpuprof is imported: here, and in processes that tests start.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(TEXTS_AS_CODES), before)))
    runpy.run_path(str(TEXTS_AS_CODES / "sitecustomize.py"))

import gpuprof  # noqa: E402
from gpuprof import _native  # noqa: E402

with contextlib.suppress(ImportError):
    import hypothesis

    # The same examples every time, and no verdict from a machine that happens to be busy.
    hypothesis.settings.register_profile("gpuprof", derandomize=True, deadline=None)
    hypothesis.settings.load_profile("gpuprof")

pytest_plugins = ["optional_tools"]
# A shell starts background commands with the interrupt signal ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
LONGEST_PROGRAM_S = 180  # ends what hangs; a busy machine needs a minute


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that write golden files again, and that show typed facts as codes."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files of tests/golden")
    parser.addoption(
        "--texts-as-codes", action="store_true", help="show facts and errors as codes and values"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of tests that are about words."""
    config.addinivalue_line("markers", "texts: is about the words of texts, left out with --texts-as-codes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of words where texts are codes."""
    if config.getoption("--texts-as-codes"):
        about_texts = [item for item in items if item.get_closest_marker("texts")]
        config.hook.pytest_deselected(items=about_texts)
        items[:] = [item for item in items if item not in about_texts]


class Row(NamedTuple):
    """One row of `spans`."""

    span_id: int
    parent_id: int | None
    process_id: int
    thread_id: int
    kind: str
    name: str
    start_ns: int
    duration_ns: int
    depth: int


class Recorded:
    """A finished run with its spans but those of kind gc, in the order in which each thread began them."""

    def __init__(self, run: gpuprof.Run) -> None:
        self.run = run
        # Where Python collects garbage is up to what else the process has done.
        query = f"SELECT {', '.join(Row._fields)} FROM spans WHERE kind <> 'gc' ORDER BY span_id"
        self.rows = [Row(*row) for row in run.sql(query).fetchall()]
        self._by_id = {row.span_id: row for row in self.rows}

    @property
    def totals(self) -> dict[str, int]:
        totals: dict[str, int] = self.run.meta["totals"]
        return totals

    def path(self, row: Row) -> str:
        """Return the names from the outermost span to `row`; checks each step on the way."""
        if row.parent_id is None:
            assert row.depth == 0
            return row.name
        parent = self._by_id[row.parent_id]
        assert (parent.depth + 1, parent.process_id) == (row.depth, row.process_id)
        assert parent.start_ns <= row.start_ns
        return f"{self.path(parent)}/{row.name}"

    def paths(self) -> list[str]:
        return [self.path(row) for row in self.rows]

    def names(self) -> list[str]:
        return [row.name for row in self.rows]


Record = Callable[..., Recorded]
RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _no_recording_is_left_on() -> Iterator[None]:
    yield
    left = _native.is_recording()
    _native.stop_recording()
    assert not left, "the test left a recording on"


@pytest.fixture
def recorded() -> type[Recorded]:
    """`recorded(run)` reads a run's spans."""
    return Recorded


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """`record(body)` calls `body` under a recording and returns what was recorded."""
    count = 0

    def record(body: Callable[[], object], **options: Any) -> Recorded:
        nonlocal count
        count += 1
        options = {"out": tmp_path / f"{count}.gpuprof", "layers": False, "operators": False, **options}
        with gpuprof.profile(**options) as recording:
            body()
        return Recorded(recording.run)

    return record


def environment(**more: str) -> dict[str, str]:
    """Return the environment in which a child finds the very package that is tested here."""
    package = str(Path(gpuprof.__file__).parents[1])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """`run_python("-c", source)` runs this Python in the test's folder and captures text."""

    def run_python(*words: object, **options: Any) -> subprocess.CompletedProcess[Any]:
        settings = {"cwd": tmp_path, "text": True, "capture_output": True, "timeout": LONGEST_PROGRAM_S}
        settings |= {"env": environment(), "check": False, **options}
        return subprocess.run([sys.executable, *map(str, words)], **settings)

    return run_python


@pytest.fixture
def run_with_codes(run_python: RunPython) -> RunPython:
    """`run_with_codes("-c", source)` runs Python where errors and facts are shown as codes with values."""
    path = os.pathsep.join((str(TEXTS_AS_CODES), environment()["PYTHONPATH"]))

    def run_with_codes(*words: object, **options: Any) -> subprocess.CompletedProcess[Any]:
        return run_python(*words, **{"env": environment(PYTHONPATH=path), **options})

    return run_with_codes


@pytest.fixture(scope="session")
def unclosed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never closed, for all tests: change a copy."""
    folder = tmp_path_factory.mktemp("unclosed")
    command = [sys.executable, "-c", UNCLOSED]
    subprocess.run(command, cwd=folder, check=True, env=environment(), timeout=LONGEST_PROGRAM_S)
    return folder / "r.gpuprof"


@pytest.fixture
def copy_of(unclosed: Path, tmp_path: Path) -> Callable[[], Path]:
    """`copy_of()` is a fresh copy of the run that was never closed."""
    count = 0

    def make() -> Path:
        nonlocal count
        count += 1
        return Path(shutil.copytree(unclosed, tmp_path / f"copy-{count}.gpuprof"))

    return make


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """`small_disk("2m")` is a folder on a file system of that size; skips where none can be mounted."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """`read_only(folder)` is the same folder as a read-only medium; skips where none can be mounted."""
    mounted: list[Path] = []

    def mount(folder: Path) -> Path:
        view = tmp_path / f"read-only-{len(mounted)}"
        view.mkdir()
        _mount("--bind", str(folder), str(view))
        mounted.append(view)
        _mount("-o", "remount,ro,bind", str(view))
        return view

    yield mount
    for view in mounted:
        subprocess.run(["umount", "--lazy", str(view)], check=True)


def _mount(*words: str) -> None:
    try:
        done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no mount command here: {error}")
    if done.returncode != 0:
        pytest.skip(f"file systems cannot be mounted here: {done.stderr.strip()}")
