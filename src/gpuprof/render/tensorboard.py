# SPDX-License-Identifier: Apache-2.0
"""Kineto's JSON as the plugin of TensorBoard (torch-tb-profiler) reads it.

The plugin ties an operator to a kernel by an event `Runtime` between them, which has the operator's
`External id` and the kernel's `correlation`; 0 is no external id. A device's number takes the place of a
process id. Calls of modules are Python functions with numbers of their own; `ProfilerStep#N` is a step.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from gpuprof.render.chrome import ChromeTracks, microseconds, time_texts, triples, write_events
from gpuprof.render.slices import CATEGORIES, SliceSource

if TYPE_CHECKING:
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[Any]]

STEP_SPAN = "step"
_STEP = "ProfilerStep#"
_LAYER, _STACKS = CATEGORIES.index("layer"), CATEGORIES.index("python_function")
_CATEGORY = {"operator": "cpu_op", "backward": "cpu_op", "kernel": "kernel"}
_CATEGORY |= {"gpu_memcpy": "gpu_memcpy", "gpu_memset": "gpu_memset"}
_GPU_ARGUMENTS = {
    "device": "device",
    "context": "context",
    "stream": "stream",
    "bytes": "bytes",
    "registers per thread": "registers",
}


def write_tensorboard(source: SliceSource, file: IO[bytes]) -> None:
    """Write operators, layers, steps, and the work of GPUs with what launched it."""
    # Numbers from 0, in the order of the list `deviceProperties`.
    tracks = ChromeTracks(source, first_device_id=-1)
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": int(source.meta.get("origin_unix_ns", 0)),
        "deviceProperties": _devices(source.meta.get("devices") or []),
    }
    file.write(json.dumps(head)[:-1].encode() + b',"traceEvents":[\n')
    file.write(",\n".join(tracks.names()).encode())
    names = _Names(source.names)
    for rows in source.cpu():
        write_events(file, _cpu_events(rows, names, tracks, source))
    for rows in source.gpu():
        write_events(file, _gpu_events(rows, source.names, tracks))
    file.write(b"\n]}\n")


def _devices(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the devices in the order of their numbers; one that was not asked has only its number."""
    told = {device["index"]: device for device in devices if isinstance(device.get("index"), int)}
    facts = {"name": "name", "totalGlobalMem": "memory_bytes"}
    return [
        {
            "id": number,
            **{
                shown: told[number][key]
                for shown, key in facts.items()
                if number in told and told[number].get(key) is not None
            },
        }
        for number in range(max(told, default=-1) + 1)
    ]


class _Names:
    """Names as the plugin understands them; steps are counted on each track."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._steps: Counter[int] = Counter()

    def of(self, track: int, name_id: int, category: int) -> tuple[str, str]:
        """Return the category and the name of one slice."""
        name, kind = self._names[name_id], CATEGORIES[category]
        if kind == "layer":
            return "python_function", f"nn.Module: {name}"
        if kind == "span" and name == STEP_SPAN:
            name = f"{_STEP}{self._steps[track]}"
            self._steps[track] += 1
        elif name.startswith(_STEP) and not _is_number(name.removeprefix(_STEP)):
            name = name.replace("#", " ")  # the plugin takes what follows for a number
        return _CATEGORY.get(kind, "user_annotation"), name


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _cpu_events(rows: Columns, names: _Names, tracks: ChromeTracks, source: SliceSource) -> Iterator[str]:
    first = int(rows["place"][0])
    places, flows = source.flows(first, first + len(rows["place"]))
    launching = np.isin(rows["place"], places).tolist()
    heads = tracks.heads(rows)
    keys = ("track", "name_id", "category", "id", "parent")
    columns = (heads, time_texts(rows), launching, *(rows[key].tolist() for key in keys))
    for head, times, launches, track, name_id, category, number, parent in zip(*columns, strict=True):
        if category == _STACKS:
            continue
        shown, name = names.of(track, name_id, category)
        arguments: dict[str, int] = {"External id": number + 1} if launches else {}
        if category == _LAYER:
            arguments |= {
                "Python id": number + 1,
                "Python parent id": parent + 1,
                "Python module id": name_id,
            }
        told = f'"args":{json.dumps(arguments)},' if arguments else ""
        yield f'{{"ph":"X",{head},"cat":"{shown}","name":{json.dumps(name)},{told}{times}}}'
    starts, ids = rows["start_ns"].tolist(), rows["id"].tolist()
    for offset, flow in zip((places - first).tolist(), flows.tolist(), strict=True):
        told = f'"args":{{"External id":{ids[offset] + 1},"correlation":{flow}}}'
        event = f'"cat":"Runtime","name":"launch",{told},"ts":{microseconds(starts[offset])},"dur":0'
        yield f'{{"ph":"X",{heads[offset]},{event}}}'


def _gpu_events(rows: Columns, names: list[str], tracks: ChromeTracks) -> Iterator[str]:
    known = {shown: ~np.ma.getmaskarray(rows[column]) for shown, column in _GPU_ARGUMENTS.items()}
    sizes = {what: triples(rows, what) for what in ("grid", "block")}
    columns = (tracks.heads(rows), time_texts(rows), rows["name_id"].tolist(), rows["category"].tolist())
    for i, (head, times, name_id, category) in enumerate(zip(*columns, strict=True)):
        # The run's correlation ids are those of replays of a whole graph; this one is of the row alone.
        arguments: dict[str, Any] = {"correlation": int(rows["place"][i]) + 1}
        if rows["launcher"][i] >= 0:
            arguments["External id"] = int(rows["launcher"][i]) + 1
        arguments |= {
            shown: int(rows[column][i]) for shown, column in _GPU_ARGUMENTS.items() if known[shown][i]
        }
        arguments |= {what: found[i] for what, found in sizes.items() if found[i] is not None}
        event = f'"cat":"{_CATEGORY[CATEGORIES[category]]}","name":{json.dumps(names[name_id])}'
        yield f'{{"ph":"X",{head},{event},"args":{json.dumps(arguments)},{times}}}'
