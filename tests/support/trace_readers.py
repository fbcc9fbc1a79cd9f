# SPDX-License-Identifier: Apache-2.0
"""Independent readers of what is exported. None of them uses code of the package."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Slice(NamedTuple):
    """A slice and the names around it, the outermost first."""

    track: str
    name: str
    start_ns: int
    duration_ns: int
    around: tuple[str, ...]


@dataclass
class Trace:
    slices: list[Slice] = field(default_factory=list)
    # (name of the slice where it begins, name where it ends)
    flows: list[tuple[str, str]] = field(default_factory=list)
    counters: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    tracks: dict[Any, str] = field(default_factory=dict)


def read_perfetto(path: Path, *, shows_around: bool = True) -> Trace:
    """Parse with the schema that Perfetto publishes; follow clocks, names and stacks as it documents them.

    Without `shows_around`, slices do not contain what is around them, which would be much in a deep stack.
    """
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

    message = schema.Trace()
    message.ParseFromString(path.read_bytes())
    trace, sequences = Trace(), {}
    stacks: dict[int, list[tuple[str, int, list[int]]]] = defaultdict(list)
    begins: dict[int, list[str]] = defaultdict(list)
    ends: dict[int, str] = {}
    parents: dict[int, int] = {}
    for packet in message.packet:
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            name = described.name or described.process.process_name or described.thread.thread_name
            trace.tracks[described.uuid] = name
            parents[described.uuid] = described.parent_uuid
            assert described.parent_uuid == 0 or described.parent_uuid in trace.tracks
            continue
        sequence = packet.trusted_packet_sequence_id
        if packet.sequence_flags & 1:
            sequences[sequence] = {"time": 0, "names": {}, "categories": {}}
            clocks = {clock.clock_id: clock for clock in packet.clock_snapshot.clocks}
            assert clocks[64].is_incremental
            sequences[sequence]["defaults"] = packet.trace_packet_defaults
        if not packet.HasField("track_event"):
            continue
        assert packet.sequence_flags & 2
        state = sequences[sequence]
        assert state["defaults"].timestamp_clock_id == 64
        state["time"] += packet.timestamp
        now, event = state["time"], packet.track_event
        state["names"].update({entry.iid: entry.name for entry in packet.interned_data.event_names})
        categories = packet.interned_data.event_categories
        state["categories"].update({entry.iid: entry.name for entry in categories})
        track = state["defaults"].track_event_defaults.track_uuid
        stack = stacks[track]
        if event.type == event.TYPE_SLICE_BEGIN:
            name = state["names"][event.name_iid]
            assert all(iid in state["categories"] for iid in event.category_iids)
            for flow in event.flow_ids:
                begins[flow].append(name)
            for flow in event.terminating_flow_ids:
                ends[flow] = name
            stack.append((name, now, []))
        elif event.type == event.TYPE_SLICE_END:
            name, start, _ = stack.pop()
            around = tuple(each[0] for each in stack) if shows_around else ()
            trace.slices.append(
                Slice(f"{_full_name(trace, parents, track)}#{track}", name, start, now - start, around)
            )
        else:
            assert event.type == event.TYPE_COUNTER
            trace.counters[_full_name(trace, parents, track)].append((now, event.double_counter_value))
    assert not any(stacks.values()), "a slice never ended"
    trace.flows = sorted((name, ends[flow]) for flow, names in begins.items() for name in names)
    assert set(begins) == set(ends)
    return trace


def _full_name(trace: Trace, parents: dict[int, int], track: int) -> str:
    names = []
    while track:
        names.append(trace.tracks[track])
        track = parents[track]
    return "/".join(reversed(names))


def read_chrome(path: Path) -> Trace:
    """Rebuild nesting from times alone, as viewers do; slices of a thread that cross are an error."""
    content = json.loads(path.read_text(encoding="utf-8"), parse_float=str, parse_constant=_refuse)
    trace, begins, ends = Trace(), defaultdict(list), {}
    by_track: dict[tuple[int, int], list[tuple[int, int, int, str]]] = defaultdict(list)
    for number, event in enumerate(content["traceEvents"]):
        phase = event["ph"]
        if phase == "M":
            trace.tracks[(event["name"], event["pid"], event.get("tid"))] = event["args"].get("name")
            continue
        time = _ns(event["ts"])
        if phase == "X":
            assert isinstance(event["pid"], int)
            assert isinstance(event["tid"], int)
            by_track[(event["pid"], event["tid"])].append((time, -_ns(event["dur"]), number, event["name"]))
        elif phase == "s":
            begins[event["id"]].append((event["pid"], event["tid"], time))
        elif phase == "f":
            assert event["bp"] == "e"
            ends[event["id"]] = (event["pid"], event["tid"], time)
        else:
            assert phase == "C"
            trace.counters[event["name"]].append((time, float(event["args"]["value"])))
    at: dict[tuple[int, int, int], str] = {}
    for (pid, tid), events in by_track.items():
        stack: list[tuple[int, str]] = []
        for start, negative, _, name in sorted(events):
            end = start - negative
            while stack and stack[-1][0] <= start:
                stack.pop()
            assert not stack or end <= stack[-1][0], f"{name} crosses {stack[-1][1]}"
            process = trace.tracks[("process_name", pid, 0)]
            track = f"{process}/{trace.tracks[('thread_name', pid, tid)]}#{tid}"
            trace.slices.append(Slice(track, name, start, -negative, tuple(each[1] for each in stack)))
            at[(pid, tid, start)] = name
            stack.append((end, name))
    assert set(begins) == set(ends)
    trace.flows = sorted((at[place], at[ends[flow]]) for flow, places in begins.items() for place in places)
    return trace


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def _ns(text: str | int) -> int:
    whole, _, fraction = str(text).partition(".")
    assert len(fraction) in (0, 3)
    return int(whole + (fraction or "000"))


def read_speedscope(path: Path) -> Trace:
    """Check what speedscope's schema asks for and rebuild the slices."""
    content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    assert content["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = content["shared"]["frames"]
    assert all(isinstance(frame["name"], str) for frame in frames)
    trace = Trace()
    for profile in content["profiles"]:
        assert (profile["type"], profile["unit"]) == ("evented", "nanoseconds")
        assert isinstance(profile["name"], str)
        stack: list[tuple[int, int]] = []
        now = profile["startValue"]
        for event in profile["events"]:
            assert event["at"] >= now
            now = event["at"]
            if event["type"] == "O":
                stack.append((event["frame"], now))
                continue
            assert event["type"] == "C"
            frame, start = stack.pop()
            assert frame == event["frame"]
            around = tuple(frames[each]["name"] for each, _ in stack)
            trace.slices.append(Slice(profile["name"], frames[frame]["name"], start, now - start, around))
        assert not stack
        assert profile["endValue"] == now
    return trace
