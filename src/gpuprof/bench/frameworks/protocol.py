# SPDX-License-Identifier: Apache-2.0
"""What a benchmark measures: one protocol for every framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Bytes in use at one moment or at the peak; None where this system cannot tell."""

    allocator_peak_bytes: int | None = None
    device_used_bytes: int | None = None
    host_resident_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SystemDescription:
    """What is measured, as it is written beside each figure.

    `device_type` is cpu, cuda, mps or tpu, `device` the name of the hardware. `model_bytes` and `parameters`
    are None where the framework does not tell. `details` holds what else decides the speed (threads, compile
    mode, precision of matrix products, versions).
    """

    framework: str
    model: str
    device: str
    device_type: str
    dtype: str
    input_shape: tuple[int, ...] | None = None
    model_bytes: int | None = None
    parameters: int | None = None
    details: Mapping[str, str] = field(default_factory=dict)


class System(Protocol):
    """A model in a framework on a device. One system lives in one process and is used by one thread.

    Each method raises GpuprofError with what, where and the mend for what a user can mend.
    """

    def describe(self) -> SystemDescription:
        """Return what is measured; after load()."""
        ...

    def load(self) -> None:
        """Build or read the model and place it on the device. Called once, first."""
        ...

    def prepare(self, batch_size: int) -> None:
        """Make the inputs of one call, on the device; compile for them. May be called again."""
        ...

    def run(self) -> object:
        """Enqueue one call on the prepared inputs and return its outputs, which nobody has waited for."""
        ...

    def synchronize(self) -> None:
        """Wait until everything that was enqueued is done. Costs next to nothing on a CPU."""
        ...

    def memory(self) -> MemoryReading:
        """Return the memory in use, and the allocator's peak since the last prepare()."""
        ...

    def close(self) -> None:
        """Give back the device's memory. Harmless twice."""
        ...
