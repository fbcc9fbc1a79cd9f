# SPDX-License-Identifier: Apache-2.0
"""When GPU records are switched on and off, against stub libraries of the driver and of CUPTI.

Nothing here runs on a GPU, so a pass is no evidence about one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from run_codes import note_codes, source_code

from gpuprof.record import kernels
from gpuprof.record.facts import Reason, SourceStatus
from gpuprof.record.kernels import KernelSource, cupti_folders, find_holder
from gpuprof.run.losses import Loss, LossCode, gpu_losses
from gpuprof.run.messages import loss_text


def test_where_cuda_is_in_use_the_gpu_is_recorded_from_the_start(program: Any, stubs: Path) -> None:
    facts = program("""
initialize()
with gpuprof.profile(out="a") as recording:
    launch(5)
report(recording.run)
""")
    assert source_code(facts, "kernels") == "cupti"
    assert facts["sources"]["kernels"]["values"] == {"version": "13.0", "path": str(stubs / "libcupti.so.13")}
    gpu = facts["gpu"]
    assert (gpu["kernels"], gpu["transfers"]) == (5, 0)
    assert (gpu["dropped"], gpu["unfinished"], gpu["unknown"]) == (0, 0, 0)
    assert 0 <= gpu["clock_error_ns"] < 1_000_000
    assert (facts["notes"], facts["complete"]) == ([], True)


def test_where_cuda_is_initialized_later_the_gpu_is_recorded_from_then_on(program: Any) -> None:
    facts = program("""
with gpuprof.profile(out="a") as recording:
    assert json.load(open("a/recording.json"))["sources"]["kernels"]["reason"] == "cuda_not_initialized"
    initialize()
    assert json.load(open("a/recording.json"))["sources"]["kernels"]["method"] == "cupti"
    launch(3)
report(recording.run)
""")
    assert source_code(facts, "kernels") == "cupti"
    assert facts["gpu"]["kernels"] == 3


def test_recordings_one_after_the_other(program: Any) -> None:
    facts = program("""
for name in "abc":
    with gpuprof.profile(out=name):
        pass
with gpuprof.profile(out="d"):
    initialize()
    launch(1)
launch(1)
assert stub_count(b"subscribers") == stub_count(b"callbacks") == stub_count(b"kinds") == 0
with gpuprof.profile(out="e") as recording:
    launch(2)
assert len(torch.cuda._queued_calls) == 0
report(recording.run)
""")
    assert facts["gpu"]["kernels"] == 2


def test_a_program_that_never_uses_cuda_loads_nothing(program: Any) -> None:
    facts = program("""
with gpuprof.profile(out="a") as recording:
    pass
assert os.environ["GPUPROF_CUPTI_LIBRARY"] not in open("/proc/self/maps").read()
report(recording.run)
""")
    assert source_code(facts, "kernels") == "off: cuda_not_initialized"
    assert facts["gpu"] is None


def test_what_is_not_wanted_is_left_alone(program: Any) -> None:
    facts = program("""
initialize()
with gpuprof.profile(out="a", gpu=False) as recording:
    pass
assert os.environ["GPUPROF_CUPTI_LIBRARY"] not in open("/proc/self/maps").read()
report(recording.run)
""")
    assert (source_code(facts, "kernels"), facts["gpu"]) == ("off: not_wanted", None)


@pytest.mark.parametrize(("function", "error"), [("cuptiSubscribe", 999), ("cuptiActivityEnable", 35)])
def test_a_refusal_is_the_reason(program: Any, function: str, error: int) -> None:
    facts = program(f"""
initialize()
vars(torch._C).pop("_cuda_getDevice", None)  # of builds with CUDA
cupti().stub_set(b"{function}", ctypes.c_int64({error}))
with gpuprof.profile(out="a") as recording:
    launch(1)
assert recording.run.sql("SELECT DISTINCT gpu_ns FROM call_tree").fetchall() == [(None,)]
report(recording.run)
""")
    assert source_code(facts, "kernels") == "off: gpu_and_events_refused"
    values = facts["sources"]["kernels"]["values"]
    assert values["events"] == {"code": "no_current_stream"}
    assert values["detail"]["number"] == error
    assert facts["gpu"] is None


def test_what_is_missing_is_reported_in_the_run_and_in_the_summary(program: Any) -> None:
    facts = program("""
from gpuprof.cli.header import header
def facts_of(run):
    return {**{key: run.meta[key] for key in ("sources", "gpu", "notes", "complete")},
            "header": header(run.path, run.meta), "summary": str(run.summary("kernel"))}
def launch_without_times():
    cupti().stub_launch(ctypes.c_uint32(70), b"gemm", ctypes.c_int64(0), ctypes.c_int64(0))
runs = {}
initialize()
with gpuprof.profile(out="dropped") as recording:
    launch(1)
    cupti().stub_set(b"dropped", ctypes.c_int64(1234))
runs["dropped"] = facts_of(recording.run)
with gpuprof.profile(out="unfinished") as recording:
    launch(1)
    launch_without_times()
runs["unfinished"] = facts_of(recording.run)
with gpuprof.profile(out="lost") as recording:
    launch(2)
    cupti().stub_set(b"flush", ctypes.c_int64(9))
    cupti().stub_set(b"forced flush", ctypes.c_int64(9))
runs["lost"] = facts_of(recording.run)
cuda.stub_cuda_set(1, 12040, 1)
with gpuprof.profile(out="old") as recording:
    launch(1)
runs["old"] = facts_of(recording.run)
print(json.dumps(runs))
""")
    assert facts["dropped"]["gpu"]["dropped"] == 1234
    assert note_codes(facts["dropped"]) == ["gpu_dropped"]
    assert facts["unfinished"]["gpu"]["unfinished"] == 1
    assert facts["unfinished"]["gpu"]["kernels"] == 1
    lost = facts["lost"]
    assert lost["gpu"]["problem"] == {"code": "cupti_gpu_lost", "number": 9}
    assert [note["values"] for note in lost["notes"]] == [{"detail": lost["gpu"]["problem"]}]
    losses = {
        "dropped": Loss(LossCode.GPU_DROPPED, 1234),
        "unfinished": Loss(LossCode.GPU_UNFINISHED, 1),
        "lost": Loss(LossCode.GPU_PROBLEM),
    }
    for name, loss in losses.items():
        assert facts[name]["complete"] is False
        assert loss in gpu_losses(facts[name]["gpu"])
        assert f"lost      {loss_text(loss)}" in facts[name]["header"]
        assert f"lost: {loss_text(loss)}" in facts[name]["summary"]
    detail = facts["old"]["sources"]["kernels"]["values"]["detail"]
    assert (detail["code"], detail["detail"], detail["number"]) == ("cupti_newer_than_driver", "13.0", 12040)
    assert facts["old"]["complete"] is True


# Another subscriber has CUPTI's callbacks, and records still flow.
TAKEN = "cupti().stub_set(b'cuptiSubscribe', ctypes.c_int64(39))\n"
TREE = """
run = recording.run
rows = run.sql("SELECT k.name, s.name, k.graph_id IS NOT NULL, count(*), "
               "bool_and(k.launch_ns >= s.start_ns AND k.launch_end_ns >= k.launch_ns) "
               "FROM kernels k LEFT JOIN spans s USING (span_id) "
               "GROUP BY ALL ORDER BY ALL").fetchall()
print(json.dumps({**{key: run.meta[key] for key in ("sources", "gpu", "notes", "complete")}, "rows": rows}))
"""
GEMM = "void gemm<float>(float*, int)"


def test_next_to_an_idle_kineto_launches_come_from_records_of_calls(program: Any) -> None:
    facts = program(
        """
initialize()
"""
        + TAKEN
        + """
import threading
with gpuprof.profile(out="a") as recording:
    with gpuprof.span("step"):
        launch(3)
        with gpuprof.span("inner"):
            launch(2)
    other = threading.Thread(target=launch, args=(1,))
    other.start()
    other.join()
assert stub_count(b"kinds") == stub_count(b"calls") == stub_count(b"thread id type") == 0
"""
        + TREE
    )
    status = facts["sources"]["kernels"]
    assert (status["method"], status["reason"]) == ("cupti", "callbacks_of_kineto")
    gpu = facts["gpu"]
    assert (gpu["launches"], gpu["holder"]["code"]) == ("calls", "kineto")
    assert (gpu["kernels"], gpu["calls"]) == (6, 6)
    assert facts["rows"] == [
        [GEMM, "inner", False, 2, True],
        [GEMM, "step", False, 3, True],
        [GEMM, None, False, 1, None],
    ]
    assert (facts["notes"], facts["complete"]) == ([], True)


def test_graphs_are_units_where_no_callback_names_their_nodes(program: Any) -> None:
    facts = program(
        """
initialize()
"""
        + TAKEN
        + """
import time
now = time.monotonic_ns
kernel = cupti().stub_kernel
kernel.argtypes = (ctypes.c_uint32, ctypes.c_char_p, *[ctypes.c_int64] * 4)
with gpuprof.profile(out="a") as recording:
    with gpuprof.span("replay"):
        for site in (0, 1):
            cupti().stub_call(514, 70, site)
        for node in (5, 6):
            kernel(70, b"gemm", now(), now() + 1000, node, 0)
"""
        + TREE
    )
    assert facts["rows"] == [["gemm", "replay", True, 2, True]]
    assert note_codes(facts) == ["unseen_graphs"]
    assert facts["notes"][0]["values"]["graphs"] == [1]
    assert facts["complete"] is True


@pytest.mark.parametrize(
    ("seen", "code", "found"),
    [
        (
            "os.environ['CUDA_INJECTION64_PATH'] = '/opt/x.so'",
            "injected",
            {"variable": "CUDA_INJECTION64_PATH", "path": "/opt/x.so"},
        ),
        (
            "os.environ['NVTX_INJECTION64_PATH'] = '/opt/y.so'",
            "injected",
            {"variable": "NVTX_INJECTION64_PATH", "path": "/opt/y.so"},
        ),
        ("sys.modules['triton.profiler'] = sys", "proton", {}),
    ],
)
def test_cupti_is_left_to_a_tool_that_records(
    program: Any, seen: str, code: str, found: dict[str, str]
) -> None:
    facts = program(
        """
initialize()
"""
        + TAKEN
        + f"""
{seen}
from gpuprof.record.kernels import find_holder
with gpuprof.profile(out="a") as recording:
    launch(1)
assert stub_count(b"cuptiActivityRegisterCallbacks") == 0
assert find_holder().code == {code!r}
report(recording.run)
"""
    )
    assert source_code(facts, "kernels").startswith("off: gpu_")
    values = facts["sources"]["kernels"]["values"]
    assert values["holder"] == {"code": code, "values": found}
    assert values["detail"] == {"code": "holder_records", "holder": values["holder"]}


def test_where_calls_are_refused_too_the_reason_names_the_holder(program: Any) -> None:
    facts = program(
        """
initialize()
"""
        + TAKEN
        + """
cupti().stub_set(b"cuptiSetThreadIdType", ctypes.c_int64(27))
with gpuprof.profile(out="a") as recording:
    launch(1)
assert stub_count(b"kinds") == stub_count(b"calls") == stub_count(b"zeroed") == 0
report(recording.run)
"""
    )
    detail = facts["sources"]["kernels"]["values"]["detail"]
    assert (detail["code"], detail["holder"]["code"]) == ("calls_refused", "kineto")
    assert detail["reason"]["number"] == 27
    assert facts["gpu"] is None


@pytest.mark.slow
def test_after_a_profiler_of_the_program_kineto_keeps_the_callbacks(program: Any) -> None:
    facts = program(
        """
initialize()
with gpuprof.profile(out="a") as recording:
    with gpuprof.span("before"):
        launch(2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert stub_count(b"subscribers") == stub_count(b"kinds") == 0
        launch(1)
"""
        + "    "
        + TAKEN
        + """
    with gpuprof.span("while it is taken"):
        launch(3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert stub_count(b"kinds") == stub_count(b"calls") == 0
        launch(1)
    with gpuprof.span("after"):
        launch(4)
"""
        + TREE
    )
    spans = {row[1]: row[3] for row in facts["rows"]}
    # Kineto took the callbacks while the first profiler ran.
    assert spans == {"before": 2, "while it is taken": 3, "after": 4}
    assert facts["gpu"]["launches"] == "calls"
    assert "gpu_stepped_back" in note_codes(facts)
    assert facts["complete"] is True


@pytest.mark.slow
def test_a_profiler_that_runs_keeps_what_it_has(program: Any) -> None:
    facts = program(
        """
initialize()
"""
        + TAKEN
        + """
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    with gpuprof.profile(out="a") as recording:
        launch(1)
assert stub_count(b"cuptiActivityRegisterCallbacks") == 0
report(recording.run)
"""
    )
    assert source_code(facts, "kernels") == "off: profiler_active"


CLOCK = """
def set_clock(**settings):
    for key, value in settings.items():
        cupti().stub_set(key.encode(), ctypes.c_int64(value))
initialize()
"""
TIMES = """
from gpuprof.cli.header import header
run = recording.run
starts = [start for start, in run.sql("SELECT start_ns FROM kernels ORDER BY 1").fetchall()]
facts = {key: run.meta[key] for key in ("gpu", "notes", "complete", "duration_ns")}
print(json.dumps({**facts, "starts": starts, "header": header(run.path, run.meta)}))
"""


def test_a_clock_of_another_rate_gives_right_times(program: Any) -> None:
    facts = program(
        CLOCK
        + """
set_clock(clock_permille=2500, clock_ahead_ns=77)
with gpuprof.profile(out="a") as recording:
    launch(50)
"""
        + TIMES
    )
    assert facts["complete"] is True
    assert facts["gpu"]["clock"] == "steady"
    assert facts["gpu"]["clock_error_ns"] < 50_000
    assert len(facts["starts"]) == 50
    assert all(0 <= start <= facts["duration_ns"] for start in facts["starts"])


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        ("clock_permille=2500", "changed"),
        ("clock_ahead_ns=200_000", "changed"),
        ("clock_stopped_at=4711", "changed"),
        ("cuptiGetTimestamp=15", "unreadable"),
    ],
)
def test_a_clock_that_changes_makes_the_run_incomplete(program: Any, settings: str, state: str) -> None:
    facts = program(
        CLOCK
        + f"""
with gpuprof.profile(out="a") as recording:
    launch(5)
    set_clock({settings})
    launch(5)
"""
        + TIMES
    )
    assert facts["complete"] is False
    assert facts["gpu"]["clock"] == state
    losses = [each.code for each in gpu_losses(facts["gpu"])]
    assert f"gpu_clock_{state}" in losses
    assert all(0 <= start <= facts["duration_ns"] for start in facts["starts"])
    assert len(facts["starts"]) + facts["gpu"]["outside"] == 10


def test_a_stopped_clock_gives_no_times(program: Any) -> None:
    facts = program(
        CLOCK
        + """
set_clock(clock_stopped_at=4711)
with gpuprof.profile(out="a") as recording:
    launch(5)
"""
        + TIMES
    )
    assert (facts["complete"], facts["starts"]) == (False, [])
    assert (facts["gpu"]["clock"], facts["gpu"]["outside"]) == ("stopped", 5)
    assert note_codes(facts) == ["gpu_outside"]


def test_a_holder_that_nothing_points_to_is_another_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delitem(sys.modules, "triton.profiler", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    holder = find_holder()
    assert (holder.facts(), holder.is_recording) == ({"code": "other", "values": {}}, False)


def test_losses_of_clocks() -> None:
    assert gpu_losses({"clock": "steady", "clock_error_ns": 50_000}) == []
    assert gpu_losses({"clock": "steady", "clock_error_ns": 83_000}) == [
        Loss(LossCode.GPU_CLOCK_ERROR, 83_000)
    ]
    assert gpu_losses({"clock_error_ns": 83_000}) == []  # of a version that measured it otherwise


def test_graphs_as_a_whole_are_asked_for(program: Any) -> None:
    facts = program("""
initialize()
import time
def replay():
    now = time.monotonic_ns()
    for site in (0, 1):
        cupti().stub_call(514, 70, site)
    kernel, graph = cupti().stub_kernel, cupti().stub_graph
    kernel.argtypes = (ctypes.c_uint32, ctypes.c_char_p, *[ctypes.c_int64] * 4)
    graph.argtypes = (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_int64)
    for node in (5, 6):
        kernel(70, b"gemm", now, now + 1000, node, 0)
    graph(70, 1, now, now + 1000)
runs = {}
for name, gpu, refused in (("nodes", "auto", 0), ("whole", "whole-graphs", 0), ("old", "whole-graphs", 51)):
    cupti().stub_set(b"refused_kind", ctypes.c_int64(refused))
    with gpuprof.profile(out=name, gpu=gpu) as recording:
        with gpuprof.span("replay"):
            replay()
    run = recording.run
    runs[name] = run.sql("SELECT k.name, s.name FROM kernels k JOIN spans s USING (span_id)").fetchall()
    runs[name + " notes"] = run.meta["notes"]
    runs[name + " gpu"] = run.meta["gpu"]
print(json.dumps(runs))
""")
    assert facts["nodes"] == facts["old"] == [["gemm", "replay"], ["gemm", "replay"]]
    assert facts["whole"] == [["CUDA graph 1", "replay"]]
    assert (facts["whole gpu"]["graphs"], facts["whole gpu"]["kernels"]) == (1, 0)
    assert facts["whole gpu"]["whole_graphs"] is True
    assert facts["whole notes"] == []
    assert "no_whole_graphs" in [each["code"] for each in facts["old notes"]]


@pytest.mark.slow
def test_the_program_s_own_profiler_comes_first(program: Any) -> None:
    facts = program("""
initialize()
with gpuprof.profile(out="a") as recording:
    launch(2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert stub_count(b"subscribers") == stub_count(b"callbacks") == stub_count(b"kinds") == 0
        launch(1)
    assert stub_count(b"subscribers") == 1
    launch(3)
report(recording.run)
""")
    assert facts["gpu"]["kernels"] == 5
    assert "gpu_stepped_back" in note_codes(facts)


@pytest.mark.slow
def test_a_profiler_that_was_there_first_keeps_cupti(program: Any) -> None:
    facts = program("""
initialize()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    with gpuprof.profile(out="a") as recording:
        launch(1)
report(recording.run)
""")
    assert source_code(facts, "kernels") == "off: profiler_active"


def test_cuda_that_is_initialized_under_a_profiler_is_recorded_after_it(program: Any) -> None:
    facts = program("""
with gpuprof.profile(out="a") as recording:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        initialize()
        launch(1)
    launch(4)
report(recording.run)
""")
    assert source_code(facts, "kernels") == "cupti"
    assert facts["gpu"]["kernels"] == 4


def test_a_capture_that_had_begun_is_reported(program: Any) -> None:
    facts = program("""
initialize()
capturing = True
with gpuprof.profile(out="a") as recording:
    launch(1)
report(recording.run)
""")
    assert "gpu_began_in_capture" in note_codes(facts)


def test_a_forked_child_continues_without_the_gpu(program: Any) -> None:
    facts = program("""
initialize()
with gpuprof.profile(out="a") as recording:
    launch(1)
    child = os.fork()
    if child == 0:
        with gpuprof.span("in the child"):
            launch(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    launch(1)
child = os.fork()
if child == 0:
    calls = stub_count(b"flush"), cuda.stub_cuda_count(b"calls")
    with gpuprof.profile(torch.nn.Identity(), out="b") as later:
        pass
    assert calls == (stub_count(b"flush"), cuda.stub_cuda_count(b"calls"))
    os._exit(later.run.sources["kernels"].reason.value != "forked_after_cuda")
assert os.waitpid(child, 0)[1] == 0
report(recording.run)
""")
    assert facts["gpu"]["kernels"] == 2


def test_the_stub_of_cupti_can_be_used_in_children_forked_during_its_calls(program: Any) -> None:
    """The thread that reads GPU records calls CUPTI at any time, and the tests call the stub in children."""
    facts = program("""
import signal, threading
initialize()
cupti()
done = threading.Event()
def call():
    while not done.is_set():
        for _ in range(1000):
            stub_count(b"flush")
            cuda.stub_cuda_count(b"calls")
threads = [threading.Thread(target=call) for _ in range(2)]
for thread in threads:
    thread.start()
codes = []
for _ in range(30):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        launch(1)
        cuda.stub_cuda_count(b"calls")
        os._exit(0)
    codes.append(os.waitpid(child, 0)[1])
    if codes[-1]:
        break
done.set()
for thread in threads:
    thread.join()
print(json.dumps({"codes": codes}))
""")
    assert facts["codes"] == [0] * 30


def test_children_that_use_cuda_after_the_fork_are_recorded_and_reported(program: Any) -> None:
    facts = program("""
import multiprocessing, signal
def work(count, end=None):
    initialize()
    with gpuprof.span("in the child"):
        launch(count)
    cupti().stub_set(b"dropped", ctypes.c_int64(count))
    if end is not None:
        end()
context = multiprocessing.get_context("fork")
with gpuprof.profile(out="a") as recording:
    children = [context.Process(target=work, args=(2,)), context.Process(target=work, args=(3, os.abort))]
    for child in children:
        child.start()
        child.join()
    plain = os.fork()
    if plain == 0:
        work(5)
        sys.exit(0)
    os.waitpid(plain, 0)
run = recording.run
launched = run.sql("SELECT kernels.process_id, spans.name, count(*) FROM kernels JOIN spans USING (span_id) "
                   "GROUP BY ALL")
rows = sorted((process == children[1].pid, name, count) for process, name, count in launched.fetchall())
print(json.dumps({**{key: run.meta[key] for key in ("sources", "gpu", "notes", "complete")}, "rows": rows,
                  "aborted": children[1].pid}))
""")
    assert source_code(facts, "kernels") == "cupti"
    assert [row for row in facts["rows"] if not row[0]] == [
        [False, "in the child", 2],
        [False, "in the child", 5],
    ]
    assert (facts["gpu"]["kernels"], facts["gpu"]["dropped"]) == (7, 7)
    assert note_codes(facts).count("gpu_dropped") == 2
    assert [facts["aborted"]] in [
        note["processes"] for note in facts["notes"] if note["code"] == "gpu_counts_unknown"
    ]
    assert facts["complete"] is False


def test_what_goes_wrong_stays_out_of_the_programs_first_use_of_cuda(program: Any) -> None:
    facts = program("""
from gpuprof import _native
def fail(*given):
    raise RuntimeError("out of luck")
_native.gpu_start = fail
with gpuprof.profile(out="a") as recording:
    initialize()
report(recording.run)
""")
    assert any("out of luck" in note["values"]["error"] for note in facts["notes"])


def test_a_torch_without_cuda_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: pytest.fail("called"))
    source = KernelSource(pytest.fail)
    assert source.start() == SourceStatus.off(Reason.TORCH_WITHOUT_CUDA)
    source.stop()
    assert source.facts == {"gpu": None}
    monkeypatch.setattr(torch.version, "hip", "6.4", raising=False)
    assert source.start() == SourceStatus.off(Reason.TORCH_FOR_ROCM)
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
initialize()
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
