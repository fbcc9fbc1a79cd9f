# SPDX-License-Identifier: Apache-2.0
"""Collections of garbage and compilations are spans where they interrupt the program, and change no other."""

from __future__ import annotations

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof

# isort: split
import gc
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpuprof import _native
from gpuprof.analyze.findings.finding import Missing, Rule
from gpuprof.record.facts import Reason
from gpuprof.record.pauses import own_work
from gpuprof.run.format import KINDS

SHORTEST_NS = 20_000
PAGE_STYLE = Path(gpuprof.__file__).parent / "render/assets/kit/page.css"


@pytest.fixture(autouse=True)
def _only_the_collections_of_the_test() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    yield
    if was_enabled:
        gc.enable()


def pauses(run: gpuprof.Run, kind: str = "gc") -> list[tuple[str, str | None]]:
    """Return the name of each pause, in order, and that of the span around it."""
    return run.sql(
        "SELECT inner_span.name, outer_span.name FROM spans AS inner_span "
        "LEFT JOIN spans AS outer_span ON outer_span.span_id = inner_span.parent_id "
        f"WHERE inner_span.kind = '{kind}' ORDER BY inner_span.start_ns"
    ).fetchall()


def young_objects() -> list[list[int]]:
    return [[number] for number in range(50_000)]


class TestCollections:
    def test_each_is_in_the_span_that_it_interrupts(self, tmp_path: Path) -> None:
        with gpuprof.profile(out=tmp_path / "r.gpuprof", python=True) as recording:
            with gpuprof.span("outer"):
                gc.collect()
                with gpuprof.span("inner"):
                    gc.collect(1)
                    kept = young_objects()
                    gc.collect(0)
            gc.collect(1)
        assert kept
        assert pauses(recording.run) == [
            ("generation 2", "outer"),
            ("generation 1", "inner"),
            ("generation 0", "inner"),
            ("generation 1", None),
        ]
        ((within,),) = recording.run.sql(
            "SELECT bool_and(inner_span.start_ns >= outer_span.start_ns AND inner_span.start_ns + "
            "inner_span.duration_ns <= outer_span.start_ns + outer_span.duration_ns) "
            "FROM spans AS inner_span JOIN spans AS outer_span ON outer_span.span_id = inner_span.parent_id"
        ).fetchall()
        assert within

    def test_short_ones_of_the_youngest_generation_are_only_counted(self, tmp_path: Path) -> None:
        count = 200
        with gpuprof.profile(out=tmp_path / "r.gpuprof", python=True) as recording:
            for _ in range(count):
                gc.collect(0)
        values = recording.run.sources["gc"].values
        # On a busy machine some take longer.
        assert values["short"] + len(pauses(recording.run)) == count
        assert 0 < values["short_ns"] < values["short"] * SHORTEST_NS

    def test_they_are_on_the_thread_that_ran_them(self, tmp_path: Path) -> None:
        threads: list[int] = []

        def collect() -> None:
            threads.append(threading.get_native_id())
            gc.collect()

        with gpuprof.profile(out=tmp_path / "r.gpuprof", python=True) as recording:
            other = threading.Thread(target=collect)
            other.start()
            other.join()
        found = recording.run.sql("SELECT thread_id FROM spans WHERE kind = 'gc'").fetchall()
        assert found == [(threads[0],)]

    def test_without_python_there_are_none(self, tmp_path: Path) -> None:
        with gpuprof.profile(out=tmp_path / "r.gpuprof") as recording:
            gc.collect()
        assert pauses(recording.run) == []
        assert recording.run.sources["gc"].reason is Reason.NOT_WANTED

    def test_those_of_gpuprof_itself_are_left_out(self, tmp_path: Path) -> None:
        with gpuprof.profile(out=tmp_path / "r.gpuprof", python=True) as recording:
            with own_work():
                gc.collect()
            gc.collect(1)
        assert [name for name, _ in pauses(recording.run)] == ["generation 1"]

    def test_a_table_has_them_with_the_spans_but_is_not_chosen_for_them(self, tmp_path: Path) -> None:
        with gpuprof.profile(out=tmp_path / "r.gpuprof", python=True) as recording:
            gc.collect()
        rows = recording.run.summary(by="span").rows
        assert [(row.kind, row.name, row.calls) for row in rows] == [("gc", "generation 2", 1)]
        assert recording.run.summary().by != "span"

    def test_each_kind_has_a_color(self) -> None:
        style = PAGE_STYLE.read_text(encoding="utf-8")
        assert {kind: style.count(f"--kind-{kind}:") for kind in KINDS} == dict.fromkeys(KINDS, 2)

    def test_pages_show_them(self, tmp_path: Path) -> None:
        with gpuprof.profile(out=tmp_path / "r.gpuprof", python=True) as recording, gpuprof.span("a"):
            gc.collect()
        recording.run.flamegraph(tmp_path / "flame.html")
        recording.run.export(tmp_path / "trace.json")
        assert "generation 2" in (tmp_path / "flame.html").read_text(encoding="utf-8")
        assert '"cat":"gc"' in (tmp_path / "trace.json").read_text(encoding="utf-8").replace(" ", "")


class Collecting(nn.Module):
    """Collects garbage in the middle of its forward call and of its backward pass."""

    def __init__(self, collects: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.collects = collects
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(self.collect)

    def collect(self, _: Any = None) -> None:
        if self.collects:
            gc.collect(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        self.collect()
        hidden.register_hook(self.collect)
        return self.second(hidden).relu() * 2


def calls_of(folder: Path, *, collects: bool) -> dict[tuple[Any, ...], int]:
    model = Collecting(collects)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gpuprof.profile(model, out=folder / f"{collects}.gpuprof", python=True) as recording:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    run = recording.run
    assert len(pauses(run)) == (3 * 6 if collects else 0)
    steps = run.sql("SELECT kind, source, count(*) FROM steps GROUP BY ALL").fetchall()
    return {**calls_by_path(run), **{(kind, source): count for kind, source, count in steps}}


def calls_by_path(run: gpuprof.Run) -> dict[tuple[Any, ...], int]:
    """Return the calls of each path of kinds and names, without Python functions, which are sampled."""
    paths: dict[int | None, tuple[Any, ...]] = {None: ()}
    found: Counter[tuple[Any, ...]] = Counter()
    tree = run.sql(
        "SELECT node_id, parent_id, kind, name, coalesce(calls, 0) FROM call_tree ORDER BY node_id"
    )
    for node, parent, kind, name, calls in tree.fetchall():
        is_recorded = kind in ("layer", "operator", "backward", "span")
        paths[node] = paths[parent] + (((kind, name),) if is_recorded else ())
        if is_recorded:
            found[paths[node]] += calls
    return dict(found)


def test_calls_of_everything_else_are_the_same_with_and_without(tmp_path: Path) -> None:
    calls = calls_of(tmp_path, collects=True)
    assert calls == calls_of(tmp_path, collects=False)
    assert calls["training", "optimizer"] == 3
    # The hook of `hidden` runs between two nodes of the backward pass.
    engine = "autograd::engine::evaluate_function: "
    backward = [path for path in calls if path[-1] == ("backward", f"{engine}AddmmBackward0")]
    assert {path[-2] for path in backward} == {("layer", "first"), ("layer", "second")}


class TestPrograms:
    def test_the_callbacks_are_the_programs_again_afterwards(self, tmp_path: Path) -> None:
        phases: list[str] = []

        def own(phase: str, _info: dict[str, int]) -> None:
            phases.append(phase)

        gc.callbacks.append(own)
        before = list(gc.callbacks)
        try:
            with gpuprof.profile(out=tmp_path / "r.gpuprof", python=True):
                gc.collect()
            assert gc.callbacks == before
        finally:
            gc.callbacks.remove(own)
        assert phases[:2] == ["start", "stop"]

    def test_one_that_clears_the_callbacks(self, tmp_path: Path) -> None:
        before = list(gc.callbacks)
        try:
            with gpuprof.profile(out=tmp_path / "r.gpuprof", python=True) as recording:
                gc.collect()
                gc.callbacks.clear()
                gc.collect()
                with gpuprof.span("after"):
                    gc.freeze()
                    gc.unfreeze()
            assert gc.callbacks == []
        finally:
            gc.callbacks[:] = before
        assert pauses(recording.run) == [("generation 2", None)]
        # How many are missing is unknown, so no rule has searched them.
        assert recording.run.meta["sources"]["gc"]["reason"] == Reason.GC_CALLBACKS_CLEARED
        missing = {each.rule: each.missing for each in recording.run.findings().results}
        assert missing[Rule.COLLECTIONS] is Missing.COLLECTIONS

    def test_one_that_clears_them_in_a_collection(self, tmp_path: Path) -> None:
        before = list(gc.callbacks)

        def clear(_phase: str, _info: dict[str, int]) -> None:
            gc.callbacks.clear()

        try:
            with gpuprof.profile(out=tmp_path / "r.gpuprof", python=True) as recording:
                gc.callbacks.append(clear)
                gc.collect()
                with gpuprof.span("after"):
                    pass
        finally:
            gc.callbacks[:] = before
        run = recording.run
        # Of a collection whose end was not announced there is nothing, and what follows is not inside it.
        assert run.sql("SELECT kind, name, parent_id FROM spans").fetchall() == [("span", "after", None)]
        assert run.meta["totals"]["damaged_events"] == run.meta["totals"]["unfinished_spans"] == 0

    def test_one_that_calls_the_callback(self, tmp_path: Path) -> None:
        with gpuprof.profile(out=tmp_path / "r.gpuprof", python=True) as recording:
            callback: Any = gc.callbacks[-1]
            assert callback is _native.note_collection
            callback("stop", {})
            callback("start", {"generation": 9})
            callback("start", {"generation": "two"})
            callback(1, 2)
            with pytest.raises(TypeError):
                callback()
            with gpuprof.span("after"):
                callback("start", {"generation": 2})
        assert pauses(recording.run) == []

    def test_spans_of_finalizers_are_inside_the_collection(self, tmp_path: Path) -> None:
        class Finalized:
            def __init__(self) -> None:
                self.itself = self

            def __del__(self) -> None:
                with gpuprof.span("finalizer"):
                    pass

        with gpuprof.profile(out=tmp_path / "r.gpuprof", python=True) as recording:
            Finalized()
            gc.collect()
        assert pauses(recording.run, "span") == [("finalizer", "generation 2")]

    FORKS = """
import gc, os, sys
import gpuprof
gc.disable()

class Forks:
    def __init__(self):
        self.itself = self
    def __del__(self):
        global child
        child = os.fork()

child = None
with gpuprof.profile(out="r.gpuprof", python=True, layers=False, operators=False, gpu=False) as recording:
    only_collects = os.fork()
    if only_collects == 0:
        gc.collect()
        os._exit(0)
    os.waitpid(only_collects, 0)
    Forks()
    gc.collect()
    if child == 0:
        with gpuprof.span("in child"):
            gc.collect(1)
        os._exit(0)
    os.waitpid(child, 0)
rows = recording.run.sql("SELECT process_id, kind, name FROM spans ORDER BY start_ns").fetchall()
assert {process for process, _, _ in rows} == {os.getpid(), child}, rows
for process in (os.getpid(), child):
    print(sorted(row[1:] for row in rows if row[0] == process))
"""

    def test_forked_children(self, run_python: Any) -> None:
        done = run_python("-W", "ignore", "-c", self.FORKS)
        assert done.returncode == 0, done.stderr
        # A child with nothing but collections is not in the run. The one that was forked in a collection has
        # not begun that one.
        parent, child = [("gc", "generation 2")], [("gc", "generation 1"), ("span", "in child")]
        assert done.stdout == f"{parent}\n{child}\n"


def test_removed_collections_are_gained_as_a_whole(tmp_path: Path, run_python: Any) -> None:
    path = tmp_path / "r.gpuprof"
    with gpuprof.profile(out=path, python=True, operators=False) as recording:
        kept = young_objects()
        for _ in range(3):
            with gpuprof.span("step"):
                gc.collect()
                gc.collect(1)
    run = recording.run
    assert kept
    ((total,),) = run.sql("SELECT sum(duration_ns)::BIGINT FROM spans WHERE kind = 'gc'").fetchall()
    found = run.whatif(remove="gc:*")
    assert (found.low_ns, found.high_ns) == (total, total)
    ((oldest,),) = run.sql(
        "SELECT sum(duration_ns)::BIGINT FROM spans WHERE name = 'generation 2'"
    ).fetchall()
    assert run.whatif(remove="gc:generation 2").high_ns == oldest
    done = run_python("-m", "gpuprof", "whatif", path, "--remove", "gc:*", "--json")
    assert f'"high_ns": {total}' in done.stdout, done.stderr


class TestCompilations:
    @pytest.fixture(autouse=True)
    def _compiled_again(self) -> Iterator[None]:
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    def test_each_is_a_span(self, tmp_path: Path) -> None:
        handler = torch._dynamo.callback.callback_handler
        before = list(handler.start_callbacks), list(handler.end_callbacks)

        def twice(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        with gpuprof.profile(out=tmp_path / "r.gpuprof") as recording:
            compiled = torch.compile(twice, backend="eager", dynamic=False)
            for size in (1, 1, 2):
                with gpuprof.span(f"size {size}"):
                    compiled(torch.ones(size))
        assert (handler.start_callbacks, handler.end_callbacks) == before
        names = [name for name, _ in pauses(recording.run, "compile")]
        assert names == ["compilation 0/0", "compilation 0/1"]
        found = recording.run.sql(
            "SELECT outer_span.name, count(*) FROM spans JOIN spans AS outer_span ON spans.kind = 'compile' "
            "AND outer_span.name LIKE 'size %' AND spans.start_ns BETWEEN outer_span.start_ns "
            "AND outer_span.start_ns + outer_span.duration_ns GROUP BY ALL ORDER BY ALL"
        ).fetchall()
        assert found == [("size 1", 1), ("size 2", 1)]

    def test_a_program_that_clears_the_callbacks(self, tmp_path: Path) -> None:
        with gpuprof.profile(out=tmp_path / "r.gpuprof") as recording:
            torch._dynamo.reset()
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
        assert pauses(recording.run, "compile") == []

    def test_a_compilation_that_fails_ends(self, tmp_path: Path) -> None:
        def backend(*_: object) -> object:
            raise RuntimeError("no backend")

        with gpuprof.profile(out=tmp_path / "r.gpuprof") as recording:
            with pytest.raises(Exception, match="no backend"):
                torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
            with gpuprof.span("after"):
                pass
        assert [name for name, _ in pauses(recording.run, "compile")] == ["compilation 0/0"]
        assert ("after", None) in pauses(recording.run, "span")

    @pytest.mark.slow
    def test_a_program_that_compiles_nothing_imports_nothing_for_it(self, run_python: Any) -> None:
        script = (
            "import sys, gpuprof, torch\n"
            "with gpuprof.profile(out='r.gpuprof', gpu=False): torch.ones(1)\n"
            "print('torch._dynamo' in sys.modules, len(sys.meta_path))"
        )
        plain = run_python(
            "-c", "import sys, torch; print('torch._dynamo' in sys.modules, len(sys.meta_path))"
        )
        assert run_python("-c", script).stdout == plain.stdout

    @pytest.mark.slow
    def test_dynamo_that_is_imported_later(self, run_python: Any) -> None:
        script = (
            "import sys, gpuprof, torch\n"
            "with gpuprof.profile(out='r.gpuprof', gpu=False) as recording:\n"
            "    assert 'torch._dynamo' not in sys.modules\n"
            "    torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1))\n"
            "print(recording.run.sql(\"SELECT count(*) FROM spans WHERE kind = 'compile'\").fetchall())"
        )
        done = run_python("-W", "ignore", "-c", script)
        assert done.stdout == "[(1,)]\n", done.stderr
