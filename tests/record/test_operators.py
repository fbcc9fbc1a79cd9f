# SPDX-License-Identifier: Apache-2.0
"""Operators agree with torch.profiler: on every thread, in children, forward and backward."""

from __future__ import annotations

# Before torch, which looks for the collector of its operators while it is imported.
from run_codes import source_code

import gpuprof

# isort: split
import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_models import (
    Job,
    Mlp,
    Span,
    announced,
    layer_calls,
    record,
    shown_counts,
    shown_nesting,
    small_step,
    spans_of,
    torch_profile,
)

from gpuprof.run.format import KINDS

pytestmark = [
    # Python 3.12 warns of any fork in a process with threads.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    # torch.profiler warns in the middle of its own start, and crashes if that raises.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]

MODES = ("eval", "sgd", "adamw")


@pytest.fixture(
    scope="module", params=[(m, mode) for m in ("transformer", "convnet") for mode in MODES], ids="-".join
)
def readings(request: pytest.FixtureRequest) -> tuple[Job, gpuprof.Run, torch.profiler.profile]:
    """A pass that gpuprof recorded, and one that torch.profiler did, after a pass to warm up."""
    job = Job(*request.param)
    job()
    return job, record(job, job.model), torch_profile(job)


class TestAgreementWithTorchProfiler:
    def test_every_name_is_recorded_as_often(self, readings: Any) -> None:
        _, run, profiler = readings
        assert source_code(run.meta, "operators") == "itt"
        assert announced(run) == shown_counts(profiler)

    def test_summary_counts_operators_alike(self, readings: Any) -> None:
        _, run, profiler = readings
        shown = shown_counts(profiler)
        rows = {row.name: row.calls for row in run.summary(by="operator").rows}
        assert rows == {name: shown[name] for name in rows}
        assert {name for name in shown if "::" in name or name.endswith("Backward0")} <= rows.keys()

    def test_call_tree_counts_alike(self, readings: Any) -> None:
        _, run, profiler = readings
        tree = run.call_tree
        counts = Counter[str]()
        for i in range(len(tree)):
            if (
                KINDS[tree.kind[i]] not in ("layer", "process")
                and tree.process_id[i] == run.meta["process_id"]
            ):
                counts[tree.names[tree.name[i]]] += int(tree.calls[i])
        assert +counts == shown_counts(profiler)

    def test_nothing_was_lost_or_cut(self, readings: Any) -> None:
        _, run, _ = readings
        totals = run.meta["totals"]
        lost = ("damaged_events", "dropped_events", "unmatched_ends")
        assert [totals[name] for name in lost] == [0, 0, 0]
        assert run.meta["complete"] is True

    def test_workers_are_apart(self, readings: Any) -> None:
        job, run, _ = readings
        workers = {process["process_id"] for process in run.meta["processes"]} - {run.meta["process_id"]}
        assert len(workers) == 2
        by_worker = [announced(run, worker) for worker in workers]
        assert all(counts["aten::stack"] >= 1 for counts in by_worker)  # default_collate
        assert sum(counts["aten::stack"] for counts in by_worker) == 4  # two batches of two columns
        if isinstance(job._loader["dataset"], torch.utils.data.TensorDataset):
            return
        assert sum(counts["aten::sin"] for counts in by_worker) == 4
        assert announced(run)["aten::sin"] == 0

    def test_operators_nest_as_the_profiler_nests_them(self, readings: Any) -> None:
        _, run, profiler = readings
        by_id = {span.span_id: span for span in spans_of(run)}

        def parent_name(span: Span) -> str | None:
            above = by_id.get(-1 if span.parent_id is None else span.parent_id)
            while above is not None and above.kind == "layer":
                above = by_id.get(-1 if above.parent_id is None else above.parent_id)
            return None if above is None else above.name

        spans = [s for s in by_id.values() if s.kind != "layer" and s.process_id == run.meta["process_id"]]
        assert Counter((parent_name(span), span.name) for span in spans) == shown_nesting(profiler)

    def test_operators_that_forward_to_an_overload(self) -> None:
        """torch.profiler folds a call into its caller of the same name, if it is all that one does."""
        x = torch.randn(3, 3, requires_grad=True)

        def program() -> None:
            y = (x * 2 / 3 + 1 - 2).sum() + x.mean() + x.max(0)[0].prod() + x.norm() ** 2
            y.backward()
            with torch.profiler.record_function("same"), torch.profiler.record_function("same"):
                x.detach().sum()
            with torch.profiler.record_function("same"):
                with torch.profiler.record_function("same"):
                    pass
                with torch.profiler.record_function("same"):
                    pass
            torch.split(x.detach(), [1, 2])
            torch.stack([x.detach()] * 2).flatten().repeat(2).to(torch.float64).tolist()

        program()
        run, profiler = record(program), torch_profile(program)
        assert announced(run) == shown_counts(profiler)
        assert sum(node.own_ns for node in run.summary(by="operator").rows) <= run.meta["duration_ns"]


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


def double_backward() -> None:
    x = torch.ones(3, requires_grad=True)
    (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    grad.sum().backward()


def make_step(model: nn.Module) -> Any:
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    return lambda: model(x).sum().backward()


MORE_PROGRAMS: dict[str, Any] = {
    "scripted": lambda: make_step(torch.jit.script(Mlp())),
    "traced": lambda: make_step(torch.jit.trace(Mlp(), torch.zeros(2, 4))),
    "compiled": lambda: make_step(torch.compile(Mlp(), backend="eager")),
    "compiled-aot": lambda: make_step(torch.compile(Mlp(), backend="aot_eager")),
    "own-function": lambda: lambda: Cube.apply(torch.ones(3, requires_grad=True)).sum().backward(),
    "double-backward": lambda: double_backward,
    "checkpoint": lambda: make_step(Checkpointed()),
    "vmap": lambda: lambda: torch.func.vmap(torch.func.grad(lambda x: x.sin().sum()))(torch.ones(3, 2)),
    "inference": lambda: torch.inference_mode()(make_inference()),
}


def make_inference() -> Any:
    model, x = Mlp(), torch.ones(2, 4)
    return lambda: model(x)


class Checkpointed(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        result: torch.Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return result


class TestMoreAgreement:
    @pytest.mark.parametrize("name", list(MORE_PROGRAMS))
    def test_counts_and_nesting(self, name: str) -> None:
        program = MORE_PROGRAMS[name]()
        for _ in range(4):  # until TorchScript is stable
            program()
        profiler = torch_profile(program)
        run = record(program, layers=False)
        assert announced(run) == shown_counts(profiler)
        spans = spans_of(run)
        by_id: dict[int | None, str] = {span.span_id: span.name for span in spans}
        assert Counter((by_id.get(span.parent_id), span.name) for span in spans) == shown_nesting(profiler)


class TestProcesses:
    def test_workers_that_outlive_the_recording(self) -> None:
        from torch.utils.data import DataLoader

        class Squares(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return 64

            def __getitem__(self, index: int) -> torch.Tensor:
                return sum(torch.tensor(index).mul(1) for _ in range(40)) / 40

        loader = DataLoader(
            Squares(), batch_size=8, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
        )

        def load() -> list[Any]:
            return [batch.tolist() for batch in loader]

        seen = []
        run = record(lambda: seen.append(load()))
        expected = [[float(i + j) for j in range(8)] for i in range(0, 64, 8)]
        assert seen == [expected]
        assert run.meta["complete"] is True
        workers = [
            p["process_id"] for p in run.meta["processes"] if p["process_id"] != run.meta["process_id"]
        ]
        assert sum(announced(run, worker)["aten::stack"] for worker in workers) == 8
        # They continue, and their part of the run is over.
        assert all(load() == expected for _ in range(12))
        again = record(lambda: seen.append(load()))
        assert seen[1] == expected
        assert again.meta["complete"] is True
        assert announced(again) == shown_counts(torch_profile(load))

    def test_profiler_in_a_forked_child(self) -> None:
        import multiprocessing

        step = small_step()
        expected = shown_counts(torch_profile(step))
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()

        def in_child() -> None:
            try:
                queue.put(shown_counts(torch_profile(step)))
            except RuntimeError as error:
                queue.put(str(error))

        def program() -> None:
            child = context.Process(target=in_child)
            child.start()
            found = queue.get()
            child.join()
            if "Autograd-and-Fork" in found:
                pytest.skip("this build of PyTorch differentiates in no forked child, recorded or not")
            assert found == expected
            assert child.exitcode == 0
            torch.zeros(1).exp()

        program()
        assert announced(record(program))["aten::exp"] == 1

    def test_spawned_child_is_unharmed(self, tmp_path: Path) -> None:
        (tmp_path / "program.py").write_text("""
import gpuprof
import multiprocessing
import torch

def work(model):
    assert torch.equal(model(torch.ones(1, 2)), torch.ones(1, 2))

if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Identity())
    with gpuprof.profile(model) as recording:
        model(torch.ones(1, 2))
        child = multiprocessing.get_context("spawn").Process(target=work, args=(model,))
        child.start()
        child.join()
        assert child.exitcode == 0
    print(recording.run.meta["complete"])
""")
        done = subprocess.run(
            [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180
        )
        assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


class TestBackward:
    def test_is_a_node_of_the_span_that_asked_for_it(self) -> None:
        model, x = Mlp(), torch.randn(2, 4)

        def step() -> None:
            with gpuprof.span("step"):
                with gpuprof.span("forward"):
                    loss = model(x).sum()
                with gpuprof.span("gradients"):
                    loss.backward()

        step()
        run = record(step, model)
        nodes = tree_paths(run)
        backward = [path for path in nodes if any(kind == "backward" for kind, _ in path)]
        inside = (("span", "step"), ("span", "gradients"), ("backward", "backward"))
        assert backward
        assert all(path[:3] == inside for path in backward)
        for path in backward:
            inner = [step for step in path[3:] if step[0] != "layer"]
            if inner:
                assert inner[0][0] == "backward"
                assert inner[0][1].startswith("autograd::engine::evaluate_function: ")

    def test_operators_after_autograd_nodes_are_only_there(self) -> None:
        model, x = Mlp(), torch.randn(2, 4)
        run = record(lambda: model(x).sum().backward(), model)
        for path, calls in tree_paths(run).items():
            _, name = path[-1]
            if name in ("aten::mm", "AddmmBackward0"):
                assert path[:2] == (("backward", "backward"), ("layer", "Mlp"))
                assert calls > 0
            if name in ("aten::addmm", "aten::relu"):
                assert path[0] == ("layer", "Mlp")

    def test_inside_a_layer_that_differentiates(self) -> None:
        class Energy(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = x.detach().requires_grad_()
                return torch.autograd.grad((x * x).sum(), x)[0]

        model, x = Energy(), torch.randn(3)
        nodes = tree_paths(record(lambda: model(x), model))
        backward = [path for path in nodes if ("backward", "backward") in path]
        assert backward
        assert all(path[:2] == (("layer", "Energy"), ("backward", "backward")) for path in backward)

    def test_total_of_the_group_is_that_of_its_children(self) -> None:
        model, x = Mlp(), torch.randn(2, 4)
        tree = record(lambda: model(x).sum().backward(), model).call_tree
        (group,) = [i for i in range(len(tree)) if tree.names[tree.name[i]] == "backward"]
        assert KINDS[tree.kind[group]] == "backward"
        assert tree.total_ns[group] == tree.total_ns[tree.parent == group].sum()


def tree_paths(run: gpuprof.Run) -> dict[tuple[tuple[str, str], ...], int]:
    """Calls by path, each step a kind and a name, without the process."""
    tree = run.call_tree
    paths: list[tuple[tuple[str, str], ...]] = []
    result = {}
    for i in range(len(tree)):
        parent = tree.parent[i]
        own = () if parent < 0 else ((KINDS[tree.kind[i]], tree.names[tree.name[i]]),)
        paths.append((() if parent < 0 else paths[parent]) + own)
        if own:
            result[paths[-1]] = int(tree.calls[i])
    return result


class TestRanges:
    def test_record_function_is_a_span(self) -> None:
        def program() -> None:
            with torch.profiler.record_function("load"), torch.profiler.record_function("decode the text"):
                torch.zeros(1).cos()

        spans = spans_of(record(program))
        kinds = {span.name: span.kind for span in spans}
        assert kinds["load"] == "span"
        assert kinds["decode the text"] == "span"
        assert kinds["aten::cos"] == "operator"
        by_id = {span.span_id: span for span in spans}
        cos = next(span for span in spans if span.name == "aten::cos")
        assert by_id[cos.parent_id].name == "decode the text"
        assert by_id[by_id[cos.parent_id].parent_id].name == "load"

    def test_as_often_as_the_profiler_sees_them(self) -> None:
        @torch.profiler.record_function("decorated")
        def decorated() -> None:
            torch.zeros(1).cos()

        def program() -> None:
            for _ in range(3):
                decorated()
                with torch.profiler.record_function('a "range", with ünicode 🚀'):
                    decorated()

        program()
        run = record(program)
        profiler = torch_profile(program)
        assert announced(run) == shown_counts(profiler)
        assert announced(run)['a "range", with ünicode 🚀'] == 3

    def test_left_by_an_exception(self) -> None:
        def program() -> None:
            with pytest.raises(ZeroDivisionError), torch.profiler.record_function("fails"):
                raise ZeroDivisionError
            torch.zeros(1).exp()

        spans = {span.name: span for span in spans_of(record(program))}
        assert spans["aten::exp"].parent_id is None
        assert spans["fails"].kind == "span"

    def test_an_operator_that_raises(self) -> None:
        def program() -> None:
            for _ in range(3):
                with pytest.raises(RuntimeError):
                    torch.mm(torch.zeros(2, 3), torch.zeros(2, 3))
            torch.zeros(1).exp()

        run = record(program)
        assert announced(run)["aten::mm"] == 3
        assert next(s for s in spans_of(run) if s.name == "aten::exp").parent_id is None

    def test_span_and_record_function_nest(self) -> None:
        def program() -> None:
            with gpuprof.span("ours"), torch.profiler.record_function("theirs"), gpuprof.span("inner"):
                torch.zeros(1).cos()

        spans = {span.name: span for span in spans_of(record(program))}
        assert spans["inner"].parent_id == spans["theirs"].span_id
        assert spans["theirs"].parent_id == spans["ours"].span_id
        assert spans["aten::cos"].parent_id == spans["inner"].span_id


class TestThreads:
    def test_started_during_the_recording(self) -> None:
        step = small_step()
        identifiers = []

        def in_thread() -> None:
            identifiers.append(threading.get_native_id())
            step()

        def program() -> None:
            threads = [threading.Thread(target=in_thread) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        expected = announced(record(step))
        run = record(program)
        assert announced(run) == Counter({name: 4 * calls for name, calls in expected.items()})
        assert run.meta["totals"]["unmatched_ends"] == 0

    def test_pool(self) -> None:
        def program() -> None:
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda _: torch.zeros(1).cos(), range(30)))

        assert announced(record(program))["aten::cos"] == 30

    def test_pool_that_continues_into_the_next_recording(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            first = record(lambda: pool.submit(torch.cos, torch.zeros(1)).result())
            pool.submit(torch.cos, torch.zeros(1)).result()
            second = record(lambda: pool.submit(torch.cos, torch.zeros(1)).result())
        assert announced(first)["aten::cos"] == 1
        assert announced(second)["aten::cos"] == 1

    def test_backward_in_a_thread(self) -> None:
        x = torch.randn(3, requires_grad=True)

        def program() -> None:
            loss = (x * x).sum()
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()

        assert announced(record(program))["MulBackward0"] == 1

    def test_profile_function_of_the_program_is_respected(self) -> None:
        calls = []

        def own(frame: Any, event: str, _: Any) -> None:
            calls.append(event)

        def run_thread() -> None:
            thread = threading.Thread(target=torch.zeros, args=(1,))
            thread.start()
            thread.join()

        threading.setprofile(own)
        try:
            record(run_thread)
            assert threading.getprofile() is own
        finally:
            threading.setprofile(None)
        assert "c_call" in calls

    def test_profile_function_set_during_the_recording_stays(self) -> None:
        def own(*_: Any) -> None:
            return None

        try:
            record(lambda: threading.setprofile(own))
            assert threading.getprofile() is own
        finally:
            threading.setprofile(None)

    def test_nothing_remains_installed(self) -> None:
        seen = []
        record(lambda: None)
        assert threading.getprofile() is None
        assert sys.getprofile() is None

        def in_thread() -> None:
            seen.append(sys.getprofile())

        def program() -> None:
            thread = threading.Thread(target=in_thread)
            thread.start()
            thread.join()

        record(program)
        assert seen == [None]

    def test_a_thread_that_profiles_itself(self) -> None:
        """`sys.setprofile` in a thread, as a coverage tool or cProfile does it."""
        import cProfile

        results = []

        def in_thread() -> None:
            profiler = cProfile.Profile()
            profiler.enable()
            torch.zeros(1).cos()
            profiler.disable()
            results.extend(entry.code for entry in profiler.getstats())

        def program() -> None:
            thread = threading.Thread(target=in_thread)
            thread.start()
            thread.join()

        assert announced(record(program))["aten::cos"] == 1
        assert any("cos" in str(code) for code in results)


class TestSwitchedOff:
    def test_operators_off(self) -> None:
        run = record(small_step(), operators=False)
        assert source_code(run.meta, "operators") == "off: not_wanted"
        assert announced(run) == {}
        assert layer_calls(run)["Mlp"] == 1

    def test_layers_off(self) -> None:
        run = record(small_step(), layers=False)
        assert source_code(run.meta, "layers") == "off: not_wanted"
        assert layer_calls(run) == {}
        assert announced(run)["aten::addmm"] == 2


def python(program: str, *, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=180,
        env={**{k: v for k, v in os.environ.items() if k != "INTEL_LIBITTNOTIFY64"}, **environment},
    )


class TestOrderOfImports:
    def test_small_operators_next_to_a_layer_are_not_in_it(self, run_python: Any) -> None:
        ended = run_python(
            "-c",
            """
import torch, gpuprof
model = torch.nn.Linear(3, 3)
x = torch.ones(1, 3)
with gpuprof.profile(model, out="r.gpuprof") as recording:
    for _ in range(500):
        model(x).sum()
query = "SELECT parent.kind, sum(child.calls) FROM call_tree child JOIN call_tree parent"
query += " ON child.parent_id = parent.node_id WHERE child.name = '{}' GROUP BY ALL"
print(*(recording.run.sql(query.format(name)).fetchall() for name in ("aten::sum", "aten::linear")))
""",
        )
        assert "[('process', 500)] [('layer', 500)]" in ended.stdout, ended.stderr

    def test_torch_first(self, tmp_path: Path) -> None:
        """Then torch.profiler records in our place, and the counts are the same."""
        program = """
import torch, gpuprof
from collections import Counter
# Two clocks agree to microseconds only: operators lie well inside of their layers.
def padded(layer):
    class Padded(layer):
        def forward(self, value):
            sum(range(20000))
            value = super().forward(value)
            sum(range(20000))
            return value
    return Padded
model = torch.nn.Sequential(padded(torch.nn.Linear)(2, 2), padded(torch.nn.ReLU)())
def step():
    with torch.profiler.record_function("my range"):
        loss = model(torch.zeros(1, 2)).sum()
    loss.backward()
step()
with torch.profiler.profile() as profiler:
    step()
with gpuprof.profile(model, out="r.gpuprof") as recording:
    step()
run = recording.run
print(run.sources["operators"].method.value, run.sources["operators"].reason.value)
names = run.sql("SELECT name FROM spans WHERE kind <> 'layer'").fetchall()
expected = {e.key: e.count for e in profiler.key_averages()}
print(Counter(name for name, in names) == expected, len(names))
print(sorted(run.sql("SELECT name FROM spans WHERE kind = 'layer'").fetchall()))
print(run.sql('''SELECT DISTINCT above.name FROM spans JOIN spans above ON above.span_id = spans.parent_id
    WHERE spans.name IN ('aten::linear', 'aten::relu') ORDER BY 1''').fetchall())
print(run.sql('''SELECT name FROM call_tree WHERE kind = 'backward' AND calls = 0''').fetchall())
seen = []
with gpuprof.profile(model) as recording:
    step()
    with torch.profiler.profile() as profiler:
        step()
    seen = {e.key: e.count for e in profiler.key_averages()}
print(seen == expected)
"""
        result = python(program, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        source, counts, layers, above, backward, seen = result.stdout.splitlines()
        assert source == "torch_profiler torch_imported_first"
        assert counts.startswith("True ")
        assert layers == "[('0',), ('1',), ('Sequential',)]"
        assert above == "[('0',), ('1',)]"
        assert backward == "[('backward',)]"
        assert seen == "True"

    def test_kineto_prints_nothing_into_the_programs_output(self, tmp_path: Path) -> None:
        program = """
import torch, gpuprof
for number in range(2):
    with gpuprof.profile(out=f"r{number}.gpuprof"):
        torch.zeros(1)
"""
        result = python(program, cwd=tmp_path)
        assert (result.stdout, result.stderr) == ("", "")

    def test_torch_imported_inside_the_recording(self, tmp_path: Path) -> None:
        program = """
import gpuprof
with gpuprof.profile(out="r.gpuprof") as recording:
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model(torch.zeros(1, 2)).sum().backward()
run = recording.run
layers = run.sources["layers"]
print(run.sources["operators"].method.value, layers.method.value, layers.values["modules"])
print([row[0] for row in run.sql("SELECT name FROM spans WHERE kind = 'layer' ORDER BY start_ns").fetchall()])
print(run.sql("SELECT count(*) FROM spans WHERE name = 'aten::addmm'").fetchall())
"""
        result = python(program, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines() == [
            "itt intercepted_calls every",
            "['Sequential', '0']",
            "[(1,)]",
        ]

    def test_another_collector_is_left_in_place(self, tmp_path: Path) -> None:
        program = """
import os, gpuprof, torch
with gpuprof.profile() as recording:
    torch.zeros(1).cos()
print(os.environ["INTEL_LIBITTNOTIFY64"])
print(recording.run.sources["operators"].to_plain())
"""
        result = python(program, cwd=tmp_path, INTEL_LIBITTNOTIFY64="/nowhere/libother.so")
        assert result.returncode == 0, result.stderr
        name, source = result.stdout.splitlines()
        assert name == "/nowhere/libother.so"
        assert "other_collector" in source
        assert "'variable': 'INTEL_LIBITTNOTIFY64', 'path': '/nowhere/libother.so'" in source

    def test_never_imported(self, tmp_path: Path) -> None:
        program = """
import sys, gpuprof
with gpuprof.profile() as recording:
    with gpuprof.span("only"):
        pass
print(recording.run.sources["operators"].reason.value)
print("torch" in sys.modules)
"""
        result = python(program, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines() == ["torch_not_imported", "False"]
