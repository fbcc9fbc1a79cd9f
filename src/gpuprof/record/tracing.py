# SPDX-License-Identifier: Apache-2.0
"""Whether PyTorch is tracing on this thread: then calls do no work, and their inputs are no inputs."""

from __future__ import annotations

import sys


def is_compiling() -> bool:
    """Whether a compiler is at work on this thread: the modules that it makes and calls are its own."""
    guards = sys.modules.get("torch._guards")
    return guards is not None and guards.TracingContext.try_get() is not None


def is_tracing() -> bool:
    """Whether calls on this thread are traced, by a compiler or by `torch.jit.trace`."""
    torch = sys.modules.get("torch")
    return is_compiling() or (torch is not None and bool(torch.jit.is_tracing()))
