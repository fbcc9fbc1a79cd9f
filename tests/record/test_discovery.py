# SPDX-License-Identifier: Apache-2.0
"""Unnamed models: they are found when they are called, in programs that do not know of gpuprof."""

from __future__ import annotations

# Before torch, which looks for the collector of its operators while it is imported.
from run_codes import note_codes, source_code

import gpuprof

# isort: split
import gc
import os
import subprocess
import sys
import textwrap
import threading
import tracemalloc
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_models import (
    Mlp,
    Transformer,
    hooked_paths,
    layer_calls,
    make_input,
    paths_of,
    record,
    spans_of,
)

from gpuprof.api import run_program
from gpuprof.record.options import RecordingOptions

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

MLP = ("first", "activation", "second")
TORCH_EXPORTS_BY_CALLING_GRAPHS = torch.__version__.startswith("2.4.")


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4)


class TestModels:
    def test_made_inside_functions_and_classes(self, x: torch.Tensor) -> None:
        class Program:
            class Inner(nn.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self.linear = nn.Linear(4, 4)

                def forward(self, x: torch.Tensor) -> torch.Tensor:
                    return self.linear(x)

            def __init__(self) -> None:
                self.model = Program.Inner()

            def run(self) -> torch.Tensor:
                def local() -> nn.Module:
                    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())

                return local()(self.model(x))

        run = record(lambda: Program().run())
        assert paths_of(run) == [
            ("Inner",),
            ("Inner", "linear"),
            ("Sequential",),
            ("Sequential", "Sequential/0"),
            ("Sequential", "Sequential/1"),
        ]

    def test_whole_transformer(self) -> None:
        model = Transformer()
        with hooked_paths(model) as expected:
            model(make_input("transformer"))
        assert paths_of(record(lambda: model(make_input("transformer")))) == expected

    def test_loaded_from_a_file(self, x: torch.Tensor, tmp_path: Path) -> None:
        torch.save(Mlp(), tmp_path / "model.pt")
        run = record(lambda: torch.load(tmp_path / "model.pt", weights_only=False)(x))
        assert paths_of(run) == [("Mlp",), *(("Mlp", name) for name in MLP)]

    def test_in_a_plain_list(self, x: torch.Tensor) -> None:
        class Plain(nn.Module):
            """Its layers are no submodules: a list hides them, as beginners write it."""

            def __init__(self) -> None:
                super().__init__()
                self.layers = [nn.Linear(4, 4), Mlp(), nn.Linear(4, 4)]

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for layer in self.layers:
                    x = layer(x)
                return x

        model = Plain()
        assert [name for name, _ in model.named_modules()] == [""]
        run = record(lambda: model(x))
        assert paths_of(run) == [
            ("Plain",),
            ("Plain", "Linear"),
            ("Plain", "Mlp"),
            *(("Plain", "Mlp", name) for name in MLP),
            ("Plain", "Linear"),
        ]

    def test_two_of_one_class(self, x: torch.Tensor) -> None:
        models = [Mlp() for _ in range(3)]
        run = record(lambda: [model(x) for _ in range(2) for model in models])
        counts = layer_calls(run)
        assert {name: counts[name] for name in ("Mlp", "Mlp#2", "Mlp#3")} == {
            "Mlp": 2,
            "Mlp#2": 2,
            "Mlp#3": 2,
        }
        assert {path for path in paths_of(run) if len(path) == 2} == {
            ("Mlp", "first"),
            ("Mlp", "activation"),
            ("Mlp", "second"),
            *((root, f"{root}/{name}") for root in ("Mlp#2", "Mlp#3") for name in MLP),
        }

    def test_two_classes_of_one_name(self, x: torch.Tensor) -> None:
        first = type("Net", (Mlp,), {})()
        second = type("Net", (Mlp,), {})()
        counts = layer_calls(record(lambda: second(first(x))))
        assert (counts["Net"], counts["Net#2"]) == (1, 1)

    def test_numbers_restart_with_each_recording(self, x: torch.Tensor) -> None:
        for model in (Mlp(), Mlp()):
            assert "Mlp#2" not in layer_calls(record(lambda model=model: model(x)))

    def test_submodule_added_after_the_first_call(self, x: torch.Tensor) -> None:
        model = nn.Sequential(nn.Linear(4, 4))

        def program() -> None:
            model(x)
            model.append(nn.ReLU())
            model.append(Mlp())
            model(x)

        run = record(program)
        assert layer_calls(run) == {
            "Sequential": 2,
            "0": 2,
            "1": 1,
            "2": 1,
            **{f"2.{name}": 1 for name in MLP},
        }
        assert set(paths_of(run)) >= {("Sequential", "1"), ("Sequential", "2", "2.first")}

    def test_submodule_added_to_a_given_module(self, x: torch.Tensor) -> None:
        model = nn.Sequential(nn.Linear(4, 4))

        def program() -> None:
            model(x)
            model.append(nn.ReLU())
            model(x)

        assert layer_calls(record(program, model)) == {"Sequential": 2, "0": 2, "1": 1}

    def test_submodule_replaced(self, x: torch.Tensor) -> None:
        model = Mlp()

        def program() -> None:
            model(x)
            model.activation = nn.GELU()
            gc.collect()
            model(x)

        assert layer_calls(record(program)) == {"Mlp": 2, "first": 2, "activation": 2, "second": 2}

    def test_shared_submodules(self, x: torch.Tensor) -> None:
        shared = nn.Linear(4, 4)
        first, second = nn.Sequential(shared, nn.ReLU()), nn.Sequential(nn.Tanh(), shared)
        run = record(lambda: (first(x), second(x)))
        # A module has one name: that of the first path on which it was found.
        assert paths_of(run) == [
            ("Sequential",),
            ("Sequential", "0"),
            ("Sequential", "1"),
            ("Sequential#2",),
            ("Sequential#2", "Sequential#2/0"),
            ("Sequential#2", "0"),
        ]

    def test_part_called_before_the_whole(self, x: torch.Tensor) -> None:
        model = nn.Sequential(Mlp(), nn.ReLU())

        def program() -> None:
            model[0](x)
            model(x)

        run = record(program)
        assert paths_of(run) == [
            ("0",),
            *(("0", f"0.{name}") for name in MLP),
            ("Sequential",),
            ("Sequential", "0"),
            *(("Sequential", "0", f"0.{name}") for name in MLP),
            ("Sequential", "1"),
        ]

    def test_part_called_after_the_whole(self, x: torch.Tensor) -> None:
        model = nn.Sequential(Mlp(), nn.ReLU())

        def program() -> None:
            model(x)
            model[0](x)

        assert paths_of(record(program))[-4:] == [("0",), *(("0", f"0.{name}") for name in MLP)]

    def test_losses_and_metrics_next_to_the_model(self, x: torch.Tensor) -> None:
        model, loss = Mlp(), nn.MSELoss()
        run = record(lambda: [loss(model(x), x) for _ in range(2)])
        assert Counter(path for path in paths_of(run) if len(path) == 1) == {("Mlp",): 2, ("MSELoss",): 2}

    def test_many_threads_at_once(self, x: torch.Tensor) -> None:
        models = [Mlp() for _ in range(8)]
        barrier = threading.Barrier(8)

        def in_thread(model: nn.Module) -> None:
            barrier.wait()
            for _ in range(20):
                model(x)

        def program() -> None:
            threads = [threading.Thread(target=in_thread, args=(model,)) for model in models]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        run = record(program)
        counts = layer_calls(run)
        roots = ["Mlp", *(f"Mlp#{number}" for number in range(2, 9))]
        assert {root: counts[root] for root in roots} == dict.fromkeys(roots, 20)
        parts = [name if root == "Mlp" else f"{root}/{name}" for root in roots for name in MLP]
        assert {name: counts[name] for name in parts} == dict.fromkeys(parts, 20)
        assert all(len(path) <= 2 for path in paths_of(run))

    def test_forked_child_finds_its_own(self, x: torch.Tensor) -> None:

        def program() -> None:
            Mlp()(x)
            child = os.fork()
            if child == 0:
                nn.Sequential(nn.Linear(4, 4))(x)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0

        run = record(program)
        by_process: dict[int, Counter[str]] = {}
        for span in spans_of(run, "layer"):
            by_process.setdefault(span.process_id, Counter())[span.name] += 1
        own = by_process.pop(run.meta["process_id"])
        assert own == {"Mlp": 1, "first": 1, "activation": 1, "second": 1}
        (child,) = by_process.values()
        assert child == {"Sequential": 1, "Sequential/0": 1}


class TestModulesMadePerCall:
    def test_no_numbering(self, x: torch.Tensor) -> None:
        run = record(lambda: [nn.ReLU()(x) for _ in range(2000)])
        assert layer_calls(run) == {"ReLU": 2000}
        assert len(run.call_tree) < 10

    def test_no_numbering_of_small_blocks(self, x: torch.Tensor) -> None:
        def program() -> None:
            for _ in range(300):
                nn.Sequential(nn.ReLU())(x)

        run = record(program)
        counts = layer_calls(run)
        assert sum(calls for name, calls in counts.items() if name.startswith("Sequential")) == 300
        assert len(counts) < 50, "a name for each of 300 modules that each lived for one call"

    @pytest.mark.slow
    @pytest.mark.parametrize("make", [nn.ReLU, lambda: nn.Sequential(nn.ReLU())], ids=["leaf", "block"])
    def test_no_leak(self, x: torch.Tensor, make: Any) -> None:
        def program(count: int) -> None:
            for _ in range(count):
                make()(x)

        with gpuprof.profile(operators=False):
            program(500)
            gc.collect()
            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                program(2000)
                gc.collect()
                grown = tracemalloc.get_traced_memory()[0] - before
            finally:
                tracemalloc.stop()
            alive = sum(type(each) is nn.ReLU for each in gc.get_objects())
        assert alive < 10
        assert grown < 40_000, f"{grown / 2000:.0f} bytes stay for each module"

    def test_inside_a_model(self, x: torch.Tensor) -> None:
        class Sloppy(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return nn.ReLU()(self.linear(x))

        model = Sloppy()
        run = record(lambda: [model(x) for _ in range(50)])
        assert Counter(paths_of(run)) == {
            ("Sloppy",): 50,
            ("Sloppy", "linear"): 50,
            ("Sloppy", "ReLU"): 50,
        }


class TestTracedFirst:
    @pytest.mark.parametrize("given", [False, True])
    def test_a_model_that_was_exported_before_its_first_call(self, x: torch.Tensor, given: bool) -> None:
        model = Mlp()

        def program() -> None:
            torch.export.export(model, (x,))
            for _ in range(5):
                model(x)

        eager = layer_calls(record(lambda: [model(x) for _ in range(5)]))
        with gpuprof.profile(*([model] if given else [])) as recording:
            program()
        exported = layer_calls(recording.run)
        assert eager - exported == {}
        if not TORCH_EXPORTS_BY_CALLING_GRAPHS:
            # The export calls the model once, which counts where the model was known before.
            once = layer_calls(record(lambda: model(x)))
            assert exported - eager == (once if given else {})


class TestDeletedModels:
    def test_freed_at_once(self, x: torch.Tensor) -> None:
        model = Mlp()
        references = [weakref.ref(module) for module in model.modules()]
        gc.disable()
        try:
            with gpuprof.profile() as recording:
                model(x)
                del model
                assert [reference() for reference in references] == [None] * 4
        finally:
            gc.enable()
        assert layer_calls(recording.run)["Mlp"] == 1

    def test_address_is_free_for_another(self, x: torch.Tensor) -> None:
        """Modules of one size take each other's places; none may take the other's name."""

        class First(nn.Module):
            def forward(self, x: Any) -> Any:
                return x

        class Second(First):
            pass

        reused = 0

        def program() -> None:
            nonlocal reused
            for _ in range(200):
                module: nn.Module = First()
                module(x)
                address = id(module)
                del module
                module = Second()
                reused += id(module) == address
                module(x)
                del module

        run = record(program)
        assert reused > 0
        assert layer_calls(run) == {"First": 200, "Second": 200}

    def test_address_reused_where_only_given_modules_are_layers(self, x: torch.Tensor) -> None:
        class Holder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner: nn.Module | None = nn.Identity()

            def forward(self, x: Any) -> Any:
                return x if self.inner is None else self.inner(x)

        reused = 0
        kept: list[nn.Module] = []  # so that the room that other tests left is used up in time
        for _ in range(5):
            model = Holder()
            with gpuprof.profile(model) as recording:
                model(x)
                address = id(model.inner)
                model.inner = None
                others = [nn.Identity()]
                while id(others[-1]) != address and len(others) < 10_000:
                    others.append(nn.Identity())
                reused += id(others[-1]) == address
                others[-1](x)
            kept += others
            assert layer_calls(recording.run) == {"Holder": 1, "inner": 1}
        assert reused > 0

    def test_in_a_reference_cycle(self, x: torch.Tensor) -> None:
        model = Mlp()
        model.__dict__["itself"] = model
        reference = weakref.ref(model)
        with gpuprof.profile():
            model(x)
            del model
            gc.collect()
            assert reference() is None

    def test_deleted_inside_its_own_call(self, x: torch.Tensor) -> None:
        holder: list[nn.Module] = []

        class Vanishes(nn.Module):
            def forward(self, x: Any) -> Any:
                holder.clear()
                return x

        holder.append(Vanishes())
        run = record(lambda: holder[0](x))
        assert layer_calls(run) == {"Vanishes": 1}

    def test_resurrected(self, x: torch.Tensor) -> None:
        saved: list[nn.Module] = []

        class Lazarus(nn.Linear):
            def __del__(self) -> None:
                if not saved:
                    saved.append(self)

        def program() -> None:
            model = Lazarus(4, 4)
            model(x)
            del model
            saved[0](x)

        assert layer_calls(record(program)) == {"Lazarus": 2}
        saved[0](x)


def run_script(tmp_path: Path, source: str, *arguments: str, **options: Any) -> tuple[int, gpuprof.Run]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(source))
    code, run = run_program(
        str(script), arguments, options=RecordingOptions(**options), out=tmp_path / "run.gpuprof"
    )
    assert isinstance(run, gpuprof.Run)
    return code, run


class TestPrograms:
    """Whole programs, as `gpuprof run` starts them."""

    def test_script(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        code, run = run_script(
            tmp_path,
            """
            import sys
            import torch
            from torch import nn

            def make():
                class Net(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
                        self.head = nn.Linear(4, 2)

                    def forward(self, x):
                        return self.head(self.body(x))

                return Net()

            class Trainer:
                def __init__(self):
                    self.models = {"a": make(), "b": make()}
                    self.loss = nn.MSELoss()

                def fit(self):
                    for model in self.models.values():
                        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                        for _ in range(3):
                            optimizer.zero_grad()
                            self.loss(model(torch.ones(1, 4)), torch.zeros(1, 2)).backward()
                            optimizer.step()

            Trainer().fit()
            torch.save(nn.Sequential(nn.Linear(4, 4)), sys.argv[1])
            torch.load(sys.argv[1], weights_only=False)(torch.ones(1, 4))
            assert not any("gpuprof" in name for name in vars(nn.Module.__call__))
            print("done", *sys.argv[1:])
            """,
            str(tmp_path / "model.pt"),
            "second argument",
        )
        assert code == 0, capfd.readouterr().err
        assert capfd.readouterr().out == f"done {tmp_path / 'model.pt'} second argument\n"
        assert source_code(run.meta, "operators") == "itt"
        assert Counter(path for path in paths_of(run) if len(path) == 1) == {
            ("Net",): 3,
            ("Net#2",): 3,
            ("Sequential",): 1,
            ("MSELoss",): 6,
        }
        assert set(paths_of(run)) >= {
            ("Net#2", "Net#2/body", "Net#2/body.0"),
            ("Net", "head"),
            ("Sequential", "Sequential/0"),
        }
        names = Counter(span.name for span in spans_of(run))
        assert names["Optimizer.step#SGD.step"] == 6
        assert names["aten::addmm"] == 13

    def test_torch_imported_late_and_in_a_thread(self, tmp_path: Path) -> None:
        code, run = run_script(
            tmp_path,
            """
            import threading

            def work():
                import torch
                torch.nn.Sequential(torch.nn.Linear(2, 2))(torch.ones(1, 2))

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            import torch
            torch.nn.Sequential(torch.nn.Linear(2, 2))(torch.ones(1, 2))
            """,
        )
        assert code == 0
        assert layer_calls(run) == {"Sequential": 2, "0": 2}  # the first was gone when the second came
        # PyTorch announces per thread. What is missing for that must not be missing in silence.
        threads = {span.thread_id for span in spans_of(run) if span.name == "aten::linear"}
        assert len(threads) == 2 or {"operators_displaced", "other_thread"} & set(note_codes(run.meta))

    def test_functions_of_torch_only(self, tmp_path: Path) -> None:
        code, run = run_script(
            tmp_path, "from torch.nn import functional as F, Linear\nimport torch\nF.relu(torch.ones(2))\n"
        )
        assert code == 0
        assert [span.name for span in spans_of(run) if span.depth == 0 and span.name != "aten::ones"] == [
            "aten::relu"
        ]

    def test_without_torch(self, tmp_path: Path) -> None:
        code, run = run_script(tmp_path, "import sys\nsys.exit(7 if 'torch' in sys.modules else 5)\n")
        assert code == 5
        assert source_code(run.meta, "layers") == "off: torch_not_imported"

    def test_sources_that_cannot_be_imported_harm_no_program(self, tmp_path: Path) -> None:
        code, run = run_script(
            tmp_path,
            """
            import sys
            sys.modules["gpuprof.record.layers"] = None
            import torch
            sys.exit(7 if hasattr(torch, "ones") else 5)
            """,
        )
        assert code == 7
        assert source_code(run.meta, "layers") == source_code(run.meta, "kernels") == "off: failed"

    def test_torch_that_cannot_be_imported(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('this torch is broken')\n")
        code, _ = run_script(
            tmp_path,
            """
            for _ in range(2):
                try:
                    import torch
                except ImportError as error:
                    print("caught", error)
            """,
        )
        assert (code, capfd.readouterr().out) == (0, "caught this torch is broken\n" * 2)

    def test_a_torch_that_is_another_library(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "torch.py").write_text("value = 1\n")
        code, _ = run_script(
            tmp_path, "import torch\nprint(torch.value, torch.__loader__ is torch.__spec__.loader)\n"
        )
        output = capfd.readouterr()
        assert (code, output.out) == (0, "1 True\n"), output.err

    @pytest.mark.slow
    def test_profiler_in_the_script(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        source = """
            import torch
            model = torch.nn.Sequential(torch.nn.Linear(2, 2))
            with torch.profiler.profile() as profiler:
                model(torch.ones(1, 2))
            print(sorted((e.key, e.count) for e in profiler.key_averages()))
            """
        code, run = run_script(tmp_path, source)
        alone = subprocess.run(
            [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=180, check=True
        )
        assert code == 0
        assert capfd.readouterr().out == alone.stdout
        assert layer_calls(run) == {"Sequential": 1, "0": 1}

    def test_switched_off(self, tmp_path: Path) -> None:
        source = "import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))\n"
        _, run = run_script(tmp_path, source, layers=False)
        assert layer_calls(run) == {}
        assert any(span.name == "aten::linear" for span in spans_of(run))
