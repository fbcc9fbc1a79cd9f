# SPDX-License-Identifier: Apache-2.0
"""Where a data loader is iterated, and which functions of the program its fetches execute."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType, FunctionType, MethodType
from typing import Any

from gpuprof.record.frame_text import frame_text, is_hidden, is_of_package

_MOST_WRAPPED = 8  # data sets around the one that has the samples
_METHODS = ("__getitems__", "__getitem__", "__iter__")


@dataclass(frozen=True, slots=True)
class LoaderPlaces:
    """Functions as `main (train.py:9)`, with their first line; None if unknown or if they are not Python.

    `iterated` is the innermost function of the program, outside of installed packages, that begins an
    iteration, and `iterated_line` its line then. `item` fetches a sample, or iterates the data set. `collate`
    makes a batch of samples; None also for PyTorch's own.
    """

    iterated: str | None = None
    iterated_line: int | None = None
    item: str | None = None
    collate: str | None = None


def loader_places(loader: Any) -> LoaderPlaces:
    """Return the places of a loader whose iteration the caller begins. Calls nothing of the program's."""
    iterated, line = _iterated()
    return LoaderPlaces(iterated, line, _item(loader.dataset), _collate(loader.collate_fn))


def _iterated() -> tuple[str | None, int | None]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_of_package(frame.f_code) and not is_hidden(frame.f_code):
            return frame_text(frame.f_code), frame.f_lineno
        frame = frame.f_back
    return None, None


def _item(dataset: object) -> str | None:
    """Return what fetches a sample: of the data set inside of those of PyTorch that choose samples."""
    for _ in range(_MOST_WRAPPED):
        functions = (_method(dataset, name) for name in _METHODS)
        own = next((each for each in functions if each is not None and not _is_of_torch(each)), None)
        if own is not None:
            return frame_text(own.__code__)
        try:
            dataset = object.__getattribute__(dataset, "__dict__")["dataset"]
        except (AttributeError, KeyError):
            return None
    return None


def _collate(function: object) -> str | None:
    # By types: `isinstance` and `getattr` may call what the program defines.
    if type(function) is MethodType:
        function = function.__func__
    elif type(function) is not FunctionType:
        function = _method(function, "__call__")
    if type(function) is not FunctionType or _is_of_torch(function):
        return None
    return frame_text(function.__code__)


def _method(owner: object, name: str) -> FunctionType | None:
    found = next((vars(kind)[name] for kind in type(owner).__mro__ if name in vars(kind)), None)
    return found if type(found) is FunctionType else None


def _is_of_torch(function: FunctionType) -> bool:
    return function.__module__ is not None and function.__module__.partition(".")[0] == "torch"
