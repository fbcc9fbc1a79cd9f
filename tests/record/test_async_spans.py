# SPDX-License-Identifier: Apache-2.0
"""Spans of tasks that take turns on one thread: parents are those of the task. No test looks at a clock."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

import gpuprof

Main = Callable[[], Coroutine[Any, Any, Any]]


@pytest.fixture
def record_async(record: Any) -> Callable[[Main], Any]:
    """Record the coroutine function that is given, in a loop of its own."""
    return lambda main: record(lambda: asyncio.run(main()))


def test_equal_names_in_two_tasks_keep_their_own_ends(record_async: Any) -> None:
    order: list[str] = []

    async def main() -> None:
        first_may_end, second_began = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            with gpuprof.span("same"):
                await second_began.wait()
                with gpuprof.span("in first"):
                    await first_may_end.wait()
                order.append("first ends")

        async def second() -> None:
            with gpuprof.span("same"):
                second_began.set()
                await asyncio.sleep(0)
                with gpuprof.span("in second"):
                    first_may_end.set()
                order.append("second ends")

        await asyncio.gather(first(), second())

    result = record_async(main)
    assert order == ["second ends", "first ends"]
    assert sorted(result.paths()) == ["same", "same", "same/in first", "same/in second"]
    longer, shorter = sorted((row for row in result.rows if row.depth == 0), key=lambda row: row.start_ns)
    # The second began within the first and ended before it: exchanged ends would give the reverse.
    assert longer.start_ns <= shorter.start_ns
    assert sum(shorter[6:8]) <= sum(longer[6:8])
    inner = {row.name: row for row in result.rows if row.depth == 1}
    assert inner["in first"].parent_id == longer.span_id
    assert inner["in second"].parent_id == shorter.span_id
    assert result.totals["unmatched_ends"] == result.totals["unfinished_spans"] == 0


def test_many_tasks_take_turns(record_async: Any) -> None:
    async def work(number: int) -> None:
        for _ in range(3):
            with gpuprof.span(f"outer {number}"):
                await asyncio.sleep(0)
                with gpuprof.span(f"inner {number}"):
                    await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(work(number) for number in range(200)))

    expected = [f"outer {number}{inner}" for number in range(200) for inner in ("", f"/inner {number}")]
    assert sorted(record_async(main).paths()) == sorted(expected * 3)


def test_a_task_hangs_below_the_span_that_made_it(record_async: Any) -> None:
    async def work(name: str) -> None:
        await asyncio.sleep(0)
        with gpuprof.span(name):
            await asyncio.sleep(0)

    async def main() -> None:
        with gpuprof.span("gather"):
            await asyncio.gather(work("a"), work("b"))
        with gpuprof.span("create"):
            await asyncio.create_task(work("c"))
        await asyncio.create_task(work("d"))

    result = record_async(main)
    assert sorted(result.paths()) == ["create", "create/c", "d", "gather", "gather/a", "gather/b"]
    assert result.run.sql("SELECT sum(calls) FROM call_tree").fetchall() == [(6,)]


def test_the_parent_is_the_span_that_was_open_when_the_task_was_made(record_async: Any) -> None:
    async def main() -> None:
        with gpuprof.span("create"):
            task = asyncio.create_task(asyncio.to_thread(int))
            child = asyncio.create_task(work())
            with gpuprof.span("other"):
                await asyncio.gather(task, child)

    async def work() -> None:
        span_once("child")

    assert sorted(record_async(main).paths()) == ["create", "create/child", "create/other"]


def test_a_task_that_outlives_the_span_that_made_it(record_async: Any) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def work() -> None:
            with gpuprof.span("before"):
                await go.wait()
            with gpuprof.span("after"):
                pass

        with gpuprof.span("maker"):
            task = asyncio.create_task(work())
            await asyncio.sleep(0)
        with gpuprof.span("next"):
            go.set()
            await task

    result = record_async(main)
    paths = dict(zip(result.names(), result.paths(), strict=True))
    assert paths["before"] == "maker/before"
    # `maker` is over, so it encloses nothing any more; what must not be is a parent of another task.
    assert paths["after"] in ("after", "next/after")
    tree = result.run.sql("SELECT own_ns, total_ns FROM call_tree WHERE calls > 0").fetchall()
    assert all(0 <= own_ns <= total_ns for own_ns, total_ns in tree)


def test_tasks_in_tasks(record_async: Any) -> None:
    async def descend(depth: int) -> None:
        with gpuprof.span(f"level {depth}"):
            if depth < 5:
                await asyncio.gather(*(asyncio.create_task(descend(depth + 1)) for _ in range(2)))

    names = [f"level {depth}" for depth in range(6)]
    expected = ["/".join(names[: depth + 1]) for depth in range(6) for _ in range(2**depth)]
    assert sorted(record_async(lambda: descend(0)).paths()) == sorted(expected)


def span_once(name: str) -> None:
    with gpuprof.span(name):
        pass


def in_a_fresh_thread(body: Callable[[], object]) -> None:
    """Run `body` where no context was made yet, as in a program's main thread."""
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()


def test_a_loop_that_runs_below_a_span_of_plain_code(record: Any) -> None:
    async def main() -> None:
        span_once("main")
        await asyncio.gather(child(), child())

    async def child() -> None:
        span_once("child")

    def body() -> None:
        with gpuprof.span("plain"):
            asyncio.run(main())
            span_once("after")

    result = record(lambda: in_a_fresh_thread(body))
    assert result.paths() == ["plain", "plain/main", "plain/child", "plain/child", "plain/after"]


def test_a_context_at_the_address_of_a_dead_one_is_a_context_of_its_own(record: Any) -> None:
    """CPython gives the memory of a context that died to the next one: its address proves nothing."""
    reused: list[bool] = []

    def body() -> None:
        contextvars.copy_context()  # from here on the thread has a context
        with gpuprof.span("maker"):
            unrelated = contextvars.Context()
            address = id(unrelated)
            unrelated.run(span_once, "unrelated")
            del unrelated
            made = contextvars.copy_context()
            reused.append(id(made) == address)
            made.run(span_once, "made")

    assert record(lambda: in_a_fresh_thread(body)).paths() == ["maker", "unrelated", "maker/made"]
    if not reused[0]:
        pytest.skip("this Python gave the new context another address: nothing was tested")


def test_contexts_that_are_copied_by_hand(record: Any) -> None:
    inner = span_once

    def body() -> None:
        outside = contextvars.copy_context()
        with gpuprof.span("outer"):
            inside = contextvars.copy_context()
            inside.run(inner, "inside")
            with gpuprof.span("deeper"):
                inside.run(inner, "again")
                contextvars.copy_context().run(inner, "fresh")
            inner("plain")
        outside.run(inner, "outside")
        inner("last")

    paths = dict(zip((result := record(body)).names(), result.paths(), strict=True))
    assert paths["inside"] == "outer/inside"
    assert paths["fresh"] == "outer/deeper/fresh"
    assert paths["plain"] == "outer/plain"
    assert paths["last"] == "last"
    assert paths["outside"] == "outside"
    # The context knows the task that it was copied from, not the moment.
    assert paths["again"] in ("outer/again", "outer/deeper/again")


def test_a_thread_whose_span_another_recorded_first_records_its_context_again(record: Any) -> None:
    """The second recording knows nothing of the first one's contexts."""
    span = gpuprof.span("outer")

    def once() -> None:
        with span:
            pass

    def body() -> None:
        in_a_fresh_thread(once)
        with span:
            contextvars.copy_context().run(span_once, "inside")

    record(once)
    assert sorted(record(body).paths()) == ["outer", "outer", "outer/inside"]


def test_a_context_entered_many_times_is_one_task(record: Any) -> None:
    span = gpuprof.span("step")

    def body() -> None:
        first, second = contextvars.Context(), contextvars.Context()
        first.run(gpuprof.span("first").__enter__)
        second.run(gpuprof.span("second").__enter__)
        for context in (first, second):
            with contextlib.ExitStack() as stack:
                context.run(stack.enter_context, span)
                context.run(stack.close)
        first.run(gpuprof.span("first").__exit__, None, None, None)
        second.run(gpuprof.span("second").__exit__, None, None, None)

    result = record(body)
    assert sorted(result.paths()) == ["first", "first/step", "second", "second/step"]
    assert result.totals["unmatched_ends"] == 0


def test_work_in_a_thread_of_its_own(record_async: Any) -> None:
    here: list[int] = []

    def work() -> None:
        here.append(threading.get_native_id())
        with gpuprof.span("in thread"):
            pass

    async def main() -> None:
        with gpuprof.span("main"):
            await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)))

    result = record_async(main)
    rows = [row for row in result.rows if row.name == "in thread"]
    assert sorted(row.thread_id for row in rows) == sorted(here)
    assert all(row.thread_id != threading.get_native_id() for row in rows)
    assert sorted(result.names()) == ["in thread"] * 4 + ["main"]


def test_async_context_managers_and_locks(record_async: Any) -> None:
    @contextlib.asynccontextmanager
    async def managed(name: str) -> AsyncGenerator[None]:
        with gpuprof.span(name):
            await asyncio.sleep(0)
            yield
            await asyncio.sleep(0)

    async def work(lock: asyncio.Lock, name: str) -> None:
        async with managed(name), lock:
            with gpuprof.span("locked"):
                await asyncio.sleep(0)

    async def main() -> None:
        lock = asyncio.Lock()
        await asyncio.gather(*(work(lock, f"task {number}") for number in range(5)))

    expected = [f"task {number}{inner}" for number in range(5) for inner in ("", "/locked")]
    assert sorted(record_async(main).paths()) == expected


def test_canceled_and_failing_tasks_end_their_spans(record_async: Any) -> None:
    @gpuprof.span("canceled")
    async def forever() -> None:
        with gpuprof.span("inner"):
            await asyncio.Event().wait()

    @gpuprof.span("failing")
    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError("gone")

    async def main() -> None:
        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        task.cancel()
        outcomes = await asyncio.gather(task, fail(), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, LookupError]
        with gpuprof.span("after"):
            pass

    result = record_async(main)
    assert sorted(result.paths()) == ["after", "canceled", "canceled/inner", "failing"]
    assert result.totals["unfinished_spans"] == 0


def test_a_recording_that_begins_and_ends_within_tasks(
    record_async: Any, recorded: Any, tmp_path: Any
) -> None:
    async def main() -> list[Any]:
        began, ended = asyncio.Event(), asyncio.Event()

        async def other() -> None:
            with gpuprof.span("other"):
                await began.wait()
                with gpuprof.span("seen"):
                    await ended.wait()

        task = asyncio.create_task(other())
        await asyncio.sleep(0)
        with gpuprof.profile(out=tmp_path / "within.gpuprof", layers=False, operators=False) as recording:
            began.set()
            with gpuprof.span("mine"):
                await asyncio.sleep(0)
        ended.set()
        await task
        return [recording.run]

    first = asyncio.run(main())
    assert sorted(recorded(first[0]).paths()) == ["mine", "seen"]
    assert first[0].meta["totals"]["unfinished_spans"] == 1

    async def later() -> None:
        with gpuprof.span("later"):
            await asyncio.create_task(inner())

    async def inner() -> None:
        with gpuprof.span("inner"):
            pass

    assert record_async(later).paths() == ["later", "later/inner"]


# --- decorated async generators ------------------------------------------------------------------

Transcript = list[object]


async def echo(log: Transcript) -> AsyncGenerator[Any, Any]:
    try:
        received = "begun"
        while received != "stop":
            try:
                received = yield received
                await asyncio.sleep(0)
            except ZeroDivisionError as error:
                received = f"caught {error}"
    finally:
        await asyncio.sleep(0)
        log.append("finally")


async def stubborn(log: Transcript) -> AsyncGenerator[Any, Any]:
    try:
        yield 1
    except GeneratorExit:
        log.append("ignored")
        yield 2


async def failing(log: Transcript) -> AsyncGenerator[Any, Any]:
    yield 1
    await asyncio.sleep(0)
    raise LookupError("middle")


async def stopping(log: Transcript) -> AsyncGenerator[Any, Any]:
    yield 1
    raise StopAsyncIteration("raised")


Step = tuple[str, tuple[object, ...]]
SCENARIOS: dict[str, list[Step]] = {
    "run to the end": [("__anext__", ())] * 3,
    "send": [("__anext__", ()), ("asend", (5,)), ("asend", ("stop",)), ("asend", (6,))],
    "send at once": [("asend", (1,))],
    "throw": [("__anext__", ()), ("athrow", (ZeroDivisionError("z"),)), ("__anext__", ()), ("aclose", ())],
    "throw what is not caught": [("__anext__", ()), ("athrow", (OSError("o"),)), ("__anext__", ())],
    "throw StopAsyncIteration": [("__anext__", ()), ("athrow", (StopAsyncIteration("s"),))],
    "close": [("__anext__", ()), ("aclose", ()), ("__anext__", ()), ("aclose", ())],
    "close at once": [("aclose", ()), ("__anext__", ())],
}


async def attempt(action: Callable[[], Awaitable[object]]) -> object:
    try:
        return await action()
    except BaseException as error:
        return type(error).__name__, error.args, type(error.__cause__).__name__


async def play(function: Any, steps: list[Step]) -> Transcript:
    transcript: Transcript = []
    made = function(transcript)
    for method, arguments in steps:
        fresh = [type(each)(*each.args) if isinstance(each, BaseException) else each for each in arguments]
        transcript.append(await attempt(lambda: getattr(made, method)(*fresh)))  # noqa: B023
    return transcript


@pytest.mark.parametrize(
    "function", [echo, stubborn, failing, stopping], ids=lambda function: function.__name__
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_decorated_async_generator_behaves_as_before(record: Any, function: Any) -> None:
    decorated = gpuprof.span("g")(function)
    assert inspect.isasyncgenfunction(decorated)

    async def play_all(function: Any) -> dict[str, Transcript]:
        return {name: await play(function, steps) for name, steps in SCENARIOS.items()}

    expected = asyncio.run(play_all(function))
    assert asyncio.run(play_all(decorated)) == expected
    seen: list[object] = []
    totals = record(lambda: seen.append(asyncio.run(play_all(decorated)))).totals
    assert seen == [expected]
    assert totals["unfinished_spans"] == totals["unmatched_ends"] == 0


def test_async_generators_in_tasks_that_take_turns(record_async: Any) -> None:
    @gpuprof.span("produce")
    async def produce() -> AsyncGenerator[int]:
        for number in range(3):
            with gpuprof.span("make"):
                await asyncio.sleep(0)
            yield number

    async def consume(name: str) -> None:
        with gpuprof.span(name):
            async for _ in produce():
                with gpuprof.span("use"):
                    await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(consume("a"), consume("b"))

    result = record_async(main)
    for task in "ab":
        paths = [path for path in result.paths() if path.startswith(task)]
        assert paths.count(f"{task}/produce/make") == 3
        assert paths.count(f"{task}/use") == 3
        assert paths.count(f"{task}/produce") == 4
        assert len(paths) == 11
    assert len(result.rows) == 22


def test_an_async_generator_that_holds_a_span_while_it_is_suspended(record_async: Any) -> None:
    async def produce() -> AsyncGenerator[int]:
        with gpuprof.span("produce"):
            yield 1
            await asyncio.sleep(0)
            yield 2

    async def main() -> None:
        async for _ in produce():
            with gpuprof.span("use"):
                await asyncio.sleep(0)

    result = record_async(main)
    assert result.paths() == ["produce", "produce/use", "produce/use"]
    assert result.totals["unmatched_ends"] == 0


def test_a_coroutine_that_is_never_awaited_records_nothing(record: Any) -> None:
    @gpuprof.span("never")
    async def never() -> None: ...

    assert record(lambda: never().close()).rows == []
