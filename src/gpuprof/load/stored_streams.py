# SPDX-License-Identifier: Apache-2.0
"""Streams of a stored result: their objectives, and which of them were good."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.errors import RunError
from gpuprof.load.requests import Rows, read_rows
from gpuprof.load.result import RESULT_FILE
from gpuprof.load.server_result import TOKENS_FILE
from gpuprof.load.streaming_metrics import (
    StreamMetric,
    StreamTimes,
    good_requests,
    longest_intervals_s,
    parse_stream_objectives,
)
from gpuprof.load.targets.token_times import TOKENS

if TYPE_CHECKING:
    import numpy.typing as npt


def stored_objectives(folder: Path) -> tuple[str, ...]:
    """Return the objectives of a stored load of streams, as they are written; none for other loads."""
    try:
        plain = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
        streams = plain.get("streams") or {}
        return tuple(str(each["objective"]) for each in streams.get("objectives", ()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError("damaged", f"{folder / RESULT_FILE}: its streams cannot be read ({error})",
                       hint="run the load again") from error  # fmt: skip


def good_streams(folder: Path, rows: Rows, objectives: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which requests met all objectives. Raises GpuprofError where a file is missing."""
    parsed = parse_stream_objectives(objectives)
    longest = np.full(len(rows), np.nan)
    if any(each.metric is StreamMetric.ITL for each in parsed):
        longest = longest_intervals_s(read_rows(folder / TOKENS_FILE, TOKENS), len(rows))
    return good_requests(StreamTimes.of(rows), parsed, longest)
