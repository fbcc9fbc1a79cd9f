# SPDX-License-Identifier: Apache-2.0
"""The roofline of GPUs, simulated: a host and streams of an invented GPU, whose times are given.

No GPU is involved, and a pass here is no evidence about one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import refused_command
from roofline_rows import far, near
from simulated_gpu import DEVICE, L2_BYTES, Operator, SimulatedRun, ceilings_of, copying, on

from gpuprof import api
from gpuprof.analyze.ceilings.ceiling import Ceiling
from gpuprof.analyze.roofline.build import Roofline, build_roofline
from gpuprof.analyze.roofline.evidence import Fix, NoLabel, RooflineNote, RooflineNoteCode
from gpuprof.analyze.roofline.labels import Bound, Resource
from gpuprof.analyze.roofline.rows import RooflineRow
from gpuprof.cli.main import execute
from gpuprof.run.folder import RunFolder
from gpuprof.text.units import format_duration

# Occupies the stream so long that everything after it has to wait.
LONG = Operator("aten::conv", [("long_kernel", 3_000_000)], flops=None, exactness="unknown", layer="stem")
SMALL = Operator("aten::add", [("small_kernel", 2500)], flops=4, bytes=48, reuse=(near(48),))


def roofline_of(simulated: SimulatedRun, tmp_path: Path) -> Roofline:
    return build_roofline(RunFolder(simulated.write(tmp_path / "simulated.gpuprof")))


def one(rows: tuple[RooflineRow, ...], operator: str, device: str = DEVICE) -> RooflineRow:
    (row,) = [row for row in rows if (row.operator, row.device) == (operator, device)]
    return row


def simulated_row(operator: Operator, tmp_path: Path, **values: Any) -> RooflineRow:
    """The row of an operator that is called ten times."""
    run = SimulatedRun([operator], **values).call(10)
    return one(roofline_of(run, tmp_path).operators, operator.name)


def test_simulated_copy_of_four_times_the_cache_is_bound_by_dram(tmp_path: Path) -> None:
    row = simulated_row(copying(8 * L2_BYTES, 90_000), tmp_path)
    assert (row.bound, row.memory_level) == ("memory", "dram")
    assert row.roof_share == pytest.approx(80 / 90)
    assert row.evidence_text == "cuda:0: 0.889 of 1 TB/s dram, 80.0 MB; latency 2%"
    assert row.used["page faults"] is None
    assert row.confidence > 0.9


def test_simulated_copy_within_the_cache_is_bound_by_it(tmp_path: Path) -> None:
    half = L2_BYTES // 4
    operator = Operator("aten::add", [("k", 1_500)], bytes=2 * half, reuse=(near(half), near(half)))
    row = simulated_row(operator, tmp_path, ceilings=[*ceilings_of()[:-2]])
    assert (row.bound, row.memory_level) == ("memory", "l2")


def test_simulated_time_is_that_of_the_kernels_and_not_of_the_host(tmp_path: Path) -> None:
    row = simulated_row(copying(8 * L2_BYTES, 90_000, host_ns=5_000_000), tmp_path)
    assert (row.time_ns, row.total_ns, row.calls) == (90_000, 900_000, 10)
    assert row.time_share == 1
    assert row.bound == "memory"


def test_simulated_bf16_product_is_bound_by_compute(tmp_path: Path) -> None:
    product = Operator(
        "aten::mm", [("gemm", 250_000)], flops=2 * 10**10, bytes=10**7, dtype="bfloat16", reuse=(far(10**7),)
    )
    row = simulated_row(product, tmp_path)
    assert (row.bound, row.roof, row.roof_share) == ("compute", "compute bf16", pytest.approx(0.8))


def test_simulated_bf16_linear_of_one_row_is_bound_by_memory(tmp_path: Path) -> None:
    linear = Operator(
        "aten::addmm", [("gemv", 110_000)], flops=10**8, bytes=10**8, dtype="bfloat16", reuse=(far(10**8),)
    )
    row = simulated_row(linear, tmp_path)
    assert (row.bound, row.memory_level) == ("memory", "dram")
    assert row.advice is not None
    assert row.advice.fix == Fix.BATCH_ROWS


# ---- launching -------------------------------------------------------------------------------


def test_simulated_small_kernels_after_a_late_host_are_launch_bound(tmp_path: Path) -> None:
    roofline = roofline_of(SimulatedRun([SMALL]).call(10), tmp_path)
    row = one(roofline.operators, "aten::add")
    assert (row.bound, row.nearest, row.roof) == ("launch", "latency", "launch")
    assert "2.50 us, floor 2.00 us, host late 9 of 9" in row.evidence_text
    assert row.advice is not None
    assert row.advice.fix == Fix.CUDA_GRAPH
    assert one(roofline.kernels, "aten::add").bound == "launch"
    (layer,) = roofline.layers
    assert (layer.layer, layer.bound) == ("fc", "launch")


def test_simulated_small_kernels_that_wait_in_line_are_not_launch_bound(tmp_path: Path) -> None:
    run = SimulatedRun([LONG, SMALL]).call(10)
    row = one(roofline_of(run, tmp_path).operators, "aten::add")
    assert (row.bound, row.nearest) == (Bound.LATENCY, Resource.LATENCY)
    assert "host late 0 of 10" in row.evidence_text
    assert row.advice is None or row.advice.fix != Fix.CUDA_GRAPH


def test_simulated_kernels_that_take_long_are_not_launch_bound_however_late_the_host_is(
    tmp_path: Path,
) -> None:
    row = simulated_row(copying(8 * L2_BYTES, 90_000, host_ns=300_000), tmp_path)
    assert row.bound == "memory"


def test_simulated_gap_without_a_late_host_is_not_the_host_s_doing(tmp_path: Path) -> None:
    run = SimulatedRun([LONG, SMALL]).call(10)
    for kernel in run.kernels:
        # Something else held the stream up: it was launched long before the stream was empty.
        kernel["start_ns"] += 10_000 if kernel["name"] == "small_kernel" else 0
    row = one(roofline_of(run, tmp_path).operators, "aten::add")
    assert row.bound == "latency"


def test_simulated_replays_of_a_graph_are_calls_and_never_launch_bound(tmp_path: Path) -> None:
    run = SimulatedRun([SMALL]).call()
    run.kernels.clear()  # captured, and not run
    row = one(roofline_of(run.replay(6), tmp_path).operators, "aten::add")
    assert (row.calls, row.time_ns, row.bound) == (6, 2500, "latency")
    assert "host lateness unknown" in row.evidence_text


# ---- several kernels, none, or unattributed -----------------------------------------------------


def test_simulated_operator_of_several_kernels_has_their_sum_and_splits_no_work(tmp_path: Path) -> None:
    split = Operator(
        "aten::mm",
        [("gemm_splitk", 150_000), ("reduce", 50_000), ("tiny", 2000)],
        flops=16 * 10**9,
        bytes=100,
        dtype="bfloat16",
        reuse=(far(100),),
    )
    roofline = roofline_of(SimulatedRun([split]).call(10), tmp_path)
    row = one(roofline.operators, "aten::mm")
    assert (row.time_ns, row.flops, row.bound) == (202_000, 16 * 10**9, "compute")
    assert (row.launches, row.used["latency"]) == (3, pytest.approx(3 * 2000 / 202_000))
    kernels = {row.name.partition(" @ ")[0]: row for row in roofline.rows("kernel")}
    assert list(kernels) == ["gemm_splitk", "reduce", "tiny"]  # the longest first
    assert {row.flops for row in kernels.values()} == {None}
    assert kernels["gemm_splitk"].bound == "unknown"
    assert "one of 3 that aten::mm launches" in kernels["gemm_splitk"].evidence_text
    assert kernels["gemm_splitk"].time_share == pytest.approx(150 / 202)
    # That it does next to nothing is known without its work.
    assert kernels["tiny"].bound in ("latency", "launch")


def test_simulated_counters_show_the_work_of_one_kernel_of_several(tmp_path: Path) -> None:
    kernels_of_it = [("histogram", 100_000), ("scatter", 50_000)]
    split = Operator("aten::sort", kernels_of_it, flops=None, bytes=None, exactness="unknown")
    measured = {("aten::sort", "histogram", "dram_bytes"): 9e7, ("aten::sort", "scatter", "dram_bytes"): 1e6}
    roofline = roofline_of(SimulatedRun([split], counters=measured).call(10), tmp_path)
    kernels = {row.name.partition(" @ ")[0]: row for row in roofline.rows("kernel")}
    assert (kernels["histogram"].bound, kernels["histogram"].roof_share) == ("memory", pytest.approx(0.9))
    assert "90.0 MB measured" in kernels["histogram"].evidence_text
    assert kernels["scatter"].bound == "unknown"
    operator = one(roofline.operators, "aten::sort")
    assert (operator.bound, operator.memory_bytes) == ("memory", 9.1e7)


def test_simulated_kernel_of_an_operator_alone_has_its_work_and_label(tmp_path: Path) -> None:
    roofline = roofline_of(SimulatedRun([copying(8 * L2_BYTES, 90_000)]).call(10), tmp_path)
    (kernel,) = roofline.rows("kernel")
    operator = one(roofline.operators, "aten::copy_")
    assert (kernel.bound, kernel.bytes, kernel.used) == (operator.bound, operator.bytes, operator.used)
    assert kernel.name == "copy_kernel @ fc"


def test_simulated_kernel_without_an_operator_is_listed_with_its_time(tmp_path: Path) -> None:
    run = SimulatedRun([copying(8 * L2_BYTES, 90_000)]).call(10).stray("somebody_s", 100_000)
    roofline = roofline_of(run, tmp_path)
    (row,) = [row for row in roofline.unmatched if row.device == DEVICE]
    assert (row.operator, row.total_ns, row.time_share) == ("somebody_s", 100_000, pytest.approx(0.1))
    assert row.reason == NoLabel.OUTSIDE_OPERATORS
    assert roofline.matched_share == pytest.approx(0.9)
    assert roofline.kernels[-1].bound == "unknown"


def test_simulated_operator_that_was_not_counted_is_listed_with_the_time_of_its_kernels(
    tmp_path: Path,
) -> None:
    other = Operator("aten::other", [("k", 10_000)], is_counted=False)
    roofline = roofline_of(SimulatedRun([copying(8 * L2_BYTES, 90_000), other]).call(10), tmp_path)
    (row,) = [row for row in roofline.unmatched if row.operator == "aten::other"]
    assert (row.device, row.calls, row.total_ns) == (DEVICE, 10, 100_000)
    # The layer has all kernels that were launched in it.
    assert roofline.layers[0].time_ns == 100_000


def test_simulated_copies_between_host_and_gpu_have_no_ceiling(tmp_path: Path) -> None:
    fetch = copying(8 * L2_BYTES, 3_000_000, copies=("pageable", "device"))
    row = simulated_row(fetch, tmp_path)
    assert (row.bound, row.confidence) == ("unknown", 0)
    assert row.evidence.reason == NoLabel.HOST_COPY


def test_simulated_copies_within_the_gpu_are_as_kernels(tmp_path: Path) -> None:
    row = simulated_row(copying(8 * L2_BYTES, 90_000, copies=("device", "device")), tmp_path)
    assert (row.bound, row.memory_level) == ("memory", "dram")


def test_simulated_backward_pass_is_its_kernels_too(tmp_path: Path) -> None:
    forward = copying(8 * L2_BYTES, 90_000)
    backward = Operator(
        "aten::mm", [("gemm", 250_000)], 2 * 10**10, 10**7, (far(10**7),), "bfloat16", phase="backward"
    )
    roofline = roofline_of(SimulatedRun([forward, backward]).call(10), tmp_path)
    row = one(roofline.operators, "aten::mm")
    assert (row.phase, row.bound, row.time_ns, row.calls) == ("backward", "compute", 250_000, 10)
    (layer,) = roofline.layers
    assert (layer.time_ns, layer.total_ns, layer.launches) == (340_000, 3_400_000, 2)


# ---- devices ---------------------------------------------------------------------------------


def test_simulated_devices_are_compared_with_their_own_ceilings(tmp_path: Path) -> None:
    first, second = copying(8 * L2_BYTES, 90_000), copying(8 * L2_BYTES, 90_000, layer="other")
    run = SimulatedRun(
        [first, *on("cuda:1", second)],
        gpus=(DEVICE, "cuda:1"),
        ceilings=[*ceilings_of(), *ceilings_of("cuda:1", factor=4)],
    ).call(10)
    roofline = roofline_of(run, tmp_path)
    slow, fast = (one(roofline.operators, "aten::copy_", device) for device in (DEVICE, "cuda:1"))
    assert (slow.bound, fast.bound) == ("memory", "underutilized")
    assert slow.roof_share == pytest.approx(4 * (fast.roof_share or 0))
    assert fast.evidence.gpu == "cuda:1"
    assert {row.device for row in roofline.layers} == {DEVICE, "cuda:1"}
    assert {row.device for row in roofline.ceilings} == {DEVICE, "cuda:1"}


def test_simulated_gpu_without_ceilings_has_no_labels_and_a_note(tmp_path: Path) -> None:
    row, roofline = _without_ceilings(tmp_path)
    assert (row.bound, row.device) == ("unknown", "cuda:3")
    assert RooflineNote(RooflineNoteCode.GPU_WITHOUT_CEILINGS, device="cuda:3") in roofline.notes


def _without_ceilings(tmp_path: Path) -> tuple[RooflineRow, Roofline]:
    run = SimulatedRun(on("cuda:3", copying(8 * L2_BYTES, 90_000))).call(3)
    roofline = roofline_of(run, tmp_path)
    return one(roofline.operators, "aten::copy_", "cuda:3"), roofline


def test_simulated_operators_of_host_and_gpu_have_separate_rows(tmp_path: Path) -> None:
    on_host = Operator("aten::embedding", bytes=10_000_000, reuse=(far(10_000_000),), host_ns=1_100_000)
    roofline = roofline_of(SimulatedRun([on_host, copying(8 * L2_BYTES, 90_000)]).call(10), tmp_path)
    assert [device.device for device in roofline.devices] == [DEVICE, "cpu"]
    host = one(roofline.operators, "aten::embedding", "cpu")
    assert (host.bound, host.memory_level) == ("memory", "dram")
    assert host.evidence.gpu is None
    assert host.time_share == pytest.approx(0.99, abs=0.02)  # of the host's time
    assert one(roofline.operators, "aten::copy_").time_share == 1  # of the GPU's
    text = str(roofline)
    assert "cuda:0, Invented" in text
    assert "ceilings (cuda:0)" in text
    assert "ceilings (all cores)" in text


def test_simulated_run_whose_kernels_were_not_recorded_claims_nothing(tmp_path: Path) -> None:
    run = SimulatedRun([copying(8 * L2_BYTES, 90_000)]).call(3)
    run.kernels.clear()
    roofline = roofline_of(run, tmp_path)
    (row,) = roofline.operators
    assert row.bound == "unknown"
    assert row.evidence.reason == NoLabel.KERNELS_NOT_RECORDED
    assert [note.names for note in roofline.notes if note.code == RooflineNoteCode.KERNELS_NOT_RECORDED] == [
        ("Net",)
    ]
    assert {row.bound for row in roofline.layers} == {"unknown"}


def host_run(*operators: Operator) -> SimulatedRun:
    return SimulatedRun(operators, gpus=()).call(10)


SCAN = Operator("mylib::scan", flops=None, bytes=None, exactness="unknown", layer="head", host_ns=98_000)
ADD = Operator("aten::add", bytes=10_000, reuse=(far(10_000),), host_ns=2000)


def test_simulated_operator_without_a_count_has_no_label(tmp_path: Path) -> None:
    roofline = roofline_of(host_run(SCAN, ADD), tmp_path)
    row = one(roofline.operators, SCAN.name, "cpu")
    assert (row.bound, row.nearest, row.roof, row.roof_share) == ("unknown", None, None, None)
    assert row.evidence.reason == NoLabel.WORK_UNKNOWN
    (listed,) = [each for each in roofline.unmatched if each.operator == SCAN.name]
    assert (listed.reason, listed.layer, listed.calls) == (NoLabel.WORK_UNKNOWN, "head", 10)
    labelled = one(roofline.operators, ADD.name, "cpu")
    assert roofline.matched_share == pytest.approx(labelled.total_ns / roofline.total_ns)
    assert roofline.matched_share < 0.1
    assert "mylib::scan @ head: its work is unknown" in str(roofline)


def test_simulated_layer_that_an_uncounted_operator_fills_has_no_label(tmp_path: Path) -> None:
    layers = {row.layer: row for row in roofline_of(host_run(SCAN, ADD), tmp_path).layers}
    assert (layers["head"].bound, layers["head"].roof_share) == ("unknown", None)
    assert layers["head"].evidence_text == "uncounted operators take 100% of its time"
    assert layers["fc"].bound != "unknown"


def test_simulated_uncounted_kernel_has_no_ceiling(tmp_path: Path) -> None:
    uncounted = Operator("mylib::scan", [("scan", 90_000)], flops=None, bytes=None, exactness="unknown")
    (kernel,) = roofline_of(SimulatedRun([uncounted]).call(10), tmp_path).kernels
    assert (kernel.bound, kernel.roof_share) == ("unknown", None)
    assert (kernel.evidence.reason, kernel.evidence.gpu) == (NoLabel.WORK_UNKNOWN, DEVICE)


def test_simulated_share_is_of_the_time_in_calls_or_of_the_gpu(tmp_path: Path) -> None:
    host, gpu = tmp_path / "host", tmp_path / "gpu"
    host.mkdir()
    gpu.mkdir()
    roofline = roofline_of(host_run(ADD), host)
    on_host = " ".join(str(roofline).split())
    assert f"of the time in recorded calls ({format_duration(roofline.total_ns)})" in on_host
    assert "all recorded" not in on_host
    on_gpu = " ".join(str(roofline_of(SimulatedRun([SMALL]).call(10), gpu)).split())
    assert "of the time on cuda:0 (25.0 us)." in on_gpu


# ---- TF32 and what was worked out ------------------------------------------------------------

FP32_PRODUCT = Operator("aten::mm", [("gemm", 250_000)], flops=8 * 10**9, bytes=10**6, reuse=(far(10**6),))


@pytest.mark.parametrize(
    ("allowed", "ceiling", "share", "least", "most"),
    [
        (True, "compute tf32", 0.8, 0.9, 1.0),
        (None, "compute tf32", 0.8, 0.4, 0.8),
        (False, None, None, 0.0, 0.0),  # 3.2 times the ceiling of fp32: nothing is known
    ],
)
def test_simulated_product_of_fp32_may_be_tf32(
    allowed: bool | None, ceiling: str | None, share: float | None, least: float, most: float, tmp_path: Path
) -> None:
    row = simulated_row(FP32_PRODUCT, tmp_path, tf32={"matmul": allowed, "convolution": False})
    assert (row.roof, row.roof_share) == (ceiling, share if share is None else pytest.approx(share))
    assert least <= row.confidence <= most
    assert ("if it may use TF32" in row.evidence_text) is (allowed is None)


def test_simulated_convolution_has_a_switch_of_its_own(tmp_path: Path) -> None:
    convolution = Operator(
        "aten::cudnn_convolution", [("conv", 250_000)], flops=8 * 10**9, bytes=10**6, reuse=(far(10**6),)
    )
    row = simulated_row(convolution, tmp_path, tf32={"matmul": False, "convolution": True})
    assert row.roof == "compute tf32"


def test_simulated_elementwise_fp32_is_never_tf32(tmp_path: Path) -> None:
    operator = Operator("aten::gelu", [("k", 90_000)], flops=8 * 10**8, bytes=100, reuse=(far(100),))
    row = simulated_row(operator, tmp_path, tf32={"matmul": True, "convolution": True})
    assert row.roof == "compute fp32"


def test_simulated_computed_ceiling_lowers_the_confidence(tmp_path: Path) -> None:
    def memory(measurement: str) -> list[Ceiling]:
        parts = ("memory.dram", f"memory.dram.{measurement}")
        return [Ceiling(DEVICE, part, None, 1e12, "bytes_per_s", None, "by hand") for part in parts]

    sure = simulated_row(copying(8 * L2_BYTES, 90_000), tmp_path / "..", ceilings=memory("read"))
    (tmp_path / "other").mkdir()
    worked_out = memory("theoretical")
    unsure = simulated_row(copying(8 * L2_BYTES, 90_000), tmp_path / "other", ceilings=worked_out)
    assert (sure.bound, unsure.bound) == ("memory", "memory")
    assert unsure.confidence == pytest.approx(0.8 * sure.confidence)


# ---- advice ----------------------------------------------------------------------------------


def test_simulated_advice_for_a_product_of_fp32_is_tf32(tmp_path: Path) -> None:
    slow = Operator("aten::mm", [("gemm", 900_000)], flops=8 * 10**9, bytes=10**6, reuse=(far(10**6),))
    row = simulated_row(slow, tmp_path, tf32={"matmul": False, "convolution": False})
    assert row.bound == "compute"
    assert row.advice is not None
    assert row.advice.fix == Fix.ALLOW_TF32


# ---- the command -----------------------------------------------------------------------------


def test_simulated_run_in_the_command_and_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = SimulatedRun([copying(8 * L2_BYTES, 90_000), SMALL]).call(10)
    path = str(run.write(tmp_path / "simulated.gpuprof"))
    page = tmp_path / "roofline.html"
    assert execute(["roofline", path, "--by", "kernel", "-o", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "copy_kernel @ fc" in printed
    assert "launch" in printed
    assert execute(["roofline", path, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["roofline"]
    assert values["device"] == DEVICE
    assert {row["device"] for row in values["kernels"]} == {DEVICE}
    assert "cuda:0" in page.read_text(encoding="utf-8")


def test_simulated_run_without_a_gpu_has_no_kernels(tmp_path: Path) -> None:
    on_host = Operator("aten::embedding", bytes=10_000_000, reuse=(far(10_000_000),))
    path = str(SimulatedRun([on_host], gpus=()).call(2).write(tmp_path / "simulated.gpuprof"))
    refused_command(["roofline", path, "--by", "kernel"], "no_kernels", path)
    assert api.open(path).roofline().devices[0].device == "cpu"


# ---- from a recording, against stubs ---------------------------------------------------------

RECORDED = """
initialize()
from gpuprof.analyze.ceilings import of_run
from gpuprof.analyze.ceilings.ceiling import Ceiling, Ceilings
ceiling = Ceiling("cpu", "launch", None, 1000.0, "ns", 0.0, "by hand")
of_run.load_ceilings = lambda: (Ceilings((ceiling,), "2030", {}), True)
class Launching(torch.nn.Linear):
    def forward(self, value):
        launch(2)
        return super().forward(value)
model = Launching(4, 4)
with gpuprof.profile(model, out="a", work=True) as recording, torch.no_grad():
    for _ in range(3):
        model(torch.ones(2, 4))
roofline = recording.run.roofline()
print(json.dumps({"gpu": recording.run.meta["work"]["gpu"], **roofline.to_dict()}))
"""


def test_stub_kernels_of_a_recording_are_found_in_their_layer(program: Any) -> None:
    facts = program(RECORDED)
    assert [device["device"] for device in facts["devices"]] == [DEVICE, "cpu"]
    (kernel,) = facts["kernels"]
    assert (kernel["layer"], kernel["calls"], kernel["total_ns"]) == ("Launching", 6, 6000)
    assert kernel["name"] == "gemm<float> @ Launching"
    assert kernel["kernel"].startswith("void gemm<float>")
    assert (facts["gpu"], kernel["bound"]) == (None, "unknown")  # its tensors are the host's
    stray = [row for row in facts["unmatched"] if row["device"] == DEVICE]
    assert [row["reason"] for row in stray] == ["launched outside of every recorded operator"]
