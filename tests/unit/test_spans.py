# SPDX-License-Identifier: Apache-2.0
"""`gpuprof.span` on one thread and on many: what is recorded, and that the code around it stays as it was."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import inspect
import pickle
import sys
import threading
import types
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


def test_nothing_is_recorded_while_nobody_records(record: Any) -> None:
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
            meet.wait(30)  # all are inside now
            with gpuprof.span("inner"):
                meet.wait(30)
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


# --- decorators ----------------------------------------------------------------------------------


def plain(a: int, b: int = 2, *c: int, d: int = 4, **e: int) -> tuple[Any, ...]:
    """Doc."""
    return a, b, c, d, e


async def coroutine(a: int, *, d: int = 4) -> tuple[int, int]:
    """Doc."""
    await asyncio.sleep(0)
    return a, d


def generator(a: int, *, d: int = 4) -> Generator[int, int, str]:
    """Doc."""
    yield a
    yield d
    return "end"


async def async_generator(a: int, *, d: int = 4) -> Any:
    """Doc."""
    yield a
    await asyncio.sleep(0)
    yield d


def drive(function: Any) -> Any:
    """Call `function(1, d=5)` and run it to its end, whatever kind it is."""
    made = function(1, d=5)
    if inspect.isasyncgen(made):

        async def collect() -> list[Any]:
            return [item async for item in made]

        return asyncio.run(collect())
    if inspect.iscoroutine(made):
        return asyncio.run(made)
    return list(made) if inspect.isgenerator(made) else made


KINDS = [plain, coroutine, generator, async_generator]
# A plain and an async function are one span a call; a generator is one for each of its resumptions.
CALLS = {"plain": 1, "coroutine": 1, "generator": 3, "async_generator": 3}
CHECKS = [
    inspect.isfunction,
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
    asyncio.iscoroutinefunction if sys.version_info < (3, 14) else inspect.iscoroutinefunction,
]


@pytest.mark.parametrize("function", KINDS)
@pytest.mark.parametrize("name", [None, "x"])
def test_a_decorated_function_is_recorded_and_does_the_same(
    record: Any, function: Any, name: str | None
) -> None:
    decorated = gpuprof.span(function) if name is None else gpuprof.span(name)(function)
    expected = drive(function)
    result = record(lambda: [drive(decorated) for _ in range(2)] == [expected] * 2 or pytest.fail("differs"))
    assert result.paths() == [name or function.__qualname__] * CALLS[function.__name__] * 2
    assert drive(decorated) == expected


@pytest.mark.parametrize("function", KINDS)
def test_a_decorated_function_shows_itself_as_the_original(function: Any) -> None:
    decorated = gpuprof.span("x")(function)
    assert inspect.signature(decorated) == inspect.signature(function)
    assert [check(decorated) for check in CHECKS] == [check(function) for check in CHECKS]
    assert (decorated.__name__, decorated.__doc__) == (function.__name__, function.__doc__)
    assert (decorated.__qualname__, decorated.__module__) == (function.__qualname__, function.__module__)
    assert decorated.__wrapped__ is function
    assert decorated.__annotations__ == function.__annotations__


@pytest.mark.parametrize("function", [plain, coroutine, generator, async_generator])
def test_decorating_twice_nests(record: Any, function: Any) -> None:
    decorated = gpuprof.span("outer")(gpuprof.span("inner")(function))
    paths = record(lambda: drive(decorated)).paths()
    assert set(paths) == {"outer", "outer/inner"}


class Model:
    """Methods of every kind, decorated on either side of their descriptor."""

    @gpuprof.span("method")
    def method(self, value: int) -> tuple[object, int]:
        return self, value

    @gpuprof.span
    def bare(self, value: int) -> tuple[object, int]:
        return self, value

    @staticmethod
    @gpuprof.span("static")
    def static(value: int) -> int:
        return value

    @gpuprof.span("static outside")
    @staticmethod
    def static_outside(value: int) -> int:
        return value

    @classmethod
    @gpuprof.span("class")
    def klass(cls, value: int) -> tuple[type, int]:
        return cls, value

    @gpuprof.span("class outside")
    @classmethod
    def klass_outside(cls, value: int) -> tuple[type, int]:
        return cls, value

    @property
    @gpuprof.span("property")
    def value(self) -> int:
        return 7


class Child(Model):
    pass


def test_methods_of_every_kind(record: Any) -> None:
    model = Child()

    def body() -> None:
        assert model.method(1) == (model, 1)
        assert model.bare(2) == (model, 2)
        assert Model.static(3) == model.static(3) == 3
        assert Model.static_outside(4) == model.static_outside(4) == 4
        assert Child.klass(5) == model.klass(5) == (Child, 5)
        assert Child.klass_outside(6) == model.klass_outside(6) == (Child, 6)
        assert model.value == 7

    both = [name for name in ("static", "static outside", "class", "class outside") for _ in range(2)]
    assert record(body).names() == ["method", "Model.bare", *both, "property"]


@pytest.mark.parametrize("descriptor", [staticmethod, classmethod])
def test_the_bare_decorator_takes_descriptors_too(record: Any, descriptor: Any) -> None:
    def function(*args: object) -> int:
        return args[-1]

    holder = type("Holder", (), {"function": gpuprof.span(descriptor(function))})
    result = record(lambda: holder.function(3) == 3 or pytest.fail("differs"))
    assert result.names() == [function.__qualname__]


def test_callables_that_are_no_functions(record: Any) -> None:
    class Callable_:
        def __call__(self, value: int) -> int:
            return value

    def body() -> None:
        assert gpuprof.span("builtin")(len)("abc") == 3
        assert gpuprof.span("object")(Callable_())(4) == 4
        assert gpuprof.span("bound")([1, 1].count)(1) == 2

    assert record(body).names() == ["builtin", "object", "bound"]


def test_an_exception_leaves_a_decorated_function_as_it_is(record: Any) -> None:
    @gpuprof.span
    def fail() -> None:
        raise KeyError("k")

    def body() -> None:
        with pytest.raises(KeyError, match="k") as caught:
            fail()
        assert caught.value.__context__ is None
        assert caught.value.__cause__ is None

    assert record(body).totals["unfinished_spans"] == 0


# --- generators behave as before -----------------------------------------------------------------

Transcript = list[object]


def attempt(transcript: Transcript, action: Program) -> None:
    try:
        transcript.append(action())
    except BaseException as error:
        # How a generator was closed shows in the context of its RuntimeError, and may differ.
        context = [type(each).__name__ for each in (error.__context__, error.__cause__)]
        context = [name.replace("GeneratorExit", "NoneType") for name in context]
        transcript.append((type(error).__name__, error.args, getattr(error, "value", None), context))


def echo(log: Transcript) -> Generator[Any, Any, Any]:
    try:
        received = "begun"
        while received != "stop":
            try:
                received = yield received
            except ZeroDivisionError as error:
                received = f"caught {error}"
        return "returned"
    finally:
        log.append("finally")


def stubborn(log: Transcript) -> Generator[Any, Any, Any]:
    try:
        yield 1
    except GeneratorExit:
        log.append("ignored")
        yield 2


def polite(log: Transcript) -> Generator[Any, Any, Any]:
    try:
        yield 1
    except GeneratorExit:
        log.append("caught")
        return "value"


def translating(log: Transcript) -> Generator[Any, Any, Any]:
    try:
        yield 1
    except Exception as error:
        raise LookupError("other") from error


def failing(log: Transcript) -> Generator[Any, Any, Any]:
    yield 1
    raise LookupError("middle")


def stopping(log: Transcript) -> Generator[Any, Any, Any]:
    yield 1
    raise StopIteration("raised")


def delegating(log: Transcript) -> Generator[Any, Any, Any]:
    return (yield from echo(log))


def empty(log: Transcript) -> Generator[Any, Any, Any]:
    return "nothing"
    yield


Step = tuple[str, tuple[object, ...]]
SCENARIOS: dict[str, list[Step]] = {
    "run to the end": [("__next__", ())] * 4,
    "send": [("__next__", ()), ("send", (5,)), ("send", ("stop",)), ("send", (6,))],
    "send at once": [("send", (1,))],
    "throw": [("__next__", ()), ("throw", (ZeroDivisionError("z"),)), ("__next__", ()), ("close", ())],
    "throw what is not caught": [("__next__", ()), ("throw", (OSError("o"),)), ("__next__", ())],
    "throw at once": [("throw", (OSError("o"),)), ("__next__", ())],
    "throw StopIteration": [("__next__", ()), ("throw", (StopIteration("s"),)), ("__next__", ())],
    "throw GeneratorExit": [("__next__", ()), ("throw", (GeneratorExit(),)), ("__next__", ())],
    "close": [("__next__", ()), ("close", ()), ("__next__", ()), ("close", ())],
    "close at once": [("close", ()), ("__next__", ())],
}
GENERATORS = [echo, stubborn, polite, translating, failing, stopping, delegating, empty]


def play(function: Any, steps: list[Step]) -> Transcript:
    transcript: Transcript = []
    made = function(transcript)
    for method, arguments in steps:
        # Exceptions remember where they were: each play throws copies.
        fresh = [copy.copy(each) for each in arguments]
        attempt(transcript, functools.partial(getattr(made, method), *fresh))
    del made
    return transcript


@pytest.mark.parametrize("function", GENERATORS, ids=lambda function: function.__name__)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_decorated_generator_answers_as_before(record: Any, function: Any) -> None:
    def play_all(function: Any) -> dict[str, Transcript]:
        return {name: play(function, steps) for name, steps in SCENARIOS.items()}

    expected = play_all(function)
    decorated = gpuprof.span("g")(function)
    assert play_all(decorated) == expected
    seen: list[object] = []
    totals = record(lambda: seen.append(play_all(decorated))).totals
    assert seen == [expected]
    assert totals["unfinished_spans"] == totals["unmatched_ends"] == 0


def test_the_return_value_reaches_yield_from(record: Any) -> None:
    def outer() -> Generator[int, None, str]:
        return (yield from gpuprof.span("g")(generator)(1, d=2))

    def body() -> None:
        made = outer()
        assert [next(made), next(made)] == [1, 2]
        with pytest.raises(StopIteration) as stop:
            next(made)
        assert stop.value.value == "end"

    assert record(body).names() == ["g"] * 3


def test_a_generators_time_is_not_its_consumers(record: Any) -> None:
    def body() -> None:
        for _ in gpuprof.span("g")(generator)(1):
            with gpuprof.span("consumer"):
                pass

    assert record(body).paths() == ["g", "consumer", "g", "consumer", "g"]


def test_a_dropped_generator_runs_its_finally(record: Any) -> None:
    log: Transcript = []

    def body() -> None:
        made = gpuprof.span("g")(echo)(log)
        next(made)
        del made
        gc.collect()

    assert record(body).totals["unfinished_spans"] == 0
    assert log == ["finally"]


def test_a_context_manager_made_of_a_decorated_generator(record: Any) -> None:
    @contextlib.contextmanager
    @gpuprof.span("managed")
    def managed() -> Generator[str]:
        with contextlib.suppress(ZeroDivisionError):
            yield "value"

    def body() -> None:
        with managed() as value:
            assert value == "value"
            raise ZeroDivisionError
        with pytest.raises(LookupError), managed():
            raise LookupError

    assert set(record(body).paths()) == {"managed"}


def test_a_generator_based_coroutine_can_still_be_awaited() -> None:
    @gpuprof.span("old style")
    @types.coroutine
    def old() -> Generator[None, None, int]:
        yield
        return 5

    async def main() -> int:
        return await old()

    assert asyncio.run(main()) == 5


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
