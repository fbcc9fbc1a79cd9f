# SPDX-License-Identifier: Apache-2.0
"""The figures of a snapshot by name, for each of its subjects: the machine, processes, devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from gpuprof.live.alerts.rules import AlertFigure
from gpuprof.live.snapshot import LiveDeviceFigures, LiveStepFigures, MachineFigures, Snapshot, Unavailable


class SubjectKind(str, Enum):
    """What an alert is about."""

    MACHINE = "machine"
    PROCESS = "process"
    DEVICE = "device"
    RESULTS = "results"


class AlertSubject(NamedTuple):
    """The thing that an alert is about; `key` is a process id, a device's index or a configuration."""

    kind: SubjectKind
    key: int | str = ""


MACHINE = AlertSubject(SubjectKind.MACHINE)
Values = dict[AlertSubject, float | None]
_STEP: dict[AlertFigure, Callable[[LiveStepFigures], float]] = {
    AlertFigure.STEP_MEAN: lambda steps: steps.mean_ns / 1e9,
    AlertFigure.STEP_MEDIAN: lambda steps: steps.p50_ns / 1e9,
    AlertFigure.STEP_LONGEST: lambda steps: max(steps.durations_ns) / 1e9,
}


def process_subject(process_id: int) -> AlertSubject:
    """Return the subject of a process."""
    return AlertSubject(SubjectKind.PROCESS, process_id)


def alive_processes(snapshot: Snapshot) -> Iterator[AlertSubject]:
    """Yield the processes of a snapshot that have not ended."""
    return (process_subject(each.process_id) for each in snapshot.processes if each.is_alive)


def steps_by_process(snapshot: Snapshot) -> dict[AlertSubject, tuple[int, ...]]:
    """Return the durations of the steps that ended, in nanoseconds, by process."""
    if isinstance(snapshot.steps, Unavailable):
        return {}
    return {process_subject(each.process_id): each.durations_ns for each in snapshot.steps}


def devices_of(snapshot: Snapshot) -> dict[AlertSubject, LiveDeviceFigures]:
    """Return the devices of a snapshot; none where they were not read."""
    devices = () if isinstance(snapshot.devices, Unavailable) else snapshot.devices
    return {AlertSubject(SubjectKind.DEVICE, each.device): each for each in devices}


def values_of(snapshot: Snapshot, figure: AlertFigure) -> Values:
    """Return a figure of each subject; None where it is unavailable, no entry for what has ended."""
    room, _, name = figure.value.partition(".")
    if room == SubjectKind.MACHINE.value:
        return {MACHINE: _machine_value(snapshot.machine, name)}
    if room == SubjectKind.DEVICE.value:
        return {key: known(getattr(each, name)) for key, each in devices_of(snapshot).items()}
    found: Values = dict.fromkeys(alive_processes(snapshot))
    if figure in _STEP:
        steps = () if isinstance(snapshot.steps, Unavailable) else snapshot.steps
        own = {process_subject(each.process_id): _STEP[figure](each) for each in steps}
        return found | {key: value for key, value in own.items() if key in found}
    for each in snapshot.processes:
        if each.is_alive:
            waiting = figure is AlertFigure.PROCESS_WAITING
            value = each.waiting_ns / 1e9 if waiting else known(getattr(each, name))
            found[process_subject(each.process_id)] = value
    return found


def known(value: float | Unavailable | None) -> float | None:
    """Return a number; None for an unavailable one."""
    return None if value is None or isinstance(value, Unavailable) else float(value)


def _machine_value(machine: MachineFigures, name: str) -> float | None:
    if name != "memory_used_share":
        return known(getattr(machine, name))
    used, total = known(machine.memory_used_bytes), known(machine.memory_total_bytes)
    return used / total if used is not None and total else None
