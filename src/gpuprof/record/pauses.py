# SPDX-License-Identifier: Apache-2.0
"""What interrupts a program: collections of Python's garbage collector, and compilations of PyTorch.

Both are spans on the thread that they interrupt. The native core writes a span when it ends, so that one
whose end is never announced leaves nothing.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from gpuprof import _native
from gpuprof.record.facts import Method, Reason, SourceStatus
from gpuprof.record.frame_text import OWN_FOLDER
from gpuprof.record.import_hook import ImportHook

_Parameters = ParamSpec("_Parameters")
_Returned = TypeVar("_Returned")


class own_work:  # noqa: N801 - used as a function, in `with` and as a decorator
    """Leave out the collections that this thread runs in the block: they are gpuprof's, not the program's.

    Not by `contextlib`, whose frames would be taken for the program's.
    """

    def __enter__(self) -> None:
        _native.begin_own_work()

    def __exit__(self, *_: object) -> None:
        _native.end_own_work()

    def __call__(self, function: Callable[_Parameters, _Returned]) -> Callable[_Parameters, _Returned]:
        """Return the function with all of a call as the block."""

        @functools.wraps(function)
        def inner(*arguments: _Parameters.args, **named: _Parameters.kwargs) -> _Returned:
            with self:
                return function(*arguments, **named)

        return inner


class CollectionSource:
    """Records the pauses of the garbage collector, of all threads, from `start` to `stop`.

    Collections of the youngest generation below 20 us are only counted, in the values of `status`.
    """

    def __init__(self) -> None:
        self._short = 0
        self._short_ns = 0
        self._is_on = False
        self._is_cleared = False

    def start(self) -> SourceStatus:
        """Begin; returns the source's status."""
        _native.take_short_collections()  # of an earlier recording
        gc.callbacks.append(_native.note_collection)
        self._is_on = True
        return self.status

    def stop(self) -> None:
        """End; harmless where the program has cleared the callbacks."""
        # By identity: another callback may be compared in any way.
        own = [place for place, each in enumerate(gc.callbacks) if each is _native.note_collection]
        for place in reversed(own):
            del gc.callbacks[place]
        self._is_cleared |= self._is_on and not own
        self._is_on = False
        short, short_ns = _native.take_short_collections()
        self._short += short
        self._short_ns += short_ns

    @property
    def status(self) -> SourceStatus:
        """The source's status, with the collections that were too short.

        It is off where the callback was gone at the end: how many are missing is unknown.
        """
        if self._is_cleared:
            return SourceStatus.off(Reason.GC_CALLBACKS_CLEARED)
        return SourceStatus.on(Method.GC_CALLBACKS, short=self._short, short_ns=self._short_ns)


_CALLBACKS = "torch._dynamo.callback"


class CompilationSource:
    """Records compilations by torch.compile, once the program has imported TorchDynamo."""

    def __init__(self) -> None:
        self._hook: ImportHook | None = None
        self._handler: Any = None
        failures: set[type[Exception]] = set()
        self._begin = _native.QuietCall(_begin_compilation, OWN_FOLDER, failures)
        self._end = _native.QuietCall(_end_compilation, OWN_FOLDER, failures)

    def start(self) -> SourceStatus:
        """Begin now, or right after TorchDynamo's import; returns the source's status."""
        if _CALLBACKS in sys.modules:
            self._register()
        else:
            self._hook = ImportHook(_CALLBACKS, self._register)
            self._hook.install()
        return SourceStatus.on(Method.DYNAMO_CALLBACKS)

    def stop(self) -> None:
        """End; harmless where the program has cleared the callbacks."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        handler, self._handler = self._handler, None
        if handler is not None:
            with contextlib.suppress(ValueError):
                handler.start_callbacks.remove(self._begin)
            with contextlib.suppress(ValueError):
                handler.end_callbacks.remove(self._end)

    def _register(self) -> None:
        handler = getattr(sys.modules[_CALLBACKS], "callback_handler", None)
        # Its lists are no public interface: without them, compilations are not recorded.
        for name in ("start_callbacks", "end_callbacks"):
            if not isinstance(getattr(handler, name, None), list):
                return
        self._handler = handler
        self._handler.start_callbacks.append(self._begin)
        self._handler.end_callbacks.append(self._end)


def _begin_compilation(*arguments: Any) -> None:
    # Versions before 2.7 pass nothing.
    compile_id = getattr(arguments[0], "compile_id", None) if arguments else None
    _native.begin_compilation("compilation" if compile_id is None else f"compilation {compile_id}")


def _end_compilation(*_arguments: Any) -> None:
    _native.end_compilation()
