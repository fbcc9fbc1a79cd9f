# SPDX-License-Identifier: Apache-2.0
"""Failures of benchmarks as typed values: a code, what happened, and a hint; the errors that carry them.

The messages of other libraries are classified here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from gpuprof.errors import BenchmarkError, GpuprofError, UnavailableError

LONGEST_REASON = 300
SMALLER_BATCHES = "use smaller --batch-sizes"
SMALLER_OR_BUDGET = f"{SMALLER_BATCHES}, or set --memory-budget"


class FailureCode(str, Enum):
    """Why something was not measured."""

    FAILED = "failed"  # the model, or what was asked for
    OUT_OF_MEMORY = "out of memory"
    TIME_LIMIT = "time limit"
    UNAVAILABLE = "unavailable"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Failure:
    """What prevented a measurement, and what to do about it; `str()` is one line."""

    code: FailureCode
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.message}; hint: {self.hint}" if self.hint else self.message

    def error(self) -> GpuprofError:
        """Return the exception that carries it."""
        if self.code is FailureCode.UNAVAILABLE:
            return UnavailableError("unavailable", self.message, hint=self.hint)
        return _ERRORS.get(self.code, FailedRunError)(self.message, hint=self.hint)


class FailedRunError(BenchmarkError):
    """A process run failed."""

    code = FailureCode.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(self.code, message, hint=hint)


class DoesNotFitError(FailedRunError):
    """A batch needs more memory than there is."""

    code = FailureCode.OUT_OF_MEMORY


class TimeLimitError(FailedRunError):
    """A model did not respond in time."""

    code = FailureCode.TIME_LIMIT


_ERRORS = {each.code: each for each in (FailedRunError, DoesNotFitError, TimeLimitError)}


def failure_of(error: GpuprofError) -> Failure:
    """Return what an exception carries."""
    if isinstance(error, FailedRunError):
        return Failure(error.code, error.message, error.hint)
    is_missing = isinstance(error, UnavailableError)
    code = FailureCode.UNAVAILABLE if is_missing else FailureCode.FAILED
    return Failure(code, error.message, error.hint)


def named(error: GpuprofError, name: str) -> GpuprofError:
    """Return an error of the same code that begins with a name."""
    if isinstance(error, FailedRunError):
        return replace(failure_of(error), message=f"{name}: {error.message}").error()
    kind = UnavailableError if isinstance(error, UnavailableError) else BenchmarkError
    return kind(error.code, f"{name}: {error.message}", hint=error.hint)


def joined(errors: Sequence[GpuprofError]) -> GpuprofError:
    """Return one error for several, with the message and the hint of each."""
    if len(errors) == 1:
        return errors[0]
    text = "; ".join(dict.fromkeys(map(str, errors)))
    if all(isinstance(each, UnavailableError) for each in errors):
        return UnavailableError(errors[0].code, text)
    return BenchmarkError(errors[0].code, text)


def reason_of(error: BaseException) -> str:
    """Return an exception on one line of at most LONGEST_REASON characters."""
    # The hint of an error is for where it was raised.
    message = error.message if isinstance(error, GpuprofError) else error
    first = " ".join(f"{type(error).__name__}: {message}".split())
    return first if len(first) <= LONGEST_REASON else first[:LONGEST_REASON] + "..."


def place_of(error: BaseException) -> str:
    """Return the file and line where an exception was raised."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown place"


# --- what other libraries raise and print --------------------------------------------------------

# In small letters, where memory ends.
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
# And where a device has no code for a type.
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


def is_out_of_memory(raised: BaseException | str) -> bool:
    """Whether an exception, or the last line that a process printed, reports exhausted memory."""
    words = str(raised).lower()
    return isinstance(raised, (MemoryError, DoesNotFitError)) or any(each in words for each in _MEMORY_WORDS)


def explain_run(
    error: BaseException, *, what: str, batch_size: int, shape: str, dtype: str
) -> BenchmarkError:
    """Turn what a model raised on its input into one line with a hint."""
    if is_out_of_memory(error):
        message = f"batch size {batch_size} of {what} does not fit into memory ({reason_of(error)})"
        return DoesNotFitError(message, hint=SMALLER_BATCHES)
    if any(each in str(error).lower() for each in _TYPE_WORDS):
        message = f"{what} cannot run in {dtype} on this device ({reason_of(error)})"
        return FailedRunError(message, hint="use another --dtype")
    message = f"{what} failed on inputs of {shape}, {dtype} ({reason_of(error)})"
    return FailedRunError(message, hint="give another --input-shape, that of one sample")
