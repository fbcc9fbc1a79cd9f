# SPDX-License-Identifier: Apache-2.0
"""The options of a recording, the same for a block, a program and the processes that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

GpuOption: TypeAlias = Literal["auto", "whole-graphs"] | bool
PythonOption: TypeAlias = Literal["auto", "pyinstrument"] | bool
WhichCeilings: TypeAlias = Literal["cached", "around"]
OtherProfiler: TypeAlias = Literal["torch", "pyinstrument", "cprofile", "line"]


class RecordingOptions(NamedTuple):
    """What a recording takes.

    `gpu` is for device samples and GPU records: "auto" takes both where an NVIDIA driver is, and so does
    "whole-graphs", but with one record for a replay of a CUDA graph in place of its kernels. `python` samples
    stacks: "auto" and True by the native sampler; where it does not work, True by pyinstrument's, "auto" not
    at all; "pyinstrument" by that one. `ceilings` are those that `work` is compared with. `children` are
    Python processes that a program starts. `profiler` replaces the recording by that profiler alone.
    """

    layers: bool = True
    operators: bool = True
    gpu: GpuOption = "auto"
    python: PythonOption = False
    work: bool = False
    ceilings: WhichCeilings = "cached"
    counters: bool = False
    children: bool = False
    profiler: OtherProfiler | None = None

    @property
    def counts_work(self) -> bool:
        """Whether the first calls of models are kept and counted."""
        return self.work or self.counters

    def stacks_only(self) -> RecordingOptions:
        """Return the options of a recording by pyinstrument's sampler and nothing else."""
        return self._replace(
            layers=False, operators=False, gpu=False, python="pyinstrument", work=False, counters=False
        )

    def for_child(self) -> RecordingOptions:
        """Return the options of a process that the program starts: its work is not counted."""
        return self._replace(work=False, counters=False)

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON, which `from_plain` reads."""
        return self._asdict()

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> RecordingOptions:
        """Read what `to_plain` wrote. Raises TypeError for names that are no options."""
        return cls(**plain)
