# SPDX-License-Identifier: Apache-2.0
"""`gpuprof.span` on one thread and on many: what is recorded, and that the code around it stays as it was."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import gpuprof

Program = Callable[[], object]


# --- the context manager -------------------------------------------------------------------------


def test_a_block_is_one_span(record: Any) -> None:
    def body() -> None:
        with gpuprof.span("a") as entered:
            assert isinstance(entered, gpuprof.span)
            assert entered.name == "a"

    (row,) = record(body).rows
    assert (row.name, row.kind, row.parent_id, row.depth) == ("a", "span", None, 0)
    assert row.duration_ns >= 0
    assert row.thread_id == threading.get_native_id()


def test_nested_spans_know_their_parents(record: Any) -> None:
    def body() -> None:
        for _ in range(2):
            with gpuprof.span("a"), gpuprof.span("b"):
                with gpuprof.span("c"):
                    pass
                with gpuprof.span("d"):
                    pass

    assert record(body).paths() == ["a", "a/b", "a/b/c", "a/b/d"] * 2


def test_the_parts_of_a_span_add_up_to_it_to_the_nanosecond(tmp_path: Path) -> None:
    with gpuprof.profile(out=tmp_path / "parts.gpuprof") as recording:
        for number in range(2000):
            with gpuprof.span("whole"):
                with gpuprof.span("first"), gpuprof.span("inner"):
                    sum(range(number % 7))
                with gpuprof.span("second"):
                    pass
    parts = recording.run.sql(
        "SELECT name, total_ns, own_ns + coalesce((SELECT sum(total_ns) FROM call_tree child "
        "WHERE child.parent_id = tree.node_id), 0) FROM call_tree tree WHERE kind = 'span'"
    ).fetchall()
    assert {name for name, _, _ in parts} == {"whole", "first", "inner", "second"}
    assert [total for _, total, _ in parts] == [together for _, _, together in parts]


def test_one_object_is_entered_many_times_at_once(record: Any) -> None:
    span = gpuprof.span("s")

    def body() -> None:
        with span, span:
            with span:
                pass
            with span:
                pass

    assert record(body).paths() == ["s", "s/s", "s/s/s", "s/s/s"]


def test_recursion(record: Any) -> None:
    def descend(depth: int) -> None:
        with gpuprof.span("r"):
            if depth:
                descend(depth - 1)

    rows = record(lambda: descend(200)).rows
    assert [row.depth for row in rows] == list(range(201))
    assert all(inner.duration_ns <= outer.duration_ns for outer, inner in pairwise(rows))


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_an_exception_passes_through_and_ends_the_span(record: Any, error: BaseException) -> None:
    def body() -> None:
        with pytest.raises(type(error)) as caught, gpuprof.span("a"), gpuprof.span("b"):
            raise error
        assert caught.value is error
        assert error.__context__ is None
        with gpuprof.span("after"):
            pass

    assert record(body).paths() == ["a", "a/b", "after"]


def test_spans_may_end_in_any_order(record: Any) -> None:
    a, b, c = (gpuprof.span(name) for name in "abc")

    def body() -> None:
        a.__enter__()
        b.__enter__()
        a.__exit__(None, None, None)
        c.__enter__()
        b.__exit__(None, None, None)
        c.__exit__(None, None, None)

    result = record(body)
    assert result.paths() == ["a", "a/b", "a/b/c"]
    assert result.totals["unmatched_ends"] == result.totals["unfinished_spans"] == 0


def test_a_suspended_generator_overlaps_its_consumers_spans(record: Any) -> None:
    def produce() -> Generator[int]:
        with gpuprof.span("produce"):
            yield 1
            with gpuprof.span("inner"):
                yield 2

    def body() -> None:
        producer = produce()
        next(producer)
        with gpuprof.span("consume"):
            next(producer)
            with gpuprof.span("deep"):
                assert list(producer) == []
        with gpuprof.span("after"):
            pass

    result = record(body)
    rows = {row.name: row for row in result.rows}
    assert result.paths() == [
        "produce",
        "produce/consume",
        "produce/consume/inner",
        "produce/consume/inner/deep",
        "after",
    ]
    assert rows["inner"].start_ns + rows["inner"].duration_ns <= sum(rows["deep"][6:8])
    assert result.totals["unmatched_ends"] == 0
    tree = result.run.sql("SELECT own_ns, total_ns FROM call_tree WHERE calls > 0").fetchall()
    assert all(0 <= own_ns <= total_ns for own_ns, total_ns in tree)


def test_what_was_begun_before_or_ends_after_the_recording(record: Any) -> None:
    early, late = gpuprof.span("early"), gpuprof.span("late")
    early.__enter__()

    def body() -> None:
        with gpuprof.span("a"):
            early.__exit__(None, None, None)
        late.__enter__()

    result = record(body)
    late.__exit__(None, None, None)
    assert result.paths() == ["a", "late"]
    assert (result.totals["unmatched_ends"], result.totals["unfinished_spans"]) == (1, 1)


def test_nothing_is_recorded_without_a_recording(record: Any) -> None:
    @gpuprof.span
    def function() -> None:
        with gpuprof.span("x"):
            pass

    function()
    result = record(lambda: None)
    function()
    assert result.rows == []
    assert result.totals["events"] == 0
    assert record(function).totals["spans"] == 2


def test_many_fresh_names(record: Any) -> None:
    def body() -> None:
        for number in range(3_000):
            with gpuprof.span(f"name {number % 1_000}"):
                pass

    assert record(body).names() == [f"name {number % 1_000}" for number in range(3_000)]


def test_names_are_text_of_any_kind(record: Any) -> None:
    class Text(str):
        __slots__ = ()

    def body() -> None:
        for name in ("", Text("sub"), "a" * 100):
            with gpuprof.span(name):
                pass
        with gpuprof.span(name="keyword"):
            pass

    assert record(body).names() == ["", "sub", "a" * 100, "keyword"]


# --- threads -------------------------------------------------------------------------------------


def test_threads_do_not_see_each_others_spans(record: Any) -> None:
    shared = gpuprof.span("shared")
    meet = threading.Barrier(4)
    seen: list[int] = []

    def work() -> None:
        with shared:
            meet.wait(120)  # all are inside now
            with gpuprof.span("inner"):
                meet.wait(120)
        seen.append(threading.get_native_id())

    def body() -> None:
        threads = [threading.Thread(target=work) for _ in range(4)]
        with gpuprof.span("main"):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    result = record(body)
    assert sorted(result.paths()) == ["main"] + ["shared"] * 4 + ["shared/inner"] * 4
    assert {row.thread_id for row in result.rows if row.name == "inner"} == set(seen)
    ((threads,),) = result.run.sql("SELECT threads FROM call_tree WHERE name = 'shared'").fetchall()
    assert threads == 4


def test_thread_pool(record: Any) -> None:
    work = gpuprof.span("work")(lambda number: number * 2)

    def body() -> None:
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(work, range(500))) == list(range(0, 1_000, 2))

    result = record(body)
    assert result.paths() == ["work"] * 500
    assert len({row.thread_id for row in result.rows}) <= 3


def test_a_span_may_end_on_another_thread(record: Any) -> None:
    span = gpuprof.span("wanderer")

    def body() -> None:
        span.__enter__()
        thread = threading.Thread(target=span.__exit__, args=(None, None, None))
        thread.start()
        thread.join()

    result = record(body)
    assert result.paths() == ["wanderer"]
    assert (result.totals["unmatched_ends"], result.totals["unfinished_spans"]) == (1, 1)


# --- the span as an object -----------------------------------------------------------------------


def test_exit_stack_and_decorating_context_managers(record: Any) -> None:
    def body() -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(gpuprof.span("a"))
            stack.push(gpuprof.span("b").__enter__())
            with gpuprof.span("c"):
                pass
            kept = stack.pop_all()
        with kept, gpuprof.span("d"):
            pass

    assert record(body).paths() == ["a", "a/b", "a/b/c", "a/b/d"]


def test_methods_called_on_the_type(record: Any) -> None:
    span = gpuprof.span("s")

    def body() -> None:
        assert gpuprof.span.__enter__(span) is span
        assert gpuprof.span.__exit__(span, None, None, None) is None

    assert record(body).paths() == ["s"]
    for method in (gpuprof.span.__enter__, gpuprof.span.__exit__):
        for wrong in ((), (5,), ("s",), (None,)):
            with pytest.raises(TypeError):
                method(*wrong)


def test_methods_borrowed_by_another_class_do_not_crash(run_python: Any) -> None:
    source = """
import gpuprof, gc
class Borrower:
    __enter__ = gpuprof.span.__enter__
    __exit__ = gpuprof.span.__exit__
for _ in range(2_000):
    keep = [object() for _ in range(10)]
    try:
        with Borrower():
            pass
    except TypeError as error:
        assert "gpuprof.span" in str(error), error
    else:
        raise SystemExit("a foreign object was taken for a span")
try:
    gpuprof.span.__enter__.__get__(5, int)()
except TypeError:
    print("refused")
gc.collect()
"""
    done = run_python("-c", source)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling(protocol: int) -> None:
    span = gpuprof.span("näme 火")
    loaded = pickle.loads(pickle.dumps(span, protocol))
    assert (type(loaded), loaded.name) == (gpuprof.span, span.name)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_work_by_themselves(record: Any, duplicate: Callable[[Any], Any]) -> None:
    def body() -> None:
        span = gpuprof.span("s")
        with span, duplicate(span), duplicate([span])[0]:
            pass

    assert record(body).paths() == ["s", "s/s", "s/s/s"]


def test_a_decorated_function_of_a_module_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(decorated_here)) is decorated_here


@gpuprof.span("pickled")
def decorated_here() -> None:
    pass


def test_a_span_shows_its_name_and_keeps_it() -> None:
    span = gpuprof.span("it's")
    assert repr(span) == 'gpuprof.span("it\'s")'
    with pytest.raises(AttributeError):
        span.name = "other"
    with pytest.raises(AttributeError):
        span.anything = 1
    with pytest.raises(TypeError):
        type("Child", (gpuprof.span,), {})
    with pytest.raises(TypeError):
        setattr(gpuprof.span, "__exit__", None)  # noqa: B010


WRONG: dict[str, Program] = {
    "no name": lambda: gpuprof.span(),
    "two names": lambda: gpuprof.span("a", "b"),
    "a number": lambda: gpuprof.span(5),
    "None": lambda: gpuprof.span(None),
    "bytes": lambda: gpuprof.span(b"a"),
    "a wrong keyword": lambda: gpuprof.span(title="a"),
    "a name twice": lambda: gpuprof.span("a", name="b"),
    "through __new__": lambda: gpuprof.span.__new__(gpuprof.span, 5),
    "decorating a number": lambda: gpuprof.span("a")(5),
    "decorating a name": lambda: gpuprof.span("a")("b"),
    "decorating nothing": lambda: gpuprof.span("a")(),
    "decorating two": lambda: gpuprof.span("a")(len, len),
    "decorating by keyword": lambda: gpuprof.span("a")(function=len),
    "enter with an argument": lambda: gpuprof.span("a").__enter__(1),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=list(WRONG))
def test_wrong_arguments_are_a_type_error_in_one_line(call: Program) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1


# --- memory --------------------------------------------------------------------------------------


def test_bound_methods_outlive_their_span(record: Any) -> None:
    def body() -> None:
        enter, leave = gpuprof.span("kept").__enter__, gpuprof.span("kept").__exit__
        others = [gpuprof.span(f"other {number}") for number in range(200)]
        gc.collect()
        entered = enter()
        assert entered.name == "kept"
        del entered, enter, others
        leave(None, None, None)
        del leave
        again = gpuprof.span("again")
        first, second = again.__enter__, again.__enter__
        del again, first
        second()

    assert record(body).paths() == ["kept", "again"]


def test_a_method_keeps_its_span_alive_when_all_else_let_go_of_it(record: Any) -> None:
    def body() -> None:
        span = gpuprof.span("used before")
        with span:  # the span keeps both methods from here on
            pass
        enter, leave = span.__enter__, span.__exit__
        both = span.__enter__, enter
        del span, both
        with contextlib.ExitStack() as stack:
            for number in range(300):  # would take its place if it were free
                stack.enter_context(gpuprof.span(f"other {number}"))
        entered = enter()
        assert entered.name == "used before"
        del entered
        leave(None, None, None)
        enter()
        del enter
        leave(None, None, None)
        del leave
        with gpuprof.span("used before"):
            pass

    paths = record(body).paths()
    assert [path for path in paths if not path.startswith("other")] == ["used before"] * 4


def test_the_last_reference_goes_inside_the_block(record: Any) -> None:
    def body() -> None:
        spans = [gpuprof.span("listed")]
        with spans[0]:
            spans.clear()
            with gpuprof.span("inside"):
                gc.collect()
        with gpuprof.span("listed") as span:
            del span

    assert record(body).paths() == ["listed", "listed/inside", "listed"]


class Title(str):
    __slots__ = ("__weakref__",)


def test_spans_that_wait_for_their_next_use_keep_no_large_name_and_no_object() -> None:
    large, kept = "a large name " * 100, sys.getrefcount
    before = kept(large)
    for _ in range(10):
        with gpuprof.span(large):
            pass
    assert kept(large) == before
    title = Title("a title")
    reference = weakref.ref(title)
    with gpuprof.span(title):
        pass
    del title
    assert reference() is None


def test_a_thousand_names_leave_a_bounded_number_of_spans() -> None:
    names = [f"name {number}" for number in range(1_000)]
    before = sum(map(sys.getrefcount, names))
    for name in names:
        with gpuprof.span(name), gpuprof.span(name):
            pass
    assert sum(map(sys.getrefcount, names)) - before <= 256
    with gpuprof.span(names[-1]) as first, gpuprof.span(names[-1]) as second:
        assert first is not second
        assert first.name == second.name == names[-1]


def use_spans(span: gpuprof.span, name: str, function: Any, count: int) -> None:
    for _ in range(count):
        with span:
            pass
        with gpuprof.span(name):
            pass
        enter = span.__enter__
        span.__exit__(None, None, enter())
        function(1)


@pytest.mark.parametrize("recording", [True, False])
def test_a_hundred_thousand_entries_leak_nothing(record: Any, recording: bool) -> None:
    span, name, function = gpuprof.span("s"), "a name", gpuprof.span("f")(lambda value: value)

    def counts() -> list[int]:
        gc.collect()
        watched = (span, name, function, gpuprof.span, None, type(span.__enter__))
        return [sys.getrefcount(each) for each in watched]

    def body() -> None:
        use_spans(span, name, function, 100)
        references, blocks = counts(), sys.getallocatedblocks()
        use_spans(span, name, function, 25_000)
        leaked = sys.getallocatedblocks() - blocks
        # None is everybody's; elsewhere a leak of one an entry would show as 25,000.
        assert all(abs(now - then) < 100 for now, then in zip(counts(), references, strict=True))
        assert leaked < 100

    if recording:
        assert record(body).totals["dropped_events"] == 0
    else:
        body()


def test_wrong_calls_leak_nothing() -> None:
    def fail() -> None:
        for call in WRONG.values():
            with contextlib.suppress(TypeError):
                call()

    fail()
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(1_000):
        fail()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 200
