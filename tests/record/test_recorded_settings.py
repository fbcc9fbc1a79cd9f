# SPDX-License-Identifier: Apache-2.0
"""The settings of loaders, optimizers and threads that a recording finds, and what it does not disturb."""

from __future__ import annotations

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof

# isort: split
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from gpuprof.record.loader_places import loader_places
from gpuprof.record.processor import usable_processors
from gpuprof.record.program_settings import (
    MOST_OF_A_KIND,
    LoaderSettings,
    OptimizerSettings,
    ParameterShape,
    ProgramSettings,
)
from gpuprof.run.folder import RunFolder
from gpuprof.run.program_settings import settings_of

Settings = Callable[[Callable[[], object]], ProgramSettings]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """`settings(program)` records a program and returns the settings in the run."""

    def settings(program: Callable[[], object]) -> ProgramSettings:
        with gpuprof.profile(out=tmp_path / "r.gpuprof", gpu=False):
            program()
        found = settings_of(RunFolder(tmp_path / "r.gpuprof"))
        assert found is not None
        return found

    return settings


class Numbers:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index

    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")


def parameters(count: int = 2, **options: Any) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.ones(3, **options)) for _ in range(count)]
    for each in made:
        each.grad = torch.ones_like(each)
    return made


def without_places(found: ProgramSettings) -> tuple[LoaderSettings, ...]:
    places = dict.fromkeys(("iterated", "iterated_line", "item", "collate"))
    return tuple(replace(each, **places) for each in found.loaders)


def first_line(function: Any) -> int:
    return int(function.__code__.co_firstlineno)


class TestPlacesOfLoaders:
    def test_the_line_of_the_loop_and_the_functions_of_a_fetch(self, settings: Settings) -> None:
        def joined(samples: list[int]) -> list[int]:
            return samples

        def loop(loader: DataLoader[Any]) -> None:
            for _ in loader:
                pass

        found = settings(lambda: loop(DataLoader(Numbers(), collate_fn=joined)))  # type: ignore[arg-type]
        (loader,) = found.loaders
        assert loader.iterated is not None
        assert loader.iterated.endswith(f"test_recorded_settings.py:{first_line(loop)})")
        assert ".loop (" in loader.iterated or loader.iterated.startswith("loop (")  # Python 3.10
        assert loader.iterated_line == first_line(loop) + 1
        assert loader.item is not None
        assert loader.item.endswith(f"test_recorded_settings.py:{first_line(Numbers.__getitem__)})")
        assert loader.collate is not None
        assert loader.collate.endswith(f"test_recorded_settings.py:{first_line(joined)})")

    def test_the_data_set_inside_of_a_choice_fetches(self, settings: Settings) -> None:
        chosen: Any = Subset(Subset(Numbers(), [0, 1, 2]), [0, 1])  # type: ignore[arg-type]
        (loader,) = settings(lambda: list(DataLoader(chosen))).loaders
        assert (loader.dataset, loader.collate) == ("Subset", None)
        assert loader.item is not None
        assert f":{first_line(Numbers.__getitem__)})" in loader.item

    def test_a_data_set_of_pytorch_alone_has_no_function_of_the_program(self, settings: Settings) -> None:
        (loader,) = settings(lambda: list(DataLoader(TensorDataset(torch.ones(4))))).loaders
        assert (loader.item, loader.collate) == (None, None)

    def test_a_method_that_makes_a_batch(self, settings: Settings) -> None:
        class Joiner:
            def joined(self, samples: list[int]) -> list[int]:
                return samples

        (loader,) = settings(lambda: list(DataLoader(Numbers(), collate_fn=Joiner().joined))).loaders  # type: ignore[arg-type]
        assert loader.collate is not None
        assert loader.collate.endswith(f"test_recorded_settings.py:{first_line(Joiner.joined)})")

    def test_looking_at_what_makes_a_batch_calls_nothing_of_it(self) -> None:
        called = []

        class Joiner:
            __call__ = partial(list)

            def __getattribute__(self, name: str) -> Any:
                called.append(name)
                return object.__getattribute__(self, name)

            def __getattr__(self, name: str) -> Any:
                called.append(name)
                raise AttributeError(name)

        assert loader_places(SimpleNamespace(dataset=Numbers(), collate_fn=Joiner())).collate is None
        assert called == []

    @pytest.mark.parametrize("repetitions", [1, 3])
    def test_equal_loaders_in_several_lines_have_no_line(self, settings: Settings, repetitions: int) -> None:
        def program() -> None:
            for _ in range(repetitions):
                list(DataLoader(Numbers()))  # type: ignore[arg-type]
                list(DataLoader(Numbers()))  # type: ignore[arg-type]

        (loader,) = settings(program).loaders
        assert (loader.iterated, loader.iterated_line) == (None, None)
        assert loader.item is not None

    def test_a_loader_that_is_iterated_again_in_a_line_has_it(self, settings: Settings) -> None:
        def program() -> None:
            for _ in range(2):
                list(DataLoader(Numbers()))  # type: ignore[arg-type]

        (loader,) = settings(program).loaders
        assert loader.iterated_line == first_line(program) + 2


class TestLoaders:
    def test_one_in_the_process(self, settings: Settings) -> None:
        found = settings(lambda: list(DataLoader(Numbers(), batch_size=4)))
        assert without_places(found) == (LoaderSettings("Numbers", 0, None, False, False, 4),)

    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_one_with_workers(self, settings: Settings) -> None:
        loader: Any = DataLoader(Numbers(), num_workers=1, prefetch_factor=3, persistent_workers=True)
        found = settings(lambda: [list(loader) for _ in range(2)])
        assert without_places(found) == (LoaderSettings("Numbers", 1, 3, False, True, 1),)

    def test_those_without_a_batch_size(self, settings: Settings) -> None:
        class Stream(IterableDataset[int]):
            def __iter__(self) -> Iterator[int]:
                return iter(range(3))

        class Weird:
            def __iter__(self) -> Iterator[list[int]]:
                yield [1]
                yield [0, 2]

            def __repr__(self) -> str:
                raise RuntimeError("not to be shown")

        sampler = BatchSampler(SequentialSampler(Numbers()), 4, drop_last=False)

        def program() -> None:
            assert [batch.tolist() for batch in DataLoader(Numbers(), batch_sampler=Weird())] == [[1], [0, 2]]
            assert len(list(DataLoader(Numbers(), batch_sampler=sampler))) == 2
            assert len(list(DataLoader(Stream(), batch_size=None))) == 3

        found = settings(program)
        assert without_places(found) == tuple(
            LoaderSettings(name, 0, None, False, False, None) for name in ("Numbers", "Stream")
        )

    def test_one_that_refuses_to_be_read_is_left_out(self, settings: Settings) -> None:
        class Refuses(DataLoader[int]):
            @property
            def prefetch_factor(self) -> int | None:
                raise RuntimeError("no")

            @prefetch_factor.setter
            def prefetch_factor(self, _value: int | None) -> None:
                pass

        def program() -> None:
            assert len(list(Refuses(Numbers(), batch_size=4))) == 2
            assert len(list(DataLoader(Numbers(), batch_size=2))) == 4

        assert [each.batch_size for each in settings(program).loaders] == [2]

    def test_a_loader_that_is_not_iterated_is_none(self, settings: Settings) -> None:
        assert settings(lambda: DataLoader(Numbers())).loaders == ()

    def test_pytorchs_functions_are_as_they_were(self, settings: Settings) -> None:
        made = torch.utils.data.dataloader._SingleProcessDataLoaderIter.__init__
        settings(lambda: list(DataLoader(Numbers())))
        assert torch.utils.data.dataloader._SingleProcessDataLoaderIter.__init__ is made
        assert len(list(DataLoader(Numbers()))) == 8


class TestOptimizers:
    def test_their_options(self, settings: Settings) -> None:
        def program() -> None:
            torch.optim.AdamW(parameters()).step()
            torch.optim.SGD(parameters(3), lr=0.1, foreach=True).step()
            torch.optim.Adam(parameters(), fused=True).step()
            torch.optim.Rprop(parameters()).step()

        found = settings(program).optimizers
        assert [replace(each, shapes=None, options=()) for each in found] == [
            OptimizerSettings("AdamW", None, None, True, 2, 6, ("cpu",)),
            OptimizerSettings("SGD", None, True, True, 3, 9, ("cpu",)),
            OptimizerSettings("Adam", True, None, True, 2, 6, ("cpu",)),
            OptimizerSettings("Rprop", None, None, False, 2, 6, ("cpu",)),
        ]
        options = dict(found[1].options)
        assert (options["momentum"], options["nesterov"], options["weight_decay"]) == (0, False, 0)
        assert not {"lr", "fused", "foreach"} & set(options)

    def test_the_shapes_of_their_parameters(self, settings: Settings) -> None:
        def program() -> None:
            shapes = [(4, 2), (), (4, 2)]
            given = [torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16)) for shape in shapes]
            torch.optim.SGD([*given, *parameters(1)], lr=0.1).step()
            torch.optim.SGD([torch.nn.Parameter(torch.zeros(size)) for size in range(1_001)], lr=0.1).step()

        few, many = settings(program).optimizers
        assert few.shapes == (
            ParameterShape((4, 2), "bfloat16", 2),
            ParameterShape((), "bfloat16", 1),
            ParameterShape((3,), "float32", 1),
        )
        assert many.shapes is None

    def test_groups_that_differ_and_parameters_that_do_not_fit(self, settings: Settings) -> None:
        def program() -> None:
            first, second = parameters(1), parameters(1)
            groups = [{"params": first, "fused": True}, {"params": second, "fused": False}]
            torch.optim.AdamW(groups).step()
            torch.optim.SGD(parameters(dtype=torch.complex64), lr=0.1).step()
            torch.optim.SGD(parameters(), lr=0.1, differentiable=True)

        differ, complex_ = settings(program).optimizers
        assert (differ.fused, differ.can_be_fused) == (None, True)
        assert not complex_.can_be_fused

    def test_hostile_ones(self, settings: Settings) -> None:
        class Hostile(torch.optim.SGD):
            __hash__ = None  # type: ignore[assignment]

            def __eq__(self, other: object) -> bool:
                raise RuntimeError("not to be compared")

            def __repr__(self) -> str:
                raise RuntimeError("not to be shown")

        class Unreadable(dict[str, Any]):
            def __contains__(self, key: object) -> bool:
                raise RuntimeError("no")

        Hostile.__name__ = "<script>alert(1)</script>\n" + "x" * 1000
        given = parameters()

        def program() -> None:
            optimizer = Hostile(given, lr=0.5)
            for _ in range(2):
                optimizer.step()
            unreadable = torch.optim.SGD(parameters(), lr=0.5, foreach=False)
            unreadable.defaults = Unreadable(unreadable.defaults)
            unreadable.step()

        (found,) = settings(program).optimizers
        assert found.name.startswith("<script>alert(1)</script>\nx")
        assert (len(found.name), found.can_be_fused, found.elements) == (200, False, 6)
        assert given[0].tolist() == [0.0] * 3

    def test_each_step_is_looked_at_but_only_once(self, settings: Settings) -> None:
        def program() -> None:
            addresses = set()
            for size in range(1, 40):
                optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(size))], lr=0.1)
                addresses.add(id(optimizer))
                for _ in range(3):
                    optimizer.step()
                del optimizer
            assert len(addresses) < 39  # a later one has the address of an earlier one

        assert [each.elements for each in settings(program).optimizers] == list(range(1, 40))

    def test_there_is_an_end_to_them(self, settings: Settings) -> None:
        def program() -> None:
            for size in range(1, MOST_OF_A_KIND + 20):
                torch.optim.SGD([torch.nn.Parameter(torch.ones(size))], lr=0.1).step()
                list(DataLoader(Numbers(), batch_size=size))

        found = settings(program)
        assert len(found.optimizers) == len(found.loaders) == MOST_OF_A_KIND

    def test_nothing_is_kept_alive(self, settings: Settings) -> None:
        def program() -> None:
            given = parameters()
            optimizer = torch.optim.AdamW(given)
            optimizer.step()
            loader: DataLoader[int] = DataLoader(Numbers())
            list(loader)
            references = [weakref.ref(each) for each in (optimizer, given[0], loader)]
            del optimizer, loader, given
            gc.collect()
            assert [reference() for reference in references] == [None] * 3

        settings(program)


ALONE = """
import gpuprof, torch
from torch.optim import optimizer as module
def train():
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    torch.optim.SGD([parameter], lr=0.1).step()
    return parameter.tolist()
plain = train()
for number in range(2):
    with gpuprof.profile(out=f"{number}.gpuprof", gpu=False):
        assert train() == plain
print(len(module._global_optimizer_pre_hooks))
"""


def test_a_wrapper_that_passes_steps_on_is_no_optimizer(settings: Settings) -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            self.inner.step()

    given = parameters()
    wrapper = Wrapper(torch.optim.SGD(given, lr=0.5))
    assert [each.name for each in settings(wrapper.step).optimizers] == ["SGD"]


def test_a_class_that_is_made_during_the_recording(settings: Settings) -> None:
    def program() -> None:
        class Own(torch.optim.SGD):
            def step(self, closure: object = None) -> None:  # type: ignore[override]
                super().step()

        Own(parameters(), lr=0.5).step()

    assert [each.name for each in settings(program).optimizers] == ["Own"]


@pytest.mark.slow
def test_no_hook_is_left(run_python: Any) -> None:
    done = run_python("-c", ALONE)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_steps_work(settings: Settings) -> None:
    given = parameters()
    optimizer = torch.optim.SGD(given, lr=0.5)

    def program() -> None:
        torch.compile(lambda: optimizer.step(), backend="eager")()

    settings(program)
    torch._dynamo.reset()
    assert given[0].tolist() == [0.5] * 3


def test_threads(settings: Settings) -> None:
    before = torch.get_num_threads()
    try:
        found = settings(lambda: torch.set_num_threads(3)).threads
    finally:
        torch.set_num_threads(before)
    assert found is not None
    assert (found.intra_op, found.inter_op) == (3, torch.get_num_interop_threads())
    assert 0 < found.usable_processors <= len(usable_processors())


def test_a_program_without_pytorch_has_none(tmp_path: Path, run_python: Any) -> None:
    (tmp_path / "script.py").write_text("print(1)")
    run_python("-m", "gpuprof", "run", "--out", "r.gpuprof", "script.py")
    assert json.loads((tmp_path / "r.gpuprof/meta.json").read_bytes())["settings"] is None
    assert settings_of(RunFolder(tmp_path / "r.gpuprof")) is None


def test_those_of_a_program_that_is_killed_are_unknown(tmp_path: Path, run_python: Any) -> None:
    (tmp_path / "script.py").write_text("import os, torch\ntorch.ones(1)\nos._exit(0)\n")
    run_python("-m", "gpuprof", "run", "--out", "r.gpuprof", "script.py")
    assert settings_of(RunFolder(tmp_path / "r.gpuprof")) is None


def test_those_that_a_program_had_used_before_it_is_killed_are_known(tmp_path: Path, run_python: Any) -> None:
    (tmp_path / "script.py").write_text(
        "import os, torch\n"
        "parameter = torch.nn.Parameter(torch.ones(2))\n"
        "parameter.grad = torch.ones(2)\n"
        "if os.fork():\n"
        "    os.wait()\n"
        "    torch.optim.SGD([parameter], lr=0.1).step()\n"
        "    torch.optim.AdamW([parameter]).step()\n"
        "else:\n"
        "    torch.optim.Adam([parameter]).step()\n"
        "os._exit(0)\n"
    )
    run_python("-m", "gpuprof", "run", "--out", "r.gpuprof", "script.py")
    found = settings_of(RunFolder(tmp_path / "r.gpuprof"))
    assert found is not None
    assert [each.name for each in found.optimizers] == ["SGD", "AdamW"]
    assert found.threads is None  # they are read at the end


@pytest.mark.slow
def test_processes_of_a_program_have_theirs(tmp_path: Path, run_python: Any) -> None:
    (tmp_path / "script.py").write_text(
        "import subprocess, sys\n"
        "train = '''import torch\n"
        "parameter = torch.nn.Parameter(torch.ones(2))\n"
        "parameter.grad = torch.ones(2)\n"
        "torch.optim.SGD([parameter], lr=0.1).step()'''\n"
        "subprocess.run([sys.executable, '-c', train], check=True)\n"
    )
    run_python("-m", "gpuprof", "run", "--children", "--out", "r.gpuprof", "script.py")
    found = settings_of(RunFolder(tmp_path / "r.gpuprof"))
    assert found is not None
    assert [each.name for each in found.optimizers] == ["SGD"]
    assert found.threads is not None
