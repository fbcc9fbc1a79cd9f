# SPDX-License-Identifier: Apache-2.0
"""Joins counted operators to timed ones, by layer and by their order in it.

In the forward pass each layer of each call of a root is aligned by itself. The backward pass knows no
layers while it is timed: what runs between two forward passes is aligned with the counted backward passes
of the roots that were called before it, the last one first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuprof.analyze.roofline.alignment import align
from gpuprof.analyze.roofline.counted import COMPILED, CountedRow, plain_name
from gpuprof.analyze.roofline.device_work import Execution
from gpuprof.analyze.roofline.similar import similar_to_first
from gpuprof.analyze.roofline.timed import Span, Timed

# A backward pass belongs to one of the forward passes shortly before it.
_FORWARD_PASSES_BEFORE = 8


@dataclass(slots=True)
class Joined:
    """A counted operator, the durations of its timed calls, and how well its surroundings aligned.

    What its calls had done on GPUs is in `executions`, by device; their durations are then those of the host.
    """

    row: CountedRow
    durations_ns: list[int] = field(default_factory=list)
    quality: float = 1.0
    qualities: list[float] = field(default_factory=list)
    executions: dict[str, list[Execution]] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether any of its calls had work done on a GPU."""
        return bool(self.executions)


@dataclass(slots=True)
class Join:
    """All counted rows, and the timed operators that have no counted partner."""

    rows: list[Joined]
    unmatched: list[Span]
    # In calls that do other work than the one that was counted, such as batches of another size.
    other_work: list[Span]
    backward_passes: int = 0


class _Joiner:
    def __init__(self, counted: Sequence[CountedRow]) -> None:
        self.rows = [Joined(row) for row in counted]
        self.unmatched: list[Span] = []
        self.other_work: list[Span] = []
        self._known: dict[object, list[tuple[int, int]]] = {}

    def match(self, key: object, counted: Sequence[int], timed: Sequence[Span]) -> None:
        """Align the counted rows with these numbers to timed operators; `key` stands for the rows."""
        names = tuple(plain_name(span.name) if span.kind != "layer" else COMPILED for span in timed)
        pairs = self._known.get((key, names))
        if pairs is None:
            pairs = align([plain_name(self.rows[number].row.operator) for number in counted], names)
            self._known[key, names] = pairs
        quality = 2 * len(pairs) / (len(counted) + len(names)) if pairs else 0.0
        matched = set()
        for left, right in pairs:
            joined = self.rows[counted[left]]
            joined.durations_ns.append(timed[right].duration_ns)
            joined.qualities.append(quality)
            for execution in timed[right].executions:
                joined.executions.setdefault(execution.device, []).append(execution)
            matched.add(right)
        self.unmatched += [span for at, span in enumerate(timed) if at not in matched]

    def finish(self) -> None:
        """Set the quality of each row: of its surroundings, where it was found."""
        for joined in self.rows:
            if joined.qualities:
                joined.quality = sum(joined.qualities) / len(joined.qualities)


def names_to_look_for(
    counted: Iterable[CountedRow],
) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
    """Return what the timed side is searched for: (root, operator) of forward passes, backward operators.

    Names are plain ones, without the mark of the in-place form.
    """
    forward, backward = set(), set()
    for row in counted:
        if row.phase == "backward":
            backward.add(plain_name(row.operator))
        elif row.is_compiled:
            forward.add((row.root, f"{COMPILED}{row.layer}"))
        else:
            forward.add((row.root, plain_name(row.operator)))
    return frozenset(forward), frozenset(backward)


def join(counted: Sequence[CountedRow], timed: Timed, given: Mapping[int, bool] | None = None) -> Join:
    """Find the timed calls of each counted operator.

    `given` says of calls of roots, as far as it is known, whether their inputs were like the counted one's.
    """
    joiner = _Joiner(counted)
    given = given or {}
    alike = similar_calls(timed, given)
    _join_forward(joiner, counted, timed, alike)
    passes = _join_backward(
        joiner, counted, timed, alike if given.keys() >= timed.root_calls.keys() else None
    )
    joiner.finish()
    return Join(joiner.rows, joiner.unmatched, joiner.other_work, passes)


def _join_forward(
    joiner: _Joiner, counted: Sequence[CountedRow], timed: Timed, chosen: Collection[int]
) -> None:
    by_layer: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, row in enumerate(counted):
        if row.phase != "backward":
            by_layer[row.root, row.layer].append(number)
    for call, (root, layers) in timed.root_calls.items():
        for layer, spans in layers.items():
            if call in chosen:
                joiner.match((root, layer), by_layer.get((root, layer), []), spans)
            else:
                joiner.other_work += spans


def similar_calls(timed: Timed, given: Mapping[int, bool]) -> set[int]:
    """Return the calls of roots that do what the first call of their root did: by `given`, or by duration."""
    by_root: dict[str, list[int]] = defaultdict(list)
    for call, (root, _) in timed.root_calls.items():
        by_root[root].append(call)
    chosen: set[int] = set()
    for calls in by_root.values():
        if all(call in given for call in calls):
            chosen.update(call for call in calls if given[call])
            continue
        durations = [
            sum(span.duration_ns for spans in timed.root_calls[call][1].values() for span in spans)
            for call in calls
        ]
        similar = similar_to_first(durations)
        chosen.update(call for call, alike in zip(calls, similar, strict=True) if alike)
    return chosen


def _join_backward(
    joiner: _Joiner, counted: Sequence[CountedRow], timed: Timed, alike_calls: Collection[int] | None
) -> int:
    """Join what ran between forward passes; where `alike_calls` is None their durations tell them apart."""
    by_root: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(counted):
        if row.phase == "backward":
            by_root[row.root].append(number)
    called: list[int] = []
    operators: list[Span] = []
    passes: list[_BackwardPass] = []

    def end_pass() -> None:
        calls = [call for call in called if timed.root_calls[call][0] in by_root][-_FORWARD_PASSES_BEFORE:]
        passes.append(_BackwardPass(tuple(reversed(calls)), list(operators)))
        operators.clear()

    for _, event in timed.events:
        if isinstance(event, Span):
            operators.append(event)
            continue
        if operators:
            end_pass()
            called.clear()
        called.append(event)
    if operators:
        end_pass()
    for each, alike in zip(passes, _alike_passes(passes, alike_calls), strict=True):
        expected = tuple(timed.root_calls[call][0] for call in each.calls)
        if alike:
            joiner.match(expected, [number for root in expected for number in by_root[root]], each.spans)
        else:
            joiner.other_work += each.spans
    return len(passes)


@dataclass(frozen=True, slots=True)
class _BackwardPass:
    """The calls of roots that it can belong to, the last one first, and its operators."""

    calls: tuple[int, ...]
    spans: list[Span]


def _alike_passes(passes: Sequence[_BackwardPass], alike_calls: Collection[int] | None) -> list[bool]:
    if alike_calls is None:
        return similar_to_first([sum(span.duration_ns for span in each.spans) for each in passes])
    return [all(call in alike_calls for call in each.calls) for each in passes]
