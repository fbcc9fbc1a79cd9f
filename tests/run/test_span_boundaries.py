# SPDX-License-Identifier: Apache-2.0
"""Which Python frames enclose a span, and which were called in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulated_stacks import ENTER, LAYER, OPERATOR, SPAN, Program

from gpuprof.run import span_boundaries
from gpuprof.run.span_boundaries import FrameKinds, SpanBoundaries, ThreadSpans

INTERVAL = 10
WRAPPER = "Optimizer.profile_hook_step.<locals>.wrapper (torch/optim/optimizer.py:509)"
ADAM = (
    "_use_grad (torch/optim/optimizer.py:60)",
    "AdamW.step (torch/optim/adamw.py:214)",
    "_single_tensor_adamw",
)


@pytest.fixture(autouse=True, scope="module")
def exact_samples() -> Iterator[None]:
    """Simulated times are some nanoseconds, and exact."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(span_boundaries, "LATE_NS", 0)
        yield


def test_a_frame_that_only_the_samples_inside_a_span_have_was_called_in_it() -> None:
    program = Program()
    for begin in (100, 200, 300):
        program.sample(begin, begin - 10, "main")
        program.span(-1, SPAN, "update", begin + 2, begin + 12)
        program.sample(begin + 10, begin, "main", "step", "_single")
        program.sample(begin + 20, begin + 10, "main")
    merged = program.merged()
    assert merged["prog/main/update"][:2] == (3, 30)
    assert merged["prog/main/update/step/_single"][1] == 3 * 8
    assert "prog/main/step" not in merged


def test_a_frame_that_a_sample_before_or_after_has_encloses_the_span() -> None:
    for outside in (90, 120):
        program = Program()
        program.span(-1, SPAN, "update", 100, 112)
        stacks = {90: ("main",), 100: ("main",), 110: ("main", "train", "step"), 120: ("main",)}
        stacks[outside] = ("main", "train")
        for t_ns, frames in stacks.items():
            program.sample(t_ns if t_ns != 100 else 99, t_ns - 10, *frames)
        if outside == 90:  # left again before the span
            assert "prog/main/update/train/step" in program.merged()
        else:
            assert "prog/main/train/update/step" in program.merged()


def test_a_call_follows_the_others_where_its_samples_miss_a_function() -> None:
    program = Program(3000)
    for number in range(20):
        begin = 100 + 100 * number
        before = ("main", "train") if number % 4 == 0 else ("main",)
        program.sample(begin, begin - 10, *before)
        program.span(-1, SPAN, "update", begin + 5, begin + 15)
        program.sample(begin + 10, begin, "main", "train", "step")
        program.sample(begin + 20, begin + 10, "main")
    assert program.merged()["prog/main/train/update"][0] == 20


def test_a_sample_that_was_dated_too_late_does_not_decide() -> None:
    program = Program(3000)
    for number in range(20):
        begin = 100 + 100 * number
        before = ("main", "step") if number == 7 else ("main",)
        program.sample(begin, begin - 10, *before)
        program.span(-1, SPAN, "update", begin + 5, begin + 15)
        program.sample(begin + 10, begin, "main", "step")
        program.sample(begin + 20, begin + 10, "main")
    assert program.merged()["prog/main/update"][0] == 20


def test_a_sample_shortly_after_a_span_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    program.sample(99, 90, "main")
    for begin in (100, 150, 200):
        program.span(-1, SPAN, "update", begin, begin + 25)
        program.sample(begin + 20, begin + 10, "main", "step")
        program.sample(begin + 27, begin + 20, "main", "step")  # it was read before the end of the span
        program.sample(begin + 40, begin + 30, "main")
    assert "prog/main/step/update" in program.merged()
    monkeypatch.setattr(span_boundaries, "LATE_NS", 5)
    assert program.merged()["prog/main/update"][:2] == (3, 75)


def test_a_function_called_in_two_spans_in_a_row_is_in_each_of_them() -> None:
    program = Program()
    program.sample(99, 90, "main")
    for begin, name in ((100, "first"), (112, "second"), (124, "first"), (136, "second")):
        program.span(-1, SPAN, name, begin, begin + 12)
        program.sample(begin + 10, begin, "main", "work")
    program.sample(160, 150, "main")
    merged = program.merged()
    assert {merged[f"prog/main/{name}/work"][1] for name in ("first", "second")} == {20}


def test_the_span_of_an_optimizer_begins_in_the_function_that_opens_it() -> None:
    program = Program()
    program.sample(99, 90, "main", "train")
    update = program.span(-1, SPAN, "Optimizer.step#AdamW.step", 100, 130)
    program.span(update, OPERATOR, "aten::mul", 108, 112)
    program.sample(110, 100, "main", "train", WRAPPER, *ADAM, "torch._foreach_mul (built-in)")
    program.sample(120, 110, "main", "train", WRAPPER, *ADAM)
    program.sample(140, 130, "main", "train", WRAPPER)
    merged = program.merged()
    span = f"prog/main/train/{WRAPPER}/Optimizer.step#AdamW.step"
    assert merged[span][:2] == (1, 30)
    assert merged["/".join((span, *ADAM, "aten::mul"))][:2] == (1, 4)


def test_the_span_of_a_forward_pass_is_below_its_layer() -> None:
    program = Program()
    program.sample(99, 90, "main")
    net = program.span(-1, LAYER, "DDP", 100, 150)
    forward = program.span(net, SPAN, "DDP.forward", 101, 149)
    program.span(forward, LAYER, "fc", 105, 140)
    inside = ("main", *ENTER, "DDP.forward (ddp.py:1)", "_run_ddp_forward")
    program.sample(110, 100, *inside, *ENTER, "Linear.forward (linear.py:1)")
    program.sample(160, 150, "main")
    assert program.merged()["prog/main/DDP/DDP.forward/_run_ddp_forward/fc"][:2] == (1, 35)


def test_an_operator_is_below_all_frames() -> None:
    program = Program()
    program.sample(99, 90, "main")
    program.span(-1, OPERATOR, "aten::mm", 100, 130)
    program.sample(110, 100, "main", "linear")
    program.sample(140, 130, "main")
    assert program.merged()["prog/main/linear/aten::mm"][:2] == (1, 30)


def test_a_stack_that_lost_its_outer_frames_does_not_decide() -> None:
    for place in range(3):  # of the stack among the samples
        program = Program()
        program.sample(99, 90, "main", "train")
        program.span(-1, SPAN, "Optimizer.step#AdamW.step", 100, 130)
        for number in range(3):
            frames = ("<genexpr>",) if number == place else ("main", "train", WRAPPER, *ADAM)
            program.sample(110 + 10 * number - 1, 100 + 10 * number - 1, *frames)
        program.sample(140, 130, "main", "train")
        assert program.merged()[f"prog/main/train/{WRAPPER}/Optimizer.step#AdamW.step"][:2] == (1, 30)


def test_a_short_call_that_no_sample_met_begins_in_the_function_that_opens_it() -> None:
    program = Program()
    for begin, inside in ((100, (WRAPPER, *ADAM)), (200, ())):
        program.sample(begin - 1, begin - 10, "main", "train", "other")
        program.span(-1, SPAN, "Optimizer.step#AdamW.step", begin, begin + 15 if inside else begin + 5)
        program.sample(begin + 10, begin, "main", "train", *(inside or ("other",)))
        program.sample(begin + 20, begin + 10, "main", "train", "other")
    assert program.merged()[f"prog/main/train/{WRAPPER}/Optimizer.step#AdamW.step"][:2] == (2, 20)


# ---- programs of known nesting -------------------------------------------------------------------

FUNCTION = -1


@dataclass
class Call:
    """A function or a span, and what it calls."""

    kind: int
    name: str
    own: int  # how long it runs before, between and after what it calls
    inside: list[Call] = field(default_factory=list)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Draw calls of functions, spans, layers and operators. Two samples show a function around each call."""
    names = iter(range(1000))

    def drawn(depth: int) -> Call:
        kinds = [FUNCTION, SPAN, LAYER] if depth < 4 else [OPERATOR, FUNCTION]
        kind = draw(st.sampled_from(kinds))
        # A span may do nothing but call a function: no sample shows it alone.
        own = draw(st.sampled_from([0, 2, 25])) if kind == SPAN else 25
        is_leaf = kind == OPERATOR or depth == 6
        count = 0 if is_leaf else draw(st.integers(0 if kind == FUNCTION else 1, 2))
        return Call(kind, f"n{next(names)}", own, [drawn(depth + 1) for _ in range(count)])

    return Call(FUNCTION, "main", 25, [drawn(1) for _ in range(draw(st.integers(1, 3)))])


class Run:
    """Executes calls: the spans and samples of a program, and the path of each span."""

    def __init__(self, call: Call, repetitions: int) -> None:
        self.program = Program(1 << 40)
        self.paths: dict[str, int] = {}
        self.now = 0
        self._next_sample = INTERVAL
        for _ in range(repetitions):
            self._execute(call, [], [], -1)

    def _execute(self, call: Call, path: list[str], frames: list[str], span: int) -> None:
        path = [*path, call.name]
        if call.kind == FUNCTION:
            frames = [*frames, call.name]
        else:
            if call.kind == LAYER:
                frames = [*frames, *ENTER, f"{call.name}.forward (net.py:1)"]
            key = "/".join(["prog", *path])
            self.paths[key] = self.paths.get(key, 0) + 1
            span = self.program.span(span, call.kind, call.name, self.now, self.now)
        for inner in call.inside:
            self._pass(call.own, frames)
            self._execute(inner, path, frames, span)
        self._pass(max(call.own, 1), frames)
        if call.kind != FUNCTION:
            self.program.end(span, self.now)

    def _pass(self, duration: int, frames: list[str]) -> None:
        while self._next_sample < self.now + duration:
            self.program.sample(self._next_sample, self._next_sample - INTERVAL, *frames)
            self._next_sample += INTERVAL
        self.now += duration


@given(calls(), st.integers(1, 3))
def test_spans_are_where_the_program_called_them(call: Call, repetitions: int) -> None:
    run = Run(call, repetitions)
    merged = run.program.merged()
    assert {path: merged.get(path, (0,))[0] for path in run.paths} == run.paths


class Place(int):
    """The number of a span, which counts how often it is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Place.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_the_work_of_a_sample_follows_the_number_of_open_spans() -> None:
    depth, samples = 500, 4
    places = [Place(number) for number in range(depth + samples)]
    count = len(places)
    none = [0] * count
    ends = [1_000_000] * depth + [100 * (number + 1) for number in range(samples)]
    spans = ThreadSpans(range(count), none, ends, none, none, range(count), [span_boundaries.NOTHING] * count)
    boundaries = SpanBoundaries(spans, FrameKinds.of([]), (0,))
    Place.compared = 0
    for number in range(samples):  # each inside the same spans, and one that only it is in
        opened = (*places[:depth], places[depth + number])
        boundaries.add((*range(depth), depth + number), opened, 100 * number + 50)
    assert Place.compared < 10 * depth
    assert list(boundaries.lengths[:3]) == [depth] * 3
