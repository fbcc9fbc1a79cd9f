# SPDX-License-Identifier: Apache-2.0
"""Models compiled before, during and after a recording: compiled as without one, and recorded."""

from __future__ import annotations

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof

# isort: split
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch_models import Mlp, layer_calls, paths_of, record

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]

_INLINES_MODULES = not torch.__version__.startswith("2.4.")


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(suppress_errors=False):
        yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_dynamo")
class TestCompile:
    @pytest.fixture
    def x(self) -> torch.Tensor:
        return torch.linspace(-1, 1, 8).reshape(2, 4)

    @pytest.mark.parametrize("given", [True, False])
    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_before_during_after(self, x: torch.Tensor, backend: str, given: bool) -> None:
        model = Mlp()
        expected = model(x)
        before = torch.compile(model, backend=backend, fullgraph=True)
        unused = torch.compile(model, backend=backend, fullgraph=True)
        before(x)
        modules = (before, unused) if given else ()
        with gpuprof.profile(*modules) as recording:
            during = torch.compile(model, backend=backend, fullgraph=True)
            for compiled in (before, unused, during):
                assert torch.equal(compiled(x), expected)
        after = torch.compile(model, backend=backend, fullgraph=True)
        for compiled in (before, unused, during, after):
            assert torch.equal(compiled(x), expected)
        counters = torch._dynamo.utils.counters
        assert counters["graph_break"] == {}
        # All wrap one module: one graph serves them, during the recording too.
        assert counters["stats"]["unique_graphs"] == 1
        assert recording.run.meta["complete"] is True

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    @pytest.mark.parametrize("given", [True, False])
    def test_no_recompiles(self, x: torch.Tensor, backend: str, given: bool) -> None:
        model = Mlp()
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        compiled(x)
        graphs = count_graphs()
        with torch._dynamo.config.patch(error_on_recompile=True):
            for _ in range(3):
                record(lambda: compiled(x), *((compiled,) if given else ()))
                compiled(x)
        assert count_graphs() == graphs

    def test_no_recompiles_of_an_optimizer(self) -> None:
        parameter = nn.Parameter(torch.ones(3))
        parameter.grad = torch.ones(3)
        optimizer = torch.optim.AdamW([parameter])

        @torch.compile(backend="eager")
        def step() -> None:
            optimizer.step()

        for _ in range(3):
            step()
        counters = torch._dynamo.utils.counters
        before = (count_graphs(), sum(counters["graph_break"].values()))
        with gpuprof.profile():
            for _ in range(3):
                step()
        step()
        torch._dynamo.reset()
        with gpuprof.profile():
            step()
        assert (count_graphs(), sum(counters["graph_break"].values())) == (2 * before[0], 2 * before[1])

    def test_compiled_during_is_not_compiled_again_after(self, x: torch.Tensor) -> None:
        model = Mlp()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        record(lambda: compiled(x))
        graphs = count_graphs()
        assert graphs == 1
        with torch._dynamo.config.patch(error_on_recompile=True):
            compiled(x)
            record(lambda: compiled(x), operators=False)
            record(lambda: compiled(x), layers=False)
        assert count_graphs() == graphs

    def test_training_step(self, x: torch.Tensor) -> None:
        def gradients(program: Callable[[Any], Any]) -> list[torch.Tensor]:
            torch.manual_seed(0)
            model = Mlp()
            compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
            result: list[torch.Tensor] = []

            def step() -> None:
                for _ in range(2):
                    compiled(x).square().sum().backward()
                result.extend(parameter.grad.clone() for parameter in model.parameters())

            program(step)
            return result

        expected = gradients(lambda step: step())
        assert all(map(torch.equal, gradients(record), expected))

    def test_explain(self, x: torch.Tensor) -> None:
        model = Mlp()

        def explained() -> tuple[int, int, int]:
            torch._dynamo.reset()
            explanation = torch._dynamo.explain(model)(x)
            return explanation.graph_count, explanation.graph_break_count, explanation.op_count

        first = explained()
        assert first[:2] == (1, 0)
        with gpuprof.profile(model):
            during = explained()
        with gpuprof.profile():
            discovered = explained()
        assert [during, discovered, explained()] == [first] * 3

    def test_graph_breaks_of_the_program_are_as_many(self, x: torch.Tensor) -> None:
        class Breaks(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = nn.Linear(4, 4)
                self.second = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = self.first(x)
                torch._dynamo.graph_break()
                return self.second(x)

        def breaks(run: Callable[[Callable[[], Any]], Any]) -> tuple[int, int]:
            torch._dynamo.reset()
            counters = torch._dynamo.utils.counters
            counters.clear()
            torch.manual_seed(0)
            compiled = torch.compile(Breaks(), backend="eager")
            run(lambda: compiled(x))
            return sum(counters["graph_break"].values()), count_graphs()

        expected = breaks(lambda program: program())
        assert expected[0] > 0
        runs: list[gpuprof.Run] = []
        assert breaks(lambda program: runs.append(record(program))) == expected
        assert layer_calls(runs[0]) == {"Breaks": 1}

    @pytest.mark.parametrize("given", [True, False])
    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    @pytest.mark.parametrize("how", ["torch.compile", "module.compile"])
    def test_one_layer_in_an_eager_model(self, x: torch.Tensor, backend: str, given: bool, how: str) -> None:
        model = nn.Sequential(Mlp(), nn.ReLU(), Mlp())
        expected = model(x)
        if how == "torch.compile":
            model[0] = torch.compile(model[0], backend=backend, fullgraph=True)
        else:
            model[0].compile(backend=backend, fullgraph=True)
        paths = []
        for _ in range(2):  # the first compiles, the second does not
            results: list[torch.Tensor] = []
            run = record(lambda results=results: results.append(model(x)), *((model,) if given else ()))
            assert torch.equal(results[0], expected)
            paths.append(paths_of(run))
        whole = [("Sequential",), ("Sequential", "0"), ("Sequential", "1"), ("Sequential", "2")]
        inside = [("Sequential", "2", f"2.{name}") for name in ("first", "activation", "second")]
        assert paths == [whole + inside] * 2
        assert torch._dynamo.utils.counters["graph_break"] == {}

    @pytest.mark.parametrize("given", [True, False])
    def test_compiled_root_is_one_layer(self, x: torch.Tensor, given: bool) -> None:
        compiled = torch.compile(Mlp(), backend="eager", fullgraph=True)
        for _ in range(2):
            run = record(lambda: compiled(x), *((compiled,) if given else ()))
            assert paths_of(run) == [("Mlp",)]

    # aot_eager itself calls the graph modules that it made, which are then seen as any module is.
    @pytest.mark.parametrize("backend", ["eager"])
    def test_compiled_function_that_calls_a_module(self, x: torch.Tensor, backend: str) -> None:
        model = Mlp()

        @functools.partial(torch.compile, backend=backend, fullgraph=True)
        def function(x: torch.Tensor) -> torch.Tensor:
            return model(x) * 2

        expected = model(x) * 2
        for given in ((model,), ()):
            for _ in range(2):
                results: list[torch.Tensor] = []
                run = record(lambda results=results: results.append(function(x)), *given)
                assert torch.equal(results[0], expected)
                if _INLINES_MODULES:  # else this backend calls them one by one
                    assert layer_calls(run) == {}  # it was compiled into the function
        assert torch._dynamo.utils.counters["graph_break"] == {}
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1

    def test_compiled_method_of_a_given_module(self, x: torch.Tensor) -> None:
        """`model.forward = torch.compile(model.forward)`, a common way to compile."""
        model = Mlp()
        expected = model(x)
        model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
        results = []
        run = record(lambda: results.append(model(x)), model)
        assert torch.equal(results[0], expected)
        assert paths_of(run) == [("Mlp",)]

    def test_compiled_while_called_eagerly_as_well(self, x: torch.Tensor) -> None:
        """The same modules, through the compiled wrapper and on their own."""
        model = Mlp()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        expected = model(x)
        results = []
        run = record(lambda: results.extend([model(x), compiled(x), model(x)]))
        assert all(torch.equal(result, expected) for result in results)
        assert layer_calls(run)["first"] == 2

    @pytest.mark.parametrize("given", [True, False])
    def test_called_eagerly_after_its_wrapper_was(self, x: torch.Tensor, given: bool) -> None:
        """What is called without the wrapper has the names that it always has."""
        model = Mlp()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        run = record(lambda: [compiled(x), model(x)], *((compiled,) if given else ()))
        inside = [("Mlp", name) for name in ("first", "activation", "second")]
        assert paths_of(run) == [("Mlp",), ("Mlp",), *inside]

    def test_dispatch_mode_around_a_compiled_module(self, x: torch.Tensor) -> None:
        """A compiled module that ran under a mode is compiled again after it, not left eager."""
        from torch.utils.flop_counter import FlopCounterMode

        compiled = torch.compile(Mlp(), backend="eager")

        def program() -> int:
            with FlopCounterMode(display=False) as counter:
                compiled(x)
            compiled(x)
            flops: int = counter.get_total_flops()
            return flops

        expected = program()
        seen = []
        record(lambda: seen.append(program()))
        assert seen == [expected]

    @pytest.mark.slow
    def test_inductor(self, x: torch.Tensor) -> None:
        model = Mlp()
        compiled = torch.compile(model, fullgraph=True)
        with torch.no_grad():
            try:
                expected = compiled(x)
            except Exception as error:
                pytest.skip(f"inductor does not work on this machine: {str(error).splitlines()[0]}")
            results = []
            with torch._dynamo.config.patch(error_on_recompile=True):
                run = record(lambda: results.append(compiled(x)), compiled)
        assert torch.equal(results[0], expected)
        assert paths_of(run) == [("Mlp",)]


def count_graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
