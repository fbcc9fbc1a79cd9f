# SPDX-License-Identifier: Apache-2.0
"""The measured program is as it was, before, during and after a recording; so are its results."""

from __future__ import annotations

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof

# isort: split
import copy
import cProfile
import functools
import gc
import inspect
import io
import multiprocessing
import os
import pickle
import pstats
import random
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from roofline_rows import know_ceilings
from torch import nn
from torch.nn import functional
from torch_models import (
    MODELS,
    ConvNet,
    Job,
    Mlp,
    announced,
    hooked_paths,
    layer_calls,
    make_input,
    module_states,
    record,
    spans_of,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]

# In a process of its own, as every rank is: the group's threads are none of the other tests'. Should one wait
# for another forever, the stacks show where, whichever thread holds the interpreter lock.
DISTRIBUTED = f"""
import faulthandler, sys
faulthandler.dump_traceback_later(40, exit=True)
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
import gpuprof, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_models import Mlp

def gradients(wrapped):
    wrapped.zero_grad()
    wrapped(x).sum().backward()
    return [parameter.grad.clone() for parameter in wrapped.parameters()]

def check(wrapped):
    assert all(map(torch.equal, gradients(wrapped), expected))

x = torch.linspace(-1, 1, 8).reshape(2, 4)
dist.init_process_group("gloo", store=dist.FileStore("store", 1), rank=0, world_size=1)
torch.manual_seed(1)
model = Mlp()
before = DistributedDataParallel(model)
expected = gradients(before)
for number, given in enumerate(((), (model,), (before,))):
    with gpuprof.profile(*given, out=str(number)):
        check(before)
        during = DistributedDataParallel(model)
        check(during)
    check(during)
after = DistributedDataParallel(model)
check(after)
del before, during, after
dist.destroy_process_group()
print("done")
"""
OPTIONS: list[dict[str, bool]] = [{}, {"operators": False}, {"layers": False}]


@pytest.fixture(params=list(MODELS))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def model(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[kind]().eval()


@pytest.fixture
def x(kind: str) -> torch.Tensor:
    return make_input(kind)


def before_during_after(reading: Callable[[], Any], model: nn.Module, x: torch.Tensor) -> list[Any]:
    """The reading before, at three places in, and after, a recording of the model and of everything."""
    readings = [reading()]
    for given in ((model,), ()):
        with gpuprof.profile(*given):
            readings.append(reading())
            model(x)
            readings.append(reading())
            readings.append(call_and_read(model, x, reading))
        readings.append(reading())
    return readings


def call_and_read(model: nn.Module, x: torch.Tensor, reading: Callable[[], Any]) -> Any:
    """Read from inside a layer's own call."""
    readings: list[Any] = []

    class Reads(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not readings:
                readings.append(None)
                with torch._C.DisableTorchFunction():
                    readings[0] = reading()
            return function(*args, **(kwargs or {}))

    with Reads():
        model(x)
    return readings[0]


class TestModuleIsAsItWas:
    def test_dictionaries(self, model: nn.Module, x: torch.Tensor) -> None:
        first, *others = before_during_after(lambda: module_states(model), model, x)
        assert all(other == first for other in others)
        assert not any("forward" in vars(module) for module in model.modules())

    def test_classes(self, model: nn.Module, x: torch.Tensor) -> None:
        def classes() -> Any:
            types = {kind for module in model.modules() for kind in type(module).__mro__}
            return {kind: {name: id(value) for name, value in vars(kind).items()} for kind in types}

        first, *others = before_during_after(classes, model, x)
        assert all(other == first for other in others)

    def test_call_and_forward_are_the_same_objects(self, model: nn.Module, x: torch.Tensor) -> None:
        def identities() -> list[Any]:
            call = nn.Module.__call__
            return [
                call,
                nn.Module.__dict__["__call__"],
                nn.Module._wrapped_call_impl,
                nn.Module._call_impl,
                call.__code__,
                call.__defaults__,
                call.__dict__.copy(),
                call.__name__,
                call.__qualname__,
                call.__module__,
                call.__closure__,
                type(call),
                type(model).__call__,
                type(model),
                functional.linear,
            ]

        with_forward = [type(module).forward for module in model.modules()]
        first, *others = before_during_after(identities, model, x)
        for other in others:
            assert all(a is b or a == b for a, b in zip(first, other, strict=True))
        with gpuprof.profile(model):
            assert [type(module).forward for module in model.modules()] == with_forward

    def test_signatures_and_source(self, model: nn.Module, x: torch.Tensor) -> None:
        def readings() -> list[Any]:
            return [
                [inspect.signature(module.forward) for module in model.modules()],
                [inspect.signature(module) for module in model.modules()],
                inspect.signature(nn.Module.__call__),
                inspect.getsource(nn.Module.__call__),
                [module.forward.__func__.__qualname__ for module in model.modules()][:1],
                inspect.ismethod(model.forward),
                callable(model),
            ]

        before = readings()
        with gpuprof.profile(model):
            model(x)
            assert readings() == before
        assert readings() == before

    def test_kinds_repr_and_parameters(self, model: nn.Module, x: torch.Tensor) -> None:
        def readings() -> list[Any]:
            return [
                [type(module) for module in model.modules()],
                repr(model),
                [name for name, _ in model.named_modules()],
                [(name, id(parameter)) for name, parameter in model.named_parameters()],
                [(name, id(buffer)) for name, buffer in model.named_buffers()],
                [isinstance(module, nn.Module) for module in model.modules()],
                dir(model),
                hash(model),
            ]

        first, *others = before_during_after(readings, model, x)
        assert all(other == first for other in others)

    def test_state_dict(self, model: nn.Module, x: torch.Tensor) -> None:
        def state() -> dict[str, list[Any]]:
            return {name: value.tolist() for name, value in model.state_dict().items()}

        first, *others = before_during_after(state, model, x)
        assert all(other == first for other in others)
        with gpuprof.profile(model):
            model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
            model(x)
        assert state() == first

    def test_pickle_is_the_same_bytes(self, model: nn.Module, x: torch.Tensor) -> None:
        assert pickle.dumps(model) == pickle.dumps(model)
        first, *others = before_during_after(lambda: pickle.dumps(model), model, x)
        assert all(other == first for other in others)

    def test_saved_file_is_the_same_bytes(self, model: nn.Module, x: torch.Tensor) -> None:
        def saved() -> bytes:
            file = io.BytesIO()
            torch.save(model, file)
            return file.getvalue()

        assert saved() == saved()
        first, *others = before_during_after(saved, model, x)
        assert all(other == first for other in others)
        assert b"gpuprof" not in first

    def test_pickled_during_loads_where_there_is_no_gpuprof(self, tmp_path: Path) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        x = torch.ones(1, 3)
        with gpuprof.profile(model):
            expected = model(x)
            (tmp_path / "model.pickle").write_bytes(pickle.dumps((model, x, expected)))
            torch.save(model, tmp_path / "model.pt")
        program = """
import pickle, sys, torch
model, x, expected = pickle.load(open("model.pickle", "rb"))
assert torch.equal(model(x), expected)
assert torch.equal(torch.load("model.pt", weights_only=False)(x), expected)
assert not any(name.startswith("gpuprof") for name in sys.modules), "gpuprof was imported"
"""
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=180
        )
        assert done.returncode == 0, done.stderr

    def test_loaded_during_and_used_after(self, model: nn.Module, x: torch.Tensor, tmp_path: Path) -> None:
        expected = model(x)
        torch.save(model, tmp_path / "model.pt")
        with gpuprof.profile() as recording:
            loaded = torch.load(tmp_path / "model.pt", weights_only=False)
            assert torch.equal(loaded(x), expected)
        assert torch.equal(loaded(x), expected)
        assert vars(loaded).keys() == vars(model).keys()
        assert layer_calls(recording.run)[type(model).__name__] == 1

    def test_copies(self, model: nn.Module, x: torch.Tensor) -> None:
        expected = model(x)
        for given in ((model,), ()):
            with gpuprof.profile(*given) as recording:
                model(x)
                deep, shallow = copy.deepcopy(model), copy.copy(model)
                for each in (deep, shallow):
                    assert type(each) is type(model)
                    assert vars(each).keys() == vars(model).keys()
                    assert torch.equal(each(x), expected)
                    assert inspect.ismethod(each.forward)
                    assert each.forward.__self__ is each
            assert torch.equal(deep(x), expected)
            name = type(model).__name__
            counts = layer_calls(recording.run)
            if given:
                assert counts[name] == 1
            else:
                assert (counts[name], counts[f"{name}#2"], counts[f"{name}#3"]) == (1, 1, 1)

    def test_a_copy_is_not_the_original(self) -> None:
        """What a copy learns, the original does not."""
        model = Mlp()
        with gpuprof.profile(model):
            other = copy.deepcopy(model)
            with torch.no_grad():
                other.first.weight.add_(1)
        assert not torch.equal(model.first.weight, other.first.weight)

    def test_weak_references_are_taken_back(self) -> None:
        model, x = Mlp(), torch.randn(1, 4)
        model(x)  # once it was used, PyTorch's compiler keeps some itself
        before = [weakref.getweakrefcount(module) for module in model.modules()]
        with gpuprof.profile(model):
            model(x)
        assert [weakref.getweakrefcount(module) for module in model.modules()] == before

    @pytest.mark.slow
    def test_reference_counts(self) -> None:
        model = Mlp()
        x = torch.randn(1, 4)
        record(lambda: model(x))
        gc.collect()
        before = [sys.getrefcount(module) for module in model.modules()]
        call_before = sys.getrefcount(nn.Module.__call__)
        for _ in range(3):
            run = record(lambda: model(x))
        del run
        gc.collect()
        after = [sys.getrefcount(module) for module in model.modules()]
        call_after = sys.getrefcount(nn.Module.__call__)
        assert (after, call_after) == (before, call_before)


class TestHooks:
    def test_fire_in_order_with_the_same_arguments(self) -> None:
        model = Mlp()
        x = torch.randn(2, 4, requires_grad=True)
        log: list[Any] = []
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda m, args, name=name: log.append(("pre", name, len(args))))
            module.register_forward_hook(
                lambda m, args, out, name=name: log.append(("post", name, out.shape))
            )
            module.register_full_backward_pre_hook(lambda m, grads, name=name: log.append(("bpre", name)))
            module.register_full_backward_hook(
                lambda m, ins, outs, name=name: log.append(("back", name, len(ins), len(outs)))
            )
        model.first.register_forward_pre_hook(
            lambda m, args, kwargs: log.append(("kwargs", sorted(kwargs))), with_kwargs=True, prepend=True
        )
        model.second.register_forward_hook(lambda m, args, out: out * 2)

        def step() -> tuple[list[Any], torch.Tensor]:
            log.clear()
            out = model(x)
            out.sum().backward()
            return list(log), out.detach()

        events, out = step()
        assert len(events) == 17
        seen: list[Any] = []
        run = record(lambda: seen.append(step()), model)
        assert seen[0][0] == events
        assert torch.equal(seen[0][1], out)
        assert step()[0] == events
        assert layer_calls(run) == {"Mlp": 1, "first": 1, "activation": 1, "second": 1}

    def test_added_and_removed_during(self) -> None:
        model = Mlp()
        log: list[str] = []

        def program() -> None:
            handle = model.register_forward_hook(lambda *_: log.append("hook"))
            model(torch.randn(1, 4))
            handle.remove()
            model(torch.randn(1, 4))

        assert layer_calls(record(program, model))["Mlp"] == 2
        assert log == ["hook"]
        assert not model._forward_hooks

    def test_global_hooks(self) -> None:
        model = Mlp()
        with hooked_paths(model) as seen:
            record(lambda: model(torch.randn(1, 4)), model)
        assert [path[-1] for path in seen] == ["Mlp", "first", "activation", "second"]

    def test_always_called_after_an_exception(self) -> None:
        class Fails(nn.Module):
            def forward(self) -> None:
                raise ValueError("no")

        model = Fails()
        log = []
        model.register_forward_hook(lambda *_: log.append("always"), always_call=True)

        def program() -> None:
            with pytest.raises(ValueError, match="no"):
                model()

        record(program, model)
        assert log == ["always"]


class TestTransformations:
    """Each is made before, during and after; what was made at one time is used at all times."""

    @pytest.fixture
    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return Mlp().eval()

    @pytest.fixture
    def x(self) -> torch.Tensor:
        return torch.linspace(-1, 1, 8).reshape(2, 4)

    @pytest.mark.parametrize("given", [True, False])
    @pytest.mark.parametrize("name", ["trace", "script", "fx", "export", "freeze", "parallel", "replica"])
    def test_it(self, model: nn.Module, x: torch.Tensor, name: str, given: bool) -> None:
        makers: dict[str, Callable[[], Any]] = {
            "trace": lambda: torch.jit.trace(model, x),
            "script": lambda: torch.jit.script(model),
            "fx": lambda: torch.fx.symbolic_trace(model),
            "export": lambda: torch.export.export(model, (x,)).module(),
            "freeze": lambda: torch.jit.freeze(torch.jit.script(model)),
            "parallel": lambda: nn.DataParallel(model),
            "replica": lambda: replicate(model),
        }
        make = makers[name]
        expected = model(x)
        before = make()
        code = getattr(before, "code", None)
        with gpuprof.profile(*((model,) if given else ())) as recording:
            model(x)
            during = make()
            for made in (before, during):
                assert torch.equal(made(x), expected)
        after = make()
        for made in (before, during, after):
            assert torch.equal(made(x), expected)
            assert torch.equal(made(x), expected)
            assert type(made).__name__ == type(before).__name__
            assert getattr(made, "code", None) == code
        assert layer_calls(recording.run)["Mlp"] >= 1
        assert recording.run.meta["complete"] is True

    def test_traced_graph_is_the_same(self, model: nn.Module, x: torch.Tensor) -> None:
        def graphs() -> list[str]:
            return [
                str(torch.jit.trace(model, x).inlined_graph),
                str(torch.jit.script(model).inlined_graph),
                str(torch.fx.symbolic_trace(model).graph),
                torch.export.export(model, (x,)).graph_module.code,
                str(list(torch.jit.trace(model, x).graph.nodes())[-1].kind()),
            ]

        expected = [stripped(text) for text in graphs()]
        with gpuprof.profile(model):
            assert [stripped(text) for text in graphs()] == expected
        assert [stripped(text) for text in graphs()] == expected

    def test_functional_call(self, model: nn.Module, x: torch.Tensor) -> None:
        parameters = {name: value * 2 for name, value in model.named_parameters()}
        expected = torch.func.functional_call(model, parameters, (x,))
        results = []
        run = record(lambda: results.append(torch.func.functional_call(model, parameters, (x,))), model)
        assert torch.equal(results[0], expected)
        assert layer_calls(run)["Mlp"] == 1

    def test_grad_and_vmap(self, model: nn.Module, x: torch.Tensor) -> None:
        parameters = dict(model.named_parameters())

        def loss(parameters: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, parameters, (row,)).sum()

        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
        expected = per_sample(parameters, x)
        results = []
        run = record(lambda: results.append(per_sample(parameters, x)), model)
        assert all(torch.equal(results[0][name], expected[name]) for name in expected)
        assert layer_calls(run) == {"Mlp": 1, "first": 1, "activation": 1, "second": 1}

    def test_stacked_ensemble(self, x: torch.Tensor) -> None:
        models = [Mlp() for _ in range(3)]
        base = copy.deepcopy(models[0]).to("meta")

        def ensemble() -> torch.Tensor:
            parameters, buffers = torch.func.stack_module_state(models)
            call = functools.partial(torch.func.functional_call, base)
            return torch.func.vmap(lambda p, b: call((p, b), (x,)))(parameters, buffers)

        expected = ensemble()
        results = []
        record(lambda: results.append(ensemble()))
        assert torch.equal(results[0], expected)

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpoint(self, model: nn.Module, x: torch.Tensor, reentrant: bool) -> None:
        from torch.utils.checkpoint import checkpoint

        def gradients() -> list[torch.Tensor]:
            model.zero_grad()
            inputs = x.clone().requires_grad_()
            checkpoint(model, inputs, use_reentrant=reentrant).sum().backward()
            return [inputs.grad, *(parameter.grad.clone() for parameter in model.parameters())]

        expected = gradients()
        seen = []
        record(lambda: seen.append(gradients()), model)
        assert all(torch.equal(a, b) for a, b in zip(seen[0], expected, strict=True))

    def test_dispatch_and_function_modes(self, model: nn.Module, x: torch.Tensor) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        class Log(TorchDispatchMode):
            def __init__(self) -> None:
                super().__init__()
                self.names: list[str] = []

            def __torch_dispatch__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                self.names.append(str(function))
                return function(*args, **(kwargs or {}))

        def names() -> list[str]:
            with Log() as log:
                model(x)
            return log.names

        expected = names()
        seen = []
        record(lambda: seen.append(names()), model)
        assert seen == [expected]

    @pytest.mark.slow
    def test_distributed_data_parallel(self, tmp_path: Path, run_python: Callable[..., Any]) -> None:
        ended = run_python("-W", "ignore", "-c", DISTRIBUTED)
        assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
        runs = [gpuprof.open(tmp_path / str(number)) for number in range(3)]
        of_wrapper, of_model, again = map(layer_calls, runs)
        assert of_model == dict.fromkeys(("Mlp", "first", "activation", "second"), 2)
        for counts in (of_wrapper, again):
            assert counts["DistributedDataParallel"] == 1
            assert counts["first"] == 2

    def test_forked_child_computes_the_same_and_is_recorded(self, model: nn.Module, x: torch.Tensor) -> None:
        expected = model(x).tolist()
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        results = []

        def in_child() -> None:
            queue.put((model(x).tolist(), pickle.dumps(model) == expected_bytes, os.getpid()))

        def program() -> None:
            model(x)
            child = context.Process(target=in_child)
            child.start()
            results.append(queue.get())
            child.join()
            assert child.exitcode == 0
            model(x)

        expected_bytes = pickle.dumps(model)
        run = record(program, model)
        ((output, same_bytes, process_id),) = results
        assert output == expected
        assert same_bytes
        by_process = Counter(span.process_id for span in spans_of(run, "layer") if span.name == "Mlp")
        assert by_process == {run.meta["process_id"]: 2, process_id: 1}
        assert announced(run, process_id)["aten::addmm"] == 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="CPython 3.10 cannot pause a profiler")
@pytest.mark.parametrize("work", [False, True])
@pytest.mark.slow
def test_profilers_of_the_program_see_nothing_of_ours(work: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    know_ceilings(monkeypatch)
    models = [Mlp(), Mlp()]
    x = torch.ones(2, 4)

    def calls() -> set[tuple[str, int]]:
        profiler = cProfile.Profile()
        gc.collect()  # or what other tests left is collected meanwhile, and its finalizers are seen
        profiler.enable()
        for model in models:
            model(x)
        profiler.disable()
        found = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
        return {(f"{file}:{name}", row[0]) for (file, _, name), row in found.items()}

    expected = calls()
    seen: list[set[tuple[str, int]]] = []
    record(lambda: seen.append(calls()), work=work)
    (found,) = seen
    assert sorted(found ^ expected) == []


def replicate(model: nn.Module) -> nn.Module:
    """What DataParallel makes of a module for each device."""
    replica = model._replicate_for_data_parallel()
    for name, child in model.named_children():
        copied = child._replicate_for_data_parallel()
        for key, parameter in child._parameters.items():
            setattr(copied, key, parameter.detach())
        setattr(replica, name, copied)
    return replica


def stripped(text: str) -> str:
    """A graph without its source positions and the numbers that distinguish compilations."""
    lines = (line.split(" # ")[0] for line in text.splitlines())
    return re.sub(r"___torch_mangle_\d+\.", "", "\n".join(lines))


def train(model_name: str, mode: str, workers: int) -> dict[str, Any]:
    """Five steps; everything that could differ, as plain values."""
    random.seed(1)
    np.random.seed(1)
    job = Job(model_name, mode, workers=workers)
    torch.manual_seed(1)
    losses = [loss.tolist() for _ in range(3) for loss in job()][:5]
    return {
        "losses": losses,
        "gradients": {name: p.grad.tolist() for name, p in job.model.named_parameters()},
        "weights": {name: value.tolist() for name, value in job.model.state_dict().items()},
        "optimizer": str(job.optimizer.state_dict()),
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": str(np.random.get_state()),
        "settings": (torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype()),
    }


class TestResults:
    @pytest.mark.parametrize("mode", ["sgd", "adamw"])
    def test_training_is_bit_identical(self, kind: str, mode: str) -> None:
        expected = train(kind, mode, workers=0)
        assert len(expected["losses"]) == 5
        for options in OPTIONS:
            results: list[Any] = []
            record(lambda results=results: results.append(train(kind, mode, 0)), **options)
            assert results[0] == expected
        assert train(kind, mode, workers=0) == expected

    def test_with_workers(self, kind: str) -> None:
        expected = train(kind, "sgd", workers=2)
        results: list[Any] = []
        record(lambda: results.append(train(kind, "sgd", 2)))
        assert results[0] == expected

    def test_given_model(self, kind: str) -> None:
        def outputs(program: Callable[..., Any]) -> list[Any]:
            torch.manual_seed(3)
            model = MODELS[kind]().train()
            result: list[Any] = []
            program(lambda: result.append(model(make_input(kind)).tolist()), model)
            return [*result, torch.get_rng_state().tolist()]

        assert outputs(record) == outputs(lambda program, _: program())

    def test_environment_and_interpreter(self) -> None:
        def settings() -> list[Any]:
            return [
                dict(os.environ),
                sys.getrecursionlimit(),
                sys.getprofile(),
                sys.gettrace(),
                threading.getprofile(),
                gc.get_threshold(),
                gc.isenabled(),
                list(sys.meta_path),
                list(sys.path),
                [signal.getsignal(number) for number in signal.valid_signals()],
                threading.active_count(),
                torch.is_grad_enabled(),
                torch.get_num_threads(),
                torch.autograd.profiler._is_profiler_enabled,
            ]

        model = ConvNet()
        record(lambda: model(make_input("convnet")))
        before = settings()
        record(lambda: model(make_input("convnet")))
        assert settings() == before
