# SPDX-License-Identifier: Apache-2.0
"""Layers timed by CUDA events where CUPTI refuses, against stub libraries whose work the tests script.

Nothing here runs on a GPU, so a pass is no evidence about one.
"""

from __future__ import annotations

from typing import Any

import pytest
from run_codes import note_codes, source_code

LAYERS_WITHOUT_CUPTI = """
initialize()
cupti().stub_set(b"cuptiSubscribe", ctypes.c_int64(35))
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
def print_tables(run):
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


@pytest.mark.slow
def test_without_cupti_layers_are_timed_by_cuda_events(program: Any) -> None:
    facts = program(
        LAYERS_WITHOUT_CUPTI
        + """
with gpuprof.profile(model, out="a", operators=False) as recording:
    model(1)
    model(1)
print_tables(recording.run)
recording.run.flamegraph("page.html", weight="gpu")
"""
    )
    status = facts["sources"]["kernels"]
    assert (status["method"], status["reason"]) == ("cuda_events", "gpu_refused")
    assert status["values"]["detail"]["code"] == "cupti_no_permission"
    assert facts["layers"] == {
        "Works": [30_000, 2_000],
        "inner.0": [12_000, 4_000],
        "inner.0.inner.0": [8_000, 8_000],
        "inner.1": [16_000, 16_000],
    }
    assert (facts["kernels"], facts["gpu_ns"]) == (0, 30_000)
    assert "35" in facts["kernel"][0]
    gpu = facts["gpu"]
    assert gpu["method"] == "cuda_events"
    assert (gpu["layers"], gpu["untimed"], gpu["captured"], gpu["unfinished"]) == (8, 0, 0, 0)
    assert gpu["clock_error_ns"] >= 0
    assert facts["complete"] is True
    assert "gpu_times_of_layers" in note_codes(facts)


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
print_tables(recording.run)
"""
    )
    assert facts["layers"] == {
        "Works": [6_000, 1_000],
        "inner.0": [5_000, 0],
        "inner.0.inner.0": [5_000, 5_000],
    }


def test_calls_of_layers_that_are_not_timed_are_reported(program: Any) -> None:
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
print_tables(recording.run)
"""
    )
    assert (facts["gpu"]["layers"], facts["gpu"]["untimed"]) == (0, 4)
    assert {"count": 4} in [note["values"] for note in facts["notes"] if note["code"] == "layers_not_timed"]
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
print_tables(recording.run)
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
print_tables(recording.run)
"""
    )
    problems = [note["values"]["detail"] for note in facts["notes"] if note["code"] == "events_problem"]
    assert problems == [{"code": "driver_error_ended_timing", "number": 700}]


def test_where_layers_are_not_recorded_none_is_timed(program: Any) -> None:
    facts = program(
        LAYERS_WITHOUT_CUPTI
        + """
with gpuprof.profile(out="a", layers=False, operators=False) as recording:
    model(1)
report(recording.run)
"""
    )
    assert source_code(facts, "kernels") == "off: gpu_refused"
    assert facts["gpu"] is None


@pytest.mark.slow
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
print_tables(recording.run)
"""
    )
    assert source_code(facts, "kernels") == "cuda_events"
    assert facts["gpu"]["layers"] == 12
