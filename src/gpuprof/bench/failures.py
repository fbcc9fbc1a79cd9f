# SPDX-License-Identifier: Apache-2.0
"""What stands against a benchmark, told apart by who can mend it, and in words that name the mend."""

from __future__ import annotations

import traceback
from pathlib import Path

from gpuprof.errors import BenchmarkError

LONGEST_REASON = 300

# What libraries say when memory ends, in small letters.
_MEMORY_WORDS = (
    "memoryerror",
    "out of memory",
    "not enough memory",
    "cannot allocate memory",
    "can't allocate memory",
    "failed to allocate",
    "unable to allocate",
    "resource_exhausted",
    "bad_alloc",
    "invalid buffer size",
    "storage size calculation overflowed",
    "bad allocation",
)
# And when a device has no code for a type.
_TYPE_WORDS = (
    "not implemented for 'half'",
    "not implemented for 'bfloat16'",
    "not implemented for 'float8",
    "not implemented for 'char'",
    "not implemented for 'int'",
    "not implemented for 'long'",
    "not supported on",
    "unsupported scalartype",
    "not_implemented",
    "invalid dtype",
    "doesn't support float64",
)


class DoesNotFitError(BenchmarkError):
    """A batch needs more memory than there is."""


class TimeLimitError(BenchmarkError):
    """A model did not answer in time."""


def tells_of_memory(text: str) -> bool:
    """Whether an error's words say that memory ended."""
    words = text.lower()
    return any(each in words for each in _MEMORY_WORDS)


def reason_of(error: BaseException) -> str:
    """Return an exception on one line of bearable length."""
    first = " ".join(f"{type(error).__name__}: {error}".split())
    return first if len(first) <= LONGEST_REASON else first[:LONGEST_REASON] + "..."


def place_of(error: BaseException) -> str:
    """Return the file and line where an exception was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown place"


def explain_run(
    error: BaseException, *, what: str, batch_size: int, shape: str, dtype: str
) -> BenchmarkError:
    """Turn what a model raised on its input into one line with the mend."""
    words = str(error).lower()
    if isinstance(error, MemoryError) or tells_of_memory(str(error)):
        return DoesNotFitError(
            f"batch size {batch_size} of {what} does not fit into memory ({reason_of(error)}): "
            "take smaller --batch-sizes"
        )
    if any(each in words for each in _TYPE_WORDS):
        return BenchmarkError(
            f"{what} cannot run in {dtype} on this device ({reason_of(error)}): take another --dtype"
        )
    return BenchmarkError(
        f"{what} failed on inputs of {shape}, {dtype} ({reason_of(error)}): "
        "give another --input-shape, that of one sample"
    )
