# SPDX-License-Identifier: Apache-2.0
"""`gpuprof.span` as a decorator, over functions of every kind."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from gpuprof import _native

AnyFunction = Callable[..., Any]


def decorate(function: AnyFunction, span: _native.span | None) -> AnyFunction:
    """Wrap `function` so that its calls are recorded under `span`, or under its own qualified name.

    An async function is recorded from its first step to its end, waiting included. A generator, sync or
    async, is recorded at each resumption: the time inside it, not that of its consumer.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorate(function.__func__, span))
    if not callable(function):
        raise TypeError(f"a span decorates functions, not {type(function).__name__}")
    recorded = span if span is not None else _native.span(_name_of(function))
    for matches, wrap in _WRAPPERS:
        if matches(function):
            return wrap(function, recorded)
    return _wrap_plain(function, recorded)


def _name_of(function: AnyFunction) -> str:
    return str(
        getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(function)
    )


def _wrap_plain(function: AnyFunction, span: _native.span) -> AnyFunction:
    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        with span:
            return function(*args, **kwargs)

    return recorded


def _wrap_coroutine(function: AnyFunction, span: _native.span) -> AnyFunction:
    @functools.wraps(function)
    async def recorded(*args: Any, **kwargs: Any) -> Any:
        with span:
            return await function(*args, **kwargs)

    return recorded


def _wrap_generator(function: AnyFunction, span: _native.span) -> AnyFunction:
    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        resume: Callable[[], Any] = functools.partial(next, generator)
        while True:
            try:
                with span:
                    item = resume()
            except StopIteration as stop:
                return stop.value
            # A close arrives as an exception too, and the generator may refuse it: it is passed on.
            try:
                sent = yield item
            except BaseException as error:
                resume = functools.partial(generator.throw, error)
            else:
                resume = functools.partial(generator.send, sent)

    is_coroutine = function.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE
    return types.coroutine(recorded) if is_coroutine else recorded


def _wrap_async_generator(function: AnyFunction, span: _native.span) -> AnyFunction:
    @functools.wraps(function)
    async def recorded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        resume: Callable[[], Any] = functools.partial(generator.asend, None)
        while True:
            try:
                with span:
                    item = await resume()
            except StopAsyncIteration:
                return
            try:
                sent = yield item
            except BaseException as error:
                resume = functools.partial(generator.athrow, error)
            else:
                resume = functools.partial(generator.asend, sent)

    return recorded


_WRAPPERS: tuple[tuple[Callable[[Any], bool], Callable[[AnyFunction, _native.span], AnyFunction]], ...] = (
    (inspect.isasyncgenfunction, _wrap_async_generator),
    (inspect.isgeneratorfunction, _wrap_generator),
    (inspect.iscoroutinefunction, _wrap_coroutine),
)
