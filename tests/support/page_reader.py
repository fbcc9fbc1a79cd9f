# SPDX-License-Identifier: Apache-2.0
"""An independent reader of the timeline in a page. It uses no code of the package."""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple


class PageSlice(NamedTuple):
    track: str
    lane: int
    level: int
    name: str
    kind: int
    start_ns: int
    duration_ns: int
    class_number: int
    launcher: int  # place of a slice; -1 for none, and for what ran on a thread


@dataclass
class PageTimeline:
    head: dict[str, Any]
    slices: list[PageSlice]
    classes: list[tuple[str, int, int, int]]  # name, kind, parent, node
    class_of_node: list[int]
    readings: dict[tuple[str, str], list[tuple[float, float]]]


class Band(NamedTuple):
    track: str
    lane: int
    level: int
    start_ns: int
    slices: int
    busy_ns: int
    longest: str


class NameSum(NamedTuple):
    name: str
    kind: int
    start_ns: int
    slices: int
    total_ns: int
    outermost_ns: int
    own_ns: int


@dataclass
class MergedCalls:
    """The calls that a page does not have one by one."""

    slices: int
    below_ns: int
    begin_ns: int
    band_ns: int
    sum_ns: int
    bands: list[Band]
    sums: list[NameSum]


def script(page: str, name: str) -> str:
    found = re.search(f'<script type="[^"]*" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found[1]


def timeline_of(page: str) -> PageTimeline:
    head, parts = _parts_of(page)
    numbers = struct.unpack(f"<{len(parts['classes']) // 4}i", parts["classes"])
    count = head["classes"]
    columns = [numbers[i * count : (i + 1) * count] for i in range(4)]
    classes = [(head["names"][name], *rest) for name, *rest in zip(*columns, strict=True)]
    return PageTimeline(
        head, _slices(head, parts, classes), classes, list(numbers[4 * count :]), _readings(head, parts)
    )


def _parts_of(page: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    head = json.loads(script(page, "timeline-head"))
    raw = base64.b64decode(script(page, "timeline-columns"))
    raw = gzip.decompress(raw) if head["gzip"] else raw
    ends = list(accumulate(head["columns"].values()))
    assert ends[-1] == len(raw)
    return head, {
        name: raw[end - size : end] for (name, size), end in zip(head["columns"].items(), ends, strict=True)
    }


def merged_of(page: str) -> MergedCalls:
    head, parts = _parts_of(page)
    merged = head["merged"]
    names = [head["names"][name] for name in merged["names"]]
    counts, widths = ({key: merged[key][of] for key in ("bands", "sums")} for of in ("count", "width"))
    columns = {
        name: _numbers(part, counts["bands" if name.startswith("band") else "sums"])
        for name, part in parts.items()
        if name.startswith(("band.", "sum."))
    }
    bands: list[Band] = []
    for track in head["tracks"]:
        for lane, level, _, count in track["rows"]:
            stretch = 0
            for at in range(len(bands), len(bands) + count):
                stretch += columns["band.step"][at]
                start = merged["begin"] + stretch * widths["bands"]
                sums = (columns["band.slices"][at], columns["band.busy"][at], names[columns["band.key"][at]])
                bands.append(Band(f"{track['of']}/{track['name']}", lane, level, start, *sums))
    assert len(bands) == counts["bands"]
    own = _signed(parts["sum.own"], counts["sums"])
    starts = [merged["begin"] + step * widths["sums"] for step in accumulate(columns["sum.step"])]
    rows = zip(
        columns["sum.key"],
        starts,
        *(columns[f"sum.{name}"] for name in ("slices", "total", "outermost")),
        own,
        strict=True,
    )
    sums_of = [NameSum(names[key], merged["kinds"][key], *rest) for key, *rest in rows]
    facts = (merged["slices"], merged["below"], merged["begin"], widths["bands"], widths["sums"])
    return MergedCalls(*facts, bands, sums_of)


def _numbers(part: bytes, count: int) -> list[int]:
    planes = len(part) // count if count else 0
    return [sum(part[plane * count + i] << 8 * plane for plane in range(planes)) for i in range(count)]


def _signed(part: bytes, count: int) -> list[int]:
    return [-(value + 1) // 2 if value % 2 else value // 2 for value in _numbers(part, count)]


def _slices(head: dict[str, Any], parts: dict[str, bytes], classes: list[Any]) -> list[PageSlice]:
    count = head["count"]
    of_slice = _numbers(parts["class"], count)
    gaps = _signed(parts["gap"], count)
    durations = _numbers(parts["duration"], count)
    launchers = [-1] * head["on_threads"]
    launchers += accumulate(_signed(parts["launcher"], count - head["on_threads"]))
    slices: list[PageSlice] = []
    for track in head["tracks"]:
        for lane, level, size, _ in track["rows"]:
            end = head["base"]
            for _ in range(size):
                i = len(slices)
                start = end + gaps[i]
                end = start + durations[i]
                name, kind, _, _ = classes[of_slice[i]]
                where = (f"{track['of']}/{track['name']}", lane, level)
                slices.append(PageSlice(*where, name, kind, start, durations[i], of_slice[i], launchers[i]))
    assert len(slices) == count
    return slices


def _readings(
    head: dict[str, Any], parts: dict[str, bytes]
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    values = struct.unpack(f"<{len(parts['readings']) // 8}d", parts["readings"])
    found, at = {}, 0
    for each in head["readings"]:
        size = each["count"]
        pairs = zip(values[at : at + size], values[at + size : at + 2 * size], strict=True)
        found[(each["of"], each["metric"])] = list(pairs)
        at += 2 * size
    return found
