# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints where, its exit codes, and whose arguments are whose."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pytest
from fake_api import FakeApi
from refusals import refused_command

import gpuprof
from gpuprof.cli.main import Commands, execute
from gpuprof.cli.pages import default_output
from gpuprof.cli.run import Program, print_closing, print_measuring, split_program
from gpuprof.cli.summary import summary
from gpuprof.cli.termination import named_when_terminated
from gpuprof.errors import GpuprofError, RecordingError, RunError
from gpuprof.record.options import RecordingOptions
from gpuprof.recorded_program import called_after


def environment(**more: str) -> dict[str, str]:
    """Return the environment in which a child finds the very package that is tested here."""
    package = str(Path(gpuprof.__file__).parents[1])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m gpuprof` as a user does."""
    command = [sys.executable, "-m", "gpuprof", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)


# --- the command as a whole ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb", [(), ("run",), ("summary",), ("flamegraph",), ("roofline",), ("whatif",), ("doctor",)]
)
def test_help_is_there_for_every_verb(verb: tuple[str, ...]) -> None:
    done = run_command(*verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(" ".join(("Usage: gpuprof", *verb)))


def test_help_registers_only_what_works() -> None:
    listed = run_command("--help").stdout.split("Commands:")[1]
    assert [line.split()[0] for line in listed.strip().splitlines()] == [
        "alert",
        "bench",
        "capacity",
        "compare",
        "dashboard",
        "demo",
        "doctor",
        "explain",
        "export",
        "flamegraph",
        "gate",
        "import",
        "load",
        "metrics",
        "nsys",
        "optimize",
        "roofline",
        "run",
        "startup",
        "suite",
        "summary",
        "top",
        "whatif",
    ]


def test_help_imports_nothing_heavy() -> None:
    program = """
import sys
from gpuprof.cli.main import execute
assert execute(["--help"]) == 0
heavy = {"torch", "duckdb", "numpy", "rich"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert (done.returncode, done.stderr) == (0, "")


def test_version() -> None:
    done = run_command("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("gpuprof ")


def test_no_verb_is_bad_usage() -> None:
    done = run_command()
    assert (done.returncode, done.stdout) == (2, "")
    assert "gpuprof --help" in done.stderr


SIDES = {
    "new --against old": (["new"], ["old"]),
    "--against old new": (["new"], ["old"]),
    "--against=old new": (["new"], ["old"]),
    "new new2 --against old old2 old3": (["new", "new2"], ["old", "old2", "old3"]),
    "new --against old --against old2": (["new"], ["old", "old2"]),
    "new --against=old old2 --top 3 --by layer": (["new"], ["old", "old2"]),
    "--top 3 new --against old old2 --against old3 - --json": (["new"], ["old", "old2", "old3", "-"]),
    "new --against old --against -old2": (["new"], ["old", "-old2"]),
}


@pytest.mark.parametrize("line", SIDES)
def test_runs_after_against_are_older_ones(line: str) -> None:
    context = summary.make_context("summary", line.split())
    new, old = SIDES[line]
    assert (list(context.params["runs"]), list(context.params["against"])) == (new, old)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["frobnicate"], "frobnicate"),
        (["summary"], "Missing argument 'RUN...'"),
        (["summary", "r", "--by", "moon"], "moon"),
        (["summary", "r", "--top", "0"], "--top"),
        (["summary", "r", "--process", "me"], "'me'"),
        (["summary", "r", "--process", "²"], "²"),
        (["summary", "r", "--scale", "total"], "gpuprof summary"),
        (["summary", "r", "--against", "r2", "--process", "1"], "gpuprof summary"),
        (["summary", "--against", "old", "--against", "old2", "new", "new2"], "new2"),
        (["summary", "new", "--against", "old", "--by", "layer", "old2"], "old2"),
        (["flamegraph", "new", "--against", "old", "--", "-old2"], "-old2"),
        (["run"], "gpuprof run"),
        (["run", "-m"], "gpuprof run"),
        (["run", "--"], "gpuprof run"),
        (["run", "--nonsense", "x.py"], "--nonsense"),
        (["run", "--out"], "--out"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_two(
    arguments: list[str], word: str, api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert output.err.startswith("gpuprof: error: ")
    assert word in output.err
    assert "--help" in output.err
    assert api.calls == []


@pytest.mark.parametrize(
    ("line", "code"),
    {
        "summary r --process me": "invalid_process",
        "summary r r2": "needs_against",
        "summary r --scale total": "needs_against",
        "summary r --against r2 --process 1": "all_processes",
        "flamegraph r r2": "needs_against",
        "summary --against old old2 new": "ambiguous_run",
        "summary new --against old --by layer old2": "ambiguous_run",
        "run": "no_program",
    }.items(),
)
def test_arguments_that_contradict_each_other_have_a_code(line: str, code: str, api: FakeApi) -> None:
    refused_command(line.split(), code)
    assert api.calls == []


@pytest.mark.texts
@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RunError("no_such_run", "x.gpuprof: no such run"), 2, "gpuprof: error: x.gpuprof: no such run\n"),
        (GpuprofError("cannot_read", "two\nlines"), 2, "gpuprof: error: two\\nlines\n"),
        (
            PermissionError(13, "Permission denied", "r/meta.json"),
            2,
            "gpuprof: error: r/meta.json: Permission denied; hint: check the path, its permissions and the "
            "free disk space\n",
        ),
        (
            duckdb.BinderException('Binder Error: no column "kind"\nLINE 1: FROM spans'),
            2,
            'gpuprof: error: the run\'s tables are damaged (Binder Error: no column "kind"); '
            "hint: restore them from a copy\n",
        ),
        (
            MemoryError(),
            2,
            "gpuprof: error: there is too little memory for this command; hint: free memory, or raise its "
            "limit (ulimit -v)\n",
        ),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_errors_become_one_line_and_a_code(
    api: FakeApi, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, text: str
) -> None:
    api.error = error
    assert execute(["summary", "r"]) == code
    assert capsys.readouterr().err == text


def test_an_interrupt_while_a_command_is_imported_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuprof.cli.main.importlib.import_module", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Commands()["load"]
    assert capsys.readouterr().err.startswith("interrupted before")


def test_a_closed_pipe_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "gpuprof", "--help"],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("verb", [["--help"], ["summary", "--help"]])
def test_standard_output_that_is_closed_is_no_error(verb: list[str]) -> None:
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "gpuprof", *verb]
    done = subprocess.run(shell, capture_output=True, text=True, env=environment(), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_standard_output_without_room_is_an_error_of_one_line(size: int) -> None:
    source = f"""
import click
from gpuprof.cli import main
main.cli.add_command(click.Command("print", callback=lambda: click.echo("x" * {size})))
main.main()
"""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", source, "print"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            check=False,
        )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("gpuprof: error: cannot write to standard output: No space left on device")


# --- run -----------------------------------------------------------------------------------------

SPLITS = [
    (["s.py"], [], Program("s.py", [], False)),
    (
        ["s.py", "--help", "--out", "x", "-m", "y"],
        [],
        Program("s.py", ["--help", "--out", "x", "-m", "y"], False),
    ),
    (["--out", "r", "s.py", "a"], ["--out", "r"], Program("s.py", ["a"], False)),
    (["--out=r", "--no-layers", "s.py"], ["--out=r", "--no-layers"], Program("s.py", [], False)),
    (["-m", "pkg.mod", "--help"], [], Program("pkg.mod", ["--help"], True)),
    (["-mpkg", "-m"], [], Program("pkg", ["-m"], True)),
    (["--out", "-m", "-m", "pkg"], ["--out", "-m"], Program("pkg", [], True)),
    (["--", "-odd.py", "--"], [], Program("-odd.py", ["--"], False)),
    (["-", "x"], [], Program("-", ["x"], False)),
    (["--no-layers"], ["--no-layers"], None),
    ([], [], None),
    (["-m"], [], None),
    (["s.py", "", "two words", "*", "$HOME"], [], Program("s.py", ["", "two words", "*", "$HOME"], False)),
]


@pytest.mark.parametrize(("words", "own", "program"), SPLITS)
def test_everything_after_the_program_is_its_own(
    words: list[str], own: list[str], program: Program | None
) -> None:
    assert split_program(words, frozenset(("--out",))) == (own, program)


@pytest.mark.parametrize(
    ("target", "is_module", "is_launcher"),
    [
        ("torch.distributed.run", True, True),
        ("torchrun", False, True),
        ("/usr/bin/torchrun", False, True),
        ("train.py", False, False),
        ("train", True, False),
    ],
)
def test_launchers_are_known(target: str, is_module: bool, is_launcher: bool) -> None:
    assert Program(target, [], is_module=is_module).is_launcher is is_launcher


def test_run_passes_on_what_was_asked(api: FakeApi) -> None:
    assert execute(["run", "--no-operators", "--out", "r.gpuprof", "t.py", "--out", "mine", "--help"]) == 0
    assert execute(["run", "--no-layers", "--no-gpu", "--no-python", "-m", "pkg", "--json"]) == 0
    shared = {
        "on_measuring": print_measuring,
        "on_closing": print_closing,
        "while_closing": named_when_terminated,
    }
    without_operators = RecordingOptions(operators=False, python="auto")
    without_layers = RecordingOptions(layers=False, gpu=False, python=False)
    assert api.calls == [
        (
            "t.py",
            ["--out", "mine", "--help"],
            {"is_module": False, "out": Path("r.gpuprof"), "options": without_operators, **shared},
        ),
        ("pkg", ["--json"], {"is_module": True, "out": None, "options": without_layers, **shared}),
    ]


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_terminal_shows_that_the_run_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], on_terminal: bool
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: on_terminal)
    called = threading.Event()

    def slow() -> None:
        print_closing()
        called.set()

    with called_after(0.0, slow):
        assert called.wait(10)
    with called_after(600.0, print_measuring):
        pass
    assert len(capsys.readouterr().err.splitlines()) == on_terminal


@pytest.mark.parametrize("exit_code", [0, 1, 3, 130, 137, 255])
def test_run_ends_with_the_programs_exit_code(
    api: FakeApi, capsys: pytest.CaptureFixture[str], exit_code: int
) -> None:
    api.exit_code = exit_code
    assert execute(["run", "t.py"]) == exit_code
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert output.err.startswith(f"gpuprof: wrote {api.recorded.path} (4.21 s, 10,000 spans)")
    assert output.err.endswith(f"gpuprof summary {api.recorded.path}\n")


def test_run_quotes_a_path_for_the_shell(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.recorded.path = Path("my run's\n.gpuprof")
    execute(["run", "t.py"])
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.endswith("gpuprof summary 'my run'\"'\"'s\\n.gpuprof'\n")


def test_run_without_a_run_is_an_error(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.failure, api.exit_code = RunError("cannot_write", "r: no space"), 5
    assert execute(["run", "t.py"]) == 5
    assert capsys.readouterr().err == ("gpuprof: the program ran, but no run was written: r: no space\n")


def test_run_keeps_the_exit_code_when_standard_error_is_not_read(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    api.exit_code = 3
    assert execute(["run", "t.py"]) == 3


def test_run_refuses_an_empty_name() -> None:
    refused_command(["run", "--out", "", "t.py"], "no_folder_name")


def test_run_reports_a_users_mistake(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.error = RecordingError("exists", "r.gpuprof exists")
    assert execute(["run", "t.py"]) == 2
    assert capsys.readouterr().err == "gpuprof: error: r.gpuprof exists\n"


# --- flamegraph ----------------------------------------------------------------------------------


def test_flamegraph_writes_next_to_the_run_and_prints_the_path(
    api: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert execute(["flamegraph", "demo.gpuprof"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'demo.html'}\n"
    assert api.recorded.drawn == [tmp_path / "demo.html"]


def test_flamegraph_refuses_what_cannot_be_a_file(api: FakeApi, tmp_path: Path) -> None:
    refused_command(["flamegraph", "r", "-o", str(tmp_path)], "is_a_folder", tmp_path)
    path = tmp_path / "no" / "f.html"
    refused_command(["flamegraph", "r", "-o", str(path)], "no_such_folder", path.parent)
    assert api.recorded.drawn == []


@pytest.mark.parametrize(
    ("run", "page"),
    [
        ("a/b.gpuprof", "a/b.html"),
        ("a/b", "a/b.html"),
        ("b.v2.gpuprof", "b.v2.html"),
        ("x.html", "x.html.html"),
    ],
)
def test_the_default_page_is_next_to_the_run(run: str, page: str) -> None:
    assert default_output(Path(run)) == Path(page)


def test_the_default_page_of_a_comparison_is_not_that_of_the_new_run() -> None:
    assert default_output(Path("a/b.gpuprof"), Path("c/d.gpuprof")) == Path("a/b-against-d.html")
    assert default_output(Path("a/b.gpuprof"), Path("d" * 250)) == Path("a/b.html")


def test_help_is_given_however_runs_are_ordered(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["flamegraph", "new", "--against", "old", "-o", "file", "old2", "--help"]) == 0
    assert "Usage: gpuprof flamegraph" in capsys.readouterr().out


def test_a_run_opened_as_the_current_folder_has_a_page_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "demo.gpuprof"
    inside.mkdir()
    monkeypatch.chdir(inside)
    assert default_output(Path()) == tmp_path / "demo.html"
