# SPDX-License-Identifier: Apache-2.0
"""Damage of a run: what of its files is missing or cannot be read.

Damage is a code with values. `gpuprof.run.messages` makes text of it; no code reads that text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class DamageCode(str, Enum):
    """What of a run's files is missing or cannot be read."""

    CLOCK_POINT = "clock_point"
    SEGMENT_CUT_SHORT = "segment_cut_short"
    SEGMENT_HEADER = "segment_header"
    SEGMENT_COPY = "segment_copy"
    SEGMENTS_MISSING = "segments_missing"
    NAMES_NO_FILE = "names_no_file"
    NAMES_CUT = "names_cut"
    LOSSES_HEADER = "losses_header"
    NO_ROOM = "no_room"
    UNREADABLE = "unreadable"
    PROCESS_FACTS = "process_facts"
    RECORDS = "records"
    RECORD_CUT = "record_cut"
    SAMPLES_NO_FILE = "samples_no_file"
    SAMPLES_END_EARLY = "samples_end_early"
    STACKS_NO_FILE = "stacks_no_file"
    WORK = "work"
    COUNTERS = "counters"
    GPU_FILE = "gpu_file"
    GPU_FILE_WITHOUT_PROCESS = "gpu_file_without_process"
    TRACE_NOT_READABLE = "trace_not_readable"
    TRACE_CUT = "trace_cut"
    TRACE_EVENTS_INVALID = "trace_events_invalid"
    TRACE_NEGATIVE_DURATIONS = "trace_negative_durations"
    TRACE_ROWS_INVALID = "trace_rows_invalid"
    IMPORT = "import"  # of an imported run of an earlier version, as a text
    TEXT = "text"  # of an older run, or of one that this version does not know


@dataclass(frozen=True, slots=True)
class Damage:
    """What is missing from a run: the file, None where it is no single one, and how many of what."""

    code: DamageCode
    file: str | None = None
    count: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON, which `from_plain` reads."""
        return {
            "code": self.code.value,
            "file": self.file,
            "count": self.count,
            "values": dict(self.values),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Damage:
        """Read what `to_plain` wrote. Raises ValueError, KeyError or TypeError for anything else."""
        return cls(DamageCode(plain["code"]), plain["file"], plain["count"], dict(plain["values"]))
