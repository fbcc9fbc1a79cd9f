# SPDX-License-Identifier: Apache-2.0
"""The benchmark for a GPU, run on a CPU with tiny networks. Only the form of its figures is tested."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the benchmark measures PyTorch models")

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from benchmarks.gpu import _build, _plan, _report, _steps, fetch_wheels  # noqa: E402
from benchmarks.gpu._call import Call, Command, Options  # noqa: E402
from benchmarks.gpu._journal import Entry, Journal, read  # noqa: E402
from benchmarks.gpu._processes import MARK, Done, end_marked, run  # noqa: E402

LONGEST_WAIT_S = 60
SCRIPT = ROOT / "benchmarks" / "gpu" / "run.py"
# Waits forever, as does its child in a session of its own.
FOREVER = (
    "import os, subprocess, sys, threading\n"
    "subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'],"
    " start_new_session=True)\n"
    "print('started', flush=True)\n"
    "threading.Event().wait()\n"
)


def run_benchmark(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--quick", "--out", str(folder), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


def main_of_run(*arguments: str) -> int:
    from benchmarks.gpu import run as run_module

    return run_module.main(arguments)


def marked(mark: str) -> list[int]:
    """Return the processes whose environment has the mark or one below it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(each.startswith(f"{MARK}={mark}".encode()) for each in variables):
            found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("gpu-benchmark")
    words = ["--steps", "doctor,workloads", "--limit", "workloads=250"]
    for workload in ("small_kernels", "convnet.training.1"):
        words += ["--workload", workload]
    result = run_benchmark(folder, *words, "--profiler", "gpuprof", "--revision", "0123abc")
    assert result.returncode == 0, result.stdout + result.stderr
    found: dict[str, Any] = json.loads((folder / "gpu.json").read_text("utf-8"))
    assert sorted(path.name for path in folder.iterdir()) == ["gpu.json", "gpu.jsonl", "gpu.log"]
    return found


def test_report_has_the_sources_and_the_arguments(report: dict[str, Any]) -> None:
    (call,) = report["calls"]
    assert call["revision"] == "0123abc"
    assert call["source_digest"] == report["source_digest"] == _report.source_digest()
    assert call["quick"] is True
    assert call["end"] == "ok"
    assert any(check["name"] for check in report["steps"]["doctor"]["items"]["doctor"]["facts"]["checks"])


def test_workloads_are_measured_under_each_profiler(report: dict[str, Any]) -> None:
    section = report["steps"]["workloads"]
    assert section["states"] == {"ok": 2}, section
    assert section["items"]["comparison"]["facts"]["rounds"] == 1
    assert len(report["workloads"]) == 2
    for row in report["workloads"].values():
        assert row["profilers"].keys() == {"unprofiled", "gpuprof"}
        for entry in row["profilers"].values():
            assert entry["errors"] == []
            assert entry["step_s"]["median"] > 0
            assert entry["to_unprofiled"]["rounds"] == 1
        assert row["profilers"]["unprofiled"]["to_unprofiled"]["ratio"] == 1
        assert row["profilers"]["gpuprof"]["recorded"]["complete"] is True
        assert row["profilers"]["gpuprof"]["recorded"]["totals"]["spans"] > 0


def test_what_cannot_be_had_has_a_reason(report: dict[str, Any]) -> None:
    left_out = report["steps"]["workloads"]["items"]["comparison"]["facts"]["left_out"]
    assert left_out["proton"] == "needs a CUDA device"
    assert left_out["graph.decode"] == "needs a CUDA device"


# --- the plan -------------------------------------------------------------------------------------


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    monkeypatch.setenv(MARK, f"/test-{os.getpid()}")
    yield Call(tmp_path, "gpu", Options(), time.monotonic() + 600)
    end_marked(f"/test-{os.getpid()}")


def states(call: Call) -> dict[str, str]:
    return {f"{entry.step} {entry.item}": entry.state for entry in read(call.journal.path)}


def python_item(item: str, program: str, limit_s: float = 60) -> Command:
    return Command(item, [sys.executable, "-c", program], limit_s)


@pytest.mark.parametrize("part", _plan.PARTS)
def test_a_part_fits_its_time(part: str) -> None:
    assert sum(_plan.PARTS[part].values()) <= _plan.PART_S - 10  # which the begin and the end of it take
    assert _plan.PARTS[part].keys() <= _plan.STEPS.keys()
    names = list(_plan.PARTS[part])
    for name in names:
        before = set(names[: names.index(name)])
        assert {each for each in _plan.STEPS[name].needs if each in names} <= before


def test_every_test_of_the_gpu_is_run_by_a_step() -> None:
    text = Path(_steps.__file__).read_text("utf-8")
    missing = [path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py") if path.name not in text]
    assert not missing


def test_each_roofline_item_is_one_case() -> None:
    source = (ROOT / "benchmarks" / "_roofline_gpu_cases.py").read_text("utf-8")
    source += (ROOT / "benchmarks" / "_roofline_case.py").read_text("utf-8")
    for name in _steps.ROOFLINE_CASES:
        assert source.count(f'"{name}') + source.count(f" {name}") >= 1, name


def test_steps_run_in_the_order_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, float]] = []
    from benchmarks.gpu import run as run_module

    monkeypatch.setattr(run_module, "run_step", lambda _call, name, limit_s: ran.append((name, limit_s)))
    words = ["--out", str(tmp_path), "--steps", "tests,build,captures", "--limit", "build=7"]
    assert main_of_run(*words) == 0
    assert [name for name, _ in ran] == ["tests", "build", "captures"]
    assert dict(ran)["build"] == 7
    ran.clear()
    assert main_of_run("--out", str(tmp_path), "--part", "2") == 0
    assert [name for name, _ in ran] == list(_plan.PARTS["2"])
    assert dict(ran)["roofline"] == _plan.PARTS["2"]["roofline"]
    assert ran[-1][1] == float("inf")  # the rest of the call's time


def test_what_needs_a_failed_step_is_skipped(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(call: Call) -> None:
        call.run(python_item("launches", "raise SystemExit('no launch')"))

    monkeypatch.setitem(_plan.STEPS, "smoke", _plan.Step(fails, 60, ""))
    for name in ("smoke", "workloads-key", "workloads-rest"):
        _plan.run_step(call, name, 60)
    entries = read(call.journal.path)
    assert [(entry.step, entry.item, entry.state, entry.problem) for entry in entries] == [
        ("smoke", "launches", "failed", "exit code 1: no launch"),
        ("workloads-key", "step", "skipped", "smoke failed"),
        ("workloads-rest", "step", "skipped", "smoke failed"),
    ]


def test_without_a_description_of_the_machine_the_rest_runs(call: Call) -> None:
    call.begin("build", 60)
    call.run(Command("nvidia-smi", ["no-such-program"], 30, optional=True))
    assert states(call) == {"build nvidia-smi": "failed"}
    assert call.failed == set()


def test_an_item_has_its_own_deadline_and_its_step_has_one(call: Call) -> None:
    call.begin("tests", 60)
    call.run(python_item("endless", FOREVER, limit_s=3))
    call.begin("captures", 3.5)
    call.run(python_item("endless", FOREVER))
    call.run(python_item("late", "print()"))
    assert states(call) == {
        "tests endless": "timed out",
        "captures endless": "timed out",
        "captures late": "skipped",
    }
    assert call.failed == {"tests", "captures"}
    assert "ended at its limit" in str(read(call.journal.path)[0].problem)


def test_items_that_run_together_have_a_line_each(call: Call) -> None:
    call.begin("tests", 60)
    programs = {"a": "print('{\"number\": 1}')", "b": "raise SystemExit(2)"}
    call.run_together([python_item(name, program) for name, program in programs.items()])
    found = {entry.item: entry for entry in read(call.journal.path)}
    assert found["a"].facts == {"number": 1}
    assert found["b"].state == "failed"


def stub_program(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put a script in the place of the program that captures."""
    program = folder / "cupti_capture"
    program.write_text("#!/bin/sh\n" + text)
    program.chmod(0o755)
    monkeypatch.setattr(_steps, "PROGRAM_FOLDER", folder)


def test_captures_are_packed_after_each_case(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The third finds the first two in the archive.
    packed = tmp_path / "gpu-golden.tar.gz"
    listing = f"if [ $1 = graph ]; then tar -tzf {packed} > {tmp_path}/seen; fi"
    text = f'echo "kernels 3"\n{listing}\nprintf raw > "$2"\n'
    stub_program(tmp_path, monkeypatch, text)
    call.begin("captures", 100)
    _steps.captures(call)
    assert (tmp_path / "seen").read_text().split() == [
        "golden/",
        "golden/streams.cupti",
        "golden/transfers.cupti",
    ]
    with tarfile.open(packed) as archive:
        assert {name for name in archive.getnames() if "/" in name} == {
            f"golden/{case}.cupti" for case in _steps.CAPTURES
        }
    found = {entry.item: entry for entry in read(call.journal.path)}
    assert found["graph"].facts == {"kernels": 3}
    assert found["pack"].facts["bytes"]["graph.cupti"] == 3
    assert found["replay"].state == "failed"  # there is no such program here


def test_without_captures_nothing_is_replayed(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stub_program(tmp_path, monkeypatch, "exit 1\n")
    call.begin("captures", 100)
    _steps.captures(call)
    assert states(call)["captures replay"] == "skipped"
    assert not (tmp_path / "gpu-golden.tar.gz").exists()


IN_TURN = """
import os, sys
from benchmarks.gpu._journal import Entry, Journal
for name in sys.argv[1:]:
    if name == "crashes":
        os.abort()
    Journal.of_environment().add(Entry("roofline", name, "ok", facts=os.getpid()))
"""


def test_items_of_one_process_continue_after_one_that_ends_it(call: Call) -> None:
    call.begin("roofline", 100)
    names = ("first", "second", "crashes", "third")
    _steps._run_in_turn(call, names, [sys.executable, "-c", IN_TURN])
    found = {entry.item: entry for entry in read(call.journal.path)}
    assert {name: found[name].state for name in names} == {
        "first": "ok",
        "second": "ok",
        "crashes": "failed",
        "third": "ok",
    }
    assert found["first"].facts == found["second"].facts != found["third"].facts
    assert call.failed == {"roofline"}


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    result = run_benchmark(tmp_path, "--steps", "doctor,nothing")
    assert result.returncode == 2
    assert "unknown step 'nothing'" in result.stderr


# --- killed calls ---------------------------------------------------------------------------------

KILLED = """
import sys, time
from benchmarks.gpu import _plan, run
from benchmarks.gpu._call import Command

def first(call):
    call.run(Command("done", [sys.executable, "-c", "print(1)"], 60))
    call.run_together([Command(name, [sys.executable, "-c", *sys.argv[2:]], 500) for name in ("one", "two")])

_plan.STEPS["doctor"] = _plan.Step(first, 500, "", ())
sys.exit(run.main(["--out", sys.argv[1], "--steps", "doctor,build"]))
"""
# Writes its number to a named pipe and waits forever; so does a child in a session of its own.
ANNOUNCED = """
import os, subprocess, sys, threading
pipe, *program = sys.argv[1:]
if program:
    subprocess.Popen([sys.executable, "-c", *program, pipe], start_new_session=True)
os.write(os.open(pipe, os.O_WRONLY), f"{os.getpid()}\\n".encode())
threading.Event().wait()
"""


def numbers_from(pipe: int, count: int) -> list[int]:
    """Return the process numbers that were written to a pipe, as soon as there are so many."""
    text = b""
    while text.count(b"\n") < count:
        assert select.select([pipe], [], [], LONGEST_WAIT_S)[0], f"only {text!r} were started"
        text += os.read(pipe, 4096)
    return [int(line) for line in text.split()]


def keeper_of(process_id: int) -> int:
    words = f"benchmarks.gpu._keeper\0/{process_id}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # of a process that has ended meanwhile
            if words in (folder / "cmdline").read_bytes():
                return int(folder.name)
    raise AssertionError("the call has no keeper")


def wait_for_ends(processes: list[int]) -> None:
    """Return when all have ended: a file descriptor of a process is readable then."""
    for process in processes:
        assert select.select([process], [], [], LONGEST_WAIT_S)[0], "a process is still there"
        os.close(process)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_call_leaves_no_process_and_every_finished_item(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Each of its items has a grandchild in a session of its own, which no signal to a group reaches."""
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), ANNOUNCED, str(tmp_path / "pipe"), ANNOUNCED],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    mark = f"/{process.pid}"
    try:
        started = numbers_from(pipe, 4)
        assert sorted(started) == sorted(marked(mark))
        others = [os.pidfd_open(each) for each in (*started, keeper_of(process.pid))]
        process.send_signal(number)
        code = process.wait(timeout=LONGEST_WAIT_S)
        wait_for_ends(others)
    finally:
        process.kill()
        process.wait()
        end_marked(mark)
        os.close(pipe)
    journal = tmp_path / "gpu.jsonl"
    found = {f"{entry.step} {entry.item}": entry.state for entry in read(journal)}
    assert found["call begin"] == found["doctor done"] == "ok"
    assert found["call end"] == "killed"
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 3)
    assert not [name for name in found if name.startswith("build")]
    merged = _report.merge([journal])
    assert merged["calls"][0]["end"] == "killed"
    assert merged["steps"]["doctor"]["items"]["done"]["state"] == "ok"


# --- processes ------------------------------------------------------------------------------------


def test_a_command_ends_at_its_limit_with_what_it_started(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    done = run([sys.executable, "-c", FOREVER], limit_s=3, log=log)
    assert done.code is None
    assert done.problem is not None
    assert "ended at its limit" in done.problem
    assert done.output == "started\n"
    assert "started" in log.read_text("utf-8")
    assert not marked(f"/{os.getpid()}.")


def test_a_command_that_ends_leaves_nothing_it_started(tmp_path: Path) -> None:
    program = FOREVER.rpartition("threading.Event().wait()")[0]
    done = run([sys.executable, "-c", program], limit_s=30, log=tmp_path / "log.txt")
    assert done.code == 0
    assert not marked(f"/{os.getpid()}.")


def test_a_command_that_is_not_there_has_a_problem(tmp_path: Path) -> None:
    done = run([tmp_path / "nothing"], limit_s=1, log=tmp_path / "log.txt")
    assert done.problem is not None
    assert "No such file" in done.problem


def test_the_log_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu import _processes

    monkeypatch.setattr(_processes, "LOG_LIMIT_BYTES", 2000)
    log = tmp_path / "log.txt"
    done = run([sys.executable, "-c", "for n in range(1000): print('x' * 99)"], limit_s=30, log=log)
    assert len(done.output) == 100_000
    assert log.stat().st_size < 3000


def test_a_journal_keeps_all_lines_but_one_that_was_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.jsonl")
    journal.add(Entry("tests", "a", "ok", 1.5, facts={"k": [1]}))
    journal.add(Entry("tests", "b", "failed", problem="it broke"))
    with journal.path.open("ab") as file:
        file.write(b'{"at": 1, "step": "tes')
    assert read(journal.path) == [
        Entry("tests", "a", "ok", 1.5, None, {"k": [1]}),
        Entry("tests", "b", "failed", None, "it broke", None),
    ]


def test_each_test_of_pytest_is_a_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_good(record_property): record_property('kernels', 3)\n"
        "def test_bad(): assert 1 == 2\n"
        "@pytest.mark.skip(reason='no GPU')\n"
        "def test_not(): pass\n"
        "@pytest.fixture\n"
        "def broken(): raise ValueError('fixture')\n"
        "def test_broken(broken): pass\n"
    )
    call.begin("tests", 100)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    words += ["-p", "benchmarks.gpu._pytest_journal", "--rootdir", str(tmp_path), str(tmp_path)]
    call.run(Command("test_it.py", words, 60, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}))
    found = {entry.item.rpartition("::")[2]: entry for entry in read(call.journal.path)}
    assert {name: entry.state for name, entry in found.items()} == {
        "test_good": "ok",
        "test_bad": "failed",
        "test_not": "skipped",
        "test_broken": "failed",
        "test_it.py": "failed",
    }
    assert found["test_good"].facts == {"kernels": 3}
    assert "1 == 2" in str(found["test_bad"].problem)
    assert found["test_not"].problem == "Skipped: no GPU"


def test_a_file_whose_tests_were_all_skipped_is_not_ok(call: Call, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import pytest\ndef test_it(): pytest.skip('no GPU')\n")
    call.begin("smoke", 100)
    command = _steps._pytest(call, "test_it.py")
    words = [tmp_path / "test_it.py" if word == "tests/gpu/test_it.py" else word for word in command.words]
    call.run(replace(command, words=words))
    assert set(states(call).values()) == {"skipped"}


# --- wheels ---------------------------------------------------------------------------------------


def test_what_has_no_wheel_stops_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_build, "WHEELS", tmp_path)
    monkeypatch.setattr(_build, "NEEDED", {"no-such-package": "no_such_package"})
    monkeypatch.setattr(_build, "WANTED", {})
    section = _build.build(10, tmp_path / "log.txt")
    assert section["missing"] == ["no-such-package"]
    assert "fetch_wheels.py" in section["problem"]


def test_of_several_wheels_the_last_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_build, "WHEELS", tmp_path)
    names = ("duckdb-2.0-py3-none-any.whl", "duckdb-1.0-py3-none-any.whl", "rich-13-py3-none-any.whl")
    for age, name in enumerate(names):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    assert [wheel.name for wheel in _build.newest_wheels()] == [names[1], names[2]]


def test_only_what_is_missing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels, site, ran = tmp_path / "wheels", tmp_path / "site", []
    wheels.mkdir()
    monkeypatch.setattr(_build, "WHEELS", wheels)
    monkeypatch.setattr(_build, "SITE", site)
    monkeypatch.setattr(_build, "NEEDED", {"no-such-package": "no_such_package", "numpy": "numpy"})
    monkeypatch.setattr(_build, "WANTED", {})
    for name in ("no_such_package-1.0-py3-none-any.whl", "numpy-1.0-py3-none-any.whl"):
        (wheels / name).touch()

    def install(words: list[Any], **_options: Any) -> None:
        ran.append([Path(word).name for word in words if str(word).endswith(".whl")])
        (site / "no_such_package").mkdir(parents=True)
        (site / "no_such_package-1.0.dist-info").mkdir()

    monkeypatch.setattr(_build, "run", install)
    name = "no_such_package-1.0-py3-none-any.whl"
    assert _build.install_missing(10, tmp_path / "log") == ([name], [])
    assert _build.install_missing(10, tmp_path / "log") == ([], [])
    assert ran == [[name]]


def test_wheels_are_asked_for_by_version_and_machine() -> None:
    words = fetch_wheels.command(["duckdb"], "3.12", "aarch64", Path("wheels"))
    assert words[-1] == "duckdb"
    assert words[words.index("--python-version") + 1] == "3.12"
    assert "manylinux_2_28_aarch64" in words
    assert {"--no-deps", "--only-binary=:all:"} <= set(words)


def test_only_wheels_that_the_machine_lacks_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fetch(words: list[str], **_options: Any) -> Any:
        asked.extend(words[words.index("manylinux2014_x86_64") + 1 :])
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(fetch_wheels.subprocess, "run", fetch)
    there = [name for name in fetch_wheels.NEEDED if name not in ("duckdb", "scikit-build-core", "rich")]
    lines = [f"{name.replace('-', '_')}==1.0" for name in there]
    folder, words = tmp_path / "wheels", ["--machine", "x86_64", "--folder", str(tmp_path / "wheels")]
    plain = tmp_path / "packages.txt"
    plain.write_text("\n".join(lines))
    folder.mkdir()
    (folder / "rich-13-py3-none-any.whl").touch()
    assert fetch_wheels.main([*words, "--installed", str(plain)]) == 0
    assert asked == ["duckdb", "scikit-build-core"]
    asked.clear()
    journal = Journal(tmp_path / "a.jsonl")
    journal.add(Entry("build", "packages", "ok", facts={"output": plain.read_text()}))
    assert fetch_wheels.main([*words, "--installed", str(journal.path), "nvtx"]) == 0
    assert asked == ["nvtx", "duckdb", "scikit-build-core"]
    assert fetch_wheels.main([*words, "--installed", str(tmp_path / "nothing")]) == 2


def test_a_command_that_ended_has_its_problem() -> None:
    assert Done(0, "", "", 1.0).problem is None
    assert Done(1, "", "a\nthe reason\n", 1.0).problem == "exit code 1: the reason"


# --- networks -------------------------------------------------------------------------------------


def test_resnet_50_has_its_parameters() -> None:
    import torch

    from benchmarks.gpu._networks import ResNet

    with torch.device("meta"):
        model = ResNet()
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032


def test_decoding_continues_what_prefill_began() -> None:
    import torch

    from benchmarks.gpu._networks import Decoder

    torch.manual_seed(0)
    model = Decoder(layers=2, width=16, heads=2, vocabulary=32, batch=1, length=6).eval()
    tokens = torch.randint(32, (1, 6))
    with torch.no_grad():
        whole = model(tokens, 0)
        model(tokens[:, :4], 0)
        model(tokens[:, 4:5], 4)
        torch.testing.assert_close(model(tokens[:, 5:], 5), whole)
