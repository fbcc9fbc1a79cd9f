# SPDX-License-Identifier: Apache-2.0
"""Which frames of a stack enclose a span: those above its boundary.

A layer is a call of `Module.__call__`, whose frame is on the stack. Spans that PyTorch opens begin in known
functions. No frame of Python is inside an operator. Any other span can begin at any depth: frames that the
sample before it or after it has, too, enclose it. Frames that only samples inside of it have are below it.
"""

from __future__ import annotations

import bisect
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuprof.record.frame_text import MODULE_CALL
from gpuprof.run.stacks import Frames

NOTHING = -1  # no span, no group, and no length
MOST_KEPT = 1 << 16  # results that a cache holds
BUILTIN = " (built-in)"
# Of the calls from one place, those with a frame before or after them. With fewer, the frame is that of
# another call, or of a sample that was dated late.
FEWEST_SEEN = 0.1
LATE_NS = 50_000  # after the end of a span, a sample may show the stack inside of it
# Of calls from which a typical one follows. A rare way may come from a sample that was dated too late.
TYPICAL_FRACTION = 0.9
_MOST_WAYS = 32  # to call the same span
_MOST_STACKS = 1024  # of one span, that a vote looks at

_MODULE_FILE = "(torch/nn/modules/module.py"


class _Opener(NamedTuple):
    """A function of PyTorch that opens spans whose names begin with `span`."""

    span: str
    functions: tuple[str, ...]  # the second without its class, as Python 3.10 has it
    file: str


_OPENERS = (
    _Opener(
        "Optimizer.step#",
        ("Optimizer.profile_hook_step.<locals>.wrapper", "wrapper"),
        "(torch/optim/optimizer.py:",
    ),
    _Opener("Optimizer.zero_grad#", ("Optimizer.zero_grad", "zero_grad"), "(torch/optim/optimizer.py:"),
    _Opener(
        "enumerate(DataLoader)#",
        ("_BaseDataLoaderIter.__next__", "__next__"),
        "(torch/utils/data/dataloader.py:",
    ),
)


def opener_of(name: str) -> int:
    """Return the number of the function that opens spans of this name; NOTHING if it is not known."""
    return next((number for number, each in enumerate(_OPENERS) if name.startswith(each.span)), NOTHING)


@dataclass(frozen=True, slots=True)
class FrameKinds:
    """What the frames of a run are, by their numbers."""

    module_calls: frozenset[int]  # of `Module.__call__`
    machinery: frozenset[int]  # these, and what PyTorch calls between them and `forward`
    forwards: frozenset[int]
    builtins: frozenset[int]
    openers: tuple[frozenset[int], ...]  # see `opener_of`

    @classmethod
    def of(cls, texts: Sequence[str]) -> FrameKinds:
        """Classify the frames by their texts."""

        def numbers(is_one: Callable[[str], bool]) -> frozenset[int]:
            return frozenset(number for number, text in enumerate(texts) if is_one(text))

        return cls(
            module_calls=numbers(lambda text: text == MODULE_CALL),
            machinery=numbers(lambda text: "_call_impl" in text and _MODULE_FILE in text),
            forwards=numbers(lambda text: text.partition(" ")[0].rpartition(".")[2] == "forward"),
            builtins=numbers(lambda text: text.endswith(BUILTIN)),
            openers=tuple(numbers(_is_of(opener)) for opener in _OPENERS),
        )


def _is_of(opener: _Opener) -> Callable[[str], bool]:
    def is_one(text: str) -> bool:
        function, _, place = text.partition(" ")
        return function in opener.functions and place.startswith(opener.file)

    return is_one


@dataclass(slots=True)
class ThreadSpans:
    """The spans of one thread by their begin, outer ones first. `keys` are the caller's names for them."""

    keys: Sequence[int] = ()
    start_ns: Sequence[int] = ()
    end_ns: Sequence[int] = ()
    is_layer: Sequence[int] = ()
    is_native: Sequence[int] = ()  # operators and the like: no frame of Python is inside
    families: Sequence[int] = ()  # equal for spans of the same path
    openers: Sequence[int] = ()  # see `opener_of`
    # When spans ended that can begin at any depth, in order; also of those that are not among these.
    free_ends: Sequence[int] = ()


def common_length(first: Frames, second: Frames, limit: int | None = None) -> int:
    """Return how many frames both begin with."""
    most = min(len(first), len(second), len(first) if limit is None else limit)
    if first is second or first[:most] == second[:most]:
        return most
    same, other = 0, most
    while other - same > 1:
        middle = (same + other) // 2
        if first[same:middle] == second[same:middle]:
            same = middle
        else:
            other = middle
    return same


def common_frames(stacks: Iterable[Frames]) -> Frames:
    """Return the frames that all stacks begin with."""
    known = list(stacks)
    if not known:
        return ()
    shortest = min(known, key=len)
    return shortest[: min(common_length(shortest, each) for each in known)]


def typical_frames(stacks: Mapping[Frames, int]) -> Frames:
    """Return what the most frequent stacks begin with, which are together 90% of the calls."""
    missing = TYPICAL_FRACTION * sum(stacks.values())
    chosen = []
    for stack, count in sorted(stacks.items(), key=lambda each: -each[1]):
        if missing <= 0:
            break
        chosen.append(stack)
        missing -= count
    return common_frames(chosen)


class _Sample(NamedTuple):
    frames: Frames
    opened: tuple[int, ...]
    is_late: bool  # it may show a moment before its own


class SpanBoundaries:
    """Reads the samples of a thread once, in order of time; `lengths` then has the boundaries of its spans.

    A boundary is the number of frames above it. It is NOTHING for a span that no sample met, or none of which
    its boundary follows. `outermost` is the function in which the thread begins.
    """

    def __init__(self, spans: ThreadSpans, kinds: FrameKinds, outermost: Frames) -> None:
        count = len(spans.keys)
        # At first: how many frames all samples inside a span have in common, as far as it can begin.
        self.lengths: MutableSequence[int] = array("i", [NOTHING]) * count
        # How many of them the samples before and after it have; NOTHING where these are of no use.
        self._seen = array("i", [NOTHING]) * count
        # The same without what follows from the boundary of another span, which the sample before is in.
        self._seen_alone = array("i", [NOTHING]) * count
        self._spans = spans
        self._kinds = kinds
        self._module_calls = _ModuleCalls(kinds)
        self._open: dict[int, Frames] = {}  # the first stack inside each open span
        self._stacks: dict[int, Frames] = {}  # of each span that can begin at any depth
        self._outermost = outermost
        self._former: _Sample | None = None
        self._ends = spans.free_ends

    def add(self, frames: Frames, opened: tuple[int, ...], moment: int) -> None:
        """Take in the stack of a sample, its moment, and the spans that were open then, outermost first."""
        former = self._former
        sample = self._former = _Sample(frames, opened, self._is_late(moment))
        if former is not None and opened == former.opened and frames == former.frames:
            return
        lengths = self._in_sample(frames, opened)
        if former is None or opened != former.opened:
            if former is not None:
                self._compare(former, sample, lengths)
            self._open = {place: self._open.get(place, frames) for place in opened}
        common: dict[int, int] = {}
        for place, length in zip(opened, lengths, strict=True):
            self._add_to(place, frames, length, common)

    def _is_late(self, moment: int) -> bool:
        """Whether a span ended so shortly before the sample that this may be one of inside of it."""
        at = bisect.bisect_right(self._ends, moment)
        return at > 0 and moment - self._ends[at - 1] < LATE_NS

    def _add_to(self, place: int, frames: Frames, length: int, common: dict[int, int]) -> None:
        """Take in the stack for one span. `common` has its common lengths with others, by their `id`.

        Spans that begin before the same sample have the same first stack.
        """
        known, first = self.lengths[place], self._open[place]
        if known >= 0 and frames[:1] != first[:1]:
            # Read while a generator was entered or left, a stack has lost its outer frames.
            if frames[:1] != self._outermost:
                return
            known = NOTHING
            self._open[place] = first = frames
        if id(first) not in common:
            common[id(first)] = common_length(first, frames)
        self.lengths[place] = min(common[id(first)], length if known < 0 else min(known, length))
        if known < 0 and self._begins_anywhere(place):
            self._stacks[place] = frames

    def _begins_anywhere(self, place: int) -> bool:
        return not (self._spans.is_layer[place] or self._spans.is_native[place])

    def _in_sample(self, frames: Frames, opened: tuple[int, ...]) -> list[int]:
        """Return for each open span how many frames can be above it.

        The layers that are open are the calls of modules on the stack, in order; the innermost may not have
        got as far as its frame. Where there are more calls than layers the match is ambiguous. Other
        spans are as far down as the next layer allows, but above a built-in function, which begins no span
        that is not native.
        """
        most = len(frames) - bool(frames and frames[-1] in self._kinds.builtins)
        is_layer, openers = self._spans.is_layer, self._spans.openers
        calls = self._module_calls.of(frames)
        if len(calls) > sum([is_layer[place] for place in opened]):
            calls = []
        found: list[int] = []
        layers = at = 0
        for place in opened:
            limit = calls[layers] if layers < len(calls) else most
            opener = self._opener_in(place, frames, at, limit) if openers[place] >= 0 else NOTHING
            if opener != NOTHING:
                at = limit = opener + 1
            elif is_layer[place] and layers < len(calls):
                at = limit + 1
            found.append(limit)
            layers += is_layer[place]
        for place in range(len(found) - 2, -1, -1):
            found[place] = min(found[place], found[place + 1])
        return found

    def _opener_in(self, place: int, frames: Frames, begin: int, end: int) -> int:
        """Return where the function that opened a span is on the stack."""
        wanted = self._kinds.openers[self._spans.openers[place]]
        return next((at for at in range(begin, end) if frames[at] in wanted), NOTHING)

    def _compare(self, before: _Sample, sample: _Sample, lengths: list[int]) -> None:
        """Note which frames two samples share, outside of the spans that begin or end between them."""
        opened, opened_before = set(sample.opened), set(before.opened)
        ended = [place for place in before.opened if place not in opened]
        begun = {
            place: length
            for place, length in zip(sample.opened, lengths, strict=True)
            if place not in opened_before
        }
        is_layer = self._spans.is_layer
        limits = [self.lengths[place] for place in ended if is_layer[place]]
        spans = [place for place in ended if self._begins_anywhere(place)]
        if spans:
            known = [self._seen_alone[place] for place in spans]
            if NOTHING not in known:
                self._note(begun, before, sample, [*limits, *known], is_alone=False)
        elif not before.is_late:
            self._note(begun, before, sample, limits)
        if not sample.is_late and not any(map(self._begins_anywhere, begun)):
            limits = [length for place, length in begun.items() if is_layer[place]]
            self._note(ended, before, sample, limits)

    def _note(
        self,
        places: Iterable[int],
        before: _Sample,
        sample: _Sample,
        limits: list[int],
        *,
        is_alone: bool = True,
    ) -> None:
        limit = min(limits, default=len(sample.frames))
        for place in places:
            if self._begins_anywhere(place):
                length = common_length(before.frames, sample.frames, limit)
                for seen in (self._seen, self._seen_alone) if is_alone else (self._seen,):
                    seen[place] = max(seen[place], length)

    def decide(self) -> None:
        """Choose the boundaries of spans that can begin at any depth, after the last sample."""
        families: defaultdict[int, list[int]] = defaultdict(list)
        opened = {self._spans.families[place] for place in self._stacks if self._has_opener(place)}
        for place in self._stacks:
            family = self._spans.families[place]
            if family not in opened:
                families[family].append(place)
            elif not self._has_opener(place):
                self.lengths[place] = NOTHING
        for places in families.values():
            stacks = {place: self._stacks[place][: self.lengths[place]] for place in places}
            ways = _Ways([(stack, self._seen[place]) for place, stack in stacks.items()])
            for place, stack in stacks.items():
                self.lengths[place] = ways.length_in(stack)

    def _has_opener(self, place: int) -> bool:
        opener, length = self._spans.openers[place], self.lengths[place]
        return (
            opener != NOTHING
            and length > 0
            and self._stacks[place][length - 1] in self._kinds.openers[opener]
        )


class _Ways:
    """How the spans of one path are called: the frames that were seen outside of them.

    A function that does little before and after a span is seen there in few calls, so all of them count.
    `calls` has for each the stack, and how many of its frames were seen outside, NOTHING if it is unknown.
    """

    def __init__(self, calls: Sequence[tuple[Frames, int]]) -> None:
        known = Counter(stack for stack, length in calls if length >= 0)
        seen = Counter(stack[:length] for stack, length in calls if length >= 0)
        stacks = dict(known.most_common(_MOST_STACKS))
        self._ways = [way for way, _ in seen.most_common(_MOST_WAYS) if _is_frequent(way, stacks, seen)]
        self._known: dict[Frames, int] = {}
        others = Counter(stack for stack, _ in calls if self._longest_in(stack) < 0)
        self._typical = typical_frames(dict(others.most_common(_MOST_STACKS)))

    def length_in(self, stack: Frames) -> int:
        """Return how many frames of a stack enclose the span."""
        longest = self._longest_in(stack)
        return longest if longest >= 0 else common_length(stack, self._typical)

    def _longest_in(self, stack: Frames) -> int:
        found = self._known.get(stack)
        if found is None:
            lengths = (len(way) for way in self._ways if stack[: len(way)] == way)
            found = self._known[stack] = max(lengths, default=NOTHING)
        return found


def _is_frequent(way: Frames, stacks: Mapping[Frames, int], seen: Mapping[Frames, int]) -> bool:
    length = len(way)
    possible = sum(count for stack, count in stacks.items() if stack[:length] == way)
    return sum(count for each, count in seen.items() if each[:length] == way) >= FEWEST_SEEN * possible


class _ModuleCalls:
    """Where the calls of modules are on each stack."""

    def __init__(self, kinds: FrameKinds) -> None:
        self._wanted = kinds.module_calls
        self._known: dict[Frames, list[int]] = {}

    def of(self, frames: Frames) -> list[int]:
        """Return the places of the frames of `Module.__call__`, outermost first."""
        calls = self._known.get(frames)
        if calls is None:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            calls = self._known[frames] = [at for at, frame in enumerate(frames) if frame in self._wanted]
        return calls


def shown_frames(frames: Frames, is_in_layer: bool, kinds: FrameKinds) -> Frames:
    """Leave out how PyTorch calls a module, and the module's `forward`, which the layer's span represents."""
    if is_in_layer:
        frames = frames[forward_end(frames, 0, kinds) :]
    return tuple(frame for frame in frames if frame not in kinds.machinery)


def forward_end(frames: Frames, begin: int, kinds: FrameKinds) -> int:
    """Return where a layer's own frames end: `Module.__call__` at `begin`, what that calls, and `forward`."""
    at = begin
    while at < len(frames) and frames[at] in kinds.machinery:
        at += 1
    return at + 1 if begin < at < len(frames) and frames[at] in kinds.forwards else at
