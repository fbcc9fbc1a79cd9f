# SPDX-License-Identifier: Apache-2.0
"""The settings of a program that decide its speed: of its data loaders, its optimizers and its threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

_Settings = TypeVar("_Settings", "LoaderSettings", "OptimizerSettings", "ThreadSettings")


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """A PyTorch data loader that was iterated.

    `dataset` is the name of its class. `prefetch_factor` is None without workers; `batch_size` is None if a
    batch sampler decides or if samples are not collected into batches.
    """

    dataset: str
    workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    batch_size: int | None


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """A PyTorch optimizer that made a step.

    `name` is its class. `fused` and `foreach` are its options; None is PyTorch's default, or no such option,
    or a difference between its groups of parameters. `can_be_fused`: the class has a fused implementation,
    which takes the types and devices of all parameters. `elements` are those of all `parameters`.
    """

    name: str
    fused: bool | None
    foreach: bool | None
    can_be_fused: bool
    parameters: int
    elements: int
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ThreadSettings:
    """PyTorch's threads, within an operator and between operators, at the end of the recording.

    `usable_processors` are those of the process's affinity mask, at most as many as the quota of its control
    groups is worth.
    """

    intra_op: int
    inter_op: int
    usable_processors: float


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """The settings of a run: loaders and optimizers in the order of their first use, without repetition.

    `threads` is None where no process used PyTorch.
    """

    loaders: tuple[LoaderSettings, ...] = ()
    optimizers: tuple[OptimizerSettings, ...] = ()
    threads: ThreadSettings | None = None

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON, which `from_plain` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ProgramSettings:
        """Read what `to_plain` wrote. Raises ValueError, KeyError or TypeError for anything else."""
        threads = plain["threads"]
        return cls(
            tuple(_read(LoaderSettings, each) for each in plain["loaders"]),
            tuple(_read(OptimizerSettings, each) for each in plain["optimizers"]),
            None if threads is None else _read(ThreadSettings, threads),
        )


def _read(settings: type[_Settings], plain: Mapping[str, Any]) -> _Settings:
    """Read plain data, without what a later version may add. Raises KeyError or TypeError."""
    values = {each.name: plain[each.name] for each in dataclasses.fields(settings)}
    if "devices" in values:
        values["devices"] = tuple(map(str, values["devices"]))
    for name, kind in get_type_hints(settings).items():
        if not isinstance(values[name], _PLAIN_TYPES.get(kind, kind)):
            raise TypeError(f"{name} is {values[name]!r}")
    return settings(**values)


# Where JSON has another type.
_PLAIN_TYPES: dict[Any, Any] = {float: (int, float), tuple[str, ...]: tuple}
