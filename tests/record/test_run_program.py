# SPDX-License-Identifier: Apache-2.0
"""`gpuprof run`: a program has the environment that Python itself would give it, and the same output."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from compared_programs import RUN, Files, as_shell, spans_of, without_our_line
from run_codes import note_codes

import gpuprof
from gpuprof.errors import RecordingError
from gpuprof.record.supervise import target_path

FACTS = '''
"""The module's text."""
import inspect, json, os, pickle, signal, sys, threading

class Point:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return self.x == other.x

here = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "optimize": sys.flags.optimize,
    "file": __file__, "name": __name__, "package": __package__, "doc": __doc__,
    "spec": getattr(__spec__, "name", None), "loader": type(__loader__).__name__,
    "globals": sorted(globals()), "is main": vars(here) is globals(),
    "source": inspect.getsource(Point), "module": Point.__module__,
    "pickled": pickle.loads(pickle.dumps(Point(3))) == Point(3),
    "hook": sys.excepthook is sys.__excepthook__, "traced": [sys.gettrace(), sys.getprofile()],
    "main thread": threading.current_thread() is threading.main_thread(),
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "term": str(signal.getsignal(signal.SIGTERM)), "handles": len(os.listdir("/proc/self/fd")) > 0,
    "recursion": sys.getrecursionlimit(), "warnings": sys.warnoptions,
}, indent=1))
'''


# --- what the program finds ----------------------------------------------------------------------

FORMS = {
    "script": ["main.py"],
    "arguments like ours": ["main.py", "--help", "--out", "x", "-m", "y", "--", "", "two words", "-"],
    "path in another folder": ["elsewhere/deep/main.py", "a"],
    "path with dots": ["./elsewhere/../main.py"],
    "symbolic link": ["link.py"],
    "folder": ["folder", "a"],
    "folder with a slash": ["folder/"],
    "module": ["-m", "main", "--out", "x"],
    "package": ["-m", "package", "-m"],
    "submodule": ["-m", "package.sub", "--help"],
}


@pytest.fixture
def facts(files: Files) -> Path:
    places = (
        "main.py",
        "elsewhere/deep/main.py",
        "folder/__main__.py",
        "package/__main__.py",
        "package/sub.py",
    )
    root = files({**dict.fromkeys(places, FACTS), "package/__init__.py": "", "elsewhere/other.py": FACTS})
    (root / "link.py").symlink_to("elsewhere/other.py")
    return root


@pytest.mark.parametrize("words", FORMS.values(), ids=list(FORMS))
def test_the_program_finds_what_python_gives(facts: Path, same_as_python: Any, words: list[str]) -> None:
    same_as_python(*words)


def test_files_that_the_shell_opened_are_the_programs(tmp_path: Path, same_as_python: Any) -> None:
    """As in `program.py 5>log` or `program.py <(command)`."""
    (tmp_path / "reads.py").write_text("import os, sys\nprint(os.pread(int(sys.argv[1]), 99, 0))\n")
    (tmp_path / "given").write_text("what the shell gave")
    with (tmp_path / "given").open("rb") as given:
        done = same_as_python("reads.py", str(given.fileno()), pass_fds=[given.fileno()])
    assert b"what the shell gave" in done.stdout


def test_an_absolute_path_is_the_same(facts: Path, same_as_python: Any) -> None:
    done = same_as_python(str(facts / "elsewhere/deep/main.py"))
    assert json.loads(done.stdout)["path"][0] == str(facts / "elsewhere/deep")
    assert (facts / "main.gpuprof").is_dir()


def test_a_safe_path_is_left_safe(facts: Path, same_as_python: Any) -> None:
    same_as_python("main.py", env={**os.environ, "PYTHONSAFEPATH": "1"})


@pytest.mark.parametrize("flag", ["-O", "-Wignore", "-Xdev"])
def test_pythons_own_flags_reach_the_program(files: Files, same_as_python: Any, flag: str) -> None:
    files({"main.py": "import sys; print(sys.flags, sys.warnoptions); assert not sys.argv[1:]"})
    same_as_python("main.py", flags=(flag,))


def test_siblings_are_imported_and_relative_imports_work(files: Files, same_as_python: Any) -> None:
    files(
        {
            "deep/main.py": "import sibling; print(sibling.value)",
            "deep/sibling.py": "value = 5",
            "package/__init__.py": "",
            "package/__main__.py": "from . import sibling; print(sibling.value, __package__)",
            "package/sibling.py": "value = 6",
        }
    )
    assert same_as_python("deep/main.py").stdout == b"5\n"
    assert same_as_python("-m", "package").stdout == b"6 package\n"


def test_the_programs_folder_may_hold_modules_named_like_pythons(files: Files, run_python: Any) -> None:
    names = ("json", "platform", "signal", "fcntl", "importlib", "duckdb", "contextlib", "atexit", "io")
    files(
        {
            "main.py": "print('ran')",
            **{f"{name}.py": f"raise Exception('{name} of the user')" for name in names},
        }
    )
    script = Path(sys.executable).with_name("gpuprof")
    if not script.exists():
        pytest.skip("the command gpuprof is not installed next to this Python")
    done = run_python(script, "run", "main.py")
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


# --- what the program prints ---------------------------------------------------------------------


def test_standard_streams_are_byte_identical(files: Files, same_as_python: Any) -> None:
    source = """
import sys
data = sys.stdin.buffer.read()
sys.stdout.buffer.write(data[::-1])
sys.stderr.buffer.write(data)
print("text", file=sys.stderr, flush=True)
print("unflushed", end="")
"""
    files({"main.py": source})
    data = bytes(range(256)) * 500 + b"\n"
    done = same_as_python("main.py", input=data)
    assert done.stdout == data[::-1] + b"unflushed"


NESTED = """
class OwnError(Exception): pass
def inner(value):
    raise OwnError("value", value)
def outer():
    try:
        {}["key"]
    except KeyError as error:
        inner(error)
"""
ENDINGS = {
    "nothing": "",
    "exit 0": "import sys; sys.exit(0)",
    "exit 3": "import sys; sys.exit(3)",
    "exit with a text": "import sys; sys.exit('bad \\u706b')",
    "exit with nothing": "import sys; sys.exit()",
    "exit with an object": "import sys; sys.exit([1, 2])",
    "exit with a large code": "import sys; sys.exit(256 + 7)",
    "_exit": "import os; print('x', flush=True); os._exit(5)",
    "exception": NESTED + "outer()",
    "exception with a cause": NESTED + "try:\n outer()\nexcept OwnError as e:\n raise OSError(2, 'x') from e",
    "exception without context": NESTED
    + "try:\n outer()\nexcept OwnError:\n raise ValueError('v') from None",
    "exception in a lambda": "(lambda: [1 / number for number in [1, 0]])()",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "GeneratorExit": "raise GeneratorExit('g')",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "aborted": "import os; os.abort()",
    "SyntaxError": "print('never')\ndef f(:\n  pass",
    "IndentationError": "if 1:\npass",
    "coding line": b"# coding: latin-1\nprint(ascii('\xe9'))",
    "byte order mark": b"\xef\xbb\xbfprint('bom')",
    "own hook": "import sys\nsys.excepthook = lambda *e: print('hook', e[0], e[1], e[2].tb_lineno)\n1 / 0",
    "hook that fails": "import sys\ndef hook(*e): raise OSError('hook')\nsys.excepthook = hook\n1 / 0",
    "hook that exits": "import sys\nsys.excepthook = lambda *e: sys.exit(9)\n1 / 0",
    "failing thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()",
    "failing exit handler": "import atexit\natexit.register(lambda: 1 / 0)\nprint('end')",
    "exit in an exit handler": "import atexit, sys\natexit.register(lambda: print('last'))\nsys.exit(4)",
    "warning": "import warnings\ndef f(): warnings.warn('careful')\nf()",
    "traceback by hand": "import traceback\ntry:\n 1 / 0\nexcept Exception: traceback.print_exc()",
    "stack by hand": "import traceback\ndef f(): traceback.print_stack(limit=1)\nf()",
    "last exception": "import atexit, sys\natexit.register(lambda: print(sys.last_value))\n1 / 0",
    "closed streams": "import sys\nsys.stdout.close(); sys.stderr.close()",
    "future import": "from __future__ import annotations\ndef f(x: nothing): pass\nprint(f.__annotations__)",
    "annotations": "x: int = 5\nprint(__annotations__)",
    "no annotations": "print(__annotations__)",
}


@pytest.mark.parametrize("source", ENDINGS.values(), ids=list(ENDINGS))
def test_every_end_is_as_it_was(files: Files, same_as_python: Any, source: str | bytes) -> None:
    files({"main.py": source})
    same_as_python("main.py")


@pytest.mark.parametrize(
    "words", [["deep/main.py"], ["-m", "deep.main"], ["deep"]], ids=["path", "module", "folder"]
)
def test_tracebacks_are_the_same_however_the_program_is_named(
    files: Files, run_python: Any, words: list[str]
) -> None:
    files({"deep/main.py": NESTED + "outer()", "deep/__main__.py": NESTED + "outer()"})
    ends = []
    for prefix in ((), RUN):
        done = run_python(*prefix, *words)
        lines = without_our_line(done.stderr.encode()).decode().splitlines()
        # Python's own lines of runpy above the program's are the one difference.
        kept = [line for line in lines if "runpy" not in line and line != "    return _run_code("]
        ends.append((done.returncode, kept))
    assert ends[0] == ends[1]


# --- signals -------------------------------------------------------------------------------------


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start a program in a session of its own and wait for its first line."""
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


WAITING = """
import signal, sys
try:
    print("ready", flush=True)
    while True:
        signal.pause()
except KeyboardInterrupt:
    raise_or_exit
"""


def test_ctrl_c_is_the_programs(files: Files) -> None:
    folder = files({"main.py": WAITING.replace("raise_or_exit", "raise KeyboardInterrupt from None")})
    ends = []
    for prefix in ((), RUN):
        process = start(folder, *prefix, "main.py")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everybody in front of it
        _, errors = process.communicate(timeout=180)
        ends.append((as_shell(process.returncode), without_our_line(errors.encode())))
    assert ends[0] == ends[1]
    assert ends[1][0] == 130


def test_ctrl_c_that_the_program_handles(files: Files) -> None:
    source = WAITING.replace("raise_or_exit", "exit(7)")
    process = start(files({"main.py": source}), *RUN, "main.py")
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 7
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_signals_to_the_command_reach_the_program(files: Files, number: signal.Signals) -> None:
    source = f"import signal, sys\nsignal.signal({int(number)}, lambda *a: sys.exit(11))" + WAITING
    folder = files({"main.py": source})
    process = start(folder, *RUN, "--out", "main.gpuprof", "main.py")
    process.send_signal(number)
    _, errors = process.communicate(timeout=180)
    assert (process.returncode, errors.count("wrote main.gpuprof")) == (11, 1)
    assert gpuprof.open(folder / "main.gpuprof").meta["complete"] is True


# --- what is recorded ----------------------------------------------------------------------------


def test_everything_until_the_very_end_is_recorded(files: Files, run_python: Any) -> None:
    source = """
import atexit, threading, gpuprof
def spanned(name, after=lambda: None):
    after()
    with gpuprof.span(name): pass
atexit.register(spanned, "exit handler")
main_ended = threading.Event()
threading.Thread(target=spanned, args=("late thread", threading.main_thread().join)).start()
spanned("main")
"""
    folder = files({"main.py": source})
    done = run_python(*RUN, "--out", "r.gpuprof", "main.py")
    assert done.returncode == 0, done.stderr
    run = gpuprof.open(folder / "r.gpuprof")
    assert [name for (name,) in spans_of(run.path)] == ["main", "late thread", "exit handler"]
    assert run.meta["complete"] is True
    assert run.meta["totals"]["unfinished_spans"] == 0


def test_daemon_threads_may_be_busy_at_the_end(files: Files, run_python: Any) -> None:
    source = """
import threading, gpuprof
begun = threading.Barrier(9)
def work():
    begun.wait()
    while True:
        with gpuprof.span("busy"): pass
for _ in range(8): threading.Thread(target=work, daemon=True).start()
begun.wait()
"""
    folder = files({"main.py": source})
    for _ in range(3):
        done = run_python(*RUN, "main.py")
        assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    for name in ("main", "main-2", "main-3"):
        assert gpuprof.open(folder / f"{name}.gpuprof").meta["totals"]["dropped_events"] == 0


@pytest.mark.parametrize(
    ("ending", "code"),
    [("os._exit(5)", 5), ("os.kill(os.getpid(), 9)", 137), ("os.abort()", 134), ("1 / 0", 1), ("exit(3)", 3)],
)
def test_a_program_that_ends_badly_leaves_its_run(
    files: Files, run_python: Any, ending: str, code: int
) -> None:
    folder = files({"main.py": f"import gpuprof, os\nwith gpuprof.span('a'), gpuprof.span('b'):\n  {ending}"})
    done = run_python(*RUN, "main.py")
    assert done.returncode == code
    assert "wrote main.gpuprof" in done.stderr
    run = gpuprof.open(folder / "main.gpuprof")
    assert sorted(spans_of(run.path)) == [("a",), ("b",)]
    in_order = code in (1, 3)
    assert run.meta["complete"] is in_order
    assert run.meta["totals"]["unfinished_spans"] == (0 if in_order else 2)


def test_the_default_names_count_up(files: Files, run_python: Any) -> None:
    folder = files(
        {"train.py": "", "deep/train.v2.py": "", "package/__init__.py": "", "package/__main__.py": ""}
    )
    for words in (
        ["train.py"],
        ["train.py"],
        ["train.py"],
        ["deep/train.v2.py"],
        ["-m", "package"],
        ["deep/../train.py"],
    ):
        done = run_python(*RUN, *words)
        assert done.returncode == 0, done.stderr
    names = {path.name.removesuffix(".gpuprof") for path in folder.glob("*.gpuprof")}
    assert names == {"train", "train-2", "train-3", "train-4", "train.v2", "package"}


@pytest.mark.parametrize(
    ("target", "code"),
    [
        *((name, "is_interpreter") for name in ("python", "python3", "python3.11", "python.exe")),
        (str(Path(sys.executable).parent / "python"), "is_interpreter"),
        ("elsewhere/python", "no_such_script"),
    ],
)
def test_the_interpreter_in_front_of_the_script_is_refused(
    target: str, code: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files({"train.py": "", "python/empty.txt": ""}))
    with pytest.raises(RecordingError) as caught:
        target_path(target, is_module=False, out=None)
    assert caught.value.code == code


def test_scripts_and_folders_may_have_the_interpreters_name(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files({"python/__main__.py": "", "pythonic": "", "python3": "print()"}))
    for name in ("python", "pythonic", "python3"):
        assert target_path(name, is_module=False, out=None) == Path(f"{name}.gpuprof")


POOLS = """
import multiprocessing, os, sys, gpuprof
class Item:
    def __init__(self, value): self.value = value
@gpuprof.span("work")
def work(item):
    return Item(item.value * 2), os.getpid()
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(2) as pool:
        results = pool.map(work, [Item(number) for number in range(20)])
        pool.close(); pool.join()
    assert [item.value for item, _ in results] == list(range(0, 40, 2))
    print(sorted({pid for _, pid in results}))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes_work(files: Files, run_python: Any, method: str) -> None:
    folder = files({"deep/main.py": POOLS})
    done = run_python(*RUN, "deep/main.py", method)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    rows = (
        gpuprof.open(folder / "main.gpuprof")
        .sql("SELECT process_id, count(*) FROM spans WHERE kind <> 'gc' GROUP BY 1")
        .fetchall()
    )
    if method == "fork":
        assert sorted(process for process, _ in rows) == json.loads(done.stdout)
        assert sum(count for _, count in rows) == 20


def test_programs_that_start_programs(files: Files, same_as_python: Any) -> None:
    source = """
import os, subprocess, sys
child = "import sys; print('child', sys.argv, sys.path[0]); sys.exit(6)"
print(subprocess.run([sys.executable, "-c", child, "x"]).returncode, flush=True)
pid = os.fork()
if pid == 0:
    print("forked", flush=True)
    os.execv(sys.executable, [sys.executable, "-c", "print('exec'); raise SystemExit(8)"])
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
if os.fork() == 0:
    sys.exit(4)  # runs the exit handlers of the copy
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    files({"main.py": source})
    same_as_python("main.py")


@pytest.mark.slow
def test_a_forked_child_that_ends_in_order_after_operators(files: Files, same_as_python: Any) -> None:
    pytest.importorskip("torch")
    source = """
import os, sys, torch
torch.ones(3)
for end in (lambda: sys.exit(4), lambda: None):
    if os.fork() == 0:
        torch.ones(3)
        end()
        sys.exit()
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    files({"main.py": source})
    same_as_python("main.py")


OWN_RECORDING = """
import gpuprof, torch
model = torch.nn.Linear(2, 2)
def work(name):
    with gpuprof.span(name):
        model(torch.ones(1, 2))
work("before")
for number in (1, 2):
    with gpuprof.profile(model, out=f"inner{number}.gpuprof") as recording:
        work("inside")
        try:
            with gpuprof.profile(out="never.gpuprof"): pass
        except gpuprof.RecordingError as error:
            print(error.code)
    print([row.name for row in recording.run.summary("span").rows])
work("after")
"""


@pytest.mark.slow
def test_a_program_may_record_by_itself(files: Files, same_as_python: Any) -> None:
    folder = files({"main.py": OWN_RECORDING})
    done = same_as_python("main.py", cwd=folder, between=lambda: remove_runs(folder))
    assert done.returncode == 0
    assert done.stdout.count(b"recording_active") == 2
    outer = folder / "main.gpuprof"
    kinds = {name: kind for kind, name in spans_of(outer, "kind, name")}
    assert kinds["before"] == kinds["after"] == "span"
    assert "inside" not in kinds
    layers = [row[0] for row in spans_of(outer, "kind") if row[0] == "layer"]
    assert len(layers) == 2
    assert "own_recording" in note_codes(gpuprof.open(outer).meta)
    for number in (1, 2):
        names = [name for (name,) in spans_of(folder / f"inner{number}.gpuprof")]
        assert {"inside", "Linear", "aten::linear"} <= set(names)


def remove_runs(folder: Path) -> None:
    for run in folder.glob("*.gpuprof"):
        shutil.rmtree(run)


CLOSES_EVERYTHING = """
import os, gpuprof
with gpuprof.profile(out="run.gpuprof"):
    os.closerange(3, 256)
    mine = os.open("mine", os.O_CREAT | os.O_RDWR)
    others = [os.dup(mine) for _ in range(50)]
os.write(mine, b"still open")
for other in others: os.write(other, b".")
"""


def test_a_program_may_close_all_files(files: Files, run_python: Any) -> None:
    folder = files({"main.py": CLOSES_EVERYTHING})
    done = run_python("main.py", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "mine").read_bytes() == b"still open" + b"." * 50
    assert gpuprof.open(folder / "run.gpuprof").meta["complete"]


def test_run_program_in_the_library(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuprof.api import run_program

    folder = files({"main.py": "import gpuprof, sys\nwith gpuprof.span(sys.argv[1]): sys.exit(7)"})
    monkeypatch.chdir(folder)
    code, run = run_program("main.py", ["name"], out=Path("r.gpuprof"))
    assert code == 7
    assert isinstance(run, gpuprof.Run)
    assert run.sql("SELECT name FROM spans WHERE kind <> 'gc'").fetchall() == [("name",)]
    assert run.meta["command"][-2:] == ["main.py", "name"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_working_folder_may_change(files: Files, run_python: Any) -> None:
    folder = files({"main.py": "import os, gpuprof\nos.chdir('/')\nwith gpuprof.span('a'): print(__file__)"})
    done = run_python(*RUN, "--out", "r.gpuprof", "main.py")
    assert (done.returncode, done.stdout) == (0, f"{folder}/main.py\n")
    assert spans_of(folder / "r.gpuprof") == [("a",)]


THREADS = """
import threading, torch
model = torch.nn.Linear(4, 4)
def work():
    model(torch.ones(2, 4)).sum().backward()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
data = torch.utils.data.TensorDataset(torch.arange(8.0))
print(sorted(batch.sum().item() for (batch,) in torch.utils.data.DataLoader(data, 2, num_workers=2)))
print(model.weight.grad.shape)
"""


@pytest.mark.slow
def test_threads_and_workers_that_end_print_nothing(files: Files, same_as_python: Any) -> None:
    same_as_python("main.py", cwd=files({"main.py": THREADS}))


FULL_DISK = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
os.execv(sys.executable, [sys.executable, "-m", "gpuprof", "run", "main.py"])
"""


def test_a_disk_that_is_full_at_the_start(files: Files, run_python: Any) -> None:
    folder = files({"main.py": "import sys; print('ran'); sys.exit(3)", "full.py": FULL_DISK})
    done = run_python("full.py", cwd=folder)
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert "the program runs without being recorded" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "main.gpuprof").exists()


def test_a_script_with_a_syntax_error_has_one_clear_line_at_the_end(files: Files, run_python: Any) -> None:
    folder = files({"main.py": "def ("})
    done = run_python(*RUN, "main.py", cwd=folder)
    assert done.returncode == 1
    *_, error, last = done.stderr.splitlines()
    assert error.startswith("SyntaxError: ")
    assert last.startswith("gpuprof: ")
    assert not list(folder.glob("*.gpuprof"))


def test_a_program_that_fails_at_once_leaves_no_run(files: Files, run_python: Any) -> None:
    folder = files({"main.py": "import sys; sys.exit(2)"})
    done = run_python(*RUN, "main.py", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("gpuprof: ")
    assert done.stderr.count("\n") == 1
    assert not list(folder.glob("*.gpuprof"))
    assert run_python(*RUN, "--out", "named.gpuprof", "main.py", cwd=folder).returncode == 2
    assert gpuprof.open(folder / "named.gpuprof").meta["complete"]
