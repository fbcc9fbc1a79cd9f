# SPDX-License-Identifier: Apache-2.0
"""The backward pass is below the layers of its forward, as found by walking the graph."""

from __future__ import annotations

# Before torch, which looks for the collector of its operators while it is imported.
from run_codes import source_code

import gpuprof

# isort: split
import copy
import dataclasses
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from autograd_oracle import Owners, Pass, evaluations, layers_of, times
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_models import MODELS, Mlp, make_input, record, spans_of

from gpuprof import _native
from gpuprof.record import backward_layers
from gpuprof.record.backward_layers import find_layout

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]

TIED = "autograd_nodes"
LAYER_NODES = 15


class Tied(nn.Module):
    """One linear layer called twice in a pass, and its weight used once more without it."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.twin = nn.Linear(4, 4)
        self.twin.weight = self.shared.weight
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.twin(self.shared(self.norm(self.shared(x)))) @ self.shared.weight


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grads[0]


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(Square.apply(self.first(x)))


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.block = Mlp()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, self.before(x), use_reentrant=self.reentrant)


def small_input() -> torch.Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    **{name: (model, lambda name=name: make_input(name)) for name, model in MODELS.items()},  # type: ignore[misc]
    "tied": (Tied, small_input),
    "custom function": (Custom, small_input),
    "checkpoint": (lambda: Checkpointed(reentrant=False), small_input),
}


class TestAgreementWithTheGraph:
    @pytest.mark.parametrize("case", CASES)
    def test_each_node_is_below_the_layer_that_made_it(self, case: str) -> None:
        make_model, make = CASES[case]
        program = Pass(make_model().train(), make())
        run = record(program, program.model)
        assert source_code(run.meta, "backward_layers") == TIED
        found = evaluations(run)
        assert found == program.expected
        assert len(layers_of(found)) > 2
        assert run.meta["complete"]

    def test_every_call_of_many_steps(self) -> None:
        program = Pass(MODELS["convnet"](), make_input("convnet"))
        run = record(lambda: [program() for _ in range(5)], program.model)
        assert evaluations(run) == program.expected

    def test_a_graph_that_is_evaluated_twice(self) -> None:
        program = Pass(Mlp(), small_input(), backwards=2)
        run = record(program, program.model)
        assert evaluations(run) == program.expected
        assert set(program.expected.values()) == {2}

    def test_graphs_that_are_evaluated_in_another_order(self) -> None:
        model, owners = Mlp(), Owners(Mlp())
        owners = Owners(model)

        def program() -> None:
            with owners.watching():
                losses = [model(small_input()).sum() for _ in range(3)]
            expected.update(owners.expected(*losses))
            for loss in (losses[1], losses[2], losses[0]):
                loss.backward()

        expected: Counter[Any] = Counter()
        run = record(program, model)
        assert evaluations(run) == expected

    @pytest.mark.parametrize("name", ["convnet", "mlp"])
    def test_gradients_are_added_to_in_the_layer_that_has_the_parameter(self, name: str) -> None:
        model, inputs = (Mlp(), small_input()) if name == "mlp" else (MODELS[name](), make_input(name))
        run = record(lambda: model(inputs).sum().backward(), model)
        found: Counter[str] = Counter()
        for (path, _), calls in evaluations(run, of_parameters=True).items():
            found[path[-1]] += calls
        assert found == Counter(parameter.rpartition(".")[0] for parameter, _ in model.named_parameters())

    def test_torch_profiler_in_place_of_announcements(self, run_python: Any) -> None:
        program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
import torch, gpuprof
import autograd_oracle as tests, torch_models as models
program = tests.Pass(models.MODELS["transformer"](), models.make_input("transformer"))
run = models.record(program, program.model)
print(run.sources["operators"].method.value, "|", run.sources["backward_layers"].method.value)
print(tests.evaluations(run) == program.expected, len(program.expected) > 30)
"""
        result = run_python("-W", "ignore", "-c", program)
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines() == [
            "torch_profiler | sequence_numbers",
            "True True",
        ]


class TestThreads:
    def test_each_thread_has_its_own_numbers(self) -> None:
        models = [MODELS["convnet"](), Mlp(), Tied()]
        inputs = [make_input("convnet"), small_input(), small_input()]
        losses: dict[int, torch.Tensor] = {}
        owners = [Owners(model) for model in models]

        def forward(index: int) -> None:
            losses[index] = models[index](inputs[index]).sum()

        def program() -> None:
            # The hooks see every thread, so one thread after the other goes forward.
            for index in range(len(models)):
                with owners[index].watching():
                    run_in_thread(lambda index=index: forward(index))  # type: ignore[misc]
                expected.update(owners[index].expected(losses[index]))
            for index in reversed(range(len(models))):
                run_in_thread(losses[index].backward)

        expected: Counter[Any] = Counter()
        run = record(program, *models)
        assert without_labels(evaluations(run)) == expected
        assert {path[0] for path in layers_of(expected) if path} == {"ConvNet", "Mlp", "Tied"}

    def test_two_threads_at_once(self) -> None:
        models = [Mlp(), Tied()]
        both = threading.Barrier(2)

        def train(model: nn.Module) -> None:
            for _ in range(20):
                loss = model(small_input()).sum()
                both.wait()
                loss.backward()

        def program() -> None:
            threads = [threading.Thread(target=train, args=(model,)) for model in models]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        found = without_labels(evaluations(record(program, *models)))
        alone: Counter[Any] = Counter()
        for model in models:
            passed = Pass(model, small_input())
            passed()
            alone += times(passed.expected, 20)
        assert found == alone


def without_labels(found: Counter[Any]) -> Counter[Any]:
    """Return the paths without the labels of the models before the names."""
    plain: Counter[Any] = Counter()
    for (path, node), count in found.items():
        plain[tuple(name.rpartition("/")[2] for name in path), node] += count
    return plain


def run_in_thread(action: Callable[[], Any]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


class TestUnusualPasses:
    def test_a_reentrant_checkpoint(self) -> None:
        model = Checkpointed(reentrant=True)
        run = record(lambda: model(small_input()).sum().backward(), model)
        found = evaluations(run)
        assert found[("Checkpointed",), "CheckpointFunctionBackward"] == 1
        # Called again in the backward pass, and by itself there.
        assert found[("block", "block.first"), "AddmmBackward0"] == 1
        assert found[("block", "block.activation"), "ReluBackward0"] == 1
        assert found[("Checkpointed", "before"), "AddmmBackward0"] == 1
        rows = {row.name: row for row in run.summary().rows}
        assert rows["block.first"].calls == 2
        assert 0 < (rows["block.first"].backward_ns or 0) < rows["block.first"].total_ns
        assert all((row.backward_ns or 0) <= row.total_ns for row in rows.values())

    def test_a_second_derivative(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        inputs = small_input().requires_grad_()

        def program() -> None:
            (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
            slope.sum().backward()

        found = evaluations(record(program, model))
        assert found[("Sequential", "1"), "TanhBackward0"] == 2
        # What the first backward pass made belongs to no call of a layer.
        assert found[(), "TanhBackwardBackward0"] == 1

    def test_a_derivative_inside_a_layer(self) -> None:
        class Force(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.energy = Mlp()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                (force,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
                return force

        model = Force()
        run = record(lambda: model(small_input().requires_grad_()).sum().backward(), model)
        found = evaluations(run)
        # Once for the force, and again for the force's own gradient.
        assert found[("Force", "energy", "energy.second"), "AddmmBackward0"] == 1
        assert (("Force",), "SumBackward0") in found
        row = next(row for row in run.summary().rows if row.name == "Force")
        assert row.backward_ns is not None
        assert row.backward_ns < row.total_ns

    def test_a_compiled_model(self) -> None:
        model = Mlp()
        compiled = torch.compile(model, backend="aot_eager")
        compiled(small_input()).sum().backward()
        run = record(lambda: compiled(small_input()).sum().backward(), compiled)
        found = evaluations(run)
        assert found[("Mlp",), "CompiledFunctionBackward"] == 1

    def test_layers_that_were_called_before_the_recording(self) -> None:
        model = Mlp()
        loss = model(small_input()).sum()
        run = record(loss.backward, model)
        assert layers_of(evaluations(run)) == {()}
        assert run.summary("operator").rows

    def test_an_exception_in_the_forward_and_in_the_backward_pass(self) -> None:
        class Broken(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor, *, fails: bool) -> torch.Tensor:
                x = self.first(x)
                if fails:
                    raise ValueError("forward")
                return x

        def fail(_: torch.Tensor) -> None:
            raise ValueError("backward")

        def program() -> None:
            with pytest.raises(ValueError, match="forward"):
                model(small_input(), fails=True)
            x = model(small_input(), fails=False)
            x.register_hook(fail)
            with pytest.raises(ValueError, match="backward"):
                x.sum().backward()
            model(small_input(), fails=False).sum().backward()

        model = Broken()
        found = evaluations(record(program, model))
        # The first of the two was begun when its hook failed.
        assert found[("Broken", "first"), "AddmmBackward0"] == 2

    @pytest.mark.parametrize("quiet", [torch.no_grad, torch.inference_mode])
    def test_inference_writes_nothing_more(self, quiet: Any, tmp_path: Path) -> None:
        model = MODELS["transformer"]()
        folder = tmp_path / "r.gpuprof"
        with gpuprof.profile(model, out=folder):
            with quiet():
                model(make_input("transformer"))
            assert LAYER_NODES not in kinds_in(folder / "segments")
            model(make_input("transformer"))
            assert LAYER_NODES in kinds_in(folder / "segments")


def kinds_in(segments: Path) -> set[int]:
    event = np.dtype([("ticks", "u8"), ("name", "u4"), ("kind", "u4")])
    files = [np.fromfile(path, dtype=event, offset=4096) for path in segments.glob("*.segment")]
    return {int(kind) for events in files for kind in np.unique(events["kind"])}


class TestNothingChanges:
    @pytest.mark.parametrize("case", CASES)
    def test_gradients_are_the_same_to_the_bit(self, case: str) -> None:
        make_model, make = CASES[case]
        torch.manual_seed(0)
        model = make_model().train()
        twin = copy.deepcopy(model)

        def train(trained: nn.Module) -> None:
            torch.manual_seed(1)
            optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
            for _ in range(3):
                trained(make()).sum().backward()
                optimizer.step()

        train(model)
        record(lambda: train(twin), twin)
        for mine, its in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(mine, its)
            assert mine.grad is None or torch.equal(mine.grad, its.grad)  # type: ignore[arg-type]

    def test_nodes_have_as_many_owners_as_before(self) -> None:
        model = Mlp()
        owners: list[int] = []

        def program() -> None:
            output = model(small_input())
            node = output.grad_fn
            for _ in range(3):
                owners.append(_native.autograd_node_words(node)[2])
                output.sum().backward(retain_graph=True)
            owners.append(_native.autograd_node_words(node)[2])

        record(program, model)
        assert len(set(owners)) == 1

    def test_graphs_are_freed(self) -> None:
        model = Custom()
        graphs = weakref.WeakSet[Any]()

        def program() -> None:
            for _ in range(3):
                output = model(small_input())
                graphs.add(output.grad_fn.next_functions[1][0])  # type: ignore[union-attr]
                graphs.add(output)
                output.sum().backward()

        record(program, model)
        gc.collect()
        assert not list(graphs)

    def test_no_backward_pass_is_run_to_find_out(self, run_python: Any) -> None:
        program = """
import os, threading, gpuprof, torch
import duckdb  # some versions of it begin a thread where they are imported
before = len(os.listdir("/proc/self/task"))
with gpuprof.profile(torch.nn.Linear(2, 2)) as recording:
    assert len(os.listdir("/proc/self/task")) == before
print(recording.run.sources["backward_layers"].method.value)
"""
        result = run_python("-W", "ignore", "-c", program)
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines() == [TIED]

    def test_a_program_that_imports_torch_while_it_is_recorded(self, tmp_path: Path, run_python: Any) -> None:
        source = "import torch\nmodel = torch.nn.Sequential(torch.nn.Linear(2, 2))\n"
        source += "model(torch.ones(1, 2)).sum().backward()\n"
        (tmp_path / "program.py").write_text(source)
        result = run_python("-m", "gpuprof", "run", "--out", "r.gpuprof", "program.py")
        assert result.returncode == 0, result.stderr
        run = gpuprof.open(tmp_path / "r.gpuprof")
        assert source_code(run.meta, "backward_layers") == TIED
        assert evaluations(run)[("Sequential", "0"), "AddmmBackward0"] == 1

    def test_a_forked_child_trains(self, run_python: Any) -> None:
        program = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
import gpuprof, torch
import autograd_oracle as tests, torch_models as models
model = models.Mlp()
with gpuprof.profile(model, out="r.gpuprof") as recording:
    child = os.fork()
    if child == 0:
        job = tests.Pass(model, torch.ones(2, 4))
        for x in torch.utils.data.DataLoader([torch.ones(2, 4)] * 3, batch_size=None, num_workers=1):
            job()
        os._exit(job.expected.total())
    counted = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
found = tests.evaluations(recording.run)
print(found[("Mlp", "second"), "AddmmBackward0"], found.total() == counted, counted > 12)
"""
        result = run_python("-W", "ignore", "-c", program)
        assert result.returncode == 0, result.stderr
        assert result.stdout.split() == ["3", "True", "True"]


class TestWhatCannotBeProven:
    @staticmethod
    def readings() -> tuple[Any, ...]:
        """What is seen of two nodes of this PyTorch."""
        record(lambda: None, Mlp())  # the first recording of a process finds PyTorch's library
        leaf = torch.ones(1, requires_grad=True)
        before = _native.autograd_ask()
        first = leaf * 2
        alone = _native.autograd_node_words(first.grad_fn)
        second = first * 2
        nodes = [backward_layers._Node.of(tensor.grad_fn) for tensor in (first, second)]
        return before, _native.autograd_ask(), alone, *nodes

    def test_the_layout_is_found_again(self) -> None:
        assert find_layout(*self.readings()) == backward_layers._Proven.layout

    @pytest.mark.parametrize("word", range(1, 8))
    def test_a_word_that_is_not_what_it_was_is_noticed_or_not_looked_at(self, word: int) -> None:
        before, after, alone, first, second = self.readings()
        layout = find_layout(before, after, alone, first, second)
        words = list(first.words)
        words[word] += 1
        changed = dataclasses.replace(first, words=words)
        if word in (1, layout.sequence_word, layout.thread_word):
            with pytest.raises(backward_layers._UnprovenError):
                find_layout(before, after, alone, changed, second)
        else:
            assert find_layout(before, after, alone, changed, second) == layout

    def test_two_places_for_one_number(self) -> None:
        before, after, alone, first, second = self.readings()
        layout = find_layout(before, after, alone, first, second)
        for node in (first, second):
            node.words[8 if layout.sequence_word != 8 else 7] = node.number
        with pytest.raises(backward_layers._UnprovenError, match="autograd_layout"):
            find_layout(before, after, alone, first, second)

    def test_owners_apart_from_the_node(self) -> None:
        before, after, alone, first, second = self.readings()
        first.words[1] = first.address
        after["current"] = (0, 0)
        assert not find_layout(before, after, alone, first, second).intrusive

    def test_numbers_that_skip(self) -> None:
        before, after, alone, first, second = self.readings()
        with pytest.raises(backward_layers._UnprovenError, match="autograd_numbering"):
            find_layout({**before, "sequence": before["sequence"] - 1}, after, alone, first, second)
        with pytest.raises(backward_layers._UnprovenError, match="autograd_next_number"):
            find_layout(before, {**after, "sequence": after["sequence"] + 1}, alone, first, second)

    def test_the_run_has_a_note_and_continues(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backward_layers._Proven, "layout", None)
        monkeypatch.setattr(backward_layers, "_FIRST_WORD", 8)
        program = Pass(Mlp(), small_input())
        run = record(program, program.model)
        assert source_code(run.meta, "backward_layers") == "off: autograd_layout"
        assert run.sources["backward_layers"].values == {"what": "number"}
        found = evaluations(run)
        assert layers_of(found) == {()}
        assert found.total() == program.expected.total()
        assert all(row.backward_ns is None for row in run.summary().rows)
        assert "backward " not in str(run.summary()).splitlines()[0]

    def test_a_library_without_the_functions(self, tmp_path: Path) -> None:
        missing = _native.autograd_open(bytes(tmp_path / "libtorch_cpu.so"))
        assert missing == {"code": "autograd_not_loaded", "file": str(tmp_path / "libtorch_cpu.so")}
        other = _native.autograd_open(_native.__file__.encode())
        assert other["code"] == "autograd_lacks_function"

    def test_a_recording_that_begins_inside_a_backward_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backward_layers._Proven, "layout", None)
        model, sources = Mlp(), []

        def hook(_: torch.Tensor) -> None:
            sources.append(source_code(record(lambda: None, model).meta, "backward_layers"))

        output = model(small_input())
        output.register_hook(hook)
        output.sum().backward()
        assert sources == ["off: autograd_in_backward"]

    def test_a_dispatch_mode_sees_nothing_of_us(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        class Seen(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                names.append(str(func))
                return func(*args, **(kwargs or {}))

        monkeypatch.setattr(backward_layers._Proven, "layout", None)
        names: list[str] = []
        model = Mlp()
        with Seen():
            run = record(lambda: None, model)
        assert names == []
        assert source_code(run.meta, "backward_layers") == "off: autograd_dispatch_mode"

    def test_the_search_is_in_no_recording(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backward_layers._Proven, "layout", None)
        assert spans_of(record(lambda: None, Mlp())) == []

    def test_without_layers_or_operators_nothing_is_tied(self) -> None:
        for options in ({"layers": False}, {"operators": False}):
            run = record(lambda: None, **options)
            assert "backward_layers" not in run.meta["sources"]
