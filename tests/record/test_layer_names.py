# SPDX-License-Identifier: Apache-2.0
"""A layer has one name: its path in its model, wherever it is called. The oracle is `named_modules()`."""

from __future__ import annotations

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof

# isort: split
import copy
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_models import Mlp, layer_calls, paths_of, record

from gpuprof.api import summary_difference


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4)


def nested() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))


class Lit(nn.Module):
    """A module that only owns others, as a LightningModule does: it is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nested()
        self.loss = nn.MSELoss()

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self.net(x), x)


class TestGivenModel:
    def test_a_part_called_directly_has_its_path(self, x: torch.Tensor) -> None:
        net = nested()

        def program() -> None:
            net(x)
            net[3](x)

        run = record(program, net)
        assert layer_calls(run) == {"Sequential": 1, "0": 1, "1": 1, "2": 1, "3": 2, "3.0": 2}
        summary = {row.name: row.calls for row in run.summary("layer").rows}
        assert summary == layer_calls(run)

    def test_the_order_in_which_modules_are_given_makes_no_difference(self, x: torch.Tensor) -> None:
        model = nn.Sequential(Mlp(), nn.ReLU())
        names = [
            layer_calls(record(lambda: model(x), *given)) for given in ((model, model[0]), (model[0], model))
        ]
        assert names[0] == names[1]
        assert "0.first" in names[0]

    def test_two_models_have_a_label_each(self, x: torch.Tensor) -> None:
        class Other(Mlp):
            pass

        first, second = Mlp(), Other()
        both = layer_calls(record(lambda: second(first(x)), first, second))
        assert both.keys() == {
            *("Mlp", "Mlp/first", "Mlp/activation", "Mlp/second"),
            *("Other", "Other/first", "Other/activation", "Other/second"),
        }
        one = layer_calls(record(lambda: first(x), first, second))
        assert one.keys() < both.keys()

    @pytest.mark.slow
    def test_a_part_that_only_the_program_calls_is_counted(self, x: torch.Tensor) -> None:
        model = Lit()
        run = record(lambda: model.training_step(x), model, work=True)
        assert layer_calls(run).keys() == {"net", "net.0", "net.1", "net.2", "net.3", "net.3.0", "loss"}
        rows = run.sql("SELECT DISTINCT root, layer FROM work WHERE operator = 'aten::addmm'").fetchall()
        assert set(rows) == {("net", "net.0"), ("net", "net.2"), ("net", "net.3.0")}
        flops = {row.name: row.flops for row in run.summary("layer").rows}
        assert flops["net.0"] == 2 * 2 * 4 * 4


class TestDiscoveredModel:
    @pytest.mark.parametrize("part_first", [False, True])
    def test_a_part_called_directly(self, x: torch.Tensor, part_first: bool) -> None:
        net = nested()

        def program() -> None:
            for module in (net[3], net) if part_first else (net, net[3]):
                module(x)

        run = record(program)
        expected = {"Sequential": 1, "0": 1, "1": 1, "2": 1, "3": 2, "3.0": 2}
        assert layer_calls(run) == expected
        assert {row.name: row.calls for row in run.summary("layer").rows} == expected

    def test_an_owner_that_is_never_called(self, x: torch.Tensor) -> None:
        model = Lit()
        run = record(lambda: model.training_step(x))
        names = {name for name, _ in model.named_modules() if name}
        assert layer_calls(run) == dict.fromkeys(names, 1)

    def test_an_owner_in_an_owner(self, x: torch.Tensor) -> None:
        whole = nn.ModuleDict({"wrapped": nn.ModuleList([Lit()])})
        inner = whole["wrapped"][0]
        assert layer_calls(record(lambda: inner.net(x)))["wrapped.0.net.3.0"] == 1

    def test_a_wrapper_that_is_called_later(self, x: torch.Tensor) -> None:
        model = Mlp()
        wrapped = nn.DataParallel(model)

        def program() -> None:
            model(x)
            wrapped(x)

        expected = {"DataParallel": 1, "Mlp": 2, **dict.fromkeys(MLP, 2)}
        assert layer_calls(record(program)) == expected

    def test_a_model_for_several_processes_keeps_its_names(self, x: torch.Tensor) -> None:
        from torch import distributed

        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        try:
            parallel = nn.parallel.DistributedDataParallel(Mlp())
            run = record(lambda: parallel(x))
        finally:
            distributed.destroy_process_group()
        assert layer_calls(run) == {"DistributedDataParallel": 1, "Mlp": 1, **dict.fromkeys(MLP, 1)}

    def test_a_wrapper_that_is_made_later_renames_nothing(self, x: torch.Tensor) -> None:
        model = Mlp()

        def program() -> None:
            model(x)
            nn.DataParallel(model)(x)

        assert layer_calls(record(program)) == {"DataParallel": 1, "Mlp": 2, **dict.fromkeys(MLP, 2)}

    def test_a_compiled_model_and_the_model_itself(self, x: torch.Tensor) -> None:
        model = Mlp()
        compiled = torch.compile(model, backend="eager")

        def program() -> None:
            model(x)
            compiled(x)

        run = record(program)
        assert layer_calls(run) == {"Mlp": 2, **dict.fromkeys(MLP, 1)}

    def test_another_model_changes_no_name(self, x: torch.Tensor) -> None:
        class Other(Mlp):
            pass

        first, second = Mlp(), Other()
        alone = layer_calls(record(lambda: first(x)))
        both = layer_calls(record(lambda: second(first(x))))
        assert alone == {"Mlp": 1, **dict.fromkeys(MLP, 1)}
        assert both == {**alone, "Other": 1, **{f"Other/{name}": 1 for name in MLP}}

    def test_a_module_under_two_paths_has_the_first(self, x: torch.Tensor) -> None:
        shared = nn.Linear(4, 4)
        model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
        assert [name for name, module in model.named_modules() if module is shared] == ["a"]
        run = record(lambda: model["b"](x))
        assert paths_of(run) == [("b",), ("b", "a")]

    def test_an_owner_of_several(self, x: torch.Tensor) -> None:
        """Of two models with a common part, the larger one names it, whichever is the older."""
        shared = Mlp()
        small, large = nn.Sequential(shared), nn.Sequential(nn.ReLU(), shared)
        assert layer_calls(record(lambda: shared(x)))["1.first"] == 1
        del small, large

    def test_a_deep_copy_is_a_model_of_its_own(self, x: torch.Tensor) -> None:
        model = Mlp()
        other = copy.deepcopy(model)
        counts = layer_calls(record(lambda: other(model(x))))
        assert counts == {
            "Mlp": 1,
            "Mlp#2": 1,
            **dict.fromkeys(MLP, 1),
            **{f"Mlp#2/{name}": 1 for name in MLP},
        }

    def test_a_part_that_is_made_during_the_run(self, x: torch.Tensor) -> None:
        model = Lit()

        def program() -> None:
            model.training_step(x)
            model.net[1] = nn.GELU()
            model.head = Mlp()
            model.head(model.net(x))

        counts = layer_calls(record(program))
        assert counts["net.1"] == 2
        assert {name: counts[name] for name in counts if name.startswith("head")} == {
            "head": 1,
            **{f"head.{name}": 1 for name in MLP},
        }

    def test_an_owner_that_is_gone_names_nothing(self, x: torch.Tensor) -> None:
        net = nn.Sequential(Mlp())[0]
        assert layer_calls(record(lambda: net(x))) == {"Mlp": 1, **dict.fromkeys(MLP, 1)}

    def test_a_program_that_forbids_to_look_at_its_objects(self, x: torch.Tensor, tmp_path: Path) -> None:
        source = """
            import sys
            def refuse(event, arguments):
                if event == "gc.get_objects":
                    raise RuntimeError("no")
            sys.addaudithook(refuse)
            import torch
            net = torch.nn.Sequential(torch.nn.Linear(4, 4))
            net[0](torch.ones(1, 4))
            """
        run = run_script(tmp_path, source)
        assert layer_calls(run) == {"Linear": 1}

    @pytest.mark.slow
    def test_names_are_equal_in_each_run_of_a_script(self, tmp_path: Path) -> None:
        source = """
            import json
            import torch
            from torch import nn

            class Lit(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4)))
                    self.teacher = nn.Linear(4, 4)

            lit, critic = Lit(), nn.Sequential(nn.Linear(4, 1))
            x = torch.ones(1, 4)
            for _ in range(2):
                critic(lit.net(lit.teacher(x)))
                lit.net[2](x)
            with open(__file__ + ".json", "w") as file:
                json.dump({name: 2 for name, _ in lit.named_modules() if name}, file)
            """
        runs = [run_script(tmp_path / str(number), source) for number in range(2)]
        expected = json.loads((tmp_path / "0" / "script.py.json").read_text())
        expected |= {"net.2": 4, "net.2.0": 4, "Sequential": 2, "Sequential/0": 2}
        assert [layer_calls(run) for run in runs] == [expected, expected]
        joined = summary_difference([runs[0]], [runs[1]], "layer")
        assert {row.name for row in joined.rows if row.state in ("new", "gone")} == set()


MLP = ("first", "activation", "second")


def run_script(folder: Path, source: str) -> gpuprof.Run:
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "gpuprof", "run", "--no-python", "--out", folder / "run.gpuprof"]
    subprocess.run([*command, folder / "script.py"], check=True, capture_output=True, timeout=120)
    return gpuprof.open(folder / "run.gpuprof")
