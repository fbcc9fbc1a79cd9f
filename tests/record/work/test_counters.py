# SPDX-License-Identifier: Apache-2.0
"""Hardware counters: the pass that reads them, their table, and the command.

A fake of the native core, or stub libraries, replace the GPU. Nothing here runs on a GPU.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from run_codes import damage_codes, source_code

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof

# isort: split
import torch
from roofline_rows import know_ceilings
from torch_models import Mlp

from gpuprof.cli.main import execute
from gpuprof.record.work import counters_pass

NO_PERMISSION = {"code": "counters_no_permission", "number": 35}


class FakeCounters:
    """Replaces the native core: each operator launches one kernel of 1000 bytes, and more each time."""

    def __init__(self) -> None:
        self.reason = self.begin_reason = self.end_reason = None
        self.calls: list[str] = []
        self.types: list[list[str]] = []
        self.operators: list[int] = []
        self.incomplete: list[int] = []
        self.current = -1
        self.metrics = [
            {"name": "dram_bytes", "unit": "byte", "counter": "dram__bytes.sum"},
            {"name": "tensor_operations.tf32", "unit": "operation", "counter": None},
            {"name": "l2_bytes", "unit": "byte", "counter": "lts__t_bytes.sum"},
        ]

    def open(self, folders: list[bytes], types: list[str], most_kernels: int) -> dict[str, Any]:
        self.calls.append("open")
        self.types.append(types)
        told = {"path": "/lib/libcupti.so.13", "version": "13.0", "chip": "GH100", "passes": 1}
        return {**told, "reason": self.reason, "metrics": self.metrics}

    def begin(self) -> str:
        self.calls.append("begin")
        return self.begin_reason

    def enter(self, number: int) -> None:
        if number >= 0:
            self.operators.append(number)
        self.current = number

    def end(self) -> dict[str, Any]:
        self.calls.append("end")
        kernels = [
            (number, f"kernel {at}", [1000.0 * (at + 1), None]) for at, number in enumerate(self.operators)
        ]
        # What ran outside of every operator: copies of what is put back afterwards.
        kernels.append((-1, "copy", [1e9, 1e9]))
        incomplete = [self.operators[at] for at in self.incomplete]
        return {"reason": self.end_reason, "kernels": kernels, "incomplete": incomplete}

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCounters:
    """A GPU that the model is on, as far as the pass can see."""
    made = FakeCounters()
    for name in ("open", "begin", "enter", "end", "close"):
        monkeypatch.setattr(f"gpuprof._native.counters_{name}", getattr(made, name))
    monkeypatch.setattr(counters_pass, "why_no_cuda", lambda torch: None)
    monkeypatch.setattr(counters_pass, "_device", lambda call: torch.device("cpu"))
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr("torch.cuda.device", lambda device: contextlib.nullcontext())
    return made


@pytest.fixture(autouse=True)
def _known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    know_ceilings(monkeypatch)


def profiled(folder: Path, **options: Any) -> gpuprof.Run:
    """Record an evaluated model of two products with its counters."""
    model, x = Mlp(8).eval(), torch.ones(2, 8)
    with (
        torch.no_grad(),
        gpuprof.profile(model, out=folder / "run", **{"counters": True, **options}) as recording,
    ):
        for _ in range(3):
            model(x)
    return recording.run


def rows(run: gpuprof.Run) -> list[tuple[Any, ...]]:
    columns = "root, layer, ordinal, operator, phase, kernel, kernel_number"
    return run.sql(f"SELECT {columns}, metric, counter, value, unit, passes FROM counters").fetchall()


# ---- the pass --------------------------------------------------------------------------------


def test_each_kernel_is_with_the_operator_that_launched_it(fake: FakeCounters, tmp_path: Path) -> None:
    run = profiled(tmp_path)
    counters = run.sources["counters"]
    assert (counters.method, counters.values) == (
        "range_profiler",
        {"version": "13.0", "chip": "GH100", "passes": 1},
    )
    assert run.meta["counters"]["metrics"] == fake.metrics
    assert fake.calls == ["open", "begin", "end", "close"]
    assert fake.types == [["tf32"]]
    assert fake.current == -1
    work = run.sql("SELECT layer, ordinal, operator, phase FROM work").fetchall()
    found = [row for row in rows(run) if row[7] == "dram_bytes"]
    assert [row[1:5] for row in found] == work
    assert [row[9] for row in found] == [1000.0 * (at + 1) for at in range(len(work))]
    product = next(at for at, row in enumerate(found) if row[3] == "aten::addmm")
    last = ("byte", 1)
    assert found[product] == (
        "Mlp", "first", work[product][1], "aten::addmm", "forward",
        f"kernel {product}", 0, "dram_bytes", "dram__bytes.sum", 1000.0 * (product + 1), *last,
    )  # fmt: skip
    # Without a counter, and with one that gave nothing.
    assert {row[8:10] for row in rows(run) if row[7] == "tensor_operations.tf32"} == {(None, None)}
    assert {row[8:10] for row in rows(run) if row[7] == "l2_bytes"} == {("lts__t_bytes.sum", None)}
    process = run.sql("SELECT DISTINCT process_id FROM counters").fetchall()
    assert process == [(run.meta["process_id"],)]


def test_the_roofline_rests_on_measured_bytes_where_they_are_whole(
    fake: FakeCounters, tmp_path: Path
) -> None:
    fake.incomplete = [1]
    run = profiled(tmp_path)
    place = run.sql("SELECT layer, ordinal, operator FROM work").fetchall()[1]
    missing = [row for row in rows(run) if row[5] is None]
    assert {row[1:4] for row in missing} == {place}
    assert [row[9] for row in missing] == [None] * 3
    measured = roofline_counters(run)
    labelled = run.roofline().operators
    for row in labelled:
        if (row.layer, row.ordinal) == place[:2]:
            assert "measured" not in row.evidence_text
        elif row.bytes:
            assert (row.memory_level, row.memory_bytes) == ("dram", measured[row.layer, row.ordinal])
            assert row.nearest != "memory" or row.evidence_text.split(";")[0].endswith("measured")
    assert [row.operator for row in labelled if row.bytes].count("aten::addmm") == 2


def roofline_counters(run: gpuprof.Run) -> dict[tuple[str, int], float]:
    query = "SELECT layer, ordinal, sum(value) FROM counters WHERE metric = 'dram_bytes' GROUP BY ALL"
    return {row[:2]: row[2] for row in run.sql(query).fetchall()}


def test_refused_permission_is_one_line_and_the_run_is_whole(fake: FakeCounters, tmp_path: Path) -> None:
    fake.begin_reason = NO_PERMISSION
    run = profiled(tmp_path)
    assert source_code(run.meta, "counters") == "off: counters_refused"
    assert run.sources["counters"].values == {"detail": NO_PERMISSION}
    assert run.meta["notes"] == []
    assert fake.calls[-1] == "close"
    assert run.meta["complete"]
    assert run.meta["counters"] is None
    assert rows(run) == []
    assert run.sql("SELECT count(*) > 0 FROM work").fetchall() == [(True,)]
    assert all("measured" not in row.evidence_text for row in run.roofline().operators)


def test_a_failure_at_the_end_leaves_no_values(fake: FakeCounters, tmp_path: Path) -> None:
    fake.end_reason = {"code": "kernels_unmatched", "number": 3, "other": 4}
    run = profiled(tmp_path)
    assert rows(run) == []
    (note,) = run.notes
    assert (note.code, note.values) == ("counters_not_read", {"root": "Mlp", "detail": fake.end_reason})


def test_a_failure_of_ours_is_the_reason(
    fake: FakeCounters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(segments: Path) -> list[str]:
        raise ValueError("broken")

    monkeypatch.setattr(counters_pass, "_types", broken)
    run = profiled(tmp_path)
    assert source_code(run.meta, "counters") == "off: failed"
    assert run.sources["counters"].values == {"error": "ValueError: broken"}
    assert run.meta["work"] is not None


def test_without_a_gpu_there_is_a_reason_and_the_rest_is_as_usual(tmp_path: Path) -> None:
    run = profiled(tmp_path)
    assert run.sources["counters"].reason in ("torch_without_cuda", "no_model_on_gpu")
    assert run.meta["notes"] == []
    assert run.meta["complete"]
    assert run.meta["work"] is not None
    assert rows(run) == []


def test_damaged_counters_are_reported_and_the_rest_is_kept(
    fake: FakeCounters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(value: object) -> str:
        return json.dumps({"chip": "GH100"})

    class Json:
        dumps = staticmethod(damaged)
        loads = staticmethod(json.loads)

    monkeypatch.setattr(counters_pass, "json", Json)
    run = profiled(tmp_path)
    assert damage_codes(run.meta) == ["counters"]
    assert run.meta["work"] is not None


# ---- the command -----------------------------------------------------------------------------


def test_run_without_torch_has_the_reason_of_missing_counters(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('done')\n")
    assert execute(["run", "--counters", "--out", str(tmp_path / "run"), str(script)]) == 0
    captured = capfd.readouterr()
    assert captured.out == "done\n"
    first, last = captured.err.splitlines()
    assert first.startswith("gpuprof: no hardware counters: ")
    assert last.startswith("gpuprof: wrote ")
    assert source_code(gpuprof.open(tmp_path / "run").meta, "counters") == "off: torch_not_imported"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--counters", "--no-layers"], "--counters"),
        (["--counters", "--profiler", "torch"], "--counters"),
    ],
)
def test_options_that_do_not_go_together(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["run", *words, "script.py"]) == 2
    assert named in capsys.readouterr().err


def test_profile_wants_layers_and_operators() -> None:
    with refused(gpuprof.RecordingError, "needs_operators", "counters"):
        gpuprof.profile(counters=True, operators=False)


# ---- through the native core, against stubs --------------------------------------------------

STUB_PROGRAM = """
import contextlib
from pathlib import Path
import tempfile
import gpuprof.analyze.ceilings.of_run as ceilings
from gpuprof.record.work import counters_pass
ceilings.add_ceilings = lambda *arguments: None
counters_pass._device = lambda call: torch.device("cpu")
torch.cuda.device = lambda device: contextlib.nullcontext()
torch.cuda.synchronize = lambda: None
initialize()

library = torch.library.Library("stub", "DEF")
library.define("work(Tensor x) -> Tensor")
def work(x):
    launch_one = cupti().stub_measured_launch
    launch_one.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
    launch_one(b"_Z4gemmIfEvPT_i", ctypes.c_void_p(1))
    return x.clone()
library.impl("work", work, "CPU")

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.ops.stub.work(torch.ops.stub.work(x))

def measure(name, **settings):
    cupti().stub_reset()
    cupti().stub_set.argtypes = (ctypes.c_char_p, ctypes.c_int64)
    for key, value in settings.items():
        cupti().stub_set(key.encode(), value)
    with tempfile.TemporaryDirectory() as folder:
        model = Net()
        with torch.no_grad(), gpuprof.profile(model, out=Path(folder) / "run", counters=True) as recording:
            model(torch.ones(4))
        run = recording.run
        columns = "layer, ordinal, operator, kernel, value, counter"
        rows = run.sql(f"SELECT {columns} FROM counters WHERE metric = 'dram_bytes'").fetchall()
        meta = {key: run.meta[key] for key in ("counters", "notes", "complete")}
        source, subscribers = run.sources["counters"].to_plain(), cupti().stub_count(b"subscribers")
        return {**meta, "rows": rows, "source": source, "subscribers": subscribers}

cupti()
print(json.dumps([
    measure("whole", **{"value dram__bytes.sum": 100}),
    measure("refused", cuptiRangeProfilerStart=35),
    measure("again", **{"missing dram__bytes.sum": 1}),
]))
"""


@pytest.mark.slow
def test_stub_from_the_kernel_to_the_table(program: Any) -> None:
    answers = program(STUB_PROGRAM)
    whole, refused, again = answers
    kernel = "void gemm<float>(float*, int)"
    assert whole["rows"] == [
        ["Net", 0, "stub::work", kernel, 100.0, "dram__bytes.sum"],
        ["Net", 1, "stub::work", kernel, 101.0, "dram__bytes.sum"],
    ]
    assert whole["source"]["values"] == {"version": "13.0", "chip": "STUB100", "passes": 1}
    assert whole["counters"]["passes"] == 1
    assert refused["source"]["reason"] == "counters_refused"
    assert refused["source"]["values"]["detail"]["number"] == 35
    assert refused["notes"] == []
    assert refused["rows"] == []
    # A chip without the counter has the row, and no value.
    assert [row[4:] for row in again["rows"]] == [[None, None], [None, None]]
    assert all(each["complete"] and each["subscribers"] == 0 for each in answers)
