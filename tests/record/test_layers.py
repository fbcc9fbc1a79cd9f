# SPDX-License-Identifier: Apache-2.0
"""Layers agree with `named_modules()` and with forward hooks, whatever kind of module they are."""

from __future__ import annotations

import sys

# Before torch, which looks for the collector of its operators while it is imported.
from run_codes import source_code

import gpuprof

# isort: split
import contextlib
import functools
import itertools
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn
from torch_models import (
    Block,
    ConvNet,
    Job,
    Mlp,
    Transformer,
    hooked_paths,
    layer_calls,
    make_input,
    paths_of,
    record,
    spans_of,
)

from gpuprof.errors import RecordingError
from gpuprof.record.facts import NoteCode
from gpuprof.record.layers import MOST_FAILURES
from gpuprof.render.page import page_notes
from gpuprof.run.facts import notes_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

JOBS = [(model, mode) for model in ("transformer", "convnet") for mode in ("eval", "sgd", "adamw")]

seen_by_name = pytest.mark.skipif(
    sys.version_info < (3, 12),
    reason="CPython before 3.12 calls Python functions from bytecode without their vectorcall entry "
    "(docs/accuracy-and-overhead.md)",
)


def unnamed(run: gpuprof.Run) -> list[tuple[str, str]]:
    """What could not be named, and why."""
    notes = [each for each in notes_of(run.meta) if each.code is NoteCode.LAYERS_NOT_NAMED]
    return [(each.values["module"], each.values["error"]) for each in notes]


class TestAgreement:
    @pytest.mark.parametrize("job", JOBS, ids="-".join)
    def test_calls_and_nesting_are_those_of_hooks(self, job: tuple[str, str]) -> None:
        program = Job(*job)
        with hooked_paths(program.model) as expected:
            program()
        run = record(program, program.model)
        mine = Counter(paths_of(run))
        assert mine == Counter(path for path in expected if path != ("CrossEntropyLoss",))
        assert layer_calls(run) == Counter(path[-1] for path in mine.elements())

    @pytest.mark.parametrize("job", JOBS, ids="-".join)
    def test_order_and_loss_when_discovered(self, job: tuple[str, str]) -> None:
        program = Job(*job)
        with hooked_paths(program.model) as expected:
            program()
        assert paths_of(record(program)) == expected

    @pytest.mark.parametrize("model_type", [Transformer, ConvNet])
    def test_names_are_those_of_named_modules(self, model_type: type[nn.Module]) -> None:
        model = model_type()
        names = {name or model_type.__name__ for name, _ in model.named_modules()}
        containers = {n for n, m in model.named_modules() if isinstance(m, nn.ModuleList)}
        # What multi-head attention does with its projection, it does without calling it.
        uncalled = {name for name in names if name.endswith("self_attn.out_proj")}
        run = record(lambda: model(make_input(model_type.__name__.lower())), model)
        assert layer_calls(run).keys() == names - containers - uncalled

    def test_every_attention_projection_has_its_path(self) -> None:
        model = Transformer()
        counts = layer_calls(record(lambda: model(make_input("transformer")), model))
        for block in (0, 1):
            for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
                assert counts[f"blocks.{block}.attn.{projection}"] == 1

    def test_fused_path_of_the_encoder_is_not_disturbed(self) -> None:
        model = Transformer().eval()
        x = make_input("transformer")
        with torch.no_grad():
            run = record(lambda: model(x), model)
        assert layer_calls(run)["encoder.layers.0"] == 1
        assert layer_calls(run)["encoder.layers.0.linear1"] == 0

    def test_operators_lie_in_their_layer(self) -> None:
        model = Mlp()
        x = torch.randn(2, 4)
        spans = {span.span_id: span for span in spans_of(record(lambda: model(x), model))}
        above = {s.name: spans[s.parent_id].name for s in spans.values() if s.name in ("aten::relu",)}
        assert above == {"aten::relu": "activation"}
        linears = [spans[s.parent_id].name for s in spans.values() if s.name == "aten::linear"]
        assert linears == ["first", "second"]

    def test_spans_enclose_what_they_hold(self) -> None:
        program = Job("transformer", "sgd", workers=0)
        spans = {span.span_id: span for span in spans_of(record(program, program.model))}
        for span in spans.values():
            assert span.duration_ns >= 0
            if span.parent_id is None:
                assert span.depth == 0
                continue
            parent = spans[span.parent_id]
            assert span.depth == parent.depth + 1
            assert parent.start_ns <= span.start_ns
            assert span.start_ns + span.duration_ns <= parent.start_ns + parent.duration_ns

    def test_recomputed_layers_are_in_the_backward_pass(self) -> None:
        from torch.utils.checkpoint import checkpoint

        model = Mlp()
        x = torch.randn(2, 4, requires_grad=True)

        def step() -> None:
            checkpoint(model, x, use_reentrant=False).sum().backward()

        with hooked_paths(model) as expected:
            step()
        run = record(step, model)
        # The second time it stops as soon as it has all that it needs.
        assert Counter(path[-1] for path in paths_of(run)) == Counter(path[-1] for path in expected)
        spans = {span.span_id: span for span in spans_of(run)}
        roots = [span for span in spans.values() if span.name == "Mlp"]
        assert len(roots) == 2
        assert {roots[0].parent_id is None, roots[1].parent_id is None} == {True, False}


class TestGivenModules:
    def test_others_are_left_out(self) -> None:
        given, other = Mlp(), ConvNet()

        def program() -> None:
            given(torch.randn(1, 4))
            other(make_input("convnet"))

        assert layer_calls(record(program, given)).keys() == {"Mlp", "first", "activation", "second"}

    def test_several(self) -> None:
        models = [Mlp(), Mlp(), nn.Linear(4, 4)]

        def program() -> None:
            for model in models:
                model(torch.randn(1, 4))

        counts = layer_calls(record(program, *models))
        assert (counts["Mlp"], counts["Mlp#2"], counts["Linear"]) == (1, 1, 1)
        assert (counts["Mlp/first"], counts["Mlp#2/first"]) == (1, 1)

    def test_same_twice(self) -> None:
        model = Mlp()
        counts = layer_calls(record(lambda: model(torch.randn(1, 4)), model, model))
        assert counts["Mlp"] == 1
        assert sum(counts.values()) == 4

    def test_part_of_another(self) -> None:
        model = Mlp()
        counts = layer_calls(record(lambda: model(torch.randn(1, 4)), model, model.first))
        assert counts["Mlp"] == 1
        assert sum(counts.values()) == 4

    def test_shared_submodule_has_its_first_name(self) -> None:
        linear = nn.Linear(4, 4)
        model = nn.Sequential(linear, nn.Sequential(linear), linear)
        with hooked_paths(model) as expected:
            model(torch.randn(1, 4))
        run = record(lambda: model(torch.randn(1, 4)), model)
        assert paths_of(run) == expected
        assert layer_calls(run)["0"] == 3

    @pytest.mark.parametrize("wrong", [1, "model", None, Mlp, lambda x: x], ids=type)
    def test_no_module(self, wrong: Any) -> None:
        with refused(RecordingError, "not_a_torch_module"):
            gpuprof.profile(wrong)

    def test_not_kept_alive_by_the_recording(self) -> None:
        import weakref

        model = nn.Linear(4, 4)
        reference = weakref.ref(model)
        with gpuprof.profile(model) as recording:
            model(torch.randn(1, 4))
        del model
        assert reference() is None
        assert layer_calls(recording.run) == {"Linear": 1}

    def test_deleted_during_the_recording(self) -> None:
        import weakref

        model = nn.Linear(4, 4)
        reference = weakref.ref(model)
        with gpuprof.profile(model) as recording:
            model(torch.randn(1, 4))
            del model
            assert reference() is None
        assert layer_calls(recording.run) == {"Linear": 1}


class Doubled(nn.Linear):
    """Overrides `__call__` and calls the usual one."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x) * 2


class Bypassed(nn.Linear):
    """Overrides `__call__` and never comes to the usual one."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x)


class TestUnusualModules:
    @pytest.fixture
    def x(self) -> torch.Tensor:
        return torch.randn(2, 4)

    @seen_by_name
    def test_call_is_overridden(self, x: torch.Tensor) -> None:
        model = nn.Sequential(Doubled(4, 4), nn.ReLU())
        expected = model(x)
        results = []
        run = record(lambda: results.append(model(x)), model)
        assert torch.equal(results[0], expected)
        assert paths_of(run) == [("Sequential",), ("Sequential", "0"), ("Sequential", "1")]

    def test_call_is_overridden_without_the_usual_one(self, x: torch.Tensor) -> None:
        model = nn.Sequential(Bypassed(4, 4), nn.ReLU())
        run = record(lambda: model(x), model)
        assert paths_of(run) == [("Sequential",), ("Sequential", "1")]  # no hook sees it either

    def test_forward_on_the_instance(self, x: torch.Tensor) -> None:
        """As accelerate does it."""
        model = Mlp()
        calls = []

        def new_forward(module: nn.Module, *args: Any) -> torch.Tensor:
            calls.append(module)
            return type(module).forward(module, *args)

        own = functools.partial(new_forward, model.first)
        model.first.forward = own
        expected = model(x)
        run = record(lambda: model(x), model)
        assert calls == [model.first] * 2
        assert layer_calls(run) == {"Mlp": 1, "first": 1, "activation": 1, "second": 1}
        assert vars(model.first)["forward"] is own
        assert torch.equal(model(x), expected)

    def test_forward_set_during_the_recording(self, x: torch.Tensor) -> None:
        model = Mlp()
        expected = model(x) + 1

        def program() -> None:
            model(x)
            plain = model.forward
            model.forward = lambda x: plain(x) + 1
            assert torch.equal(model(x), expected)

        assert layer_calls(record(program, model))["Mlp"] == 2
        assert torch.equal(model(x), expected)

    @pytest.mark.parametrize("discovered", [False, True])
    @pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.zeros(2, 4))])
    def test_script_module(self, x: torch.Tensor, make: Any, discovered: bool) -> None:
        scripted = make(Mlp())
        model = nn.Sequential(scripted, nn.ReLU())
        for _ in range(3):  # until the profiling executor is stable
            expected = model(x)
        results = []
        given = () if discovered else (model,)
        run = record(lambda: results.append(model(x)), *given)
        assert torch.equal(results[0], expected)
        assert paths_of(run) == [("Sequential",), ("Sequential", "0"), ("Sequential", "1")]

    @pytest.mark.parametrize("discovered", [False, True])
    def test_loaded_script_module(self, x: torch.Tensor, tmp_path: Path, discovered: bool) -> None:
        torch.jit.script(Mlp()).save(tmp_path / "mlp.pt")
        model = torch.jit.load(tmp_path / "mlp.pt")
        expected = model(x)
        results = []
        run = record(lambda: results.append(model(x)), *(() if discovered else (model,)))
        assert torch.equal(results[0], expected)
        # The call is one layer; what it calls runs inside PyTorch's own interpreter.
        assert paths_of(run) == [(type(model).__name__,)]

    def test_fx_graph_module(self, x: torch.Tensor) -> None:
        model = torch.fx.symbolic_trace(Mlp())
        with hooked_paths(model) as expected:
            model(x)
        run = record(lambda: model(x), model)
        assert paths_of(run) == expected
        assert set(layer_calls(run)) == {type(model).__name__, "first", "activation", "second"}

    def test_lazy_module(self, x: torch.Tensor) -> None:
        model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
        run = record(lambda: model(x), model)
        assert layer_calls(run) == {"Sequential": 1, "0": 1, "1": 1}
        assert type(model[0]) is nn.Linear

    def test_parametrized_module(self, x: torch.Tensor) -> None:
        model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
        with hooked_paths(model) as expected:
            model(x)
        run = record(lambda: model(x), model)
        assert paths_of(run) == expected
        assert "0.parametrizations.weight.0" in layer_calls(run)

    def test_names_with_odd_characters(self, x: torch.Tensor) -> None:
        odd = ["a b", "ü🚀", "x" * 300, "</script>", 'print "hi"\n', "'; DROP TABLE spans"]
        model = nn.Sequential()
        for name in odd:
            model.add_module(name, nn.Identity())
        assert layer_calls(record(lambda: model(x), model)) == Counter(["Sequential", *odd])

    def test_equality_and_hash_of_the_user(self, x: torch.Tensor) -> None:
        class Equal(nn.Linear):
            def __eq__(self, other: object) -> bool:
                return isinstance(other, Equal)

            def __hash__(self) -> int:
                return hash(id(self))

        model = nn.ModuleList([Equal(4, 4), Equal(4, 4)])
        run = record(lambda: [each(x) for each in model], model)
        assert layer_calls(run) == {"0": 1, "1": 1}

    def test_a_module_that_cannot_be_walked(self, x: torch.Tensor) -> None:
        class Odd(nn.Linear):
            walks = 0

            def named_modules(self, *args: Any, **kwargs: Any) -> Any:
                Odd.walks += 1
                raise ZeroDivisionError

        model = Odd(4, 4)
        expected = model(x)
        results: list[torch.Tensor] = []
        run = record(lambda: results.extend(model(x) for _ in range(5)))
        assert all(torch.equal(result, expected) for result in results)
        assert Odd.walks <= 1
        assert run.meta["complete"] is True

    def test_a_walk_that_raises_for_a_given_module(self, x: torch.Tensor) -> None:
        class Odd(nn.Linear):
            def named_modules(self, *args: Any, **kwargs: Any) -> Any:
                raise ZeroDivisionError

        model = Odd(4, 4)
        with contextlib.suppress(ZeroDivisionError, gpuprof.GpuprofError):
            record(lambda: model(x), model)
        assert layer_calls(record(lambda: Mlp()(x)))["Mlp"] == 1  # the next recording is not in the way

    @pytest.mark.parametrize("given", [False, True])
    def test_a_walk_that_raises_is_a_note(self, x: torch.Tensor, given: bool) -> None:
        class Odd(nn.Sequential):
            def named_modules(self, *args: Any, **kwargs: Any) -> Any:
                raise ZeroDivisionError("no walk")

        model, other = Odd(nn.Linear(4, 4)), Mlp()
        run = record(lambda: [model(x) for _ in range(3)] + [other(x)], *([model, other] if given else []))
        assert {"Odd": 3, "Mlp": 1, "Mlp/first": 1}.items() <= layer_calls(run).items()
        assert unnamed(run) == [("Odd", "ZeroDivisionError: no walk")]
        assert any("no walk" in line for line in page_notes(run.meta))

    def test_a_walk_that_raises_later_keeps_the_names_until_then(self, x: torch.Tensor) -> None:
        class Odd(nn.Sequential):
            def named_modules(self, *args: Any, **kwargs: Any) -> Any:
                yield from itertools.islice(super().named_modules(*args, **kwargs), 2)
                raise ZeroDivisionError

        model = Odd(nn.Linear(4, 4), nn.ReLU())
        run = record(lambda: model(x))
        assert layer_calls(run) == {"Odd": 1, "0": 1, "ReLU": 1}
        assert unnamed(run) == [("Odd", "ZeroDivisionError: ")]

    def test_children_that_cannot_be_listed_are_a_note(self, x: torch.Tensor) -> None:
        class Odd(nn.Sequential):
            def named_children(self) -> Any:
                raise ZeroDivisionError

        model = Odd(nn.Linear(4, 4))
        run = record(lambda: model(x))
        assert layer_calls(run) == {"Odd": 1, "Linear": 1}
        assert unnamed(run) == [("Odd", "ZeroDivisionError: ")]

    def test_a_name_that_is_no_text_is_escaped(self, x: torch.Tensor) -> None:
        model = nn.Sequential()
        model.add_module("\udc80", nn.Linear(4, 4))
        model.add_module("after", nn.ReLU())
        run = record(lambda: model(x))
        assert layer_calls(run) == {"Sequential": 1, "\\udc80": 1, "after": 1}
        assert unnamed(run) == []
        assert run.meta["layer_types"]["Sequential"]["\\udc80"] == "Linear"

    def test_an_attribute_that_raises_leaves_the_module_out_for_good(self, x: torch.Tensor) -> None:
        class Odd(nn.ReLU):
            accesses = 0

            def __getattribute__(self, name: str) -> Any:
                if name == "_compiled_call_impl" and not Odd.accesses:
                    Odd.accesses += 1
                    raise KeyError(name)
                return super().__getattribute__(name)

        model = Odd()
        run = record(lambda: [model(x) for _ in range(3)])
        assert layer_calls(run) == {}
        assert unnamed(run) == [("Odd", "KeyError: '_compiled_call_impl'")]

    def test_a_module_that_has_no_hash_keeps_its_name(self, x: torch.Tensor) -> None:
        class Odd(nn.ReLU):
            __hash__ = None  # type: ignore[assignment]

        model = Odd()
        run = record(lambda: [model(x) for _ in range(3)])
        assert layer_calls(run) == {"Odd": 3}
        ((name, error),) = unnamed(run)
        assert (name, error.partition(":")[0]) == ("Odd", "TypeError")

    @pytest.mark.slow
    def test_many_failures_are_a_few_notes(self, x: torch.Tensor) -> None:
        class Odd(nn.Sequential):
            def named_modules(self, *args: Any, **kwargs: Any) -> Any:
                raise ZeroDivisionError

        models = [type(f"Odd{i}", (Odd,), {})(nn.ReLU()) for i in range(3 * MOST_FAILURES)]
        run = record(lambda: [model(x) for model in models])
        assert len(unnamed(run)) == MOST_FAILURES

    def test_keywords_and_no_arguments(self) -> None:
        class Constant(nn.Module):
            def forward(self, *args: Any, scale: float = 1.0, **others: Any) -> Any:
                return args, scale, others

        model = Constant()
        results = []

        def program() -> None:
            results.append(model())
            results.append(model(scale=2.0))
            results.append(model(1, 2, scale=3.0, input=4))
            results.append(list(map(model, [8])))

        run = record(program, model)
        assert layer_calls(run) == {"Constant": 4}
        assert results == [
            ((), 1.0, {}),
            ((), 2.0, {}),
            ((1, 2), 3.0, {"input": 4}),
            [((8,), 1.0, {})],
        ]

    @seen_by_name
    @pytest.mark.parametrize(
        "call",
        [
            lambda model: model.__call__(5),
            lambda model: nn.Module.__call__(model, 5),
            lambda model: type(model).__call__(model, 5),
            lambda model: nn.Module.__call__(*(model, 5)),
            lambda model: functools.partial(nn.Module.__call__, model)(5),
            lambda model: model.__call__(*[5]),
        ],
        ids=["bound", "function", "by type", "starred", "partial", "starred bound"],
    )
    def test_called_by_the_name_of_the_method(self, call: Any) -> None:
        model = nn.Identity()
        for _ in range(3):
            run = record(lambda: [call(model) for _ in range(40)], model)
            assert layer_calls(run) == {"Identity": 40}

    def test_call_without_a_module_fails_as_without_a_recording(self) -> None:
        def message(*args: Any, **kwargs: Any) -> tuple[type, str]:
            try:
                nn.Module.__call__(*args, **kwargs)
            except Exception as error:
                return type(error), str(error)
            return object, ""

        cases: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((), {}),
            ((1,), {}),
            ((), {"self": 1}),
            ((nn.Module(),), {}),
        ]
        expected = [message(*args, **kwargs) for args, kwargs in cases]
        seen: list[Any] = []
        record(lambda: seen.extend(message(*args, **kwargs) for args, kwargs in cases))
        assert seen == expected


@pytest.fixture
def restored_call() -> Any:
    original = nn.Module.__call__
    yield original
    nn.Module.__call__ = original


class TestPatchedCall:
    """Programs and tools that replace `torch.nn.Module.__call__`."""

    def test_before_the_recording(self, restored_call: Any) -> None:
        calls = []

        def patched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            calls.append(self)
            return restored_call(self, *args, **kwargs)

        nn.Module.__call__ = patched
        model = Mlp()
        run = record(lambda: model(torch.randn(1, 4)), model)
        assert layer_calls(run) == {"Mlp": 1, "first": 1, "activation": 1, "second": 1}
        assert len(calls) == 4
        assert nn.Module.__call__ is patched

    def test_during_the_recording(self, restored_call: Any) -> None:
        calls = []

        def patched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            calls.append(self)
            return restored_call(self, *args, **kwargs)

        model = Mlp()

        def program() -> None:
            nn.Module.__call__ = patched
            model(torch.randn(1, 4))

        run = record(program, model)
        assert layer_calls(run) == {"Mlp": 1, "first": 1, "activation": 1, "second": 1}
        assert len(calls) == 4
        assert nn.Module.__call__ is patched

    def test_undone_during_the_recording(self, restored_call: Any) -> None:
        def patched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return restored_call(self, *args, **kwargs)

        nn.Module.__call__ = patched
        model = Mlp()

        def program() -> None:
            nn.Module.__call__ = restored_call
            model(torch.randn(1, 4))

        record(program, model)
        assert nn.Module.__call__ is restored_call
        assert layer_calls(record(lambda: model(torch.randn(1, 4)), model))["Mlp"] == 1

    def test_by_something_that_is_no_function(self, restored_call: Any) -> None:
        class Callable:
            def __get__(self, instance: Any, owner: Any) -> Any:
                return restored_call.__get__(instance, owner)

        nn.Module.__call__ = Callable()
        model = Mlp()
        run = record(lambda: model(torch.randn(1, 4)), model)
        assert source_code(run.meta, "layers") == "off: module_call_replaced"
        assert layer_calls(run) == {}


class TestControlFlow:
    @pytest.mark.parametrize("discovered", [False, True])
    def test_recursion(self, discovered: bool) -> None:
        class Countdown(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Identity()

            def forward(self, n: int) -> int:
                return self.inner(0) if n == 0 else self(n - 1) + 1

        model = Countdown()
        assert model(5) == 5
        run = record(lambda: model(5), *(() if discovered else (model,)))
        assert layer_calls(run) == {"Countdown": 6, "inner": 1}
        assert max(len(path) for path in paths_of(run)) == 7

    def test_recursion_without_end_raises_as_without_a_recording(self) -> None:
        class Endless(nn.Module):
            def forward(self, x: int) -> int:
                return self(x)

        model = Endless()

        def program() -> None:
            with pytest.raises(RecursionError):
                model(0)
            Mlp()(torch.randn(1, 4))

        run = record(program)
        assert layer_calls(run)["Endless"] > 10
        (root,) = [span for span in spans_of(run) if span.name == "Mlp"]
        assert root.parent_id is None

    def test_exceptions(self) -> None:
        class Fails(nn.Module):
            def forward(self, error: BaseException) -> None:
                raise error

        model = nn.Sequential(nn.Identity(), Fails())
        errors = [ValueError("no"), KeyboardInterrupt(), StopIteration(), SystemExit(3), GeneratorExit()]

        def program() -> None:
            for error in errors:
                with pytest.raises(type(error)) as caught:
                    model(error)
                assert caught.value is error
                names = [entry.name for entry in caught.traceback]
                assert names[-1] == "forward"
                package = Path(gpuprof.__file__).parent
                assert not any(package in Path(entry.path).parents for entry in caught.traceback[1:])
            model[0](1)

        run = record(program, model)
        assert layer_calls(run) == {"Sequential": 5, "0": 6, "1": 5}
        assert paths_of(run)[-1] == ("0",)
        assert run.meta["totals"]["unfinished_spans"] == 0

    def test_traceback_is_the_same(self) -> None:
        import traceback

        class Fails(nn.Module):
            def forward(self) -> None:
                raise ValueError

        model = nn.Sequential()
        model.add_module("fails", Fails())

        def frames() -> list[tuple[str, str, int | None]]:
            try:
                model.fails()
            except ValueError as error:
                return [(f.filename, f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
            return []

        expected = frames()
        seen = []
        record(lambda: seen.append(frames()))
        assert seen == [expected]

    def test_interrupted_while_it_is_named(self) -> None:
        """Ctrl-C counts, wherever it finds the program."""

        class Interrupted(nn.Sequential):
            def named_modules(self, *args: Any, **kwargs: Any) -> Any:
                signal.raise_signal(signal.SIGINT)
                return super().named_modules(*args, **kwargs)

        model = Interrupted(nn.Linear(4, 4))

        def program() -> None:
            with pytest.raises(KeyboardInterrupt):
                model(torch.randn(1, 4)).relu()

        record(program)

    def test_generators_and_coroutines_from_forward(self) -> None:
        class Stream(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> Any:
                for _ in range(3):
                    yield self.linear(x)

        model = Stream()
        run = record(lambda: list(model(torch.randn(1, 4))), model)
        assert layer_calls(run) == {"Stream": 1, "linear": 3}

    @pytest.mark.parametrize("discovered", [False, True])
    def test_one_module_in_many_threads(self, discovered: bool) -> None:
        model = Mlp()
        x = torch.randn(2, 4)
        barrier = threading.Barrier(8)

        def in_thread() -> None:
            barrier.wait()
            for _ in range(50):
                model(x)

        def program() -> None:
            threads = [threading.Thread(target=in_thread) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        run = record(program, *(() if discovered else (model,)))
        assert layer_calls(run) == dict.fromkeys(("Mlp", "first", "activation", "second"), 400)
        assert set(paths_of(run)) == {("Mlp",), ("Mlp", "first"), ("Mlp", "activation"), ("Mlp", "second")}
        assert len({span.thread_id for span in spans_of(run, "layer")}) == 8

    def test_recording_that_ends_inside_a_layer(self) -> None:
        class Ends(nn.Module):
            def forward(self, recording: gpuprof.Profile) -> None:
                recording.__exit__(None, None, None)

        model = nn.Sequential(Ends())
        recording = gpuprof.profile(model).__enter__()
        model(recording)
        assert layer_calls(recording.run) == {"Sequential": 1, "0": 1}
        assert recording.run.meta["totals"]["unfinished_spans"] == 2

    def test_recording_that_begins_inside_a_layer(self) -> None:
        runs = []

        class Begins(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Identity()

            def forward(self, x: int) -> int:
                runs.append(record(lambda: self.inner(x), self))
                return x

        Begins()(3)
        assert layer_calls(runs[0]) == {"inner": 1}
        assert runs[0].meta["totals"]["unmatched_ends"] == 0

    def test_nested_recordings_are_refused(self) -> None:
        model = Mlp()

        def program() -> None:
            with refused(RecordingError, "recording_active"):
                record(lambda: None, model)
            model(torch.randn(1, 4))

        assert layer_calls(record(program, model))["Mlp"] == 1

    def test_again_and_again(self) -> None:
        model = Block(8, 2)
        x = torch.randn(1, 3, 8)
        paths = [paths_of(record(lambda: model(x), model)) for _ in range(10)]
        assert paths == [paths[0]] * 10
        assert len(paths[0]) == 13
