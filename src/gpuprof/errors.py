# SPDX-License-Identifier: Apache-2.0
"""The errors that gpuprof raises for a user's mistake or a machine's limit.

A message is one line: what happened, where, and the mend. The command line prints it and exits
with 2; it never shows a traceback for one of these.
"""

from __future__ import annotations

from typing import Any


class GpuprofError(Exception):
    """Base of every error that gpuprof raises on purpose."""


class RecordingError(GpuprofError):
    """A recording could not be started or written."""


class RunError(GpuprofError):
    """A run folder is missing, damaged, of an unknown format, or lacks what was asked of it."""


class NotRecordedError(RunError):
    """A program ran without being recorded, which its standard error told before it began."""


class NothingRecordedError(RunError):
    """A program failed before anything of it was recorded, so its run is not kept."""


class UnavailableError(GpuprofError):
    """Something optional (a package, a device, a permission) is needed here and is not at hand."""


class WorkError(GpuprofError):
    """Work could not be counted: the model failed, or what was handed over cannot be run.

    `work` is what was counted until then, None where nothing ran.
    """

    def __init__(self, message: str, work: Any = None) -> None:
        super().__init__(message)
        self.work = work


class BenchmarkError(GpuprofError):
    """A benchmark could not be made or was cut short.

    `result` is what was measured until then (`gpuprof.bench.results.result.Result`), None where nothing was.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result
