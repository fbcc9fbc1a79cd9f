# SPDX-License-Identifier: Apache-2.0
"""What a benchmark finds besides the figures of each batch size, and its text."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from gpuprof.bench.measure.scaling import LargestBatch, knee
from gpuprof.bench.results.result import SessionResult, Startup
from gpuprof.bench.results.text import UNAVAILABLE, startup_text, throughputs
from gpuprof.bench.serialization import to_plain
from gpuprof.bench.verdicts import TargetVerdict


@dataclass(slots=True)
class Finding:
    """What a benchmark found besides the figures of each batch size."""

    session: SessionResult
    verdicts: dict[int, TargetVerdict] = field(default_factory=dict)
    largest: LargestBatch | None = None
    startup: dict[str, Startup | None] = field(default_factory=dict)
    memory_ended: str | None = None

    def more(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        session, largest = self.session, self.largest
        return {
            "asked": {"spec": to_plain(session.spec), "settings": to_plain(session.settings)},
            "error": None if session.failure is None else str(session.failure),
            "startups": [each.to_dict() for each in session.startups],
            "startup": {
                name: None if each is None else each.to_dict() for name, each in self.startup.items()
            },
            "scaling": {"knee": knee(throughputs(session.batches)), "memory_ended": self.memory_ended},
            "verdicts": self.verdicts,
            "largest_batch": None if largest is None else dataclasses.asdict(largest),
            "profile": session.profile,
        }


def finding_notes(finding: Finding) -> list[str]:
    """Return what a benchmark found besides its batch sizes: verdicts, the largest batch, start-up, a run."""
    notes = [f"batch size {size}: the target is {verdict}" for size, verdict in finding.verdicts.items()]
    if finding.memory_ended is not None:
        notes.append(f"memory ended: {finding.memory_ended}")
    if finding.largest is not None:
        notes.append(_largest_note(finding.largest))
    for name, startup in finding.startup.items():
        notes.append(f"{name} start: {UNAVAILABLE if startup is None else startup_text(startup)}")
    if finding.session.profile is not None:
        notes.append(f"profile: gpuprof flamegraph {finding.session.profile}")
    return notes


def _largest_note(found: LargestBatch) -> str:
    size = found.batch_size
    larger = "larger ones" if size else "batch size 1"
    reasons = {
        "missed": f"{larger} missed the target",
        "open": "whether larger ones meet the target is open"
        if size
        else "whether batch size 1 does is open",
        "does not fit": f"{larger} did not fit",
        "failed": f"{larger} failed",
    }
    note = f"largest batch size: {size or 'none'} ({reasons.get(str(found.why), 'no larger one was tried')})"
    open_sizes = ", ".join(map(str, found.open_sizes))
    return f"{note}; open: {open_sizes}, whose intervals lie on both sides of it" if open_sizes else note
