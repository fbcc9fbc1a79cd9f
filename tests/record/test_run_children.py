# SPDX-License-Identifier: Apache-2.0
"""`gpuprof run --children`: Python processes that a program starts are in its run, and unharmed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cpu_work import BUSY

import gpuprof
from gpuprof import _native
from gpuprof.cli.run import run as run_command
from gpuprof.record.children import join_run, offer_run
from gpuprof.record.environment import CHILDREN_VARIABLE, STARTUP_FOLDER
from gpuprof.record.facts import Method, Note, NoteCode, Reason, SourceStatus, note
from gpuprof.record.options import RecordingOptions
from gpuprof.record.python_stacks import has_pyinstrument
from gpuprof.run.child_facts import (
    name_processes,
    processes_with_gpu_counts,
    read_child_facts,
    with_child_facts,
)
from gpuprof.run.damage import DamageCode
from gpuprof.run.facts import notes_of
from gpuprof.run.meta import is_complete

RUN = ("-m", "gpuprof", "run")
PACKAGE = str(Path(gpuprof.__file__).parents[1])
# Below it, Python finds what is in no environment of its own: this package, but not its native core.
OTHER_PYTHON = getattr(sys, "_base_executable", sys.executable)

MAIN = """
import multiprocessing, os, subprocess, sys, gpuprof

def spanned(name):
    with gpuprof.span(name): pass

def call_layer():
    sys.path.insert(0, "replacement")
    import torch
    assert torch.nn.Module()() == 5
    spanned("forkserver")

def start(*words, python=sys.executable, **more):
    environment = {**os.environ, **more}
    print(words[-1], subprocess.run([python, *words], env=environment).returncode, flush=True)

if __name__ == "__main__":
    spanned("main")
    for method, target, arguments in (("spawn", spanned, ["spawn"]), ("forkserver", call_layer, [])):
        process = multiprocessing.get_context(method).Process(target=target, args=arguments)
        process.start(); process.join()
        print(method, process.exitcode, flush=True)
    start("child.py", "child", "has a child")
    start("child.py", "killed", "killed")
    start("child.py", "left", "left")
    start("child.py", "rank", "has a child", RANK="3")
    start("child.py", "own", "own")
    start("-c", "import sitecustomize; print(sitecustomize.value)", PYTHONPATH=os.environ["SITE"])
    start("-I", "child.py", "isolated", "")
    start("-c", "import sys; print(any('startup' in part for part in sys.path))")
    start("-c", "print('other')", python=os.environ["OTHER"])
    start("-m", "gpuprof", "run", "--out", "inner.gpuprof", "inner.py")
    late = subprocess.Popen([sys.executable, "late.py"], stdout=subprocess.PIPE, stderr=open("late", "w"))
    late.stdout.readline()
    sys.exit(7)
"""
REPLACEMENT = """
class nn:
    class Module:
        def __call__(self): return 5
        def children(self): return iter(())
        def named_modules(self): return iter([("", self)])
"""
CHILD = """
import os, subprocess, sys, gpuprof
name, what = sys.argv[1:]
with gpuprof.span(name):
    if what == "killed": os.kill(os.getpid(), 9)
    if what == "left": os._exit(5)
    if what == "has a child":
        subprocess.run([sys.executable, "child.py", name + "'s child", ""], check=True)
if what == "own":
    with gpuprof.profile(out="own.gpuprof"), gpuprof.span("only its own"): pass
    with gpuprof.span("after its own"): pass
"""
LATE = """
import signal, gpuprof
signal.alarm(300)
with gpuprof.span("late"): print("ready", flush=True)
open("go").read()
end = open("end", "w")
with gpuprof.span("too late"): end.write("continued")
"""
INNER = """
import os, subprocess, sys, gpuprof
with gpuprof.span("inner"): print("GPUPROF_CHILDREN" in os.environ, "startup" in os.environ["PYTHONPATH"])
subprocess.run([sys.executable, "child.py", "inner child", ""], check=True)
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    site = os.pathsep.join((str(STARTUP_FOLDER), str(folder / "site"), PACKAGE))
    return {**os.environ, "PYTHONPATH": PACKAGE, "SITE": site, "OTHER": OTHER_PYTHON, **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("children")
    for part in ("site", "replacement"):
        (folder / part).mkdir()
    sources = {"main.py": MAIN, "child.py": CHILD, "late.py": LATE, "inner.py": INNER}
    for name, source in {
        **sources,
        "site/sitecustomize.py": "value = 'the own one'",
        "replacement/torch.py": REPLACEMENT,
    }.items():
        (folder / name).write_text(source)
    for name in ("go", "end"):
        os.mkfifo(folder / name)
    return folder


@pytest.fixture(scope="module")
def done(folder: Path) -> Iterator[subprocess.CompletedProcess[str]]:
    """Run the program with `--children`; what it left running continues, and is waited for at the end."""
    words = [sys.executable, *RUN, "--children", "main.py"]
    done = subprocess.run(
        words, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=180, check=False
    )
    yield done
    let_go(folder)


def let_go(folder: Path) -> str:
    """Let the process that outlives the program continue; returns what it wrote when it has ended."""
    if not (folder / "go").exists():
        return ""
    (folder / "go").write_text("")
    (folder / "go").unlink()
    return (folder / "end").read_text()


def names_by_process(run: Path) -> list[list[str]]:
    query = (
        "SELECT list(name ORDER BY start_ns) FROM spans WHERE kind <> 'gc' GROUP BY process_id "
        "ORDER BY min(start_ns)"
    )
    return [names for (names,) in gpuprof.open(run).sql(query).fetchall()]


@pytest.mark.slow
def test_the_program_and_its_processes_do_what_they_did(
    folder: Path, done: subprocess.CompletedProcess[str]
) -> None:
    assert done.returncode == 7, done.stderr
    codes = [tuple(line.rsplit(" ", 1)) for line in done.stdout.splitlines() if line[-1].isdigit()]
    assert [(name, code) for name, code in codes if code != "0"] == [("killed", "-9"), ("left", "5")]
    assert len(codes) == 12
    rest = [line for line in done.stdout.splitlines() if not line[-1].isdigit()]
    assert rest == ["the own one", "False", "other", "False False"]
    ours = [line for line in done.stderr.splitlines() if not line.startswith("gpuprof: wrote ")]
    assert ours == []


@pytest.mark.slow
def test_each_python_process_is_in_the_run(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    names = names_by_process(folder / "main.gpuprof")
    assert names == [
        ["main"],
        ["spawn"],
        ["Module", "forkserver"],
        ["child"],
        ["child's child"],
        ["killed"],
        ["left"],
        ["rank"],
        ["rank's child"],
        ["own", "after its own"],
        ["late"],
    ]
    assert names_by_process(folder / "inner.gpuprof") == [["inner"]]
    assert names_by_process(folder / "own.gpuprof") == [["only its own"]]


@pytest.mark.slow
def test_processes_without_events_are_not(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    run = gpuprof.open(folder / "main.gpuprof")
    roots = run.sql("SELECT name FROM call_tree WHERE parent_id IS NULL").fetchall()
    # One of them stopped for a recording of its own, and came back.
    assert len(run.meta["processes"]) == len(roots) == 12
    assert len({process["process_id"] for process in run.meta["processes"]}) == 11
    assert run.meta["complete"] is True
    assert run.meta["damage"] == []
    assert run.meta["totals"]["unfinished_spans"] == 2  # of the process that was killed, and that left


@pytest.mark.slow
def test_a_rank_has_its_name_and_does_not_pass_it_on(
    folder: Path, done: subprocess.CompletedProcess[str]
) -> None:
    run = gpuprof.open(folder / "main.gpuprof")
    assert [process.get("name") for process in run.meta["processes"]].count("rank 3") == 1
    named = run.sql("SELECT name FROM call_tree WHERE parent_id IS NULL AND name LIKE 'rank%'").fetchall()
    (process,) = run.sql("SELECT DISTINCT process_id FROM spans WHERE name = 'rank'").fetchall()
    assert named == [(f"rank 3 (process {process[0]})",)]


@pytest.mark.slow
def test_the_notes_of_a_process_name_it(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    meta = gpuprof.open(folder / "main.gpuprof").meta
    (note,) = [note for note in meta["notes"] if note["code"] == "own_recording"]
    assert len(note["processes"]) == 1
    # Of the one that the forkserver forked, and that imported torch, or its replacement.
    assert meta["sources"]["layers"]["values"] == {"modules": "every", "in_children": True}
    assert meta["layer_types"] == {"Module": {"Module": "Module"}}


@pytest.mark.slow
def test_what_outlives_the_program_continues(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    assert let_go(folder) == "continued"
    assert (folder / "late").read_text() == ""
    assert not (folder / "main.gpuprof" / "segments").exists()


def test_without_the_option_nothing_is_offered(folder: Path) -> None:
    source = """
import os, subprocess, sys
ours = [name for name in os.environ if name.startswith("GPUPROF")]
print(ours, os.environ["PYTHONPATH"] == os.environ["PACKAGE"], flush=True)
subprocess.run([sys.executable, "child.py", "child", ""], check=True)
"""
    (folder / "alone.py").write_text(source)
    done = subprocess.run(
        [sys.executable, *RUN, "alone.py"],
        cwd=folder,
        env=environment(folder, PACKAGE=PACKAGE),
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert done.stdout == "[] True\n"
    assert names_by_process(folder / "alone.gpuprof") == []


RANKS = """
import os, sys, time, torch
import gpuprof
torch.distributed.init_process_group("gloo")
for _ in range(2):
    with gpuprof.span("step"):
        torch.nn.Sequential(torch.nn.Linear(2, 2))(torch.ones(1, 2)).sum().backward()
        if torch.distributed.get_rank() == 1:
            time.sleep(0.5)
        torch.distributed.all_reduce(torch.ones(1))
torch.distributed.destroy_process_group()
sys.stdout.write(f"{os.environ['RANK']} ")  # in one piece, among those of others
"""


@pytest.mark.slow
def test_the_ranks_of_torchrun_are_in_the_run(tmp_path: Path, run_python: Any) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    # The processes of a launcher are recorded without --children.
    done = run_python(*RUN, "--no-gpu", "--out", "ranks.gpuprof", *words)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["0", "1"]
    run = gpuprof.open(tmp_path / "ranks.gpuprof")
    assert sorted(process.get("name", "") for process in run.meta["processes"]) == ["", "rank 0", "rank 1"]
    calls = "SELECT kind, count(DISTINCT process_id) FROM spans WHERE name IN ({}) GROUP BY 1 ORDER BY 1"
    rows = run.sql(calls.format("'0', 'Sequential', 'aten::linear'")).fetchall()
    assert rows == [("layer", 2), ("operator", 2)]
    assert run.sources["operators"].is_on
    assert run.meta["layer_types"] == {"Sequential": {"Sequential": "Sequential", "0": "Linear"}}
    assert run.meta["complete"] is True
    phases = run.phases()
    assert phases is not None
    assert phases.steps is None
    assert [(each.rank, each.steps.count) for each in phases.ranks] == [(0, 2), (1, 2)]
    assert phases.last_rank is not None
    assert phases.last_rank.rank == 1
    # The program's own operation is outside the model: all of it is a wait.
    for each in phases.ranks:
        assert each.waiting == pytest.approx(each.collectives)
        assert each.steps.parts["other"] >= each.waiting > 0
    # The launcher itself is left out of the table.
    assert set(run.summary().processes) == {each.process_id for each in phases.ranks}


def test_ranks_without_events_are_named(tmp_path: Path, run_python: Any) -> None:
    start = "subprocess.run([sys.executable, '-c', {code!r}], env={{**os.environ, 'RANK': '{rank}'}})"
    spanned = "import gpuprof\nwith gpuprof.span('a'): pass"
    codes = ("pass", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", spanned)
    started = [start.format(code=code, rank=rank) for rank, code in enumerate(codes)]
    (tmp_path / "main.py").write_text("import os, subprocess, sys\n" + "\n".join(started))
    done = run_python(*RUN, "--children", "main.py")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    run = gpuprof.open(tmp_path / "main.gpuprof")
    assert [each.get("name") for each in run.meta["processes"][1:]] == ["rank 2"]
    missing = note(NoteCode.RANKS_WITHOUT_EVENTS, ranks=["0", "1"])
    assert run.meta["notes"] == [missing.to_plain()]


def test_pythons_functions_are_seen_in_a_process_without_spans(tmp_path: Path, run_python: Any) -> None:
    if not has_pyinstrument():
        pytest.skip("pyinstrument is not installed")
    words = [sys.executable, "-c", BUSY + "busy()"]
    (tmp_path / "main.py").write_text(f"import subprocess\nsubprocess.run({words!r}, check=True)")
    done = run_python(*RUN, "--children", "--python", "main.py")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    run = gpuprof.open(tmp_path / "main.gpuprof")
    busy = run.sql("SELECT process_id FROM call_tree WHERE kind = 'python' AND name LIKE 'busy%'").fetchall()
    assert busy == [(run.meta["processes"][1]["process_id"],)]


def test_a_process_that_computes_is_in_the_run_without_events(tmp_path: Path, run_python: Any) -> None:
    if not _native.knows_interpreter():
        pytest.skip("the native sampler does not know this interpreter")
    computing = BUSY + "busy(1.5)"
    words = [sys.executable, "-c", computing]
    idle = [sys.executable, "-c", "import time; time.sleep(0.1)"]
    (tmp_path / "main.py").write_text(
        f"import os, subprocess\nfor words in {[words, idle]!r}: subprocess.run(words, check=True)\n"
        f"if (child := os.fork()) == 0: exec({computing!r}); os._exit(0)\nos.waitpid(child, 0)"
    )
    done = run_python(*RUN, "--children", "main.py")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    run = gpuprof.open(tmp_path / "main.gpuprof")
    busy = "SELECT DISTINCT process_id FROM call_tree WHERE kind = 'python' AND name LIKE 'busy%'"
    found = {process_id for (process_id,) in run.sql(busy).fetchall()}
    assert found == {each["process_id"] for each in run.meta["processes"]} - {run.meta["process_id"]}
    assert len(found) == 2


# --- a process that joins ------------------------------------------------------------------------


IN_SUBINTERPRETER = """
import importlib, sys, gpuprof
names = ("_interpreters", "_xxsubinterpreters")
found = [name for name in names if importlib.util.find_spec(name)]
interpreters = importlib.import_module(found[0])
inside = interpreters.create()
interpreters.run_string(inside, "print('inside', flush=True)")
code = "try: from gpuprof import profile\\nexcept ImportError as error: print(error, flush=True)"
interpreters.run_string(inside, code)
interpreters.destroy(inside)
with gpuprof.span("after it"): pass
"""


def test_a_process_with_a_subinterpreter_continues(tmp_path: Path, run_python: Any) -> None:
    """Python begins it as it begins a process, with our folder on its path. The recording is not for it."""
    (tmp_path / "child.py").write_text(IN_SUBINTERPRETER)
    main = "import subprocess, sys\nsys.exit(subprocess.run([sys.executable, 'child.py']).returncode)"
    (tmp_path / "main.py").write_text(main)
    done = run_python(*RUN, "--children", "--out", "r.gpuprof", "main.py")
    told = "module gpuprof._native does not support loading in subinterpreters"
    assert (done.returncode, done.stdout.splitlines()) == (0, ["inside", told]), done.stderr
    found = gpuprof.open(tmp_path / "r.gpuprof").sql("SELECT name FROM spans WHERE kind <> 'gc'")
    assert found.fetchall() == [("after it",)]


def test_a_process_that_joins_leaves_nothing_without_events(tmp_path: Path) -> None:
    _native.start_recording(str(tmp_path), joins=True)
    _native.stop_recording()
    assert list(tmp_path.iterdir()) == []
    _native.start_recording(str(tmp_path), joins=True)
    with gpuprof.span("seen"):
        pass
    _native.stop_recording()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".names", ".segment"]
    (segment,) = tmp_path.glob("*.segment")
    if sys.platform == "linux":
        assert (
            segment.stat().st_blocks * 512 < segment.stat().st_size / 4
        )  # but nothing that is mapped shrinks
    _native.start_recording(str(tmp_path), joins=True)
    _native.make_recording_files()
    _native.make_recording_files()
    _native.stop_recording()
    assert len(list(tmp_path.glob("*.segment"))) == 2


def test_a_removed_run_loses_events_and_harms_no_process(tmp_path: Path) -> None:
    _native.start_recording(str(tmp_path / "gone"), joins=True)
    _native.make_recording_files()
    with gpuprof.span("lost"):
        pass
    assert _native.stop_recording()["storage_failed"]


OFFERED = RecordingOptions(operators=False, gpu=False)


@pytest.mark.parametrize("facts", [None, "[]", '{"process_id": 1}', '{"process_id": 0, "closed": false}'])
def test_only_a_run_that_is_being_recorded_is_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: str | None
) -> None:
    for name in ("PYTHONPATH", CHILDREN_VARIABLE):
        monkeypatch.setenv(name, "")
    offer_run(tmp_path, OFFERED)
    if facts is not None:
        (tmp_path / "recording.json").write_text(facts)
    join_run()
    assert not _native.is_recording()
    closed = {"process_id": os.getpid(), "closed": True}
    (tmp_path / "recording.json").write_text(json.dumps(closed))
    join_run()
    assert not _native.is_recording()


def test_a_gpuprof_of_another_version_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", CHILDREN_VARIABLE):
        monkeypatch.setenv(name, "")
    offer_run(tmp_path, OFFERED)
    (tmp_path / "recording.json").write_text(json.dumps({"process_id": os.getpid(), "closed": False}))
    offered = json.loads(os.environ[CHILDREN_VARIABLE])
    for text in (json.dumps({**offered, "gpuprof": "0.0.1"}), "{", "", "{}"):
        monkeypatch.setenv(CHILDREN_VARIABLE, text)
        join_run()
        assert not _native.is_recording()


@pytest.fixture
def unjoinable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that is being recorded and offered, but for one word without which nothing can begin."""
    for name in ("PYTHONPATH", CHILDREN_VARIABLE):
        monkeypatch.setenv(name, "")
    offer_run(tmp_path, OFFERED)
    offered = json.loads(os.environ[CHILDREN_VARIABLE])
    del offered["options"]
    monkeypatch.setenv(CHILDREN_VARIABLE, json.dumps(offered))
    (tmp_path / "recording.json").write_text(json.dumps({"process_id": os.getpid(), "closed": False}))
    (tmp_path / "segments").mkdir()
    return tmp_path


def test_what_keeps_a_process_out_of_a_run_is_a_note_in_it(unjoinable: Path) -> None:
    join_run()
    assert not _native.is_recording()
    children, damage = read_child_facts(unjoinable / "segments")
    assert damage == []
    facts = with_child_facts({"notes": [KNOWN.to_plain()]}, children, decoded())
    missing = Note(NoteCode.PROCESS_NOT_RECORDED, {"error": "KeyError: 'options'"}, (os.getpid(),))
    assert notes_of(facts) == [KNOWN, missing]


def test_a_note_that_cannot_be_left_harms_no_process(unjoinable: Path) -> None:
    (unjoinable / "segments").rmdir()
    join_run()
    assert [path.name for path in unjoinable.iterdir()] == ["recording.json"]


def test_a_recording_that_cannot_begin_is_a_note_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", CHILDREN_VARIABLE):
        monkeypatch.setenv(name, "")
    with gpuprof.profile(out=tmp_path / "r", layers=False, operators=False, gpu=False) as profile:
        offer_run(tmp_path / "r", OFFERED)
        join_run()  # in this very process, which has a recording already
    (note,) = profile.run.notes
    assert (note.code, note.processes) == ("process_not_recorded", (os.getpid(),))
    assert note.values["error"].startswith("RecordingError: ")


# --- what a run has of its processes -------------------------------------------------------------


KNOWN, NEW, MINE = (note(NoteCode.WORK_NO_BACKWARD, root=root) for root in ("known", "new", "mine"))


def decoded(*process_ids: int) -> dict[str, Any]:
    return {"processes": [{"process_id": each} for each in process_ids]}


def plain(**statuses: SourceStatus) -> dict[str, Any]:
    return {name: status.to_plain() for name, status in statuses.items()}


def test_facts_of_processes_become_those_of_the_run() -> None:
    own = {
        "sources": plain(
            spans=SourceStatus.on(Method.RECORDED),
            layers=SourceStatus.off(Reason.TORCH_NOT_IMPORTED),
            operators=SourceStatus.on(Method.ITT),
        ),
        "notes": [KNOWN.to_plain()],
        "torch": None,
        "gpu": None,
        "closed": True,
    }
    gpu = {"cupti_version": "13.0", "cupti_path": "a", "clock_error_ns": None, "kernels": 2, "unfinished": 0}
    gpu |= {"problem": None}
    cupti = {"version": "13.0", "path": "a"}
    sources = plain(
        spans=SourceStatus.on(Method.RECORDED),
        layers=SourceStatus.on(Method.INTERCEPTED_CALLS, modules="every"),
        operators=SourceStatus.off(Reason.NOT_WANTED),
        kernels=SourceStatus.on(Method.CUPTI, **cupti),
    )
    notes = [KNOWN.to_plain(), NEW.to_plain()]
    first = {"process_id": 2, "sources": sources, "notes": notes, "gpu": gpu, "torch": "2.13"}
    first |= {"layer_types": {"Net": {"Net": "Net"}}}
    second = {**first, "process_id": 3, "gpu": {**gpu, "clock_error_ns": 5, "kernels": 3}}
    second |= {"layer_types": {"Net": {"0": "Linear"}}, "notes": [NEW.to_plain(), MINE.to_plain()]}
    silent = {"process_id": 9, "notes": [MINE.to_plain()]}
    killed = {"process_id": 4, "gpu": {"cupti_version": "13.0", "cupti_path": "a", "clock_error_ns": None}}
    facts = with_child_facts(own, [killed, first, second, silent], decoded(1, 2, 3, 4))
    assert processes_with_gpu_counts([killed, first, second, silent]) == {2, 3}
    shared, own_note = (NEW._replace(processes=(2, 3)), MINE._replace(processes=(3,)))
    assert notes_of(facts) == [KNOWN, shared, own_note]
    assert facts["gpu"] == {**gpu, "clock_error_ns": 5, "kernels": 5, "holder": None}
    assert facts["layer_types"] == {"Net": {"Net": "Net", "0": "Linear"}}
    assert facts["torch"] == "2.13"
    assert facts["closed"] is True
    assert facts["sources"] == plain(
        spans=SourceStatus.on(Method.RECORDED),
        layers=SourceStatus.on(Method.INTERCEPTED_CALLS, modules="every", in_children=True),
        operators=SourceStatus.on(Method.ITT),
        kernels=SourceStatus.on(Method.CUPTI, **cupti, in_children=True),
    )
    assert with_child_facts(own, [silent], decoded(1)) is own


def test_a_process_that_executes_another_program_is_one_process_in_notes() -> None:
    twice = [{"process_id": 2, "notes": [NEW.to_plain()]}] * 2
    facts = with_child_facts({}, twice, decoded(1, 2, 2))
    assert notes_of(facts) == [NEW._replace(processes=(2,))]


def test_damaged_facts_are_damage_of_the_run(tmp_path: Path) -> None:
    contents = [b"{", b"[]", b'{"process_id": "1"}', b"\xff", b'{"process_id": 4, "notes": {}, "rank": "x"}']
    for number, content in enumerate(contents):
        (tmp_path / f"{number}-1.facts").write_bytes(content)
    children, damage = read_child_facts(tmp_path)
    assert children == [{"process_id": 4}]
    assert len(damage) == 4
    assert {each.code for each in damage} == {DamageCode.PROCESS_FACTS}


def test_names_go_to_the_processes_that_have_a_rank() -> None:
    import numpy as np

    run = decoded(1, 2)
    run |= {"names": ["process 1", "process 2", "a"]}
    run |= {"tree": {"parent": np.array([-1, 0, -1]), "name": np.array([0, 2, 1], dtype=np.int32)}}
    ranks = [{"process_id": 2, "rank": 0, "world_size": 2}, {"process_id": 7, "rank": 1}]
    name_processes(run, ranks)
    named = {"process_id": 2, "rank": 0, "name": "rank 0", "world_size": 2}
    assert run["processes"] == [{"process_id": 1}, named]
    assert [run["names"][name] for name in run["tree"]["name"]] == ["process 1", "a", "rank 0 (process 2)"]


@pytest.mark.parametrize(("rank", "expected"), [({"rank": 1}, False), ({}, True)])
def test_a_run_is_incomplete_if_a_rank_was_killed(rank: dict[str, int], expected: bool) -> None:
    """Another child process, as a worker, may be killed at its end."""
    run = decoded(1, 2) | {"totals": {"dropped_events": 0, "damaged_events": 0}, "damage": []}
    run["processes"][1] |= {"closed": False, **rank}
    assert is_complete({"closed": True}, run) is expected


def test_another_profiler_runs_alone() -> None:
    words = ["--children", "--profiler", "cprofile", "x.py"]
    result = CliRunner().invoke(run_command, words)
    assert result.exit_code == 2
    assert "--children" in result.output
