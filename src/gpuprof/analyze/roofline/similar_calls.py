# SPDX-License-Identifier: Apache-2.0
"""The calls of a root that do the same work as its first one, which was counted.

The recording stores for each call whether its inputs were like those of the first one. Where that does not
fit the spans, as in runs of earlier versions and where events were lost, durations separate the calls: a
model that is trained on batches and then generates token by token has two separate groups of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

_Value = TypeVar("_Value")
_MOST_CALLS = 1_000_000  # more are never stored
# Durations that differ by more than both of these, with none in between, are of different work.
_APART = 2.0
_APART_NS = 1e6
# The first call also compiles, allocates and reads: it may take this much longer than equal work.
_WARM_UP = 8.0
_WARM_UP_NS = 50e6


def given_alike(folder: RunFolder, process_id: int) -> dict[int, bool]:
    """Return by the number of its span whether a call of a root was given inputs like those of its first one.

    A root is left out where the stored calls are not the recorded ones.
    """
    return _by_span(folder, process_id, dict(_marked(folder.meta.get("work"))))


def signature_numbers(folder: RunFolder, process_id: int) -> dict[int, int]:
    """Return by the number of its span which signature the inputs of a call of a root had.

    A root is left out where the stored calls are not the recorded ones, and in runs of earlier versions.
    """
    return _by_span(folder, process_id, dict(_numbered(folder.meta.get("work"))))


def _by_span(
    folder: RunFolder, process_id: int, stored: dict[tuple[str, int], list[_Value]]
) -> dict[int, _Value]:
    """Return what is stored of the calls of each root and thread, by the number of the call's span."""
    if not stored:
        return {}
    roots = {root for root, _ in stored}
    spans: dict[tuple[str, int], list[int]] = {}
    for name, thread, span, _ in outermost_calls(folder, process_id):
        if name in roots:
            spans.setdefault((name, thread), []).append(span)
    keys = spans.keys() | stored.keys()
    unfit = {key[0] for key in keys if len(spans.get(key, ())) != len(stored.get(key, ()))}
    return {
        span: value
        for key, calls in spans.items()
        if key[0] not in unfit
        for span, value in zip(calls, stored[key], strict=True)
    }


def outermost_calls(folder: RunFolder, process_id: int) -> list[tuple[str, int, int, int]]:
    """Return name, thread, number and duration of each call of a layer outside of others, in order.

    Calls in the backward pass, as of checkpoints, are not among them.
    """
    ends = (
        "max(start_ns + duration_ns) OVER (PARTITION BY thread_id ORDER BY start_ns, span_id "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    )
    query = f"""
        SELECT name, thread_id, span_id, duration_ns FROM (
            SELECT *, {ends} AS covered_ns FROM spans
            WHERE kind IN ('layer', 'backward') AND process_id = {int(process_id)})
        WHERE kind = 'layer' AND start_ns >= coalesce(covered_ns, start_ns) ORDER BY start_ns, span_id
    """  # noqa: S608 - a whole number
    return folder.sql(query).fetchall()


def _marked(work: Any) -> Iterator[tuple[tuple[str, int], list[bool]]]:
    """Yield root and thread with a mark for each call. Damaged rows are left out."""
    given = work.get("given") if isinstance(work, dict) else None
    for row in given if isinstance(given, list) else ():
        match row:
            case {"root": str(root), "thread_id": int(thread), "stretches": [*lengths]}:
                if all(type(length) is int and 0 <= length <= _MOST_CALLS for length in lengths):
                    marks = ([at % 2 == 0] * length for at, length in enumerate(lengths))
                    yield (root, thread), list(chain.from_iterable(marks))


def _numbered(work: Any) -> Iterator[tuple[tuple[str, int], list[int]]]:
    """Yield root and thread with the signature of each call. Damaged rows are left out."""
    given = work.get("given") if isinstance(work, dict) else None
    for row in given if isinstance(given, list) else ():
        match row:
            case {"root": str(root), "thread_id": int(thread), "runs": [*runs]}:
                is_whole = all(type(each) is int and 0 <= each <= _MOST_CALLS for each in runs)
                if is_whole and len(runs) % 2 == 0 and sum(runs[1::2]) <= _MOST_CALLS:
                    calls = ([number] * count for number, count in zip(runs[::2], runs[1::2], strict=True))
                    yield (root, thread), list(chain.from_iterable(calls))


def similar_to_first(durations: Sequence[float]) -> list[bool]:
    """Return for each call whether it does what the first did, judged by durations in ns.

    Those do that can be reached from the first without a step of more than two times and 1 ms. Where the
    first is alone, and the next faster ones are at most eight times or 50 ms faster, it is a warm-up of them.
    """
    if not durations:
        return []
    groups: list[list[int]] = []
    for call in sorted(range(len(durations)), key=lambda call: durations[call]):
        if groups and not _are_apart(durations[groups[-1][-1]], durations[call]):
            groups[-1].append(call)
        else:
            groups.append([call])
    at = next(number for number, group in enumerate(groups) if 0 in group)
    chosen = set(groups[at])
    if chosen == {0} and at > 0:
        faster = durations[groups[at - 1][-1]]
        if durations[0] <= max(_WARM_UP * faster, faster + _WARM_UP_NS):
            chosen.update(groups[at - 1])
    return [call in chosen for call in range(len(durations))]


def _are_apart(faster: float, slower: float) -> bool:
    return slower > max(_APART * faster, faster + _APART_NS)
