# SPDX-License-Identifier: Apache-2.0
"""What a benchmark measures: one protocol for every framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuprof.errors import BenchmarkError


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Bytes in use at one moment or at the peak; None where this system does not report them.

    On the host `host_resident_bytes` is the peak of the whole process, `host_baseline_bytes` what it filled
    before the model was loaded, which is the framework, `host_calls_bytes` what calls add at their peak, and
    `host_own_bytes` that with the model's parameters and buffers: the model's own memory.
    """

    allocator_peak_bytes: int | None = None
    device_used_bytes: int | None = None
    host_resident_bytes: int | None = None
    host_baseline_bytes: int | None = None
    host_calls_bytes: int | None = None
    host_own_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SystemDescription:
    """What is measured, as it is written next to each figure.

    `device_type` is cpu, cuda, mps or tpu, `device` the name of the hardware. `model_bytes` and `parameters`
    are None where the framework does not report them. `details` holds what else decides the speed (threads,
    compile mode, precision of matrix products, versions). `forwarded` is the fraction of the samples that the
    small model of a cascade hands on.
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
    forwarded: float | None = None


class System:
    """A model in a framework on a device. One system lives in one process and is used by one thread.

    Children fill `describe`, `load`, `prepare` and `run`, and what differs from a CPU. Each method raises
    GpuprofError, with what, where and a hint, for what a user can change.
    """

    def import_framework(self) -> None:
        """Import the framework, so that `load` does not take its time. Called once, first."""

    def describe(self) -> SystemDescription:
        """Return what is measured; after load()."""
        raise NotImplementedError

    def load(self) -> None:
        """Build or read the model and place it on the device. Called once."""
        raise NotImplementedError

    def prepare(self, batch_size: int) -> None:
        """Make the inputs of one call, on the device; compile for them. May be called again."""
        raise NotImplementedError

    def next_inputs(self) -> int:
        """Put the next batch of the data in the place of the inputs; returns how many samples it has.

        Raises EndOfDataError after the last batch of an iterator, BenchmarkError where nothing is streamed.
        """
        raise BenchmarkError("cannot_stream", "the inputs of this model are not loaded", hint="omit --stream")

    # An attribute too, so that a child may hand over a function without a method around it.
    run: Callable[[], object]

    def synchronize(self) -> None:
        """Wait until everything that was enqueued is done. Nothing is enqueued on a CPU."""

    def waiting(self) -> Callable[[], object] | None:
        """Return what waits for the device, None where a call has ended when it returns."""
        return self.synchronize

    def limit_memory(self, budget_bytes: int | None) -> None:
        """Let allocations beyond the budget, or what there is, fail."""

    def memory(self) -> MemoryReading:
        """Return the memory in use, and the allocator's peak since the last prepare()."""
        return MemoryReading()

    def reset_peak(self) -> None:
        """Reset the peaks of memory, where there are any."""

    def close(self) -> None:
        """Give back the device's memory. Harmless twice."""
