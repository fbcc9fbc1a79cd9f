# SPDX-License-Identifier: Apache-2.0
"""The errors that gpuprof raises for wrong input or a limit of the machine.

An error is one line: what happened, where, and a hint. The command line prints it without a traceback and
exits with 2.
"""

from __future__ import annotations

import sys
from typing import Any

MEMORY_HINT = "free memory, or raise its limit (ulimit -v)"
DISK_LIMIT = "max_temp_directory_size"  # in DuckDB's error of temporary files without room
# Words of the dynamic linker, whose errors Python raises as ImportError.
_NOT_LOADED = ("failed to map segment", "annot allocate memory")

_LINE_BREAKS = str.maketrans({each: ascii(each)[1:-1] for each in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"})


def one_line(text: str) -> str:
    """Return a text with escapes for line breaks: names, and messages of other libraries, can have them."""
    return text if text.isprintable() else text.strip().translate(_LINE_BREAKS)


def memory_ran_out(error: BaseException) -> bool:
    """Whether an error is of memory: Python's, DuckDB's, or of a library that could not be loaded."""
    if isinstance(error, ImportError):
        return any(words in str(error) for words in _NOT_LOADED)
    duckdb = sys.modules.get("duckdb")
    kinds = (MemoryError, getattr(duckdb, "OutOfMemoryException", MemoryError))
    return isinstance(error, kinds) and DISK_LIMIT not in str(error)


class GpuprofError(Exception):
    """Base of all errors of gpuprof: `message` is what happened and where, `hint` what to do.

    `code` is what happened as a name that stays when the message is reworded, such as `cannot_read`.
    """

    def __init__(self, code: str, message: str = "", *, hint: str = "") -> None:
        # Where another library raises it again from its text alone, there is no code.
        message, hint = one_line(message or code), one_line(hint)
        super().__init__(f"{message}; hint: {hint}" if hint else message)
        self.code = code
        self.message = message
        self.hint = hint


class RecordingError(GpuprofError):
    """A recording could not be started or written."""


class RunError(GpuprofError):
    """A run folder is missing, damaged, of an unknown format, or lacks the requested data."""


class NotRecordedError(RunError):
    """A program ran without a recording; standard error reported it before the program started."""


class NothingRecordedError(RunError):
    """A program failed before anything was recorded, so its run was removed."""


class UnavailableError(GpuprofError):
    """An optional package, device or permission is required but unavailable."""


class WorkError(GpuprofError):
    """Work could not be counted: the model failed, or the arguments cannot be run.

    `work` is the work counted before the failure, or None.
    """

    def __init__(self, code: str, message: str = "", work: Any = None, *, hint: str = "") -> None:
        super().__init__(code, message, hint=hint)
        self.work = work


class BenchmarkError(GpuprofError):
    """A benchmark failed or was interrupted.

    `result` contains the samples before the failure (`gpuprof.bench.results.result.Result`), or is None.
    """

    def __init__(self, code: str, message: str = "", result: Any = None, *, hint: str = "") -> None:
        super().__init__(code, message, hint=hint)
        self.result = result
