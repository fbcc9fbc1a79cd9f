# SPDX-License-Identifier: Apache-2.0
"""Which Python frames stand above which span: samples of stacks held against the spans of their thread.

A sample is taken at the first call or return of a Python function after it fell due, so its stack is that of
the moment when it fell due, and of the time until it was taken. It stands for the time since the one before.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuprof.record.frame_text import MODULE_CALL
from gpuprof.run.stacks import ThreadStacks

NOTHING = -1  # stands for no span

Frames = tuple[int, ...]

_BUILTIN = " (built-in)"
_MODULE_FILE = "(torch/nn/modules/module.py"


@dataclass(frozen=True, slots=True)
class FrameKinds:
    """What the frames of a run are, by their numbers."""

    module_calls: frozenset[int]  # of `Module.__call__`
    machinery: frozenset[int]  # these, and what PyTorch calls between them and `forward`
    forwards: frozenset[int]
    builtins: frozenset[int]

    @classmethod
    def of(cls, texts: Sequence[str]) -> FrameKinds:
        """Tell the frames apart by their texts."""

        def numbers(is_one: Callable[[str], bool]) -> frozenset[int]:
            return frozenset(number for number, text in enumerate(texts) if is_one(text))

        return cls(
            module_calls=numbers(lambda text: text == MODULE_CALL),
            machinery=numbers(lambda text: "_call_impl" in text and _MODULE_FILE in text),
            forwards=numbers(lambda text: text.partition(" ")[0].rpartition(".")[2] == "forward"),
            builtins=numbers(lambda text: text.endswith(_BUILTIN)),
        )


@dataclass(slots=True)
class ThreadSpans:
    """The spans of one thread by their begin, outer ones first. `keys` are the caller's names for them."""

    keys: list[int]
    start_ns: list[int]
    end_ns: list[int]
    is_layer: list[bool]
    is_native: list[bool]  # operators and the like: no frame of Python is inside


@dataclass(slots=True)
class PlacedSample:
    """One sample: the spans open at its moment, outermost first, and how its frames stand between them.

    `groups` has one more element than `open`: the frames above the first span, ..., those below the last.
    `time_ns` is the time of the sample's window by innermost span, for `open` and NOTHING.
    """

    open: tuple[int, ...]
    groups: list[Frames]
    time_ns: dict[int, int]


@dataclass(slots=True)
class Placement:
    """What is known of one thread. Spans are told by their keys."""

    samples: list[PlacedSample]
    above: dict[int, Frames]  # of each span that a sample met: the frames between its parent and it
    # Of each outermost span that none met: what stood above all spans in the samples before and after it.
    around: dict[int, tuple[Frames, Frames]]


class _Prefix:
    """The frames that all samples inside a span have in common, up to the span."""

    __slots__ = ("frames", "length")

    def __init__(self, frames: Frames, length: int) -> None:
        self.frames = frames
        self.length = length

    def narrow(self, frames: Frames, length: int) -> None:
        self.length = common_length(self.frames, frames, min(self.length, length))


def common_length(first: Frames, second: Frames, limit: int | None = None) -> int:
    """Return how many frames both begin with."""
    most = min(len(first), len(second), len(first) if limit is None else limit)
    if first[:most] == second[:most]:
        return most
    return next(place for place in range(most) if first[place] != second[place])


def place_samples(stacks: ThreadStacks, spans: ThreadSpans, kinds: FrameKinds) -> Placement:
    """Hold the samples of a thread against its spans."""
    swept = _sweep(stacks, spans)
    stack_of = [
        _without_builtin(frames, opened, spans, kinds)
        for frames, (opened, _) in zip(stacks.frames, swept, strict=True)
    ]
    prefixes: dict[int, _Prefix] = {}
    for frames, (opened, _) in zip(stack_of, swept, strict=True):
        for place, length in zip(opened, _boundaries(frames, opened, spans, kinds), strict=True):
            if place in prefixes:
                prefixes[place].narrow(frames, length)
            else:
                prefixes[place] = _Prefix(frames, length)
    samples: list[PlacedSample] = []
    above: dict[int, Frames] = {}
    for frames, (opened, times) in zip(stack_of, swept, strict=True):
        groups = _groups(frames, opened, [prefixes[place].length for place in opened], spans, kinds)
        keys = tuple(spans.keys[place] for place in opened)
        told = {NOTHING if place < 0 else spans.keys[place]: time for place, time in times.items()}
        samples.append(PlacedSample(keys, groups, told))
        above.update(zip(keys, groups, strict=False))
    return Placement(samples, above, _around(stacks, spans, samples, prefixes))


def _sweep(stacks: ThreadStacks, spans: ThreadSpans) -> list[tuple[tuple[int, ...], dict[int, int]]]:
    """Return for each sample the open spans at its moment, and the time of its window by innermost span."""
    sweep = _Sweep(spans)
    found = []
    for t_ns, duration_ns in zip(stacks.t_ns, stacks.duration_ns, strict=True):
        sweep.advance(t_ns - duration_ns)
        sweep.times = {}
        sweep.advance(min(t_ns, t_ns - duration_ns + stacks.interval_ns))
        opened = tuple(sweep.open)
        sweep.advance(t_ns)
        found.append((opened, {key: sweep.times[key] for key in (NOTHING, *opened) if key in sweep.times}))
    return found


class _Sweep:
    def __init__(self, spans: ThreadSpans) -> None:
        self.open: list[int] = []
        self.times: dict[int, int] = {}
        self._spans = spans
        self._next = 0
        self._ends: list[tuple[int, int]] = []
        self._now: int | None = None

    def advance(self, until: int) -> None:
        """Go on to an instant. Spans that end then are closed, those that begin then are open."""
        starts = self._spans.start_ns
        while True:
            begin = starts[self._next] if self._next < len(starts) else until + 1
            end = self._ends[0][0] if self._ends else until + 1
            if min(begin, end) > until:
                break
            self._pass(min(begin, end))
            if end <= begin:
                self.open.remove(heapq.heappop(self._ends)[1])
            else:
                self.open.append(self._next)
                # Of spans that end together the inner one, which began later, is popped first.
                heapq.heappush(self._ends, (self._spans.end_ns[self._next], self._next))
                self._next += 1
        self._pass(until)

    def _pass(self, instant: int) -> None:
        if self._now is not None and instant > self._now:
            innermost = self.open[-1] if self.open else NOTHING
            self.times[innermost] = self.times.get(innermost, 0) + instant - self._now
        self._now = instant if self._now is None else max(self._now, instant)


def _without_builtin(
    frames: Frames, opened: tuple[int, ...], spans: ThreadSpans, kinds: FrameKinds
) -> Frames:
    # The function that an operator is called through says nothing beside the operator.
    is_said = opened and frames and frames[-1] in kinds.builtins and spans.is_native[opened[-1]]
    return frames[:-1] if is_said else frames


def _module_calls(frames: Frames, kinds: FrameKinds) -> list[int]:
    return [place for place, frame in enumerate(frames) if frame in kinds.module_calls]


def _boundaries(frames: Frames, opened: tuple[int, ...], spans: ThreadSpans, kinds: FrameKinds) -> list[int]:
    """Return for each open span how many frames stand above it.

    The layers that are open are the calls of modules on the stack, in order; the innermost may not have got
    as far as its frame. Where there are more calls than layers nobody can tell which is which. Other spans
    have no frame of their own, and stand as far down as the next layer allows.
    """
    calls = _module_calls(frames, kinds)
    if len(calls) > sum(spans.is_layer[place] for place in opened):
        return [len(frames)] * len(opened)
    found = []
    layers = 0
    for place in opened:
        found.append(calls[layers] if layers < len(calls) else len(frames))
        layers += spans.is_layer[place]
    return found


def _groups(
    frames: Frames, opened: tuple[int, ...], lengths: list[int], spans: ThreadSpans, kinds: FrameKinds
) -> list[Frames]:
    """Return the frames that are shown above, between and below the open spans."""
    ends = [*lengths, len(frames)]
    begins = [0, *lengths]
    owners = [False, *(spans.is_layer[place] for place in opened)]
    return [
        _shown(frames[begin:end], is_layer, kinds)
        for begin, end, is_layer in zip(begins, ends, owners, strict=True)
    ]


def _shown(frames: Frames, is_in_layer: bool, kinds: FrameKinds) -> Frames:
    """Leave out how PyTorch calls a module, and the module's `forward`, for which the layer's span stands."""
    first = next((place for place, frame in enumerate(frames) if frame not in kinds.machinery), len(frames))
    if is_in_layer and 0 < first < len(frames) and frames[first] in kinds.forwards:
        frames = frames[first + 1 :]
    return tuple(frame for frame in frames if frame not in kinds.machinery)


def _around(
    stacks: ThreadStacks, spans: ThreadSpans, samples: list[PlacedSample], prefixes: dict[int, _Prefix]
) -> dict[int, tuple[Frames, Frames]]:
    """Return for each outermost span that no sample met the frames of those before and after it."""
    found: dict[int, tuple[Frames, Frames]] = {}
    until = None
    after = 0
    moments = [
        min(t_ns, t_ns - duration_ns + stacks.interval_ns)
        for t_ns, duration_ns in zip(stacks.t_ns, stacks.duration_ns, strict=True)
    ]
    for place, (start, end) in enumerate(zip(spans.start_ns, spans.end_ns, strict=True)):
        if until is not None and end <= until:
            continue
        until = end
        while after < len(moments) and moments[after] < start:
            after += 1
        if place in prefixes or not 0 < after < len(moments):
            continue
        found[spans.keys[place]] = (samples[after - 1].groups[0], samples[after].groups[0])
    return found


def guess(seen: set[Frames], around: tuple[Frames, Frames] | None) -> Frames:
    """Return the frames above a span that no sample met.

    `seen` are those of other calls of the same path, `around` the frames of the samples before and after it,
    for an outermost span. Of the ways that were seen those count that fit to both of them, or else to one;
    they give what they agree on. Where none fits it is what the two samples share.
    """
    ways = list(seen)
    if around is None:
        return _common(ways)
    fits = {way: sum(_fits(way, frames) for frames in around) for way in ways}
    best = max(fits.values(), default=0)
    return _common([way for way in ways if fits[way] == best]) if best else _common(list(around))


def _fits(way: Frames, frames: Frames) -> bool:
    # A function may have been left or entered between the call and the sample.
    return common_length(way, frames) == min(len(way), len(frames))


def _common(ways: list[Frames]) -> Frames:
    if not ways:
        return ()
    shortest = min(ways, key=len)
    return shortest[: min(common_length(shortest, way) for way in ways)]
