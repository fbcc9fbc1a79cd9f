# SPDX-License-Identifier: Apache-2.0
"""What a counting pass gives back, what it leaves as it was, and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from work_rows import flops_of

import gpuprof

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional


def test_layers_and_ordinals_lead_to_the_same_rows_as_a_recording() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    work = gpuprof.count_work(model, torch.randn(3, 4), backward=True)
    keys = [(row.layer, row.ordinal) for row in work.operators]
    assert len(set(keys)) == len(keys)
    forward = [(row.layer, row.operator) for row in work.operators if row.phase == "forward" and row.flops]
    assert forward == [("0", "aten::addmm"), ("1.0", "aten::relu"), ("1.1", "aten::addmm")]
    backward = [row.layer for row in work.operators if row.phase == "backward" and row.flops]
    assert list(dict.fromkeys(backward)) == ["1.1", "1.0", "0"]
    assert {row.layer for row in work.operators} == {"0", "1.0", "1.1"}
    assert {row.layer for row in gpuprof.count_work(nn.Linear(2, 2), torch.ones(2)).operators} == {"Linear"}


def test_layers_are_named_as_recordings_of_the_given_model_name_them(recorded: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), nn.Softmax(-1))
    tied = nn.ModuleDict({"a": model[0], "b": model})
    for number, root in enumerate((model, tied["b"], nn.Linear(4, 4))):
        with gpuprof.profile(root, out=tmp_path / f"{number}.gpuprof") as recording:
            root(torch.ones(2, 4))
        counted = {row.layer for row in gpuprof.count_work(root, torch.ones(2, 4)).operators}
        assert counted <= {row.name for row in recorded(recording.run).rows if row.kind == "layer"}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_what_checkpointing_runs_again_belongs_to_its_layer(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.second(checkpoint(self.first, x, use_reentrant=reentrant))

    work = gpuprof.count_work(Model(), torch.randn(2, 4, requires_grad=True), backward=True)
    again = [row.layer for row in work.operators if row.phase == "backward" and row.operator == "aten::addmm"]
    assert again == ["first.0"]
    assert {row.layer for row in work.operators if row.phase == "backward" and row.flops} == {
        "first.0",
        "first.1",
        "second",
    }


class Restless(nn.Module):
    """Changes whatever a forward pass can change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.linear = nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 4)
        self.calls, self.seen, self.cache = 0, [], None
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.seen.append(x)
        self.cache = x * 2
        self.total += x.detach().sum(0)
        self.linear.weight.data.mul_(2)
        self.train()
        x.data.add_(1)
        return self.drop(self.norm(self.linear(x)))


@pytest.mark.parametrize("fake", [False, True])
def test_the_model_its_inputs_and_the_generators_are_as_before(fake: bool) -> None:
    torch.manual_seed(3)
    model, x = Restless().eval(), torch.randn(6, 4)
    gradient = model.linear.weight.grad = torch.ones(4, 4)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    values, generator = x.clone(), torch.get_rng_state()
    gpuprof.count_work(model, x, backward=True, fake=fake)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(x, values)
    assert torch.equal(torch.get_rng_state(), generator)
    assert (model.calls, model.seen, model.cache, model.training) == (0, [], None, False)
    assert model.linear.weight.grad is gradient
    assert torch.equal(gradient, torch.ones(4, 4))
    assert all(p.grad is None for name, p in model.named_parameters() if name != "linear.weight")


def test_the_next_steps_of_training_are_bit_identical() -> None:
    def train(count: bool) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))
        optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(6, 4)

        def step() -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        losses = []
        for _ in range(3):
            if count:
                phases = [row.name for row in gpuprof.count_work(step).by("phase")]
                assert sorted(phases) == ["backward", "forward", "optimizer"]
            losses.append(step())
        return losses

    assert all(map(torch.equal, train(count=True), train(count=False)))


def test_a_graph_that_leads_to_the_inputs_is_left_alone() -> None:
    weight = torch.ones(3, requires_grad=True)
    x = weight.exp()
    gpuprof.count_work(nn.Linear(3, 1), x, backward=True)
    assert weight.grad is None
    x.sum().backward()
    assert weight.grad is not None


def test_compiled_models_are_counted_uncompiled_and_stay_compiled() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.linear(x)

    compiled = []

    def backend(graph: Any, _: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = torch.compile(inner, backend=backend)
    outer = nn.Sequential(model, Head())
    outer[1].compile(backend=backend)
    x = torch.randn(2, 4)
    assert [row.operator for row in gpuprof.count_work(model, x).operators if row.flops] == [
        "aten::addmm",
        "aten::relu",
    ]
    assert {row.layer for row in gpuprof.count_work(model, x).operators if row.flops} == {"0", "1"}
    assert gpuprof.count_work(outer, x).flops == 2 * 2 * 16 + 8 + 2 * 2 * 4 * 2
    function = torch.compile(lambda x: x * 2, backend=backend)
    assert gpuprof.count_work(function, x).flops == 8
    assert not compiled
    assert outer[0] is model
    with torch.no_grad():
        outer(x), function(x)
        assert len(compiled) == 3
        gpuprof.count_work(lambda: function(outer(x)))
        outer(x), function(x)
    # PyTorch 2.4 compiles a function that is called inside what is counted for that call's shapes.
    assert len(compiled) == 3 + torch.__version__.startswith("2.4.")


def test_inputs_as_people_hand_them_over() -> None:
    class Model(nn.Module):
        def forward(self, x: Any, *, y: Any = None) -> Any:
            return (x if isinstance(x, torch.Tensor) else x[0]) + (0 if y is None else y)

    x = torch.ones(5)
    for inputs in (x, (x,), {"x": x, "y": x}, lambda: x, lambda: (x,), [x]):
        assert gpuprof.count_work(Model(), inputs).flops == 5
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 5), torch.randn(2, 5)])
    assert flops_of(gpuprof.count_work(nn.LSTM(5, 3), packed), "forward", "aten::addmm") == 2 * 6 * 12 * 8
    assert gpuprof.count_work(lambda: None).flops == 0


def test_a_forward_that_depends_on_values_is_run_for_real() -> None:
    def model(x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x * 2 * 2

    for sign, flops in ((1, 5), (-1, 10)):
        assert flops_of(gpuprof.count_work(model, sign * torch.ones(5)), "forward", "aten::mul") == flops
    with refused(gpuprof.WorkError, "not_counted"):
        gpuprof.count_work(model, torch.ones(5), fake=True)


def test_tensors_without_elements_count_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Softmax(-1))
    work = gpuprof.count_work(model, torch.randn(0, 3), backward=True)
    assert (work.flops, work.unknown) == (0, {})
    assert gpuprof.count_work(nn.Conv2d(3, 4, 3), torch.randn(0, 3, 8, 8)).flops == 0
    assert gpuprof.count_work(torch.mm, (torch.ones(2, 0), torch.ones(0, 3))).flops == 0


def test_an_operator_without_a_formula_is_unknown_and_never_zero() -> None:
    with torch.library._scoped_library("gpuprof_test", "FRAGMENT") as library:
        library.define("mystery(Tensor x) -> Tensor")
        library.impl("mystery", lambda x: x.clone(), "CompositeExplicitAutograd")
        mystery = torch.ops.gpuprof_test.mystery
        alone = gpuprof.count_work(mystery, torch.ones(4, 4))
        work = gpuprof.count_work(lambda x: mystery(x) @ x, torch.ones(4, 4))
    assert (alone.flops, alone.bytes, alone.exactness) == (None, 128, "unknown")
    assert work.unknown == {"gpuprof_test::mystery": 1}
    assert (work.flops, work.exactness) == (128, "unknown")
    row = next(row for row in work.by("operator") if row.name == "gpuprof_test::mystery")
    assert (row.flops, row.unknown_calls, row.exactness) == (None, 1, "unknown")
    assert ">= 128 FLOP" in str(work)
    assert "unknown, and not in the totals: gpuprof_test::mystery (1)" in str(work)


def test_a_formula_that_fails_makes_the_operator_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuprof.record.work import call_work

    def broken(_: object) -> Any:
        return lambda call: call["nothing of that name"]

    monkeypatch.setattr(call_work, "find_formula", broken)
    work = gpuprof.count_work(torch.relu, torch.ones(3))
    assert (work.flops, list(work.unknown)) == (None, ["aten::relu"])
    (failure,) = work.failures
    assert failure.operator == "aten::relu"
    assert failure.error.startswith("KeyError")


@pytest.mark.parametrize(
    ("model", "inputs", "options", "message"),
    [
        (3, (), {}, "not_callable"),
        (nn.Linear, (), {}, "not_callable"),
        (
            nn.Linear(3, 4),
            torch.ones(2, 5),
            {},
            "not_counted",
        ),
        (nn.Linear(3, 4), (torch.ones(2, 3), 1), {}, "not_counted"),
        (
            nn.LazyLinear(4),
            torch.ones(2, 5),
            {},
            "lazy_parameter",
        ),
        (nn.ReLU(), torch.ones(2), {"backward": True}, "not_counted"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_mistakes_are_errors_of_one_line(model: Any, inputs: Any, options: Any, message: str) -> None:
    with refused(gpuprof.WorkError, message) as caught:
        gpuprof.count_work(model, inputs, **options)
    assert "\n" not in str(caught.value)


def test_work_of_the_forward_pass_is_kept_where_nothing_leads_back() -> None:
    with refused(gpuprof.WorkError, "not_counted", "ReLU", "backward=True") as caught:
        gpuprof.count_work(nn.ReLU(), torch.ones(2), backward=True)
    assert caught.value.work is not None
    assert [row.operator for row in caught.value.work.operators] == ["aten::relu"]


def test_inputs_that_cannot_be_made_are_not_the_model_s_fault() -> None:
    with refused(gpuprof.WorkError, "inputs_raised", "Linear", "ZeroDivisionError"):
        gpuprof.count_work(nn.Linear(2, 2), lambda: 1 / 0)


def test_another_kind_than_there_is_names_those_that_are() -> None:
    with refused(gpuprof.WorkError, "unknown_grouping", "layer", "operator", "dtype", "phase"):
        gpuprof.count_work(nn.ReLU(), torch.ones(2)).by("shape")


def test_a_model_that_fails_is_left_as_it_was_and_what_was_counted_is_kept() -> None:
    class Fails(Restless):
        def forward(self, x: Any) -> Any:
            super().forward(x)
            raise ValueError("first line\nsecond line")

    model = Fails()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with refused(gpuprof.WorkError, "not_counted", "Fails", "ValueError") as caught:
        gpuprof.count_work(model, torch.ones(2, 4))
    assert isinstance(caught.value.__cause__, ValueError)
    assert flops_of(caught.value.work, "forward", "aten::addmm") == 2 * 2 * 4 * 4
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.calls == 0
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_the_table_fits_and_the_rows_are_plain_values() -> None:
    import json

    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(30)])
    work = gpuprof.count_work(model, torch.randn(4, 64), backward=True)
    text = str(work)
    assert max(map(len, text.splitlines())) <= 100
    assert "... and 40 more" in text
    # 30 layers: the product three times, less the input's gradient in the first; the bias's gradient; gelu.
    flops = (30 * 3 - 1) * 2 * 4 * 64 * 64 + 30 * (4 - 1) * 64 + 30 * (5 + 11) * 4 * 64
    assert work.flops == flops
    assert text.startswith(f"{flops / 1e6:.3g} MFLOP, ")
    assert "aten::gelu_backward" in text
    plain = json.loads(json.dumps(work.to_dict()))
    assert plain["flops"] == work.flops == sum(row["flops"] for row in plain["operators"])
    assert set(plain["operators"][0]) >= {
        "layer",
        "ordinal",
        "operator",
        "flops",
        "bytes",
        "exactness",
        "dtype",
    }
    assert [row.name for row in work.by("dtype")] == ["float32"]
    assert sum(row.flops or 0 for row in work.by("layer")) == work.flops
