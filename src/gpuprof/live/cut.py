# SPDX-License-Identifier: Apache-2.0
"""Cuts an interval out of a run that is being recorded, as a run of its own with a flame graph page.

The program is not touched: its segments are decoded as those of a killed program, in a process of its own
(`python -m gpuprof.live.cut`). Spans that reach beyond the interval are clipped to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof import _native
from gpuprof.errors import GpuprofError, RunError
from gpuprof.opened_run import Run
from gpuprof.record.recording_folder import RECORDING_FILE, SEGMENTS
from gpuprof.run.format import read_json
from gpuprof.run.imports.import_facts import ImportFacts
from gpuprof.run.imports.imported_run import SPAN, ImportedRun, imported_run, kind_code
from gpuprof.run.stacks import NUMBERS, Stacks, ThreadStacks, has_stacks, read_stacks

SOURCE = "an interval of a recording"
_BATCH_ROWS = 65_536

_WINDOW = "interval"  # the span of a process without spans of its own


Columns = dict[str, npt.NDArray[Any]]


def cut_run(run: Path, out: Path, begin_ns: int, end_ns: int) -> Path:
    """Write what `run` has between two times of the monotonic clock into `out`; returns its page.

    Raises RunError if the run is not being recorded, has nothing in the interval, or `out` cannot be written.
    """
    segments = run / SEGMENTS
    if not (run / RECORDING_FILE).exists() or not segments.is_dir():
        raise RunError("not_recording", f"{run} is not being recorded", hint=f"gpuprof flamegraph {run}")
    facts = read_json(run / RECORDING_FILE)
    samples = Stacks()
    if has_stacks(segments):
        samples = _within(read_stacks(segments, 0), begin_ns, end_ns)
    with imported_run(out, lambda origin_ns: _moved(samples, origin_ns)) as target:
        _Cut(target, segments, begin_ns, end_ns).write(facts)
    page = out.with_suffix(".html")
    Run(out).flamegraph(page)
    return page


class _Cut:
    def __init__(self, target: ImportedRun, segments: Path, begin_ns: int, end_ns: int) -> None:
        self._target = target
        self._segments = segments
        self._begin_ns, self._end_ns = begin_ns, end_ns
        self._starts = _process_starts(segments)
        self._names: list[str] = []
        self._ids: npt.NDArray[np.uint32] = np.zeros(1, dtype=np.uint32)
        self._has_rows: set[int] = set()

    def write(self, facts: dict[str, Any]) -> None:
        decoded = _native.decode(os.fsencode(self._segments), _BATCH_ROWS, self._take)
        self._learn(decoded["names"][len(self._names) :])
        processes = [each["process_id"] for each in decoded["processes"]]
        if not processes:
            raise RunError("nothing_recorded", "nothing was recorded yet", hint="try again later")
        for process_id in processes:
            if process_id not in self._has_rows:
                self._add_window(process_id)

        self._target.finish(
            ImportFacts(
                source=SOURCE,
                unix_ns_at_zero=int(facts["realtime_minus_monotonic_ns"]),
                command=facts.get("command"),
                versions={"python": facts.get("python"), "torch": facts.get("torch")},
                thread_names={
                    (each["process_id"], each["thread_id"]): each["name"] for each in decoded["threads"]
                },
            )
        )

    def _take(self, process: dict[str, Any], rows: Columns, _links: Columns, names: list[str]) -> None:
        self._learn(names)
        key = (process["process_id"], process["process_key"])
        # Times of a batch are the run's, whose origin is known at the end only.
        moved_ns = self._starts.get(key, process["start_ns"]) - process["start_ns"]
        begin = np.maximum(rows["start_ns"] + moved_ns, self._begin_ns)
        end = np.minimum(rows["start_ns"] + moved_ns + rows["duration_ns"], self._end_ns)
        inside = end > begin
        if inside.any():
            self._has_rows.add(process["process_id"])
            self._target.add_spans(
                {
                    "process_id": np.full(int(inside.sum()), process["process_id"]),
                    "thread_id": rows["thread_id"][inside],
                    "kind": rows["kind"][inside],
                    "role": np.full(int(inside.sum()), SPAN),
                    "name_id": self._ids[rows["name_id"][inside]],
                    "start_ns": begin[inside],
                    "duration_ns": (end - begin)[inside],
                }
            )

    def _learn(self, names: list[str]) -> None:
        self._names += names
        fresh = np.array([self._target.name_id(name) for name in names], dtype=np.uint32)
        self._ids = np.concatenate([self._ids, fresh])

    def _add_window(self, process_id: int) -> None:
        self._target.add_spans(
            {
                "process_id": np.array([process_id]),
                "thread_id": np.array([process_id]),
                "kind": np.array([kind_code("span")]),
                "role": np.array([SPAN]),
                "name_id": np.array([self._target.name_id(_WINDOW)]),
                "start_ns": np.array([self._begin_ns]),
                "duration_ns": np.array([self._end_ns - self._begin_ns]),
            }
        )


def _process_starts(segments: Path) -> dict[tuple[int, int], int]:
    """Return when each process began to record, on the monotonic clock."""
    follower = _native.SegmentFollower(os.fsencode(segments))
    follower.poll([], 1, lambda *_: None)
    return {(each["process_id"], each["process_key"]): each["start_ns"] for each in follower.processes()}


def _within(stacks: Stacks, begin_ns: int, end_ns: int) -> Stacks:
    """Return the samples whose time, or its largest part, is in the interval."""
    threads = []
    for thread in stacks.threads:
        times = np.array(thread.t_ns, dtype=np.int64)
        chosen = np.flatnonzero((times > begin_ns) & (times <= end_ns)).tolist()
        if chosen:
            threads.append(_chosen(thread, chosen))
    return Stacks(stacks.texts, threads)


def _chosen(thread: ThreadStacks, places: list[int]) -> ThreadStacks:
    columns: dict[str, Any] = {name: [getattr(thread, name)[at] for at in places] for name in NUMBERS}
    return replace(thread, frames=[thread.frames[at] for at in places], **columns)


def _moved(stacks: Stacks, origin_ns: int) -> Stacks:
    """Return the samples with times since the origin."""
    threads = [replace(each, t_ns=[t_ns - origin_ns for t_ns in each.t_ns]) for each in stacks.threads]
    return Stacks(stacks.texts, threads)


def main(arguments: list[str]) -> int:
    """Cut, and print a JSON object with the run and its page, or the error; returns the exit code."""
    run, out, begin_ns, end_ns = arguments
    with contextlib.suppress(OSError):
        os.nice(5)
    try:
        page = cut_run(Path(run), Path(out), int(begin_ns), int(end_ns))
    except (GpuprofError, OSError) as error:
        print(json.dumps({"error": str(error)}))
        return 2
    print(json.dumps({"run": out, "page": str(page)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
