# SPDX-License-Identifier: Apache-2.0
"""The roofline from end to end: counted after the recording, joined, printed, and every bad input refused."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from refusals import refused, refused_command
from run_codes import damage_codes, note_codes, source_code

import gpuprof

# Before torch, which looks for the collector of its operators while it is imported.
from gpuprof.record.facts import Method, Reason, SourceStatus

# isort: split
import torch
from roofline_rows import ceilings, know_ceilings
from run_edits import change_meta
from torch import nn
from torch_models import ConvNet, Mlp, Transformer, make_input

from gpuprof.analyze.ceilings.cache import store
from gpuprof.analyze.ceilings.ceiling import Ceiling, Ceilings
from gpuprof.analyze.ceilings.cpu import machine_key
from gpuprof.analyze.roofline.evidence import (
    ComputeFigures,
    Evidence,
    FaultFigures,
    MemoryFigures,
    NoLabel,
    RooflineNote,
    RooflineNoteCode,
)
from gpuprof.analyze.roofline.labels import Bound, Resource
from gpuprof.analyze.roofline.rows import RooflineRow, folded
from gpuprof.analyze.roofline.text import note_text
from gpuprof.cli.main import execute
from gpuprof.record.first_calls import MOST_ROOTS
from gpuprof.run.facts import work_status
from gpuprof.run.messages import missing_work_text

Profiled = Callable[..., gpuprof.Run]


@pytest.fixture(autouse=True)
def _known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = {"resource": "page_fault", "value": 500.0, "spread": 0.01, "method": "known"}
    know_ceilings(monkeypatch, fault)


@pytest.fixture
def profiled(tmp_path: Path) -> Profiled:
    """`profiled(body, model)` records `body` with the work of the models."""
    count = 0

    def run(body: Callable[[], object], *models: nn.Module, **options: Any) -> gpuprof.Run:
        nonlocal count
        count += 1
        with gpuprof.profile(*models, out=tmp_path / f"{count}.gpuprof", work=True, **options) as recording:
            body()
        return recording.run

    return run


def found(rows: tuple[RooflineRow, ...], operator: str, phase: str = "forward") -> list[RooflineRow]:
    return [row for row in rows if (row.operator, row.phase) == (operator, phase)]


# ---- what is found ---------------------------------------------------------------------------


def test_every_counted_operator_of_an_evaluated_model_is_timed(profiled: Profiled) -> None:
    model, x = Mlp(8).eval(), torch.ones(2, 8)

    def body() -> None:
        with torch.no_grad():
            for _ in range(5):
                model(x)

    roofline = profiled(body, model).roofline()
    first, second = found(roofline.operators, "aten::addmm")
    assert {first.layer, second.layer} == {"first", "second"}
    assert (first.flops, first.calls) == (2 * 2 * 8 * 8, 5)
    assert first.time_ns > 0
    assert first.total_ns >= 4 * first.time_ns / 2
    assert {row.layer for row in roofline.layers} == {"first", "activation", "second"}
    assert all(0 <= row.confidence <= 1 and row.evidence for row in roofline.operators)


@pytest.mark.parametrize("name", ["transformer", "convnet"])
def test_a_training_step_is_matched_forward_and_backward(profiled: Profiled, name: str) -> None:
    model, x = {"transformer": Transformer, "convnet": ConvNet}[name](), make_input(name)

    def body() -> None:
        for _ in range(3):
            model(x).sum().backward()

    run = profiled(body, model)
    counted = run.sql("SELECT count(*) FROM work WHERE bytes > 0").fetchall()[0][0]
    roofline = run.roofline()
    timed = [row for row in roofline.operators if row.bytes]
    # Calls of an operator with equal work in one layer are one row.
    assert sum(row.calls for row in timed) >= 0.95 * 3 * counted
    assert all(row.calls % 3 == 0 for row in timed if row.phase == "forward")
    assert {row.phase for row in timed} == {"forward", "backward"}
    assert sum(row.total_ns for row in roofline.operators) <= roofline.total_ns


STEPS = 200


class Looping(nn.Module):
    """The same operators of the same layer, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(STEPS):
            x = torch.tanh(self.fc(x))
        return x


@pytest.mark.slow
def test_a_loop_in_a_layer_has_one_row_an_operator(profiled: Profiled) -> None:
    model, x = Looping(), torch.ones(2, 4)
    roofline = profiled(lambda: [model(x).sum().backward() for _ in range(2)], model).roofline()
    (row,) = found(roofline.operators, "aten::tanh")
    assert (row.layer, row.calls) == ("Looping", 2 * STEPS)
    assert len(roofline.operators) < 30


def test_other_sizes_of_an_operator_are_one_line_of_the_table(profiled: Profiled) -> None:
    model = Mlp(4)
    roofline = profiled(lambda: [model(torch.ones(2 + size, 4)) for size in range(6)], model).roofline()
    linear = found(roofline.operators, "aten::linear") or found(roofline.operators, "aten::addmm")
    assert len(linear) > len({row.layer for row in linear})
    table = folded(roofline.operators)
    rows = [(row.name, row.phase, row.dtype, row.bound, row.memory_level) for row in table]
    assert len(rows) == len(set(rows))
    assert sum(row.calls for row in table) == sum(row.calls for row in roofline.operators)


def test_a_loss_module_is_joined_too(profiled: Profiled) -> None:
    model, loss, x = Mlp(4), nn.MSELoss(), torch.ones(2, 4)
    roofline = profiled(lambda: loss(model(x), x).backward(), model, loss).roofline()
    assert found(roofline.operators, "aten::mse_loss")[0].root == "MSELoss"
    assert found(roofline.operators, "aten::mse_loss_backward", "backward")
    assert found(roofline.operators, "aten::mm", "backward")
    assert {row.name for row in roofline.layers} >= {"first", "MSELoss"}


def test_operators_outside_of_the_models_have_their_work(profiled: Profiled) -> None:
    model, x = Mlp(4), torch.ones(2, 4)

    def body() -> None:
        model(x)
        torch.linalg.inv(torch.eye(3))

    (row,) = found(profiled(body, model).roofline().operators, "aten::linalg_inv")
    assert (row.root, row.layer, row.calls) == ("", "", 1)
    assert (row.flops, row.exactness) == (2 * 3**3, "estimated")
    assert row.bound != Bound.UNKNOWN


def test_a_compiled_model_is_one_node(profiled: Profiled) -> None:
    model, x = torch.compile(Mlp(4).eval(), backend="eager"), torch.ones(2, 4)

    def body() -> None:
        with torch.no_grad():
            for _ in range(3):
                model(x)

    with torch.no_grad():
        model(x)
    roofline = profiled(body, model).roofline()
    (row,) = roofline.operators
    assert (row.operator, row.layer, row.calls) == ("(compiled)", "Mlp", 3)
    assert row.flops == 2 * (2 * 2 * 4 * 4) + 2 * 4
    assert row.bytes == 4 * (8 + 2 * (16 + 4) + 8)
    assert row.exactness == "estimated"


def test_the_summary_by_layer_has_the_work(profiled: Profiled) -> None:
    model, x = Mlp(8).eval(), torch.ones(2, 8)
    run = profiled(lambda: [model(x) for _ in range(3)], model)
    rows = {row.name: row for row in run.summary().rows}
    assert rows["first"].flops == 3 * 2 * 2 * 8 * 8
    assert rows["first"].intensity == pytest.approx(rows["first"].flops / rows["first"].bytes)
    assert rows["first"].flops_per_s == pytest.approx(rows["first"].flops * 1e9 / rows["first"].own_ns)
    assert rows["Mlp"].flops is None
    assert "FLOP/s" in str(run.summary())
    assert run.summary().notes == ()
    assert "FLOP/s" not in str(run.summary(by="operator"))


@pytest.mark.parametrize("table", ["work", "ceilings"])
def test_a_table_that_is_gone_is_no_traceback(
    profiled: Profiled, tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    model, x = Mlp(8).eval(), torch.ones(2, 8)
    run = profiled(lambda: model(x), model)
    change_meta(run.path, parts={})  # as in a run of an earlier version
    shutil.rmtree(run.path / table)
    assert execute(["summary", str(run.path)]) == 0
    assert ("FLOP/s" in capsys.readouterr().out) == (table == "ceilings")
    assert execute(["flamegraph", str(run.path), "-o", str(tmp_path / "a.html")]) == 0
    assert capsys.readouterr().err == ""
    code = "work_not_counted" if table == "work" else "no_ceilings"
    refused_command(["roofline", run.path], code, run.path)


def test_a_summary_without_work_has_no_such_columns(tmp_path: Path) -> None:
    model = Mlp(4)
    with gpuprof.profile(model, out=tmp_path / "r") as recording:
        model(torch.ones(1, 4))
    table = recording.run.summary()
    assert all((row.flops, row.flops_per_s) == (None, None) for row in table.rows)
    assert "FLOP" not in str(table)


# ---- the program is left alone ---------------------------------------------------------------


def test_results_and_the_model_are_bit_identical(profiled: Profiled) -> None:
    def train(model: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(make_input("convnet")).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, torch.rand(3)]

    torch.manual_seed(0)
    plain, measured = ConvNet(), ConvNet()
    measured.load_state_dict(plain.state_dict())
    expected = train(plain)
    result: list[torch.Tensor] = []
    profiled(lambda: result.extend(train(measured)), measured)
    assert all(torch.equal(a, b) for a, b in zip(expected, result, strict=True))
    for (name, a), b in zip(plain.state_dict().items(), measured.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for a, b in zip(plain.parameters(), measured.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    assert vars(measured).keys() == vars(plain).keys()
    assert torch.equal(torch.rand(2), torch.rand(2)) is False  # the generator continues


def test_nothing_is_recorded_that_was_not_without_work(profiled: Profiled, tmp_path: Path) -> None:
    model = Mlp(4)
    x = torch.ones(2, 4, requires_grad=True) * 2

    def names(run: gpuprof.Run) -> list[tuple[str]]:
        return run.sql("SELECT name FROM spans ORDER BY span_id").fetchall()

    with gpuprof.profile(model, out=tmp_path / "plain") as recording:
        model(x)
    assert names(profiled(lambda: model(x), model)) == names(recording.run)


def test_models_and_inputs_are_let_go(profiled: Profiled) -> None:
    model = Mlp(4)
    x = torch.ones(2, 4)
    kept = weakref.ref(model), weakref.ref(x)
    run = profiled(partial(model, x), model)
    del model, x
    assert [reference() for reference in kept] == [None, None]
    assert run.meta["work"]["roots"] == ["Mlp"]


def test_a_model_that_was_freed_in_the_block_is_counted_all_the_same(profiled: Profiled) -> None:
    assert found(profiled(lambda: Mlp(4)(torch.ones(2, 4))).roofline().operators, "aten::addmm")


def test_the_modes_of_the_call_are_brought_back_and_put_back(profiled: Profiled) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def body() -> None:
        model.train()
        with torch.autocast("cpu", torch.bfloat16):
            model(torch.ones(2, 4))
        model.eval()

    run = profiled(body, model)
    rows = run.sql("SELECT operator, dtype FROM work WHERE flops > 0 AND phase = 'forward'").fetchall()
    assert ("aten::addmm", "bfloat16") in rows
    assert any(operator in ("aten::bernoulli_", "aten::native_dropout") for operator, _ in rows)
    assert [module.training for module in model.modules()] == [False, False, False]


def test_keyword_arguments_and_inference_mode(profiled: Profiled) -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, *, by: torch.Tensor) -> torch.Tensor:
            return x * by

    model = Scaled()

    def body() -> None:
        with torch.inference_mode():
            model(torch.ones(3), by=torch.ones(3))

    run = profiled(body, model)
    assert found(run.roofline().operators, "aten::mul")[0].flops == 3


# ---- bad input -------------------------------------------------------------------------------


class OnSecondCall(nn.Module):
    """Fails where it is called again, as a model with side effects may."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        if COUNT.append(1) or len(COUNT) > 1:
            raise RuntimeError("only once")
        return y


COUNT: list[int] = []


def test_a_model_that_fails_when_counted_is_a_note(profiled: Profiled) -> None:
    COUNT.clear()
    model = OnSecondCall()
    with torch.no_grad():
        run = profiled(lambda: model(torch.ones(2, 4)), model)
    assert run.meta["complete"]
    assert any("only once" in note["values"]["error"] for note in run.meta["notes"])
    # What ran before it failed still has a label.
    assert found(run.roofline().operators, "aten::addmm")


class Shrinking(nn.Module):
    """A forward pass that depends on data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while bool(x.sum() > 1):
            x = x * 0.5
        return x


def test_a_forward_that_depends_on_data(profiled: Profiled) -> None:
    model = Shrinking()

    def body() -> None:
        model(torch.full((8,), 0.5))
        model(torch.full((8,), 8.0))

    rows = found(profiled(body, model).roofline().operators, "aten::mul")
    # 4 of the first call's sequence, and those that only the second call had: their inputs were recorded.
    assert sum(row.calls for row in rows) == 5
    assert {row.flops for row in rows} == {8}


def test_calls_with_other_inputs_are_other_work_however_long_they_take(profiled: Profiled) -> None:
    model = Mlp(8).eval()
    few, many = torch.ones(2, 8), torch.ones(3, 8)

    def body() -> None:
        for x in (few, few, many, few, many):
            model(x)

    run = profiled(body, model)
    assert run.meta["work"]["given"][0]["stretches"] == [2, 1, 1, 1]
    roofline = run.roofline()
    # The linear layer is one operator where its inputs were recorded, and the product in the counted calls.
    products = found(roofline.operators, "aten::addmm")
    others = found(roofline.operators, "aten::linear")
    assert {(row.calls, row.flops) for row in products} == {(3, 2 * 2 * 8 * 8)}
    assert {(row.calls, row.flops) for row in others} == {(2, 2 * 3 * 8 * 8)}
    assert NoLabel.OTHER_INPUTS not in {row.reason for row in roofline.unmatched}
    table = run.summary()
    assert all(row.flops is None for row in table.rows)
    assert table.notes == ("Mlp: its calls were given different inputs, so its FLOPs are not shown",)


def test_calls_of_each_thread_are_separate(profiled: Profiled) -> None:
    model = Mlp(8).eval()

    def body() -> None:
        model(torch.ones(2, 8))
        thread = threading.Thread(target=lambda: [model(torch.ones(rows, 8)) for rows in (4, 2, 4)])
        thread.start()
        thread.join()
        model(torch.ones(2, 8))

    run = profiled(body, model)
    assert sorted(row["stretches"] for row in run.meta["work"]["given"]) == [[0, 1, 1, 1], [2]]
    assert {row.calls for row in found(run.roofline().operators, "aten::addmm")} == {3}


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
def test_tracing_is_left_alone(profiled: Profiled) -> None:
    model, x = Mlp(8).eval(), torch.ones(2, 8)
    batch = torch.export.Dim("batch")

    def body() -> None:
        model(x)
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: batch},), strict=False)
        torch.jit.trace(model, x)  # its warnings are errors here
        assert exported.module()(torch.ones(3, 8)).shape[0] == 3
        model(x)

    assert profiled(body, model).meta["work"] is not None


class TimedOut(Exception):
    """What a signal's handler raises."""


def test_what_a_signal_handler_raises_reaches_the_program(
    profiled: Profiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise TimedOut

    model = Mlp(8).eval()
    monkeypatch.setattr("gpuprof.record.first_calls.signature_of", interrupted)

    def body() -> None:
        with pytest.raises(TimedOut):
            model(torch.ones(2, 8))
        model(torch.ones(2, 8))

    profiled(body, model)


def test_inputs_that_cannot_be_asked_do_not_reach_the_program(
    profiled: Profiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("no shape")

    model = Mlp(8).eval()
    monkeypatch.setattr("gpuprof.record.first_calls.signature_of", refused)
    run = profiled(lambda: [model(torch.ones(2, 8)) for _ in range(3)], model)
    judged: list[int] = []

    def by_durations(durations: Sequence[float]) -> list[bool]:
        # A busy machine may make one of three calls much longer.
        judged.append(len(durations))
        return [True] * len(durations)

    monkeypatch.setattr("gpuprof.analyze.roofline.join.similar_to_first", by_durations)
    assert {row.calls for row in found(run.roofline().operators, "aten::addmm")} == {3}
    assert max(judged) == 3


@pytest.mark.parametrize(
    "given", [None, [], 5, [{"root": 1}], [{"root": "Mlp", "thread_id": 1, "stretches": [-1]}]]
)
def test_without_usable_notes_of_inputs_durations_decide(profiled: Profiled, given: object) -> None:
    model = Mlp(8).eval()
    run = profiled(lambda: [model(torch.ones(2, 8)) for _ in range(3)], model)
    changed = with_meta(run, work={**run.meta["work"], "given": given})
    assert found(changed.roofline().operators, "aten::addmm")


def test_inputs_that_were_written_to_are_reported(profiled: Profiled) -> None:
    model, x = Mlp(4), torch.ones(2, 4)

    def body() -> None:
        model(x)
        x.zero_()

    run = profiled(body, model)
    assert "work_inputs_changed" in note_codes(run.meta)
    assert torch.equal(x, torch.zeros(2, 4))


def test_inputs_that_changed_their_shape_are_a_note(profiled: Profiled) -> None:
    model, x = Mlp(4), torch.ones(2, 4)

    def body() -> None:
        model(x)
        x.resize_(2, 3)

    run = profiled(body, model)
    assert run.meta["complete"]
    assert {note["values"]["root"] for note in run.meta["notes"]} == {"Mlp"}


def test_zero_length_tensors(profiled: Profiled) -> None:
    model = Mlp(4)
    roofline = profiled(lambda: model(torch.ones(0, 4)), model).roofline()
    assert found(roofline.operators, "aten::addmm")[0].flops == 0


def test_an_operator_without_a_formula_is_unknown_and_reported(profiled: Profiled) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.matrix_exp(x)

    roofline = profiled(lambda: Model()(torch.eye(4))).roofline()
    (row,) = found(roofline.operators, "aten::linalg_matrix_exp")
    assert (row.flops, row.exactness) == (None, "unknown")
    assert RooflineNote(RooflineNoteCode.WORK_UNKNOWN, ("aten::linalg_matrix_exp",)) in roofline.notes


def test_a_busy_machine_is_reported(profiled: Profiled, monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(quick: bool) -> Ceilings:
        rows = tuple(
            Ceiling("cpu", row.resource, row.dtype, row.value / 2, row.unit, 0.0, "")
            for row in ceilings().rows
        )
        return Ceilings(rows, "", {})

    model = Mlp(4)
    calm = profiled(lambda: model(torch.ones(2, 4)), model).roofline()
    monkeypatch.setattr("gpuprof.analyze.ceilings.of_run.measure_ceilings", slower)
    busy = profiled(lambda: model(torch.ones(2, 4)), model).roofline()
    assert not any(note.code == RooflineNoteCode.DRIFT for note in calm.notes)
    (note,) = [note for note in busy.notes if note.code == RooflineNoteCode.DRIFT]
    assert "differ by more than 10%" in note_text(note)
    assert "busy" in note_text(note)


@pytest.mark.parametrize(
    ("resource", "change", "around", "expected"),
    [
        (
            "memory.dram.triad",
            -0.51,
            False,
            "their first measurement (memory.dram.triad -51%): the machine is busy",
        ),
        (
            "memory.dram.triad",
            0.51,
            False,
            "measure again when it is idle: gpuprof doctor --ceilings --refresh",
        ),
        ("launch", 0.51, False, "the machine is busy"),  # a time: longer is slower
        ("memory.dram.triad", -0.51, True, "from right before the recording (memory.dram.triad -51%)"),
        ("memory.dram.triad", 0.51, True, "was busier at that time; labels have a lower confidence"),
    ],
)
def test_the_disturbed_measurement_is_reported(
    run: gpuprof.Run, resource: str, change: float, around: bool, expected: str
) -> None:
    drift = {"device": "cpu", "resource": resource, "dtype": None, "change": change}
    changed = with_meta(run, ceilings={**run.meta["ceilings"], "around": around, "drift": [drift]})
    (note,) = [each for each in changed.roofline().notes if each.code == RooflineNoteCode.DRIFT]
    assert expected in note_text(note)
    assert note.around is around


def with_meta(run: gpuprof.Run, **values: Any) -> gpuprof.Run:
    """The run with other facts in its meta.json."""
    change_meta(run.path, **values)
    return gpuprof.open(run.path)


def test_more_models_than_are_kept_are_reported(profiled: Profiled) -> None:
    models = [Mlp(4) for _ in range(MOST_ROOTS + 2)]
    run = profiled(lambda: [model(torch.ones(1, 4)) for model in models])
    assert len(run.meta["work"]["roots"]) == MOST_ROOTS
    assert [note["values"]["left_out"] for note in run.meta["notes"]] == [2]


def test_no_model_was_called(profiled: Profiled) -> None:
    run = profiled(lambda: torch.ones(2) + 1, Mlp(4))
    assert note_codes(run.meta) == ["work_no_model"]
    with refused(gpuprof.RunError, "work_not_counted"):
        run.roofline()


def ended_by(error: BaseException, out: Path) -> gpuprof.Run:
    """A run whose block raises after one call of a model."""
    model = Mlp(4)

    def program() -> None:
        with gpuprof.profile(model, out=out, work=True):
            model(torch.ones(2, 4))
            raise error

    with pytest.raises(type(error)):
        program()
    return gpuprof.open(out)


def test_an_exception_in_the_block_is_the_programs_own(tmp_path: Path) -> None:
    assert ended_by(ZeroDivisionError(), tmp_path / "r").roofline().operators


def test_an_interrupted_program_ends_at_once(tmp_path: Path) -> None:
    run = ended_by(KeyboardInterrupt(), tmp_path / "r")
    assert run.meta["work"] is None
    assert source_code(run.meta, "work") == "off: interrupted"


@pytest.mark.parametrize("off", ["layers", "operators"])
def test_work_needs_layers_and_operators(off: str) -> None:
    with refused(gpuprof.RecordingError, "needs_operators"):
        gpuprof.profile(work=True, **{off: False})


def test_ceilings_that_cannot_be_measured_leave_the_run_good(
    profiled: Profiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise gpuprof.UnavailableError("no ceilings today")

    monkeypatch.setattr("gpuprof.analyze.ceilings.of_run.load_ceilings", refuse)
    model = Mlp(4)
    run = profiled(lambda: model(torch.ones(2, 4)), model)
    assert run.meta["complete"]
    assert run.summary().rows
    with refused(gpuprof.RunError, "no_ceilings", "ceilings", "today"):
        run.roofline()


def test_damaged_work_is_left_out(
    profiled: Profiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(first: Any, segments: Path) -> list[str]:
        (segments / "work.json").write_text('{"roots": [], "threads": 1, "page_faults": []}')
        (segments / "work.jsonl").write_text('{"root": "Net", "flops": "many"')
        return []

    monkeypatch.setattr("gpuprof.record.work.first_pass.count_first_calls", damaged)
    model = Mlp(4)
    run = profiled(lambda: model(torch.ones(2, 4)), model)
    assert run.meta["work"] is None
    assert damage_codes(run.meta) == ["work"]
    assert run.summary().rows


# ---- the command -----------------------------------------------------------------------------


@pytest.fixture
def run(profiled: Profiled) -> gpuprof.Run:
    model, x = Mlp(4).eval(), torch.ones(2, 4)
    return profiled(lambda: [model(x) for _ in range(3)], model)


@pytest.mark.parametrize("by", ["operator", "layer"])
def test_the_table_fits_100_columns(run: gpuprof.Run, by: str, capsys: Any) -> None:
    assert execute(["roofline", str(run.path), "--by", by]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [by, "time", "bound", "ceiling", "conf.", "evidence"]
    assert max(map(len, lines)) <= 100
    assert any("first" in line for line in lines)


def test_json_has_everything(run: gpuprof.Run, capsys: Any) -> None:
    assert execute(["roofline", str(run.path), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["roofline"]
    row = values["operators"][0]
    assert {"bound", "roof_share", "confidence", "evidence", "advice", "used", "intensity"} <= row.keys()
    assert values == run.roofline().to_dict()


def test_the_page_is_written(run: gpuprof.Run, tmp_path: Path, capsys: Any) -> None:
    page = tmp_path / "roofline.html"
    assert execute(["roofline", str(run.path), "-o", str(page)]) == 0
    assert f"wrote {page}" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


NOT_COUNTED = "; hint: ".join(missing_work_text(SourceStatus.off(Reason.NOT_WANTED)))


def test_a_run_without_work_is_refused_in_one_line(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "r"):
        pass
    refused_command(["roofline", tmp_path / "r"], "no_work", tmp_path / "r", NOT_COUNTED)


@pytest.mark.parametrize(
    ("source", "code", "reason"),
    [
        (SourceStatus.on(Method.COUNTED), "lost_work", ""),
        (SourceStatus.off(Reason.FAILED, error="torch is too old"), "no_work", "torch is too old"),
        (None, "no_work", NOT_COUNTED),
    ],
)
def test_a_run_that_lost_its_work_has_no_hint_to_count_it(
    run: gpuprof.Run, source: SourceStatus | None, code: str, reason: str
) -> None:
    sources = {name: plain for name, plain in run.meta["sources"].items() if name != "work"}
    lost = with_meta(
        run, work=None, sources=sources if source is None else {**sources, "work": source.to_plain()}
    )
    with refused(gpuprof.RunError, code, reason) as caught:
        lost.roofline()
    assert (NOT_COUNTED in str(caught.value)) is (source is None)


def write_trace(path: Path) -> Path:
    event = {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 9, "name": "aten::mm", "cat": "cpu_op"}
    path.write_text(json.dumps({"traceEvents": [event]}), encoding="utf-8")
    return path


def test_an_imported_run_has_a_typed_reason_for_having_no_work(tmp_path: Path, capsys: Any) -> None:
    imported = gpuprof.import_trace(write_trace(tmp_path / "trace.json"), tmp_path / "imported.gpuprof")
    status = work_status(imported.meta)
    assert (status.reason, dict(status.values)) == (Reason.IMPORTED, {"source": imported.meta["imported"]})
    for command in (["roofline"], ["flamegraph", "--weight", "flops", "-o", str(tmp_path / "a.html")]):
        assert execute([command[0], str(imported.path), *command[1:]]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "; hint: ".join(missing_work_text(status)) in line


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ({}, Reason.NOT_WANTED),
        ({"imported": "nsys"}, Reason.IMPORTED),
        # A program that `gpuprof run --profiler torch` ran can be run again with work.
        (
            {"imported": "chrome", "sources": {"torch": SourceStatus.on(Method.OTHER_PROFILER).to_plain()}},
            Reason.NOT_WANTED,
        ),
        ({"sources": {"work": SourceStatus.off(Reason.INTERRUPTED).to_plain()}}, Reason.INTERRUPTED),
    ],
)
def test_missing_work_has_a_typed_reason(meta: dict[str, Any], reason: Reason) -> None:
    assert work_status(meta).reason is reason


def table_with(run: gpuprof.Run, name: str, evidence: Evidence) -> str:
    """The first line of a table that has one row."""
    roofline = run.roofline()
    row = dataclasses.replace(roofline.operators[0], name=name, evidence=evidence, bound=Bound.PAGE_FAULTS)
    lines = dataclasses.replace(roofline, operators=(row,)).to_text().splitlines()
    assert max(map(len, lines)) <= 100
    return lines[1]


def test_evidence_takes_what_is_left_and_goes_without_the_next_resource(run: gpuprof.Run) -> None:
    faults = "1,769 page faults x 11.6 us of 28.9 ms"
    figures = FaultFigures(1769, 1769 * 11.6e3, 28.9e6)
    evidence = Evidence((figures,), Resource.MEMORY, 0.12)
    assert table_with(run, "relu @ act", evidence).endswith(f"{faults}; memory 12%")
    long = "convolution @ " + "encoder." * 8
    assert table_with(run, long, evidence).endswith(f"  {faults}")
    both = ComputeFigures(80e9, 100e9, "fp32", False, False), MemoryFigures(8e9, 10e9, "dram", 8e6, "")
    assert table_with(run, long, Evidence(both)).endswith("80 of 100 GFLOP/s fp32; 8 of 10 GB/s dram")


def test_a_folder_as_the_page_is_refused(run: gpuprof.Run, tmp_path: Path) -> None:
    refused_command(["roofline", run.path, "-o", tmp_path], "is_a_folder", tmp_path)


def test_whole_numbers_have_a_ceiling_of_operations(run: gpuprof.Run) -> None:
    roofline = run.roofline()
    whole = Ceiling("cpu", "compute", "int8", 465e9, "flop_per_s", 0.0, "best: dot")
    text = str(dataclasses.replace(roofline, ceilings=(*roofline.ceilings, whole)))
    assert "compute int8 465 GOP/s" in " ".join(text.split())


def test_times_of_layers_have_their_own_units(run: gpuprof.Run) -> None:
    lines = [row.evidence_text for row in run.roofline().layers if row.nearest == Resource.LATENCY]
    assert lines
    assert all(re.match(r"\d+ operators? in [\d.,]+ (ns|us|ms), (empty )?dispatch ", line) for line in lines)


def test_by_kernel_is_refused_with_the_reason(run: gpuprof.Run) -> None:
    refused_command(["roofline", run.path, "--by", "kernel"], "no_kernels", run.path)


SCRIPT = """
import torch
def main():
    model = torch.nn.Linear(8, 8)
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
main()
"""


@pytest.mark.slow
def test_gpuprof_run_counts_what_the_program_called(
    run_python: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = dataclasses.replace(ceilings(), machine=machine_key())
    assert store(known, known.machine) is None
    # It looks at some ceilings again, which takes a multiple of their seconds on a busy machine.
    done = run_python("-m", "gpuprof", "run", "--work", "--out", "r", "train.py", timeout=240)
    assert (done.returncode, done.stdout) == (0, "")
    run = gpuprof.open(tmp_path / "r")
    assert run.meta["work"]["roots"] == ["Linear"]
    assert run.meta["ceilings"]["measured_at"] == known.measured_at
    rows = run.roofline().operators
    assert found(rows, "aten::addmm")[0].calls == 3
    assert found(rows, "aten::mm", "backward")[0].calls == 3


@pytest.mark.parametrize("on_terminal", [True, False])
@pytest.mark.slow
def test_a_terminal_shows_the_reason_of_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], on_terminal: bool
) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\ntorch.nn.Linear(8, 8)(torch.ones(2, 8))\n", encoding="utf-8"
    )
    monkeypatch.setattr("sys.stderr.isatty", lambda: on_terminal)
    assert execute(["run", "--work", "--out", str(tmp_path / "r"), str(tmp_path / "train.py")]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "writing the run" not in line]
    assert [("measuring" in line) for line in lines] == [True, False][not on_terminal :]
    assert str(tmp_path / "r") in lines[-1]
