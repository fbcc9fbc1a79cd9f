# SPDX-License-Identifier: Apache-2.0
"""Runs of format 1, whose statuses and damage were sentences: the only place that reads text back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuprof.record.facts import Method, Note, NoteCode, Reason, SourceState, SourceStatus
from gpuprof.run.damage import Damage, DamageCode

_ON: tuple[tuple[str, Method], ...] = (
    (r"on", Method.RECORDED),
    (r"on: collected", Method.COLLECTED),
    (r"intercepted calls, (?P<modules>.*)", Method.INTERCEPTED_CALLS),
    (r"itt", Method.ITT),
    (r"itt, announced by the program itself", Method.ITT_OF_PROGRAM),
    (r"torch\.profiler, at a higher cost: (?P<text>.*)", Method.TORCH_PROFILER),
    (r"sequence numbers of autograd nodes", Method.AUTOGRAD_NODES),
    (r"sequence numbers that torch\.profiler tells", Method.SEQUENCE_NUMBERS),
    (r"nvml, every (?P<ms>[\d.e+-]+) ms", Method.NVML),
    (r"pyinstrument, every (?P<ms>[\d.e+-]+) ms", Method.PYINSTRUMENT),
    (r"CUPTI (?P<version>[\d.]+), (?P<chip>[^/,]+), (?P<passes>\d+) pass(?:es)?", Method.RANGE_PROFILER),
    (r"CUPTI (?P<version>[\d.]+), (?P<path>.*)", Method.CUPTI),
    (r"CUDA events per layer: (?P<text>.*)", Method.CUDA_EVENTS),
)
_OFF = {
    "not wanted": Reason.NOT_WANTED,
    "no NVIDIA driver": Reason.NO_DRIVER,
    "torch was never imported": Reason.TORCH_NOT_IMPORTED,
    "this build of torch has no CUDA": Reason.TORCH_WITHOUT_CUDA,
    "the program never initialised CUDA": Reason.CUDA_NOT_INITIALIZED,
    "it was interrupted": Reason.INTERRUPTED,
}
_PERIODS = {Method.NVML: "period_ns", Method.PYINSTRUMENT: "interval_ns"}
_IN_CHILDREN = ", in processes that it started"
_DAMAGE: tuple[tuple[str, DamageCode], ...] = (
    (r"(?P<file>.*\.segment): its last clock point is damaged", DamageCode.CLOCK_POINT),
    (r"(?P<file>.*\.segment): cut short, (?P<count>\d+) places .*", DamageCode.SEGMENT_CUT_SHORT),
    (r"(?P<file>.*\.segment): its header is damaged; its events are lost", DamageCode.SEGMENT_HEADER),
    (r"(?P<file>.*\.segment): a copy of a segment .*", DamageCode.SEGMENT_COPY),
    (
        r"process (?P<process_id>\d+): (?P<count>\d+) segments? (?:is|are) missing.*",
        DamageCode.SEGMENTS_MISSING,
    ),
    (r"(?P<file>.*\.names): not a names file.*", DamageCode.NAMES_NO_FILE),
    (r"(?P<file>.*\.names): damaged after (?P<count>\d+) names", DamageCode.NAMES_CUT),
    (
        r"(?P<file>.*): its header is damaged; what other processes lost is not known",
        DamageCode.LOSSES_HEADER,
    ),
    (r"no room for the events of (?P<count>\d+) process.*", DamageCode.NO_ROOM),
    (r"(?P<file>.*\.(?:segment|names)): (?P<error>.*)", DamageCode.UNREADABLE),
)


def from_format_1(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return meta data of format 1, or the facts of such a recording, with typed facts."""
    sources = dict(meta.get("sources") or {})
    return {
        **meta,
        "sources": {name: _status(str(text)).to_plain() for name, text in sources.items()},
        "notes": [Note(NoteCode.TEXT, {"text": line}).to_plain() for line in _lines(meta, "notes")],
        "damage": [_damage(line).to_plain() for line in _lines(meta, "damage")],
    }


def _lines(meta: Mapping[str, Any], key: str) -> Iterator[str]:
    found = meta.get(key)
    yield from map(str, found if isinstance(found, list) else [])


def _status(text: str) -> SourceStatus:
    if text.startswith("off"):
        reason = text.removeprefix("off").removeprefix(": ")
        known = _OFF.get(reason)
        return SourceStatus.off(Reason.TEXT, text=reason) if known is None else SourceStatus.off(known)
    in_children = {"in_children": True} if text.endswith(_IN_CHILDREN) else {}
    text = text.removesuffix(_IN_CHILDREN)
    for pattern, method in _ON:
        if found := re.fullmatch(pattern, text, re.DOTALL):
            values = {**_values(method, found.groupdict()), **in_children}
            better = Reason.TEXT if "text" in values else None
            return SourceStatus(SourceState.ON, method, better, values)
    return SourceStatus(SourceState.ON, Method.TEXT, None, {"text": text, **in_children})


def _values(method: Method, found: dict[str, Any]) -> dict[str, Any]:
    if "ms" in found:
        return {_PERIODS[method]: round(float(found["ms"]) * 1e6)}
    if "modules" in found:
        return {"modules": "given" if "given" in found["modules"] else "every"}
    return {**found, "passes": int(found["passes"])} if "passes" in found else found


def _damage(text: str) -> Damage:
    for pattern, code in _DAMAGE:
        if found := re.fullmatch(pattern, text, re.DOTALL):
            values = found.groupdict()
            file, count = values.pop("file", None), values.pop("count", None)
            if "process_id" in values:
                values["process_id"] = int(values["process_id"])
            return Damage(code, file, None if count is None else int(count), values)
    return Damage(DamageCode.TEXT, values={"text": text})
