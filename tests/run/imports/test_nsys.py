# SPDX-License-Identifier: Apache-2.0
"""Captures under a stub of nsys, which writes down how it was called. No Nsight Systems is involved."""

from __future__ import annotations

import os
import shlex
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from nsys_stub import Stub
from refusals import refused_command

import gpuprof
from gpuprof.cli.main import execute
from gpuprof.run.nsys_session import Capture, find_nsys, profile_command, run_capture


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    stub = Stub(tmp_path)
    monkeypatch.setenv("PATH", f"{stub.path.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return stub


def program(tmp_path: Path, body: str = "") -> Path:
    path = tmp_path / "train.py"
    path.write_text(body)
    return path


def test_a_capture_becomes_a_run(stub: Stub, tmp_path: Path, capfd: Any) -> None:
    stub.install()
    script = program(tmp_path, "import sys; print('hello', sys.argv[1:]); sys.exit(5)")
    assert execute(["nsys", "--", sys.executable, str(script), "--out", "x", "-k"]) == 5
    output = capfd.readouterr()
    assert output.out == "hello ['--out', 'x', '-k']\n"
    assert "wrote train.gpuprof; " in output.err
    run = gpuprof.open(tmp_path / "train.gpuprof")
    assert run.sql("SELECT count(*) FROM kernels").fetchall() == [(1,)]
    assert (run.path / "nsight.nsys-rep").read_text() == "a report"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bin", "calls", "train.gpuprof", "train.py"]


def test_the_command_line_of_nsys(stub: Stub, tmp_path: Path) -> None:
    stub.install()
    options = ["--range", "nvtx", "--domain", "NCCL", "--domain", "gpuprof", "--python", "--out", "r.gpuprof"]
    assert execute(["nsys", *options, "--", sys.executable, "-c", "pass"]) == 0
    (profile, injected), (export, _) = stub.calls()
    assert profile[0] == "profile"
    assert profile[-3:] == [sys.executable, "-c", "pass"]
    assert set(profile[1:-3]) >= {
        "--trace=cuda,nvtx,osrt,cublas,cudnn",
        "--cuda-graph-trace=node",
        "--capture-range=nvtx",
        "--nvtx-capture=nsight_range@gpuprof",
        "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
        "--capture-range-end=stop",
        "--nvtx-domain-include=NCCL,gpuprof",
        "--python-sampling=true",
    }
    assert export[:2] == ["export", "--type=sqlite"]
    # Our own listener would take the place of nsys's.
    assert injected is None or "libgpuprof" not in injected


def test_a_plain_capture_asks_for_no_range() -> None:
    words = profile_command("nsys", Capture(["a"]), "r.nsys-rep")
    assert not [word for word in words if "capture" in word or "python" in word or "domain" in word]
    assert words[-1] == "a"
    cuda = profile_command("nsys", Capture(["a"], "cuda"), "r.nsys-rep")
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop"} <= set(cuda)


def test_without_nsys_the_commands_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("gpuprof.run.nsys_session._USUAL_PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert execute(["nsys", "--out", "my run.gpuprof", "--", "python", "a b.py"]) == 2
    output = capsys.readouterr()
    lines = [shlex.split(line) for line in output.out.splitlines()]
    assert [line[:2] for line in lines] == [["nsys", "profile"], ["nsys", "export"], ["gpuprof", "import"]]
    assert lines[0][-2:] == ["python", "a b.py"]
    assert lines[1][-1] == "my run.nsys-rep"
    assert lines[2][2:] == ["my run.sqlite", "-o", "my run.gpuprof"]
    assert output.err.startswith("gpuprof: error: ")
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_was_not_written_is_an_error(stub: Stub, tmp_path: Path, capfd: Any) -> None:
    stub.install(writes=False)
    assert execute(["nsys", "--range", "cuda", "--", sys.executable, str(program(tmp_path))]) == 0
    assert capfd.readouterr().err.startswith("gpuprof: ")
    _code, failure = run_capture(stub.path, Capture([sys.executable, "-c", "pass"], "cuda"), tmp_path / "r")
    assert (failure and failure.code) == "no_report"
    assert not (tmp_path / "train.gpuprof").exists()


def test_an_export_that_fails_is_reported_with_the_commands_exit_code(
    stub: Stub, tmp_path: Path, capfd: Any
) -> None:
    stub.install(exports=False)
    script = program(tmp_path, "raise SystemExit(7)")
    assert execute(["nsys", "--", sys.executable, str(script)]) == 7
    assert "3" in capfd.readouterr().err
    _code, failure = run_capture(stub.path, Capture([sys.executable, str(script)]), tmp_path / "r")
    assert (failure and failure.code) == "cannot_export"
    assert "the report is of a newer version" in str(failure)


def test_a_folder_that_exists_is_refused_before_anything_runs(stub: Stub, tmp_path: Path, capfd: Any) -> None:
    stub.install()
    (tmp_path / "r.gpuprof").mkdir()
    command = [sys.executable, "-c", "print('ran')"]
    refused_command(["nsys", "--out", "r.gpuprof", "--", *command], "exists", "r.gpuprof")
    assert capfd.readouterr().out == ""


def test_nothing_to_run_is_a_usage_error(capsys: Any) -> None:
    refused_command(["nsys"], "no_command")
    assert execute(["nsys", "--rnge", "cuda", "--", "true"]) == 2
    assert "No such option" in capsys.readouterr().err


def test_nsys_is_found_in_the_usual_folders(tmp_path: Path) -> None:
    for place in ("opt/nvidia/nsight-systems/2024.6.1/bin", "opt/nvidia/nsight-systems/2025.10.1/bin"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "nsys").touch(mode=0o755)
    newest = tmp_path / "opt/nvidia/nsight-systems/2025.10.1/bin/nsys"
    assert find_nsys({"PATH": str(tmp_path)}, tmp_path) == newest
    newest.chmod(0o644)
    assert find_nsys({"PATH": str(tmp_path)}, tmp_path) == newest.parents[2] / "2024.6.1/bin/nsys"
    assert find_nsys({"PATH": str(tmp_path)}, tmp_path / "elsewhere") is None


def test_nsight_range_is_a_span_of_a_recording(record: Any) -> None:
    def body() -> None:
        with gpuprof.nsight_range(), gpuprof.span("inside"):
            pass

    assert record(body).paths() == ["nsight_range", "nsight_range/inside"]


class Cuda:
    """Replaces torch with CUDA."""

    def __init__(self, *, fails: bool = False) -> None:
        self.calls: list[str] = []
        self.fails = fails
        self.cuda = self

    def is_available(self) -> bool:
        return True

    def cudart(self) -> Any:
        def call(name: str) -> None:
            self.calls.append(name)
            if self.fails:
                raise RuntimeError("CUDA error: no")

        start, stop = "cudaProfilerStart", "cudaProfilerStop"
        return types.SimpleNamespace(**{start: lambda: call(start), stop: lambda: call(stop)})


@pytest.mark.parametrize("fails", [False, True])
def test_nsight_range_drives_cudas_profiler(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    torch = Cuda(fails=fails)
    monkeypatch.setitem(sys.modules, "torch", torch)

    def body() -> None:
        with gpuprof.nsight_range():
            assert torch.calls == ["cudaProfilerStart"]
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        body()
    assert torch.calls == ["cudaProfilerStart", "cudaProfilerStop"]


def test_nsight_range_without_torch_or_with_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    for torch in (None, types.SimpleNamespace()):
        monkeypatch.setitem(sys.modules, "torch", torch)
        with gpuprof.nsight_range():
            ran.append(torch)
    assert len(ran) == 2
