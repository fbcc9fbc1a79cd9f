# SPDX-License-Identifier: Apache-2.0
"""Who has CUPTI's callbacks where they are refused, since CUPTI gives them to one tool of a process.

CUPTI does not name it, so this is concluded from what is seen in the process.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from gpuprof.record.collector import NVTX_VARIABLE, other_nvtx_tool

MULTIPLE_SUBSCRIBERS = 39  # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
CUDA_INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"

HolderCode: TypeAlias = Literal["kineto", "proton", "injected", "other"]
# These record: taking CUPTI's buffers over would take their records away. Kineto registers its buffers anew
# for each of its sessions, and what is not known is taken for something as idle.
_RECORDING: frozenset[HolderCode] = frozenset(("proton", "injected"))


@dataclass(frozen=True, slots=True)
class CuptiHolder:
    """The tool that has CUPTI's callbacks, and what it was concluded from."""

    code: HolderCode
    values: dict[str, str] = field(default_factory=dict)

    @property
    def is_recording(self) -> bool:
        """Whether it is a profiler that runs, which CUPTI is left to."""
        return self.code in _RECORDING

    def facts(self) -> dict[str, Any]:
        """Return what `meta.json` has of it."""
        return asdict(self)

    def __str__(self) -> str:
        match self.code:
            case "kineto":
                return f"Kineto of torch.profiler (torch {self.values['torch']})"
            case "proton":
                return "Triton's profiler Proton"
            case "injected":
                return f"the tool that {self.values['variable']} names ({self.values['path']})"
            case "other":
                return "another tool"


def find_holder() -> CuptiHolder:
    """Return the likeliest holder; asked once CUPTI refused its callbacks with MULTIPLE_SUBSCRIBERS."""
    if path := os.environ.get(CUDA_INJECTION_VARIABLE):
        return CuptiHolder("injected", {"variable": CUDA_INJECTION_VARIABLE, "path": path})
    if path := other_nvtx_tool():
        return CuptiHolder("injected", {"variable": NVTX_VARIABLE, "path": path})
    if "triton.profiler" in sys.modules:
        return CuptiHolder("proton")
    torch = sys.modules.get("torch")
    if torch is not None and torch.profiler.kineto_available():
        return CuptiHolder("kineto", {"torch": str(torch.__version__)})
    return CuptiHolder("other")
