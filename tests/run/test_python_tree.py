# SPDX-License-Identifier: Apache-2.0
"""The position of Python frames among spans: stacks and spans of known calls."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulated_stacks import DURATION, ENTER, LAYER, OPERATOR, PYTHON, SPAN, WAITING, Program

from gpuprof.record.stack_file import StackFile
from gpuprof.run import frame_guesses
from gpuprof.run.frame_guesses import guess
from gpuprof.run.frame_tree import IDLE_THREADS, UNCOUNTED, UNKNOWN_WAIT
from gpuprof.run.stack_placement import PlacedSample, shared
from gpuprof.run.stacks import Frames, read_stacks


def test_layers_are_below_the_function_that_called_them() -> None:
    program = Program()
    for number, function in enumerate(("train", "evaluate")):
        begin = 100 + 100 * number
        net = program.span(-1, LAYER, "Net", begin, begin + 80)
        program.span(net, OPERATOR, "aten::mm", begin + 20, begin + 60)
        program.sample(begin + 65, begin, "main", function, *ENTER, "Net.forward", "torch.mm (built-in)")
    merged = program.merged()
    for function in ("train", "evaluate"):
        assert merged[f"prog/main/{function}/Net"][:2] == (1, 80)
        assert merged[f"prog/main/{function}/Net/aten::mm"] == (1, 40, 40)
        assert merged[f"prog/main/{function}"] == (UNCOUNTED, 80, 0)
    assert merged["prog"] == (0, DURATION, DURATION - 160)


def test_frames_inside_a_layer_are_between_it_and_the_next() -> None:
    program = Program()
    net = program.span(-1, LAYER, "Net", 100, 200)
    program.span(net, LAYER, "fc", 140, 160)
    inside = ("main", *ENTER, "Net.forward (net.py:3)", "Net.helper (net.py:9)")
    program.sample(120, 100, *inside)
    program.sample(135, 120, *inside)
    program.sample(150, 135, *inside, *ENTER, "Linear.forward (torch/nn/modules/linear.py:1)", "linear")
    merged = program.merged()
    assert merged["prog/main/Net"] == (1, 100, 100 - 20 - 40)
    assert merged["prog/main/Net/Net.helper (net.py:9)"] == (UNCOUNTED, 60, 40)
    assert merged["prog/main/Net/Net.helper (net.py:9)/fc"] == (1, 20, 10)
    assert merged["prog/main/Net/Net.helper (net.py:9)/fc/linear"] == (UNCOUNTED, 10, 10)


def test_frames_common_to_several_samples_of_a_span_are_above_it() -> None:
    program = Program()
    step = program.span(-1, SPAN, "step", 100, 300)
    program.span(step, LAYER, "Net", 140, 160)
    program.sample(120, 100, "main", "load")
    program.sample(135, 120, "main", "compute")
    program.sample(150, 135, "main", "compute", *ENTER, "Net.forward (net.py:3)")
    merged = program.merged()
    assert merged["prog/main/step"][:2] == (1, 200)
    assert merged["prog/main/step/load"] == (UNCOUNTED, 20, 20)
    assert merged["prog/main/step/compute/Net"] == (1, 20, 20)


def steps_with_short_spans(*, waits: bool) -> dict[str, tuple[int, int, int]]:
    """Return the tree of steps of 1,600: 400 in `load`, a span of 900 below `call`, 300 in `log`."""
    program = Program(duration=1_600_000)
    for begin in range(0, program.duration, 1600):
        program.span(-1, LAYER, "Net", begin + 400, begin + 1300)
    since = 0
    while (taken := since + 1009) < program.duration:
        at = (since + 10) % 1600  # a sample of pyinstrument has the stack of when it was due
        function = next(name for name, end in (("load", 400), ("call", 1300), ("log", 1600)) if at < end)
        inside = (*ENTER, "Net.forward (net.py:3)") if function == "call" else ()
        waited = sum(400 <= moment % 1600 < 1300 for moment in range(since, taken)) if waits else 0
        used = {"cpu_ns": 1009 - waited, "queued_ns": 0} if waits else {}
        program.sample(taken, since, "main", function, *inside, **used)
        since = taken
    return program.merged()


def test_functions_have_their_self_time_also_where_inner_spans_are_as_short_as_the_interval() -> None:
    merged = steps_with_short_spans(waits=False)
    assert sum(calls for path, (calls, *_) in merged.items() if path.endswith("/Net")) == 1000
    assert merged["prog/main/call"][2] == 0
    for name, length in (("load", 400), ("log", 300)):
        assert merged[f"prog/main/{name}"][2] == pytest.approx(1000 * length, rel=0.05)


def test_where_calls_and_layers_do_not_match_frames_are_above_the_outermost_span() -> None:
    program = Program()
    program.span(-1, LAYER, "Net", 100, 200)
    program.sample(150, 100, "main", *ENTER, "Unseen.forward (a.py:1)", *ENTER, "Net.forward (b.py:1)")
    assert program.merged()["prog/main/Unseen.forward (a.py:1)/Net.forward (b.py:1)/Net"] == (1, 100, 100)


def test_a_call_between_samples_takes_the_only_way_that_fits() -> None:
    program = Program()
    program.span(-1, LAYER, "Net", 100, 110)
    program.sample(111, 95, "main", "train", *ENTER, "Net.forward (b.py:1)")
    program.span(-1, LAYER, "Net", 113, 114)
    program.sample(130, 111, "main", "train", "log")
    assert program.merged()["prog/main/train/Net"][:2] == (2, 11)


def test_time_of_other_threads_is_added() -> None:
    program = Program()
    program.thread = 8
    program.sample(100, 0, "run", "wait")
    merged = program.merged()
    assert merged["prog/run/wait"] == (UNCOUNTED, 100, 100)
    assert merged["prog"] == (0, DURATION + 100, DURATION)


def test_a_wait_is_a_leaf_below_the_function_that_waits() -> None:
    program = Program()
    program.sample(100, 0, "main", "get", "lock.acquire (built-in)", cpu_ns=0, queued_ns=10)
    program.sample(200, 100, "main", "get", "lock.acquire (built-in)", cpu_ns=20, queued_ns=0)
    program.sample(300, 200, "main", "get", cpu_ns=0)
    program.sample(400, 300, "main", "get", cpu_ns=60, queued_ns=0)
    program.sample(500, 400, "main", "get", cpu_ns=0, queued_ns=90)
    program.sample(600, 500, "main", "get", "time.sleep (built-in)")  # by pyinstrument
    merged = program.merged()
    assert merged["prog/main/get"] == (UNCOUNTED, 600, 10 + 20 + 100 + 100)
    assert merged["prog/main/get/lock.acquire (built-in)"] == (UNCOUNTED, 170, 170)
    assert merged[f"prog/main/get/{UNKNOWN_WAIT}"] == (UNCOUNTED, 100, 100)
    assert merged["prog/main/get/time.sleep (built-in)"] == (UNCOUNTED, 100, 100)
    tree, names, _ = program.with_frames()
    waits = {names[name] for name in tree["name"][tree["kind"] == WAITING].tolist()}
    assert waits == {"lock.acquire (built-in)", UNKNOWN_WAIT}


def test_one_sample_gets_at_most_twice_what_other_spans_have_of_its_interval() -> None:
    program = Program(duration=5200)
    for begin in range(0, 5000, 100):
        program.span(-1, OPERATOR, "aten::mm", begin + 40, begin + 100)
        program.sample(begin + 90, begin, "main", "work")
    program.span(-1, OPERATOR, "aten::mm", 5050, 5070)
    program.sample(5100, 5050, "generator")
    program.stacks.threads[0].is_of_end = True
    merged = program.merged()
    assert merged["prog/generator"][2] == 30 + 2 * 20
    assert merged["prog/main/work"][2] == 50 * 40 - 2 * 20


def test_functions_of_other_times_get_no_time() -> None:
    program = Program(duration=1_000_000)
    for number in range(600):
        begin = 1000 * number
        function = "evaluate" if number < 300 else "train"
        program.span(-1, OPERATOR, function, begin + 500, begin + 1000)
        is_inside = number % 2 == 0
        program.sample(begin + (900 if is_inside else 450), begin - 100, "main", function)
    program.stacks.threads[0].is_of_end = True
    merged = program.merged()
    assert merged["prog/main/evaluate"][2] == pytest.approx(merged["prog/main/train"][2], rel=0.01)


def test_a_span_of_which_a_part_is_a_wait_has_the_time_of_its_interval() -> None:
    merged = steps_with_short_spans(waits=True)
    total = {name: merged[f"prog/main/{name}"][1] for name in ("load", "log")}
    assert total["load"] / total["log"] == pytest.approx(400 / 300, rel=0.05)


def test_a_wait_before_an_inner_span_belongs_to_the_sample_before() -> None:
    program = Program()
    wait = ("main", "load", "queue.get (built-in)")
    inside = ("main", "call", *ENTER, "Net.forward (net.py:3)")
    for begin in (100, 300):
        if begin == 100:
            program.sample(begin, begin - 50, *wait, cpu_ns=0, queued_ns=0)
        else:
            program.sample(begin, begin - 50, "main", "other")
            program.span(-1, OPERATOR, "aten::mm", begin + 5, begin + 12)
            program.sample(begin + 10, begin, "main", "call", cpu_ns=10, queued_ns=0)
        program.span(-1, LAYER, "Net", begin + 60, begin + 150)
        program.sample(begin + 100, begin + 10, *inside, cpu_ns=40, queued_ns=0)
    program.stacks.threads[0].is_of_end = True
    merged = program.merged()
    assert merged["prog/main/load/queue.get (built-in)"][2] == 50 + 10
    assert merged[f"prog/main/call/{UNKNOWN_WAIT}"][2] == 10
    assert f"prog/main/other/{UNKNOWN_WAIT}" not in merged


def test_a_wait_inside_a_span_is_taken_from_the_span() -> None:
    program = Program()
    program.span(-1, SPAN, "step", 100, 300)
    program.sample(200, 100, "main", "load", "queue.get (built-in)", cpu_ns=0, queued_ns=0)
    merged = program.merged()
    assert merged["prog/main/load/step"] == (1, 200, 100)
    assert merged["prog/main/load/step/queue.get (built-in)"] == (UNCOUNTED, 100, 100)


def test_threads_that_only_wait_are_one_leaf() -> None:
    program = Program()
    for program.thread in (8, 9):
        program.sample(99, 0, "run", "get", "lock.acquire (built-in)", cpu_ns=0, queued_ns=0)
        program.sample(100, 99, "run", "get", cpu_ns=1, queued_ns=0)
    program.thread = 10
    program.sample(50, 0, "work", "get", "lock.acquire (built-in)", cpu_ns=0, queued_ns=0)
    program.sample(100, 50, "work", cpu_ns=50, queued_ns=0)
    program.thread = 7
    program.sample(100, 0, "main", "join", "lock.acquire (built-in)", cpu_ns=0, queued_ns=0)
    merged = program.merged()
    assert merged[f"prog/{IDLE_THREADS}"] == (UNCOUNTED, 198, 198)
    assert merged["prog/run/get"] == (UNCOUNTED, 2, 2)
    assert merged["prog/work/get/lock.acquire (built-in)"] == (UNCOUNTED, 50, 50)
    assert merged["prog/main/join/lock.acquire (built-in)"] == (UNCOUNTED, 100, 100)
    tree, names, _ = program.with_frames()
    (idle,) = np.flatnonzero(tree["name"] == names.index(IDLE_THREADS))
    assert (tree["threads"][idle], tree["kind"][idle]) == (2, WAITING)


def test_guess() -> None:
    assert guess({(1, 2): 1}, None) == (1, 2)
    assert guess({(1, 2): 1, (1, 3): 1}, None) == (1,)
    assert guess({}, ((1, 2, 3), (1, 2, 4))) == (1, 2)
    assert guess({(1, 2): 1, (1, 3): 1}, ((1, 2, 5), (1, 2))) == (1, 2)
    assert guess({(1, 2, 4): 1, (1, 3): 1}, ((1, 2), (1, 5))) == (1, 2, 4)
    assert guess({(1, 3): 1}, ((1, 2), (1, 2))) == (1, 2)
    assert guess({(1, 2): 1, (1, 3): 1}, ((1,), (1, 3, 4))) == (1, 3)


def test_a_rare_way_does_not_decide_a_guess() -> None:
    assert guess({(1, 2): 95, (): 5}, None) == (1, 2)
    assert guess({(1, 2): 85, (1,): 15}, None) == (1,)
    assert guess({(1, 2): 48, (1, 3): 47, (): 5}, None) == (1,)


@given(st.integers(-5, 10**9), st.lists(st.integers(0, 1000), min_size=1, max_size=5))
def test_parts_add_up(total: int, weights: list[int]) -> None:
    assert sum(shared(total, weights)) == total


FRAMES = st.lists(
    st.sampled_from(["main", "train", "helper", *ENTER, "Net.forward (net.py:3)", "torch.mm (built-in)"]),
    max_size=8,
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw spans that nest or overlap, on two threads, and samples of any stacks."""
    program = Program()
    for thread in (7, 8):
        program.thread = thread
        first = len(program.spans)
        for _ in range(draw(st.integers(0, 6))):
            outer = draw(st.sampled_from([-1, *range(first, len(program.spans))]))
            low, high = (0, 400) if outer < 0 else (program.spans[outer][4], sum(program.spans[outer][4:6]))
            if outer < 0:
                low = max((sum(s[4:6]) for s in program.spans[first:] if s[1] < 0), default=0)
                high = low + 100
            inner = [sum(s[4:6]) for s in program.spans if s[1] == outer and outer >= 0]
            low = max([low, *inner])
            start = draw(st.integers(low, high))
            end = draw(st.integers(start, high))
            kind = draw(st.sampled_from([SPAN, LAYER, OPERATOR]))
            program.span(outer, kind, draw(st.sampled_from("ab")), start, end)
        time = draw(st.integers(0, 50))
        for _ in range(draw(st.integers(0, 8))):
            taken = time + draw(st.integers(1, 60))
            cpu_ns = draw(st.integers(-1, taken - time))
            program.sample(taken, time, *draw(FRAMES), cpu_ns=cpu_ns, queued_ns=draw(st.integers(-1, 60)))
            time = taken
    return program


@given(programs())
def test_sums_are_kept_and_nothing_is_negative(program: Program) -> None:
    plain, names, _, spans = program.tree()
    tree, all_names, path_ids = program.with_frames()
    for row in range(len(tree["parent"])):
        if tree["kind"][row] in (LAYER, OPERATOR):
            calls, known = path_ids == tree["number"][row], (tree["calls"][row], tree["total_ns"][row])
            assert (calls.sum(), spans["duration_ns"][calls].sum()) == known
    assert np.isin(path_ids, tree["number"]).all()
    is_frame = np.isin(tree["kind"], (PYTHON, WAITING))
    assert (tree["own_ns"] >= 0).all()
    assert (tree["total_ns"] >= 0).all()
    for column in ("calls", "total_ns"):
        for name in set(names):
            for kind in (SPAN, LAYER, OPERATOR):
                before = sum_of(plain, names, name, kind, column)
                assert sum_of(tree, all_names, name, kind, column) == before
    others = sum(
        duration
        for thread in program.stacks.threads
        if thread.thread_id == 8
        for duration in thread.duration_ns
    )
    added = int(tree["own_ns"].sum() - plain["own_ns"].sum())
    assert 0 <= added <= others
    inside = np.zeros(len(is_frame), dtype=np.int64)
    np.add.at(inside, tree["parent"][1:], tree["total_ns"][1:])
    assert (tree["total_ns"] == tree["own_ns"] + inside)[is_frame].all()


def sum_of(tree: dict[str, np.ndarray], names: list[str], name: str, kind: int, column: str) -> int:
    rows = [names[at] == name for at in tree["name"].tolist()] & (tree["kind"] == kind)
    return int(tree[column][rows].sum())


# ---- what closing a run takes ----------------------------------------------------------------------


def test_equal_stacks_are_held_once(tmp_path: Path) -> None:
    samples = 20_000
    file = StackFile(str(tmp_path / "1.stacks"), 7, 1000)
    file.begin_thread(7)
    frames = [file.number_of(f"f{number}") for number in range(40)]
    for number in range(samples):
        file.add_sample(1000 * (number + 1), 1000, frames[: 30 + number % 10])
    tracemalloc.start()
    stacks = read_stacks(tmp_path, 0)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len({id(frames) for frames in stacks.threads[0].frames}) == 10
    assert held < 55 * samples
    assert peak < 170 * samples


def recurring(rounds: int) -> Program:
    """Short spans that no sample meets, and long ones that each is met in, of many functions."""
    program = Program()
    for number in range(rounds):
        begin = 4 * number
        met = program.span(-1, SPAN, "short", begin, begin + 2)
        program.span(met, OPERATOR, "aten::mm", begin + 1, begin + 2)
        program.sample(begin + 2, begin, "main", f"part {number % 100}")
        program.span(-1, SPAN, "short", begin + 3, begin + 4)
    return program


def test_a_guess_is_made_once_and_looks_at_few_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counting(ways: Mapping[Frames, int], around: tuple[Frames, Frames] | None) -> Frames:
        seen.append(len(ways))
        return guess(ways, around)

    monkeypatch.setattr(frame_guesses, "guess", counting)
    recurring(400).with_frames()
    assert 0 < len(seen) <= 102  # of 400 spans, between as many different pairs of samples
    assert max(seen) <= frame_guesses.MOST_WAYS


def test_a_placement_keeps_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: set[int] = set()
    most = 0

    class Counted(PlacedSample):
        def __init__(self, *given: Any) -> None:
            nonlocal most
            super().__init__(*given)
            alive.add(id(self))
            most = max(most, len(alive))

        def __del__(self) -> None:
            alive.discard(id(self))

    monkeypatch.setattr("gpuprof.run.stack_placement.PlacedSample", Counted)
    recurring(100).with_frames()
    assert 0 < most <= 3
