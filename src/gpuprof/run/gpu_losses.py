# SPDX-License-Identifier: Apache-2.0
"""What of the GPU is missing from a run, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What `gpu` of meta.json counts: the thing and what became of it.
_OF_RECORDS = {
    "dropped": ("GPU record", "dropped by CUPTI"),
    "unfinished": ("GPU record", "without times"),
    "truncated": ("buffer", "of GPU records cut off"),
    "lost_records": ("GPU record", "not written"),
}
_OF_LAYERS = {
    "untimed": ("call", "of layers not timed on the GPU"),
    "unfinished": ("call", "of layers not ended on the GPU"),
    "lost_records": ("call", "of layers not written"),
}


def gpu_losses(gpu: Any) -> list[str]:
    """Return a few words for each thing that is missing; `gpu` is that of meta.json, which may be None."""
    if not isinstance(gpu, Mapping):
        return []
    words = _OF_LAYERS if "method" in gpu else _OF_RECORDS
    counted = [(gpu.get(key) or 0, *text) for key, text in words.items()]
    lost = [f"{count:,} {what}{'' if count == 1 else 's'} {fate}" for count, what, fate in counted if count]
    return [*lost, "GPU work after an error"] if gpu.get("problem") else lost
