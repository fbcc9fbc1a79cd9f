# SPDX-License-Identifier: Apache-2.0
"""Replays of real traces of GPUs, which others recorded (`traces/README.md`)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import gpuprof
from benchmarks.public_traces import replayed
from gpuprof.analyze.findings.finding import Missing, Rule, Verdict

TRACES = Path(__file__).parent / "traces"


def kineto(name: str) -> list[dict[str, object]]:
    with gzip.open(TRACES / name, "rt", encoding="utf-8") as file:
        return json.load(file)["traceEvents"]


def imported(name: str, folder: Path) -> gpuprof.Run:
    return gpuprof.import_trace(TRACES / name, folder / "r.gpuprof")


# Wall time, and the end of the last work on the GPU, without delays that no rule explains.
RESIDUALS = {
    "hta_event_sync_multi_stream.json.gz": (0.0, 0.0),
    "hta_mi250_toy_training.json.gz": (0.0, -0.0004),
    "hta_alexnet.json.gz": (0.0, 0.0),
    "tracelens_h100_bert.json.gz": (-0.0005, -0.0006),
    "tracelens_vllm_decode.json.gz": (-0.0008, -0.0008),
}


@pytest.mark.parametrize("name", RESIDUALS)
def test_a_replay_without_changes_is_exact_and_the_residual_is_known(name: str, tmp_path: Path) -> None:
    found = replayed(imported(name, tmp_path))
    assert found["identity_ns"] == 0
    on_gpu = [event for event in kineto(name) if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    assert found["items"] == len(on_gpu)
    assert (found["residual"], found["gpu_residual"]) == pytest.approx(RESIDUALS[name], abs=1e-4)


def test_steps_of_a_profiler_are_those_of_its_annotations(tmp_path: Path) -> None:
    name = "tracelens_h100_bert.json.gz"
    marks = [event for event in kineto(name) if str(event["name"]).startswith("ProfilerStep#")]
    (mark,) = [event for event in marks if event["cat"] == "user_annotation"]
    run = imported(name, tmp_path)
    found = run.sql("SELECT source, kind, end_ns - begin_ns, forward_ns > 0 FROM steps").fetchall()
    assert found == [("annotation", "forward", round(float(str(mark["dur"])) * 1000), True)]


def test_a_small_model_on_a_large_gpu_is_launch_bound(tmp_path: Path) -> None:
    name = "tracelens_h100_bert.json.gz"
    kernels_us = sum(float(str(each["dur"])) for each in kineto(name) if each.get("cat") == "kernel")
    run = imported(name, tmp_path)
    (finding,) = run.findings()
    assert finding.rule is Rule.LAUNCHES
    assert finding.gain.step is not None
    ((step_ns,),) = run.sql("SELECT end_ns - begin_ns FROM steps").fetchall()
    # The work on the GPU remains.
    assert 0 < finding.gain.step.high_ns <= step_ns - 0.9 * kernels_us * 1000
    assert finding.values["idle_share"] == pytest.approx(1 - kernels_us * 1000 / step_ns, abs=0.02)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hta_mi250_toy_training.json.gz", (Verdict.NOT_FOUND, None)),
        ("hta_alexnet.json.gz", (Verdict.UNKNOWN, Missing.STEPS)),  # allocates, in what may be its first step
    ],
)
def test_a_trace_has_the_calls_that_allocate(
    name: str, expected: tuple[Verdict, Missing | None], tmp_path: Path
) -> None:
    results = imported(name, tmp_path).findings().results
    (found,) = [each for each in results if each.rule is Rule.ALLOCATIONS]
    assert (found.verdict, found.missing) == expected


def test_ranges_of_a_trace_without_layers_are_no_logging(tmp_path: Path) -> None:
    """`ProfilerStep#1` with a read value in it contains the model."""
    found = imported("hta_event_sync_multi_stream.json.gz", tmp_path).findings()
    assert Rule.LOGGING not in {each.rule for each in found}
