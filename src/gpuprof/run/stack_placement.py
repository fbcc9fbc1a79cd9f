# SPDX-License-Identifier: Apache-2.0
"""Which Python frames enclose which span: samples of stacks compared with the spans of their thread.

The native sampler reads a stack at the end of the duration of its sample. A sample of pyinstrument is taken
at the first call or return of a Python function after it was due, so its stack is that of the moment when it
was due, and of the time until it was taken.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, MutableSequence
from dataclasses import dataclass, field

from gpuprof.run.call_sites import waited_ns
from gpuprof.run.span_boundaries import (
    MOST_KEPT,
    NOTHING,
    FrameKinds,
    SpanBoundaries,
    ThreadSpans,
    forward_end,
    shown_frames,
)
from gpuprof.run.stacks import Frames, ThreadStacks

IDLE_FRACTION = 0.95  # of a thread's time; one that waits for longer is idle

Groups = tuple[int, ...]


@dataclass(slots=True)
class FrameGroups:
    """Numbers for the pieces of stacks between spans, so that equal ones are held once."""

    frames: list[Frames] = field(default_factory=list)
    _numbers: dict[Frames, int] = field(default_factory=dict)

    def number(self, frames: Frames) -> int:
        """Return the number of a group; from now on it is known."""
        found = self._numbers.get(frames)
        if found is None:
            found = self._numbers[frames] = len(self.frames)
            self.frames.append(frames)
        return found


@dataclass(slots=True)
class SpanFrames:
    """The frames around spans by the spans' keys, from samples; the numbers are those of groups."""

    # Of each span that a sample met and whose boundary is known: the frames between its parent and it.
    above: dict[int, int] = field(default_factory=dict)
    # By thread: the moments of its samples, and the frames above all spans in each.
    outer: dict[tuple[int, int], tuple[MutableSequence[int], MutableSequence[int]]] = field(
        default_factory=dict
    )


@dataclass(slots=True)
class PlacedSample:
    """One sample: the spans open at its moment, outermost first, and the frames between them.

    `groups` has one more element than `open`: the frames above the first span, ..., those below the last.
    `time_ns` is the time of the sample's window by innermost span, for `open` and NOTHING. In `waited_ns` of
    the whole window, `duration_ns`, the thread waited.
    """

    open: tuple[int, ...]
    groups: Groups
    time_ns: dict[int, int]
    waited_ns: int
    duration_ns: int

    def by_span(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield span or NOTHING, the group below it, its time, and how much of that was a wait.

        The innermost span is first, and has the wait: a thread that waits neither begins a span nor ends one.
        It is there also without time.
        """
        waited = self.waited_ns
        innermost = self.open[-1] if self.open else NOTHING
        for key, group in zip((*self.open[::-1], NOTHING), self.groups[::-1], strict=True):
            time_ns = self.time_ns.get(key, 0)
            waits_here = min(time_ns, waited)
            waited -= waits_here
            if time_ns > 0 or key == innermost:
                yield key, group, time_ns, waits_here


class FrameTimes:
    """Divides the time of a thread's samples among the frames below spans.

    A sample inside an inner span does not show which functions ran in the outer span before the inner one
    began: this time is open. A sample directly in the outer span is one of its whole interval, of which other
    spans have a part. In proportion to this part its frames get the open time, at most twice as much. What is
    left belongs to the frames around the inner spans. So functions that call short spans have no time of the
    functions before them. Only samples of about the same time are compared, and spans with the same `holder`
    are equal.

    A wait ended before the inner span began: it belongs to the sample before, if that is directly in the same
    outer span.
    """

    def __init__(self) -> None:
        self._count = 0
        self._former = (NOTHING - 1, 0)  # span and group of the sample before
        # By holder: open time by group around the inner span, and what samples in the holder lack by group.
        self._open: dict[int, dict[int, int]] = {}
        self._lacking: dict[int, dict[int, int]] = {}

    def of(
        self, sample: PlacedSample, holder_of: Callable[[int], int]
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield holder, group, time and wait, as far as the sample shows them, and what it decides."""
        former: tuple[int, int] | None = None
        for key, group, time_ns, waited in sample.by_span():
            holder = holder_of(key)
            if former is None:
                former, self._former = self._former, (key, group)
                _add(self._lacking, holder, group, sample.duration_ns - time_ns)
                yield holder, group, time_ns, waited
                continue
            if waited:
                yield holder, former[1] if former[0] == key else group, waited, waited
            _add(self._open, holder, group, time_ns - waited)
        self._count += 1
        if self._count == _COMPARED:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the open time, and begin again."""
        for holder, around in self._open.items():
            open_ns, lacking = sum(around.values()), self._lacking.get(holder, {})
            given = min(open_ns, _MOST_TIMES * sum(lacking.values()))
            for groups, time_ns in ((lacking, given), (around, open_ns - given)):
                for group, part in zip(groups, shared(time_ns, list(groups.values())), strict=False):
                    yield holder, group, part, 0
        self._count = 0
        self._open.clear()
        self._lacking.clear()


# Consecutive samples: a quarter of a second at 1 kHz, in which the functions of several steps are seen.
_COMPARED = 256
# Stacks that change while they are read are dropped, more often those directly in a span.
_MOST_TIMES = 2


def _add(sums: dict[int, dict[int, int]], holder: int, group: int, time_ns: int) -> None:
    if time_ns > 0:
        own = sums.setdefault(holder, {})
        own[group] = own.get(group, 0) + time_ns


def shared(total: int, weights: list[int]) -> list[int]:
    """Divide a number in proportion to `weights`; the parts add up to it."""
    whole = sum(weights)
    if whole <= 0:
        return [total, *[0] * (len(weights) - 1)]
    parts = [total * weight // whole for weight in weights]
    parts[0] += total - sum(parts)
    return parts


class Placement:
    """Places the samples of a thread among its spans, which are identified by their keys.

    Samples are read three times and not kept: first comes what several of them have in common for a span.
    """

    def __init__(
        self, stacks: ThreadStacks, spans: ThreadSpans, kinds: FrameKinds, groups: FrameGroups
    ) -> None:
        self._stacks = stacks
        self._spans = spans
        self._kinds = kinds
        self._numbers = groups
        self._known: dict[tuple[Frames, tuple[int, ...], tuple[int, ...]], Groups] = {}
        self._outermost = outermost_frame(stacks)
        boundaries = SpanBoundaries(spans, kinds, self._outermost)
        for moment, (frames, opened, _) in zip(moments_of(stacks), self._swept(), strict=True):
            boundaries.add(frames, opened, moment)
        boundaries.decide()
        # How many frames enclose each span; NOTHING where no sample met it.
        self._lengths = boundaries.lengths

    def samples(self) -> Iterator[PlacedSample]:
        """Yield the samples, placed."""
        keys = self._spans.keys
        stacks = self._stacks
        waits = map(waited_ns, stacks.duration_ns, stacks.cpu_ns, stacks.queued_ns)
        swept = zip(self._swept(), waits, stacks.duration_ns, strict=True)
        for (frames, opened, times), waited, duration_ns in swept:
            times_ns = {NOTHING if place < 0 else keys[place]: time for place, time in times.items()}
            groups = self._groups(frames, opened)
            yield PlacedSample(
                tuple([keys[place] for place in opened]), groups, times_ns, waited, duration_ns
            )

    def is_idle(self) -> bool:
        """Whether the thread has no span, and did nothing but wait, wake up and wait again."""
        stacks = self._stacks
        waited = sum(map(waited_ns, stacks.duration_ns, stacks.cpu_ns, stacks.queued_ns))
        return not len(self._spans.keys) and waited >= IDLE_FRACTION * sum(stacks.duration_ns) > 0

    def add_to(self, found: SpanFrames) -> None:
        """Add what is known of the spans of this thread."""
        keys = self._spans.keys
        moments, outer = array("q"), array("i")
        found.outer[self._stacks.process_id, self._stacks.thread_id] = moments, outer
        for moment, (frames, opened, _) in zip(moments_of(self._stacks), self._swept(), strict=True):
            groups = self._groups(frames, opened)
            is_whole = frames[:1] == self._outermost
            for place, group in zip(opened, groups, strict=False):
                if self._lengths[place] >= 0 and (is_whole or keys[place] not in found.above):
                    found.above[keys[place]] = group
            if is_whole:
                moments.append(moment)
                outer.append(groups[0])

    def _swept(self) -> Iterator[tuple[Frames, tuple[int, ...], dict[int, int]]]:
        """Yield the frames of each sample, the spans open at its moment, and its time by innermost span."""
        for frames, (opened, times) in zip(
            self._stacks.frames, sweep(self._stacks, self._spans), strict=True
        ):
            yield self._without_builtin(frames, opened), opened, times

    def _without_builtin(self, frames: Frames, opened: tuple[int, ...]) -> Frames:
        # The function that calls an operator adds nothing to the operator itself.
        is_redundant = (
            opened and frames and frames[-1] in self._kinds.builtins and self._spans.is_native[opened[-1]]
        )
        return frames[:-1] if is_redundant else frames

    def _groups(self, frames: Frames, opened: tuple[int, ...]) -> Groups:
        """Return the frames that are shown above, between and below the open spans."""
        lengths = tuple([self._lengths[place] for place in opened])
        is_layer = tuple([self._spans.is_layer[place] for place in opened])
        key = (frames, lengths, is_layer)
        groups = self._known.get(key)
        if groups is None:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            groups = self._known[key] = self._cut(*key)
        return groups

    def _cut(self, frames: Frames, lengths: tuple[int, ...], is_layer: tuple[int, ...]) -> Groups:
        bounds = [0]
        low = 0  # a span is not above the one around it, and below the own frames of a layer around it
        for length, layer in zip(lengths, is_layer, strict=True):
            bounds.append(min(max(length, low), len(frames)))
            low = forward_end(frames, bounds[-1], self._kinds) if layer else bounds[-1]
        parts = zip(bounds, (*bounds[1:], len(frames)), (False, *is_layer), strict=True)
        return tuple(
            self._numbers.number(shown_frames(frames[begin:end], bool(layer), self._kinds))
            for begin, end, layer in parts
        )


def outermost_frame(stacks: ThreadStacks) -> Frames:
    """Return the function in which a thread begins: that at the bottom of most of its stacks."""
    counts = Counter(frames[0] for frames in stacks.frames if frames)
    return tuple(frame for frame, _ in counts.most_common(1))


def moments_of(stacks: ThreadStacks) -> Iterator[int]:
    """Yield the moment of which each sample shows the stack."""
    if stacks.is_of_end:
        yield from stacks.t_ns
        return
    for t_ns, duration_ns in zip(stacks.t_ns, stacks.duration_ns, strict=True):
        yield min(t_ns, t_ns - duration_ns + stacks.interval_ns)


def sweep(stacks: ThreadStacks, spans: ThreadSpans) -> Iterator[tuple[tuple[int, ...], dict[int, int]]]:
    """Yield for each sample the open spans at its moment, and the time of its window by innermost span."""
    swept = _Sweep(spans)
    for moment, t_ns, duration_ns in zip(moments_of(stacks), stacks.t_ns, stacks.duration_ns, strict=True):
        swept.advance(t_ns - duration_ns)
        swept.times = {}
        swept.advance(moment)
        opened = tuple(swept.open)
        swept.advance(t_ns)
        yield opened, {key: swept.times[key] for key in (NOTHING, *opened) if key in swept.times}


class _Sweep:
    def __init__(self, spans: ThreadSpans) -> None:
        self.open: list[int] = []
        self.times: dict[int, int] = {}
        self._spans = spans
        self._next = 0
        self._ends: list[tuple[int, int]] = []
        self._now: int | None = None

    def advance(self, until: int) -> None:
        """Advance to an instant. Spans that end then are closed, those that begin then are open."""
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
