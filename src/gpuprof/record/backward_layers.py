# SPDX-License-Identifier: Apache-2.0
"""Tying the backward pass to the layers of its forward, by the numbers that PyTorch gives autograd nodes.

The native core reads a node's numbers from the node itself while the engine evaluates it. Where they are
differs between versions of PyTorch, so it is proven with nodes of this very process, or left alone.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof import _native
from gpuprof.record.collector import is_collecting
from gpuprof.record.facts import Method, Reason, SourceStatus

# The words of a node that may hold its numbers: after its vtable and its owners, before its mutex.
_FIRST_WORD, _END_WORD = 2, 9


class _UnprovenError(Exception):
    """What was found is not what the native core can read."""

    def __init__(self, reason: Reason, **values: str) -> None:
        super().__init__(reason.value)
        self.status = SourceStatus.off(reason, **values)


@dataclass(frozen=True, slots=True)
class Layout:
    """How nodes are owned, and which of their 8-byte words hold their numbers."""

    intrusive: bool
    sequence_word: int
    thread_word: int


class _Proven:
    """The layout, which is the same as long as the process lives."""

    layout: Layout | None = None


class BackwardLayerSource:
    """Has layer calls and evaluations of the autograd engine numbered, from `start` to `stop`."""

    def start(self) -> SourceStatus:
        """Begin; torch is imported. Returns the source's status."""
        problem = _native.autograd_open(os.fsencode(_library()))
        if problem is not None:
            return SourceStatus.off(Reason.AUTOGRAD_LIBRARY, detail=problem)
        if not is_collecting():
            _native.autograd_tie_layers()
            return SourceStatus.on(Method.SEQUENCE_NUMBERS)
        try:
            layout = _Proven.layout = _Proven.layout or _prove()
        except _UnprovenError as error:
            return error.status
        _native.autograd_tie(layout.intrusive, layout.sequence_word, layout.thread_word)
        return SourceStatus.on(Method.AUTOGRAD_NODES)

    def stop(self) -> None:
        """End the numbering."""
        _native.autograd_untie()


def _library() -> Path:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return Path(sys.modules["torch"].__file__ or "").with_name("lib") / f"libtorch_cpu.{suffix}"


def _prove() -> Layout:
    """Find the layout with two small nodes. No backward pass is run: it would start PyTorch's threads."""
    import torch

    if torch._C._autograd._profiler_enabled():
        raise _UnprovenError(Reason.AUTOGRAD_PROFILER_ACTIVE)
    if torch._C._len_torch_dispatch_stack() > 0:
        raise _UnprovenError(Reason.AUTOGRAD_DISPATCH_MODE)
    with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(1, dtype=torch.float32, device="cpu", requires_grad=True)
        before = _native.autograd_ask()
        first = leaf * 2
        alone = _native.autograd_node_words(first.grad_fn)
        second = first * 2  # its node owns the first one's
        after = _native.autograd_ask()
    return find_layout(before, after, alone, _Node.of(first.grad_fn), _Node.of(second.grad_fn))


@dataclass(frozen=True, slots=True)
class _Node:
    number: int
    address: int
    words: list[int]

    @classmethod
    def of(cls, grad_fn: Any) -> _Node:
        address, *words = _native.autograd_node_words(grad_fn)
        return cls(grad_fn._sequence_nr(), address, words)


def find_layout(
    before: dict[str, Any], after: dict[str, Any], alone: list[int], first: _Node, second: _Node
) -> Layout:
    """Conclude the layout from what was seen; raises where anything is not as it has to be."""
    if [before["sequence"], before["sequence"] + 1] != [first.number, second.number]:
        raise _UnprovenError(Reason.AUTOGRAD_NUMBERING)
    if after["sequence"] != second.number + 1:
        raise _UnprovenError(Reason.AUTOGRAD_NEXT_NUMBER)
    intrusive = _is_intrusive(after["current"], alone, first)
    sequence = _only_word(first, second, first.number, second.number, "number")
    thread = _only_word(first, second, after["thread"], after["thread"], "thread")
    return Layout(intrusive, sequence, thread)


def _is_intrusive(current: tuple[int | None, int | None], alone: list[int], first: _Node) -> bool:
    if current[0] != 0:
        raise _UnprovenError(Reason.AUTOGRAD_IN_BACKWARD)
    if current[1] is None and alone[0] == first.address and first.words[1] == alone[2] + 1:
        return True
    if current[1] == 0 and first.words[1] == first.address:
        return False
    raise _UnprovenError(Reason.AUTOGRAD_OWNERSHIP)


def _only_word(first: _Node, second: _Node, in_first: int, in_second: int, what: str) -> int:
    places = [
        word
        for word in range(_FIRST_WORD, _END_WORD)
        if (first.words[word], second.words[word]) == (in_first, in_second)
    ]
    if len(places) != 1:
        raise _UnprovenError(Reason.AUTOGRAD_LAYOUT, what=what)
    return places[0]
