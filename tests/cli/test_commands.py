# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints where, its exit codes, and whose arguments are whose."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from refusals import refused_command
from run_edits import change_meta

import gpuprof
from gpuprof.analyze.call_tree import CallTree
from gpuprof.analyze.summary import Summary, first_with_rows, summarize
from gpuprof.cli.header import outline
from gpuprof.cli.main import Commands, execute
from gpuprof.cli.pages import default_output
from gpuprof.cli.run import Program, print_closing, print_measuring, split_program
from gpuprof.cli.summary import summary
from gpuprof.cli.termination import named_when_terminated
from gpuprof.errors import GpuprofError, RecordingError, RunError
from gpuprof.record.facts import Method, NoteCode, Reason, SourceStatus, note
from gpuprof.record.options import RecordingOptions
from gpuprof.recorded_program import called_after
from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.format import KINDS
from gpuprof.run.losses import Loss, LossCode, losses
from gpuprof.run.messages import loss_text, reason_text


def environment(**more: str) -> dict[str, str]:
    """Return the environment in which a child finds the very package that is tested here."""
    package = str(Path(gpuprof.__file__).parents[1])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m gpuprof` as a user does."""
    command = [sys.executable, "-m", "gpuprof", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)


def make_tree(*kinds: str) -> CallTree:
    """Build one process with a child of each kind, all equally long."""
    count = len(kinds) + 1
    return CallTree(
        parent=np.array([-1] + [0] * len(kinds), dtype=np.int32),
        kind=np.array([KINDS.index(kind) for kind in ("process", *kinds)], dtype=np.uint8),
        name=np.arange(count, dtype=np.int32),
        calls=np.ones(count, dtype=np.int64),
        total_ns=np.full(count, 1_000_000, dtype=np.int64),
        own_ns=np.array([0] + [1_000_000] * len(kinds), dtype=np.int64),
        threads=np.ones(count, dtype=np.int32),
        process_id=np.full(count, 42, dtype=np.int64),
        names=["python (42)", *(f"{kind} 火 number {index}" for index, kind in enumerate(kinds))],
    )


META = {
    "complete": True,
    "gpuprof": "0.1.0",
    "duration_ns": 4_210_000_000,
    "machine": {"system": "Linux 6.18", "processor": "AMD EPYC", "cores": 4, "memory_bytes": 25_300_000_000},
    "versions": {"python": "3.11.7", "torch": None},
    "sources": {
        "spans": SourceStatus.on(Method.RECORDED).to_plain(),
        "layers": SourceStatus.on(Method.INTERCEPTED_CALLS).to_plain(),
        "operators": SourceStatus.off(Reason.TORCH_NOT_IMPORTED).to_plain(),
    },
    "totals": {
        "events": 20,
        "spans": 10_000,
        "dropped_events": 0,
        "damaged_events": 0,
        "unfinished_spans": 0,
    },
    "damage": [],
    "notes": [],
    "processes": [{"process_id": 42, "start_ns": 0, "end_ns": 4_210_000_000, "closed": True}],
}


class FakeRun:
    """Replaces `gpuprof.api.Run`."""

    def __init__(self, path: Path, *kinds: str) -> None:
        self.path = path
        self.meta: dict[str, Any] = dict(META)
        self.call_tree = make_tree(*kinds)
        self.drawn: list[Path] = []

    def summary(self, by: str | None = None, *, process: Any = None) -> Summary:
        if by is None:
            return first_with_rows(lambda kind: self.summary(kind, process=process))
        return summarize(self.call_tree, by, process)

    def phases(self) -> None:
        """Return what an imported run has."""


class FakeApi(types.ModuleType):
    """Replaces `gpuprof.api`; remembers what was called."""

    def __init__(self, recorded: FakeRun) -> None:
        super().__init__("gpuprof.api")
        self.recorded = recorded
        self.failure: RunError | None = None
        self.exit_code = 0
        self.error: BaseException | None = None
        self.calls: list[tuple[str, list[str], dict[str, Any]]] = []

    def open(self, path: str) -> FakeRun:
        if self.error:
            raise self.error
        return self.recorded

    def write_flamegraph(self, path: Path, run: FakeRun, **_options: Any) -> None:
        run.drawn.append(path)

    def run_program(
        self, target: str, arguments: list[str], **options: Any
    ) -> tuple[int, FakeRun | RunError]:
        self.calls.append((target, list(arguments), options))
        if self.error:
            raise self.error
        return self.exit_code, self.failure or self.recorded


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeApi:
    fake = FakeApi(FakeRun(tmp_path / "demo.gpuprof", "span", "layer", "operator"))
    monkeypatch.setitem(sys.modules, "gpuprof.api", fake)
    monkeypatch.setattr(gpuprof, "api", fake, raising=False)
    monkeypatch.setattr("gpuprof.recorded_program.run_program", fake.run_program)
    return fake


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


# --- summary -------------------------------------------------------------------------------------


@pytest.mark.texts
def test_summary_prints_facts_and_a_table(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["summary", "demo.gpuprof"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:8] == [
        "run       demo.gpuprof (complete)",
        "recorded  4.21 s wall time, 10,000 spans",
        "machine   AMD EPYC, 4 cores, 25.3 GB memory, Linux 6.18",
        "versions  gpuprof 0.1.0, python 3.11.7",
        "sources   spans, layers; no operators (torch was never imported)",
        "lost      no events",
        "",
        "layer              calls    total     self  self %     mean",
    ]
    assert lines[8].startswith("layer 火 number 1")


@pytest.mark.texts
def test_summary_reports_what_is_lost_and_cannot_be_tricked_by_it(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.recorded.meta |= {
        "complete": False,
        "totals": {"spans": 1, "dropped_events": 1_200, "damaged_events": 3, "unfinished_spans": 2},
        "damage": [Damage(DamageCode.SEGMENT_CUT_SHORT, "1-2.0\x1b[2J.segment", 9).to_plain()],
        "notes": [note(NoteCode.DISK_FAILED, error="no\nroom").to_plain()],
        "processes": [{"process_id": 42}, {"process_id": 43}],
    }
    assert execute(["summary", "r"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run       demo.gpuprof (incomplete: contains what could be recovered)"
    assert lines[1] == "recorded  4.21 s wall time, 1 span, 2 processes"
    assert lines[5:8] == [
        "lost      1,200 events dropped, 3 events damaged, 2 spans cut off at the end, events of 1 damaged",
        "          segment",
        "damage    1-2.0\\x1b[2J.segment: cut short, 9 places for events are missing",
    ]
    assert "note      the disk failed while recording (no\\nroom): events are missing" in lines


def test_a_process_in_parts_is_counted_once(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.recorded.meta |= {"processes": [{"process_id": 42}, {"process_id": 43}, {"process_id": 42}]}
    assert execute(["summary", "r"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith(", 2 processes")
    api.recorded.meta |= {"processes": [{"process_id": 42}] * 3}
    assert execute(["summary", "r"]) == 0
    assert "process" not in capsys.readouterr().out.splitlines()[1]


SEGMENT, NAMES = "r/segments/1-2.0.segment", "r/segments/1-2.names"


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        ([Damage(DamageCode.SEGMENT_HEADER, SEGMENT)], [Loss(LossCode.DAMAGED_SEGMENTS, 1)]),
        (
            [Damage(DamageCode.CLOCK_POINT, SEGMENT), Damage(DamageCode.SEGMENT_CUT_SHORT, SEGMENT, 9)],
            [Loss(LossCode.DAMAGED_SEGMENTS, 1)],
        ),
        ([Damage(DamageCode.CLOCK_POINT, SEGMENT)], []),
        ([Damage(DamageCode.SEGMENT_COPY, SEGMENT)], []),
        (
            [Damage(DamageCode.UNREADABLE, NAMES, values={"error": "no such file"})],
            [Loss(LossCode.DAMAGED_NAMES, 1)],
        ),
        (
            [
                Damage(DamageCode.NAMES_CUT, NAMES, 3),
                Damage(DamageCode.SEGMENT_CUT_SHORT, SEGMENT, 1),
                Damage(DamageCode.NAMES_NO_FILE, "r/9.names"),
            ],
            [Loss(LossCode.DAMAGED_SEGMENTS, 1), Loss(LossCode.DAMAGED_NAMES, 2)],
        ),
        (
            [Damage(DamageCode.SEGMENTS_MISSING, None, 2, {"process_id": 7})],
            [Loss(LossCode.MISSING_SEGMENTS, 2)],
        ),
    ],
)
def test_summary_reports_what_damaged_files_cost(
    api: FakeApi, capsys: pytest.CaptureFixture[str], damage: list[Damage], lost: list[Loss]
) -> None:
    api.recorded.meta |= {"complete": False, "damage": [each.to_plain() for each in damage]}
    assert execute(["summary", "r"]) == 0
    expected = ", ".join(map(loss_text, lost)) or "unknown"
    assert f"\nlost      {expected}" in capsys.readouterr().out


def test_the_line_of_a_written_run_has_what_was_lost() -> None:
    meta = {"complete": False, "duration_ns": 5_000_000, "totals": {"spans": 7, "dropped_events": 1_200}}
    (lost,) = losses(meta)
    assert outline(meta) == f"5.00 ms, 7 spans, incomplete: {loss_text(lost)}"
    assert outline({**meta, "totals": {"spans": 7}}) == "5.00 ms, 7 spans, incomplete"
    assert outline({**meta, "complete": True, "totals": {"spans": 7}}) == "5.00 ms, 7 spans"


def test_summary_of_a_run_without_facts(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.recorded.meta = {}
    assert execute(["summary", "r"]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "run       demo.gpuprof (incomplete: contains what could be recovered)",
        "recorded  -",
        "",
    ]


@pytest.mark.parametrize(
    ("kinds", "by"),
    [
        (("python", "operator", "span"), "operator"),
        (("kernel", "span", "python"), "span"),
        (("nvtx",), "span"),
        (("kernel", "python"), "python"),
        (("kernel",), "kernel"),
    ],
)
def test_the_default_falls_back_with_a_note(
    api: FakeApi, capsys: pytest.CaptureFixture[str], kinds: tuple[str, ...], by: str
) -> None:
    api.recorded = FakeRun(Path("r.gpuprof"), *kinds)
    assert execute(["summary", "r.gpuprof"]) == 0
    assert f"note: no layer was recorded here, so this is the table by {by}" in capsys.readouterr().out
    assert execute(["summary", "r.gpuprof", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["by"] == by


def test_the_fallback_names_the_processes_that_have_layers(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = make_tree("span", "process", "layer")
    tree.parent[2:] = [-1, 2]
    tree.process_id[2:] = 43
    api.recorded.call_tree = tree
    assert execute(["summary", "r.gpuprof", "--json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)["summary"]["notes"]
    assert first == ("no layer was recorded in process 42, but in another (43), so this is the table by span")
    assert any("--process takes an id or all" in note for note in others)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (SourceStatus.on(Method.FRAMES), "no sample has a function of the program"),
        (SourceStatus.off(Reason.NOT_WANTED), None),
    ],
)
def test_a_table_without_python_functions_has_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: SourceStatus, reason: str | None
) -> None:
    with gpuprof.profile(out=tmp_path / "r.gpuprof") as profile:
        pass
    run = profile.run
    change_meta(run.path, sources={**run.meta["sources"], "python": status.to_plain()})
    assert execute(["summary", str(run.path), "--by", "python"]) == 0
    expected = f"note: no Python function was recorded here: {reason or reason_text(status)}"
    assert expected in capsys.readouterr().out


def test_an_empty_run_and_an_empty_table_have_a_reason(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.recorded = FakeRun(Path("r.gpuprof"))
    assert execute(["summary", "r.gpuprof"]) == 0
    assert "note: no layer was recorded here: layers come from" in capsys.readouterr().out
    api.recorded = FakeRun(Path("r.gpuprof"), "operator")
    assert execute(["summary", "r.gpuprof", "--by", "layer"]) == 0
    output = capsys.readouterr().out
    assert "note: no layer was recorded here: layers come from" in output
    assert "operator 火" not in output
    assert execute(["summary", "r.gpuprof", "--by", "kernel"]) == 0
    assert "no GPU work was recorded" in capsys.readouterr().out


def test_summary_as_json_is_json_alone(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.recorded.meta = {"complete": True}
    assert execute(["summary", "r", "--json", "--by", "span", "--process", "42"]) == 0
    output = capsys.readouterr()
    values = json.loads(output.out)
    assert output.err == ""
    assert values["run"] == str(api.recorded.path)
    assert values["meta"] == {"complete": True}
    assert values["summary"] == summarize(api.recorded.call_tree, "span", 42).to_dict()


def test_top_cuts_the_table_and_the_json(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.recorded = FakeRun(Path("r.gpuprof"), *["layer"] * 40)
    execute(["summary", "r", "--top", "5"])
    output = capsys.readouterr().out
    assert output.count("layer 火 number") == 5
    assert "... and 35 more" in output
    execute(["summary", "r"])
    assert capsys.readouterr().out.count("layer 火 number") == 30
    execute(["summary", "r", "--top", "5", "--json"])
    values = json.loads(capsys.readouterr().out)["summary"]
    assert (len(values["rows"]), values["row_count"]) == (5, 40)


@pytest.mark.usefixtures("api")
def test_an_unknown_process_is_refused() -> None:
    refused_command(["summary", "r", "--process", "7"], "unknown_process", 7, 42)
    assert execute(["summary", "r", "--process", "all"]) == 0


def test_a_terminal_without_the_names_letters_shows_them_escaped() -> None:
    program = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parents[1] / "support")!r}, {str(Path(__file__).parent)!r}]
import gpuprof
from test_commands import FakeApi, FakeRun
from pathlib import Path
sys.modules["gpuprof.api"] = gpuprof.api = FakeApi(FakeRun(Path("r"), "layer"))
from gpuprof.cli.main import execute
sys.exit(execute(["summary", "r"]))
"""
    command = [sys.executable, "-c", program]
    latin = environment(PYTHONIOENCODING="latin-1")
    done = subprocess.run(command, capture_output=True, text=True, env=latin, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "layer \\u706b number 0" in done.stdout


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
