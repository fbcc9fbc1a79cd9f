# SPDX-License-Identifier: Apache-2.0
"""`gpuprof.span` as a decorator: what is recorded, and that functions and generators behave as before."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import inspect
import sys
import types
from collections.abc import Callable, Generator
from typing import Any

import pytest

import gpuprof

Program = Callable[[], object]


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
def test_a_decorated_generator_behaves_as_before(record: Any, function: Any) -> None:
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
