# SPDX-License-Identifier: Apache-2.0
"""When GPU records are switched on and off, against stub libraries of the driver and of CUPTI.

Nothing here ran on a GPU, and what passes says nothing of one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuprof import _native
from gpuprof.record import kernels
from gpuprof.record.kernels import KernelSource, cupti_folders

ROOT = Path(__file__).resolve().parents[2]
STUBS = {"libcuda.so.1": "stub_cuda.cpp", "libcupti.so.13": "stub_cupti.cpp"}

# A torch of a CUDA build, with a driver that the program may initialise.
PROGRAM = """
import ctypes, json, os, sys
import gpuprof
import torch
cuda = ctypes.CDLL(os.environ["STUB_CUDA"])
cupti = lambda: ctypes.CDLL(os.environ["GPUPROF_CUPTI_LIBRARY"])
torch.version.cuda = "13.0"
torch.cuda.is_current_stream_capturing = lambda: capturing
initialised = capturing = False
torch.cuda.is_initialized = lambda: initialised
def initialise():
    global initialised
    assert cuda.cuInit(0) == 0
    for call, _ in torch.cuda._queued_calls:
        call()
    torch.cuda._queued_calls.clear()
    initialised = True
launched = 0
def launch(count):
    global launched
    function = cupti().stub_launch
    function.argtypes = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)
    import time
    for _ in range(count):
        now = time.monotonic_ns()
        launched += 1
        function(launched, b"_Z4gemmIfEvPT_i", now, now + 1000)
def stub_count(what):
    return cupti().stub_count(what)
def tell(run):
    print(json.dumps({key: run.meta[key] for key in ("sources", "gpu", "notes", "complete")}))
"""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with stubs of the two libraries."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler for the stub libraries")
    folder = tmp_path_factory.mktemp("stubs")
    core = Path(_native.__file__).parent
    for library, source in STUBS.items():
        words = [compiler, "-std=c++20", "-shared", "-fPIC", f"-I{ROOT / 'csrc'}", f"-Wl,-soname,{library}"]
        words += [str(ROOT / "tests/native" / source), "-o", str(folder / library)]
        words += [f"-L{core}", "-lgpuprof_core", f"-Wl,-rpath,{core}", "-pthread"]
        subprocess.run(words, check=True, timeout=120)
    return folder


@pytest.fixture
def program(stubs: Path, run_python: Any) -> Callable[[str], dict[str, Any]]:
    """`program(lines)` runs them after PROGRAM and returns what `tell` told."""

    def program(lines: str) -> dict[str, Any]:
        environment = {
            **os.environ,
            "STUB_CUDA": str(stubs / "libcuda.so.1"),
            "GPUPROF_CUPTI_LIBRARY": str(stubs / "libcupti.so.13"),
        }
        done = run_python("-c", PROGRAM + lines, env=environment)
        assert done.returncode == 0, done.stderr
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return facts

    return program


def test_where_cuda_is_in_use_the_gpu_is_recorded_from_the_start(program: Any, stubs: Path) -> None:
    facts = program("""
initialise()
with gpuprof.profile(out="a") as recording:
    launch(5)
tell(recording.run)
""")
    assert facts["sources"]["kernels"] == f"CUPTI 13.0, {stubs / 'libcupti.so.13'}"
    gpu = facts["gpu"]
    assert (gpu["kernels"], gpu["transfers"]) == (5, 0)
    assert (gpu["dropped"], gpu["unfinished"], gpu["unknown"]) == (0, 0, 0)
    assert 0 <= gpu["clock_error_ns"] < 1_000_000
    assert (facts["notes"], facts["complete"]) == ([], True)


def test_where_cuda_is_initialised_later_the_gpu_is_recorded_from_then_on(program: Any) -> None:
    facts = program("""
with gpuprof.profile(out="a") as recording:
    assert json.load(open("a/recording.json"))["sources"]["kernels"].startswith("off: the program never")
    initialise()
    assert json.load(open("a/recording.json"))["sources"]["kernels"].startswith("CUPTI")
    launch(3)
tell(recording.run)
""")
    assert facts["sources"]["kernels"].startswith("CUPTI 13.0")
    assert facts["gpu"]["kernels"] == 3


def test_recordings_one_after_the_other(program: Any) -> None:
    facts = program("""
for name in "abc":
    with gpuprof.profile(out=name):
        pass
with gpuprof.profile(out="d"):
    initialise()
    launch(1)
launch(1)
assert stub_count(b"subscribers") == stub_count(b"callbacks") == stub_count(b"kinds") == 0
with gpuprof.profile(out="e") as recording:
    launch(2)
assert len(torch.cuda._queued_calls) == 0
tell(recording.run)
""")
    assert facts["gpu"]["kernels"] == 2


def test_a_program_that_never_uses_cuda_loads_nothing(program: Any) -> None:
    facts = program("""
with gpuprof.profile(out="a") as recording:
    pass
assert "libcupti" not in open("/proc/self/maps").read()
tell(recording.run)
""")
    assert facts["sources"]["kernels"] == "off: the program never initialised CUDA"
    assert facts["gpu"] is None


def test_what_is_not_wanted_is_left_alone(program: Any) -> None:
    facts = program("""
initialise()
with gpuprof.profile(out="a", gpu=False) as recording:
    pass
assert "libcupti" not in open("/proc/self/maps").read()
tell(recording.run)
""")
    assert (facts["sources"]["kernels"], facts["gpu"]) == ("off: not wanted", None)


@pytest.mark.parametrize(("function", "error"), [("cuptiSubscribe", 39), ("cuptiActivityEnable", 35)])
def test_a_refusal_is_the_reason(program: Any, function: str, error: int) -> None:
    facts = program(f"""
initialise()
cupti().stub_set(b"{function}", ctypes.c_int64({error}))
with gpuprof.profile(out="a") as recording:
    launch(1)
tell(recording.run)
""")
    assert facts["sources"]["kernels"].startswith("off: ")
    assert facts["sources"]["kernels"].endswith("this torch does not tell its current stream")
    assert f"error {error}" in facts["sources"]["kernels"]
    assert facts["gpu"] is None


LAYERS_WITHOUT_CUPTI = """
initialise()
cupti().stub_set(b"cuptiSubscribe", ctypes.c_int64(39))
stream = 0
torch._C._cuda_getDevice = lambda: 0
torch._C._cuda_getCurrentRawStream = lambda device: stream
def work(duration_ns):
    cuda.stub_cuda_work(ctypes.c_void_p(stream), ctypes.c_longlong(duration_ns))
class Works(torch.nn.Module):
    def __init__(self, duration_ns, *children):
        super().__init__()
        self.duration_ns = duration_ns
        self.inner = torch.nn.ModuleList(children)
    def forward(self, value):
        work(self.duration_ns)
        for child in self.inner:
            child(value)
        return value
model = Works(1_000, Works(2_000, Works(4_000)), Works(8_000))
def tell_tables(run):
    layers = run.summary("layer")
    print(json.dumps({
        **{key: run.meta[key] for key in ("sources", "gpu", "notes", "complete")},
        "layers": {row.name: (row.gpu_total_ns, row.gpu_own_ns) for row in layers.rows},
        "kernel": list(run.summary("kernel").notes),
        "kernels": run.sql("SELECT count(*) FROM kernels").fetchall()[0][0],
        "gpu_ns": run.sql("SELECT sum(gpu_ns) FROM call_tree").fetchall()[0][0],
        "header": __import__("gpuprof.cli.header").cli.header.header(run.path, run.meta),
    }))
"""


def test_without_cupti_layers_are_timed_by_cuda_events(program: Any) -> None:
    facts = program(
        LAYERS_WITHOUT_CUPTI
        + """
with gpuprof.profile(model, out="a", operators=False) as recording:
    model(1)
    model(1)
tell_tables(recording.run)
recording.run.flamegraph("page.html", weight="gpu")
"""
    )
    method = facts["sources"]["kernels"]
    assert method.startswith("CUDA events per layer: another tool uses CUPTI")
    assert method in facts["header"]
    assert facts["layers"] == {
        "Works": [30_000, 2_000],
        "inner.0": [12_000, 4_000],
        "inner.0.inner.0": [8_000, 8_000],
        "inner.1": [16_000, 16_000],
    }
    assert (facts["kernels"], facts["gpu_ns"]) == (0, 30_000)
    assert "another tool uses CUPTI" in facts["kernel"][0]
    gpu = facts["gpu"]
    assert gpu["method"] == "CUDA events per layer"
    assert (gpu["layers"], gpu["untimed"], gpu["captured"], gpu["unfinished"]) == (8, 0, 0, 0)
    assert gpu["clock_error_ns"] >= 0
    assert facts["complete"] is True
    assert any("whole layers" in note for note in facts["notes"])


def test_a_layer_on_a_stream_of_its_own_is_not_taken_from_those_around_it(program: Any) -> None:
    facts = program(
        LAYERS_WITHOUT_CUPTI
        + """
class Aside(Works):
    def forward(self, value):
        global stream
        stream = 7
        try:
            return self.inner[0](value)
        finally:
            stream = 0
model = Works(1_000, Aside(0, Works(5_000)))
with gpuprof.profile(model, out="a", operators=False) as recording:
    model(1)
tell_tables(recording.run)
"""
    )
    assert facts["layers"] == {
        "Works": [6_000, 1_000],
        "inner.0": [5_000, 0],
        "inner.0.inner.0": [5_000, 5_000],
    }


def test_calls_of_layers_that_are_not_timed_are_told(program: Any) -> None:
    facts = program(
        LAYERS_WITHOUT_CUPTI
        + """
def fail(device):
    raise RuntimeError("no stream")
with gpuprof.profile(model, out="a", operators=False) as recording:
    model(1)
    torch._C._cuda_getCurrentRawStream = fail
    from gpuprof import _native
with gpuprof.profile(model, out="b", operators=False) as recording:
    assert model(1) == 1
tell_tables(recording.run)
"""
    )
    assert (facts["gpu"]["layers"], facts["gpu"]["untimed"]) == (0, 4)
    assert any("4 calls of layers were not timed" in note for note in facts["notes"])
    assert facts["complete"] is False


def test_an_exception_of_a_layer_passes_between_its_events(program: Any) -> None:
    facts = program(
        LAYERS_WITHOUT_CUPTI
        + """
class Fails(torch.nn.Module):
    def forward(self):
        work(3_000)
        raise ValueError("of the program")
model = Fails()
with gpuprof.profile(model, out="a", operators=False) as recording:
    try:
        model()
    except ValueError as error:
        assert str(error) == "of the program"
tell_tables(recording.run)
"""
    )
    assert facts["layers"] == {"Fails": [3_000, 3_000]}


def test_a_device_that_is_lost_ends_the_timing_with_one_note(program: Any) -> None:
    facts = program(
        LAYERS_WITHOUT_CUPTI
        + """
with gpuprof.profile(model, out="a", operators=False) as recording:
    model(1)
    cuda.stub_cuda_setting(b"error", ctypes.c_longlong(700))
    assert model(1) == 1
    assert model(1) == 1
tell_tables(recording.run)
"""
    )
    assert len([note for note in facts["notes"] if "error 700" in note]) == 1


def test_where_layers_are_not_recorded_none_is_timed(program: Any) -> None:
    facts = program(
        LAYERS_WITHOUT_CUPTI
        + """
with gpuprof.profile(out="a", layers=False, operators=False) as recording:
    model(1)
tell(recording.run)
"""
    )
    assert facts["sources"]["kernels"].startswith("off: another tool uses CUPTI")
    assert facts["gpu"] is None


def test_cuda_events_stay_where_a_profiler_comes_and_goes(program: Any) -> None:
    facts = program(
        LAYERS_WITHOUT_CUPTI
        + """
with gpuprof.profile(model, out="a", operators=False) as recording:
    model(1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        cupti().stub_set(b"cuptiSubscribe", ctypes.c_int64(0))
        model(1)
    assert stub_count(b"subscribers") == 0
    model(1)
assert cuda.stub_cuda_count(b"events") == cuda.stub_cuda_count(b"streams") == 0
tell_tables(recording.run)
"""
    )
    assert facts["sources"]["kernels"].startswith("CUDA events")
    assert facts["gpu"]["layers"] == 12


def test_dropped_records_are_told(program: Any) -> None:
    facts = program("""
initialise()
with gpuprof.profile(out="a") as recording:
    cupti().stub_set(b"dropped", ctypes.c_int64(1234))
tell(recording.run)
""")
    assert facts["gpu"]["dropped"] == 1234
    assert any("dropped 1,234 GPU records" in note for note in facts["notes"])
    assert facts["complete"] is False


def test_the_program_s_own_profiler_comes_first(program: Any) -> None:
    facts = program("""
initialise()
with gpuprof.profile(out="a") as recording:
    launch(2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert stub_count(b"subscribers") == stub_count(b"callbacks") == stub_count(b"kinds") == 0
        launch(1)
    assert stub_count(b"subscribers") == 1
    launch(3)
tell(recording.run)
""")
    assert facts["gpu"]["kernels"] == 5
    assert any("profiler of PyTorch" in note for note in facts["notes"])


def test_a_profiler_that_was_there_first_keeps_cupti(program: Any) -> None:
    facts = program("""
initialise()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    with gpuprof.profile(out="a") as recording:
        launch(1)
tell(recording.run)
""")
    assert facts["sources"]["kernels"].startswith("off: a profiler of PyTorch is active")


def test_cuda_that_is_initialised_under_a_profiler_is_recorded_after_it(program: Any) -> None:
    facts = program("""
with gpuprof.profile(out="a") as recording:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        initialise()
        launch(1)
    launch(4)
tell(recording.run)
""")
    assert facts["sources"]["kernels"].startswith("CUPTI")
    assert facts["gpu"]["kernels"] == 4


def test_a_capture_that_had_begun_is_noted(program: Any) -> None:
    facts = program("""
initialise()
capturing = True
with gpuprof.profile(out="a") as recording:
    launch(1)
tell(recording.run)
""")
    assert any("CUDA graph" in note for note in facts["notes"])


def test_a_forked_child_goes_on_without_the_gpu(program: Any) -> None:
    facts = program("""
initialise()
with gpuprof.profile(out="a") as recording:
    launch(1)
    child = os.fork()
    if child == 0:
        with gpuprof.span("in the child"):
            launch(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    launch(1)
tell(recording.run)
""")
    assert facts["gpu"]["kernels"] == 2


def test_what_goes_wrong_stays_out_of_the_programs_first_use_of_cuda(program: Any) -> None:
    facts = program("""
from gpuprof import _native
def fail(folders):
    raise RuntimeError("out of luck")
_native.gpu_start = fail
with gpuprof.profile(out="a") as recording:
    initialise()
tell(recording.run)
""")
    assert any("out of luck" in note for note in facts["notes"])


def test_a_torch_without_cuda_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: pytest.fail("called"))
    source = KernelSource(pytest.fail)
    assert source.start() == "off: this build of torch has no CUDA"
    source.stop()
    assert source.totals is None
    monkeypatch.setattr(torch.version, "hip", "6.4", raising=False)
    assert "ROCm" in source.start()
    source.stop()


def test_cupti_is_searched_in_wheels_before_toolkits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, toolkit = tmp_path / "site/nvidia/cu13/lib", tmp_path / "toolkit/extras/CUPTI/lib64"
    for folder in (wheel, toolkit):
        folder.mkdir(parents=True)
    monkeypatch.setattr(kernels.sys, "path", [str(tmp_path / "nothing"), str(tmp_path / "site")])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    assert cupti_folders()[:2] == [wheel, toolkit]


def test_the_stubs_kernels_hang_under_the_layers_that_launched_them(program: Any) -> None:
    facts = program("""
initialise()
class Launches(torch.nn.Module):
    def forward(self, count):
        launch(count)
        return count
model = torch.nn.Sequential(Launches(), Launches())
with gpuprof.profile(model, out="a", operators=False) as recording:
    model(3)
    with gpuprof.span("outside"):
        launch(2)
run = recording.run
rows = run.sql("SELECT s.kind, s.name, k.name, count(*), sum(k.duration_ns), "
               "bool_and(k.launch_ns >= s.start_ns) FROM kernels k JOIN spans s USING (span_id) "
               "GROUP BY ALL ORDER BY min(k.start_ns)").fetchall()
summary = run.summary("layer")
gpu = {row.name: (row.gpu_total_ns, row.gpu_own_ns) for row in summary.rows}
print(json.dumps({"rows": rows, "gpu": gpu, "kernel": run.summary("kernel").rows[0].name}))
""")
    assert facts["rows"] == [
        ["layer", "0", "void gemm<float>(float*, int)", 3, 3_000, True],
        ["layer", "1", "void gemm<float>(float*, int)", 3, 3_000, True],
        ["span", "outside", "void gemm<float>(float*, int)", 2, 2_000, True],
    ]
    assert facts["gpu"] == {"Sequential": [6_000, 0], "0": [3_000, 3_000], "1": [3_000, 3_000]}
    assert facts["kernel"] == "void gemm<float>(float*, int)"
