# SPDX-License-Identifier: Apache-2.0
"""Where the time of executions went: self time by node of one call tree for all of them.

At each instant the innermost open span of the request's thread has the time, so the times of an execution add
up to the length of its span. What a sample shows of a span's self time goes to the functions of its stack.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuprof.analyze.call_tree import CallTree
from gpuprof.analyze.requests.executed import Executed, OwnedSample, OwnedSpan
from gpuprof.run.format import KINDS
from gpuprof.run.frame_tree import UNKNOWN_WAIT
from gpuprof.run.requests_table import STEP_SPAN
from gpuprof.run.span_boundaries import FrameKinds, shown_frames

_NATIVE = ("operator", "backward", "compile", "gc", "kernel", "transfer")
_PYTHON, _WAITING = "python", "waiting"
_BUILTIN = " (built-in)"
AWAIT = "await"  # the wait of a task between its turns in the event loop
# The function of an event loop that runs a step of a task; what is above it is the program's start.
_LOOP_CALLS = ("Handle._run (", "_run (")
_LOOP_FILE, _THREADING_FILE = "/asyncio/events.py:", "/threading.py:"


@dataclass(slots=True)
class ExecutionTimes:
    """One execution: self time and calls by node. `parallel_ns` is that of its spans on other threads.

    `is_task` is set for a request that is a task of an event loop.
    """

    own_ns: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    calls: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    duration_ns: int = 0
    parallel_ns: int = 0
    is_task: bool = False


class TimesTree:
    """The nodes of all executions that were added, below one root per process; `of` has their times."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.kind: list[str] = []
        self.name: list[str] = []
        self.of: dict[int, ExecutionTimes] = {}
        self._found: dict[tuple[int, str, str], int] = {}
        self._process_id = 0

    def child(self, parent: int, kind: str, name: str) -> int:
        """Return a node, which is made if it is new."""
        key = (parent, kind, name)
        node = self._found.setdefault(key, len(self.parent))
        if node == len(self.parent):
            self.parent.append(parent)
            self.kind.append(kind)
            self.name.append(name)
        return node

    def add(self, key: int, executed: Executed) -> ExecutionTimes:
        """Add an execution; `key` is the caller's name for it."""
        times = self.of[key] = ExecutionTimes()
        root = executed.spans[0]
        self._process_id = root.process_id
        nodes = self._nodes(executed.spans, times)
        mine = [each for each in executed.spans if each.thread_id == root.thread_id]
        times.is_task = any(each.name == STEP_SPAN and each.parent_id == root.span_id for each in mine)
        times.duration_ns = root.end_ns - root.start_ns
        pieces = list(_pieces(mine, root))
        for piece in pieces:
            node = nodes[piece.innermost.span_id]
            if times.is_task and not piece.is_running:
                node = self.child(node, _WAITING, AWAIT)
            times.own_ns[node] += piece.end_ns - piece.begin_ns
        self._add_samples(executed.samples, pieces, nodes, times)
        others = {each.thread_id for each in executed.spans} - {root.thread_id}
        for thread_id in others:
            theirs = [each for each in executed.spans if each.thread_id == thread_id]
            times.parallel_ns += sum(piece.end_ns - piece.begin_ns for piece in _pieces(theirs, None))
        return times

    def _nodes(self, spans: Sequence[OwnedSpan], times: ExecutionTimes) -> dict[int, int]:
        """Return the node of each span: a parent may be on another thread, and so later in the list."""
        base = self.child(-1, "process", "requests")
        known = {each.span_id: each for each in spans}
        nodes: dict[int, int] = {}
        for span in spans:
            chain = [span]
            while chain[-1].span_id not in nodes and chain[-1].parent_id in known and chain[-1] != spans[0]:
                chain.append(known[chain[-1].parent_id])
            for each in reversed(chain):
                if each.span_id not in nodes:
                    nodes[each.span_id] = self.child(nodes.get(each.parent_id, base), each.kind, each.name)
            times.calls[nodes[span.span_id]] += 1
        return nodes

    def _add_samples(
        self,
        samples: Sequence[OwnedSample],
        pieces: Sequence[_Piece],
        nodes: Mapping[int, int],
        times: ExecutionTimes,
    ) -> None:
        """Move time of spans to the functions that were on the stack. Time outside a task's turns stays."""
        place = 0
        for sample in samples:
            begin_ns = sample.t_ns - sample.duration_ns
            while place < len(pieces) and pieces[place].end_ns <= begin_ns:
                place += 1
            at = place
            spent: dict[int, int] = defaultdict(int)
            shown: tuple[OwnedSpan, ...] = ()
            while at < len(pieces) and pieces[at].begin_ns < sample.t_ns:
                piece = pieces[at]
                if not times.is_task or piece.is_running:
                    spent[piece.innermost.span_id] += min(piece.end_ns, sample.t_ns) - max(
                        piece.begin_ns, begin_ns
                    )
                    if sample.t_ns <= piece.end_ns:
                        shown = piece.open  # of the moment that the stack shows
                at += 1
            self._move(sample, shown, spent, nodes, times)

    def _move(
        self,
        sample: OwnedSample,
        shown: Sequence[OwnedSpan],
        spent: Mapping[int, int],
        nodes: Mapping[int, int],
        times: ExecutionTimes,
    ) -> None:
        waited = sample.waited_ns
        # The innermost span has the wait: a thread that waits neither begins a span nor ends one.
        for span, frames in reversed(list(_frames_below(shown, sample.frames))):
            time_ns = spent.get(span.span_id, 0)
            waits = min(waited, time_ns)
            waited -= waits
            if not time_ns or not frames:
                continue
            node = nodes[span.span_id]
            times.own_ns[node] -= time_ns
            is_named = frames[-1].endswith(_BUILTIN)
            for text in frames[:-1] if is_named and waits else frames:
                node = self.child(node, _PYTHON, text)
            times.own_ns[node] += time_ns - waits
            if waits:
                wait = self.child(node, _WAITING, frames[-1] if is_named else UNKNOWN_WAIT)
                times.own_ns[wait] += waits

    def path(self, node: int) -> list[int]:
        """Return a node and those above it, the outermost first."""
        found = [node]
        while self.parent[found[-1]] >= 0:
            found.append(self.parent[found[-1]])
        return found[::-1]

    def as_call_tree(self) -> tuple[CallTree, list[int]]:
        """Return the nodes in pre-order as a call tree without times, and the place of each node in it."""
        children: dict[int, list[int]] = defaultdict(list)
        for node, parent in enumerate(self.parent):
            children[parent].append(node)
        order: list[int] = []
        waiting = children[-1][::-1]
        while waiting:
            order.append(waiting.pop())
            waiting += children[order[-1]][::-1]
        place = [0] * len(order)
        for at, node in enumerate(order):
            place[node] = at
        numbers: dict[str, int] = {}
        nothing = np.zeros(len(order), np.int64)
        codes = {kind: code for code, kind in enumerate(KINDS)}
        parents = [self.parent[node] for node in order]
        tree = CallTree(
            parent=np.array([place[up] if up >= 0 else -1 for up in parents], np.int32),
            kind=np.array([codes.get(self.kind[node], 1) for node in order], np.uint8),
            name=np.array([numbers.setdefault(self.name[node], len(numbers)) for node in order], np.int32),
            calls=nothing,
            total_ns=nothing,
            own_ns=nothing,
            threads=np.ones(len(order), np.int32),
            process_id=np.full(len(order), self._process_id, np.int64),
            names=list(numbers),
        )
        return tree, place


@dataclass(frozen=True, slots=True)
class _Piece:
    """A time in which the same spans were open; the last of them began last."""

    begin_ns: int
    end_ns: int
    open: tuple[OwnedSpan, ...]

    @property
    def innermost(self) -> OwnedSpan:
        return self.open[-1]

    @property
    def is_running(self) -> bool:
        """Of a task: whether it has its turn in the event loop."""
        return any(each.name == STEP_SPAN and each.kind == "span" for each in self.open)


def _pieces(spans: Sequence[OwnedSpan], root: OwnedSpan | None) -> Iterator[_Piece]:
    """Yield the pieces of a thread's time, within `root` if there is one; `spans` are by their begin."""
    first, last = (None, None) if root is None else (root.start_ns, root.end_ns)
    moments = sorted({*(each.start_ns for each in spans), *(each.end_ns for each in spans)})
    opened: list[OwnedSpan] = []
    place = 0
    for begin, end in itertools.pairwise(moments):
        opened = [each for each in opened if each.end_ns > begin]
        while place < len(spans) and spans[place].start_ns <= begin:
            if spans[place].end_ns > begin:
                opened.append(spans[place])
            place += 1
        low, high = begin if first is None else max(begin, first), end if last is None else min(end, last)
        if opened and low < high:
            yield _Piece(low, high, tuple(opened))


def _frames_below(
    opened: Sequence[OwnedSpan], frames: tuple[str, ...]
) -> Iterator[tuple[OwnedSpan, tuple[str, ...]]]:
    """Yield the open spans with the functions between each and the next one.

    A layer is a call of a module, which is a frame. Where another span is on the stack is not known: it has
    the functions from the layer around it on, and the spans around it have none.
    """
    frames = frames[_served_from(frames) :]
    if opened and opened[-1].kind in _NATIVE and frames and frames[-1].endswith(_BUILTIN):
        frames = frames[:-1]  # it adds nothing to the operator that it calls
    kinds = FrameKinds.of(frames)
    calls = [place for place in range(len(frames)) if place in kinds.module_calls]
    layers = [each for each in opened if each.kind == "layer"]
    if len(calls) > len(layers):
        return
    at, begin = 0, 0
    for place, span in enumerate(opened):
        if span.kind == "layer":
            begin = calls[at] if at < len(calls) else len(frames)
            at += 1
        following = opened[place + 1] if place + 1 < len(opened) else None
        if span.kind in _NATIVE:
            end = begin
        elif following is None or following.kind in _NATIVE:
            end = len(frames)
        elif following.kind == "layer":
            end = calls[at] if at < len(calls) else len(frames)
        else:
            end = begin
        numbers = shown_frames(tuple(range(begin, max(begin, end))), span.kind == "layer", kinds)
        yield span, tuple(frames[number] for number in numbers)


def _served_from(frames: Sequence[str]) -> int:
    """Return where the target's own functions begin: below those that start threads and run tasks."""
    for place, text in enumerate(frames):
        if text.startswith(_LOOP_CALLS) and _LOOP_FILE in text:
            return place + 1
    place = 0
    while place < len(frames) and _THREADING_FILE in frames[place]:
        place += 1
    return place
