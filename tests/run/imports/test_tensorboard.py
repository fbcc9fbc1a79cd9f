# SPDX-License-Identifier: Apache-2.0
"""What is exported for TensorBoard, read by the plugin's rules and, where it is installed, by the plugin.

GPU work is replayed from a trace. torch-tb-profiler is no part of the development tools: it brings pandas and
all of TensorBoard.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

import gpuprof
from gpuprof.errors import RunError

# How the plugin reads a worker and a time from a file's name.
WORKER = re.compile(r"^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$")


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": 700, "tid": 1, "ts": ts, "dur": dur, "name": name, "cat": cat, "args": args}


def on_gpu(name: str, ts: float, dur: float, correlation: int, cat: str = "kernel") -> dict[str, Any]:
    args = {"correlation": correlation, "device": 1, "context": 1, "stream": 7, "grid": [4, 2, 1]}
    args |= {"block": [64, 1, 1], "registers per thread": 32}
    return {"ph": "X", "pid": 1, "tid": 7, "ts": ts, "dur": dur, "name": name, "cat": cat, "args": args}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two steps of a model with one layer, whose operator launches a kernel, and a copy in the second."""
    events = []
    for number, begin in enumerate((0, 100)):
        events += [
            event("step", begin + 10, 80, cat="user_annotation"),
            event("nn.Module: Net", begin + 20, 50, cat="python_function"),
            event("nn.Module: fc", begin + 22, 40, cat="python_function"),
            event("aten::mm", begin + 25, 30),
            event("cudaLaunchKernel", begin + 30, 3, cat="cuda_runtime", correlation=number + 1),
            on_gpu("gemm<float>", begin + 40, 40, number + 1),
        ]
    events += [event("aten::copy_", 175, 10), event("cudaMemcpyAsync", 176, 2, "cuda_runtime", correlation=9)]
    events += [
        on_gpu("Memcpy HtoD (Pageable -> Device)", 178, 5, 9, "gpu_memcpy"),
        on_gpu("orphan", 190, 2, 99),
    ]
    events.append(event("ProfilerStep#none", 195, 1, cat="user_annotation"))
    path = tmp_path / "source.json"
    path.write_text(json.dumps({"traceEvents": events}))
    run = gpuprof.import_trace(path, tmp_path / "r.gpuprof")
    return run.export(tmp_path / "host.1700000000000.pt.trace.json")


def slices(trace: Path) -> list[dict[str, Any]]:
    content = json.loads(trace.read_text(encoding="utf-8"))
    assert content["schemaVersion"] == 1
    assert all("name" in each for each in content["traceEvents"])
    return [each for each in content["traceEvents"] if each["ph"] == "X"]


def test_the_name_is_one_that_the_plugin_finds(trace: Path) -> None:
    found = WORKER.match(trace.name)
    assert found is not None
    assert found.groups() == ("host", ".1700000000000")


def test_steps_are_numbered(trace: Path) -> None:
    steps = {each["name"]: each for each in slices(trace) if each["name"].startswith("ProfilerStep#")}
    assert sorted(steps) == ["ProfilerStep#0", "ProfilerStep#1"]
    assert {each["cat"] for each in steps.values()} == {"user_annotation"}
    assert [each["dur"] for each in steps.values()] == [80, 80]


def test_kernels_are_correlated_with_operators(trace: Path) -> None:
    found = slices(trace)
    operators = {
        each["args"]["External id"]: each for each in found if each["cat"] == "cpu_op" and "args" in each
    }
    launches = {each["args"]["correlation"]: each for each in found if each["cat"] == "Runtime"}
    assert 0 not in operators
    tied = []
    for kernel in found:
        if kernel["cat"] in ("kernel", "gpu_memcpy") and "External id" in kernel["args"]:
            launch = launches.pop(kernel["args"]["correlation"])
            assert launch["args"]["External id"] == kernel["args"]["External id"]
            operator = operators[kernel["args"]["External id"]]
            assert operator["ts"] <= launch["ts"] <= operator["ts"] + operator["dur"]
            tied.append((operator["name"], kernel["name"]))
            assert kernel["pid"] == kernel["args"]["device"] == 1
    assert not launches
    assert sorted(tied) == [
        ("aten::copy_", "copy pageable to device"),
        ("aten::mm", "gemm<float>"),
        ("aten::mm", "gemm<float>"),
    ]


def test_layers_are_modules_inside_one_another(trace: Path) -> None:
    modules = [each for each in slices(trace) if each["cat"] == "python_function"]
    by_number = {each["args"]["Python id"]: each for each in modules}
    inner = [each for each in modules if each["name"] == "nn.Module: fc"]
    assert len(inner) == 2
    for each in inner:
        assert by_number[each["args"]["Python parent id"]]["name"] == "nn.Module: Net"
    assert len({each["args"]["Python module id"] for each in inner}) == 1


@pytest.mark.needs("torch_tb_profiler")
@pytest.mark.filterwarnings("ignore")  # of the plugin and of pandas
def test_the_plugin_reads_it(trace: Path, tmp_path: Path) -> None:
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.module_op import aggegate_module_view

    profile = RunProfileData.parse("host", None, str(trace), str(tmp_path))
    assert profile.steps_names == ["0", "1"]
    assert profile.has_kernel
    assert profile.has_runtime
    assert profile.has_memcpy_or_memset
    assert profile.used_devices == [1]
    operators = {each.name: each for each in profile.op_list_groupby_name}
    assert operators["aten::mm"].calls == 2
    assert operators["aten::mm"].device_duration == pytest.approx(80)
    kernels = {each.name: each for each in profile.kernel_list_groupby_name_op}
    assert kernels["gemm<float>"].op_name == "aten::mm"
    modules = aggegate_module_view(profile.tid2tree, profile.events)
    assert [(each.name, each.occurences) for each in modules] == [("Net", 2)]
    assert [(each.name, each.device_duration) for each in modules[0].children] == [("fc", 80)]


def test_a_run_of_a_processor_alone(record: Any, tmp_path: Path) -> None:
    def program() -> None:
        with gpuprof.span("step"), gpuprof.span("work"):
            pass

    found = slices(record(program).run.export(tmp_path / "cpu.pt.trace.json"))
    assert [each["name"] for each in found] == ["ProfilerStep#0", "work"]
    content = json.loads((tmp_path / "cpu.pt.trace.json").read_text())
    assert content["deviceProperties"] == []


def test_a_missing_folder_is_an_error(record: Any, tmp_path: Path) -> None:
    run = record(lambda: None).run
    with refused(RunError, "cannot_write"):
        run.export(tmp_path / "none" / "host.pt.trace.json")
