# SPDX-License-Identifier: Apache-2.0
"""Typed rules of alerts. Each kind is a class of its own; times are in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from gpuprof.analyze.devices import THROTTLE_REASONS

# Not the power cap, at which a busy device runs all the time, nor sync boost, which another device causes.
THROTTLING = tuple(THROTTLE_REASONS[bit] for bit in (0x8, 0x20, 0x40, 0x80))


class RuleKind(str, Enum):
    """What a rule compares."""

    THRESHOLD = "threshold"
    REGRESSION = "regression"
    LEAK = "leak"
    SLOW_STEP = "slow_step"
    STALL = "stall"
    THROTTLING = "throttling"


class AlertSeverity(str, Enum):
    """How urgent an alert is, in the words of Prometheus's rules."""

    WARNING = "warning"
    CRITICAL = "critical"


class AlertFigure(str, Enum):
    """A figure that a rule can name: its value in a snapshot, for the machine or each process or device."""

    MACHINE_CPU = "machine.cpu_share"
    MACHINE_IO_WAIT = "machine.io_wait_share"
    MACHINE_MEMORY = "machine.memory_used_bytes"
    MACHINE_MEMORY_SHARE = "machine.memory_used_share"
    MACHINE_LOAD = "machine.load_1min"
    MACHINE_RECEIVED = "machine.received_bytes_per_s"
    MACHINE_SENT = "machine.sent_bytes_per_s"
    PROCESS_CPU = "process.cpu_cores"
    PROCESS_RSS = "process.rss_bytes"
    PROCESS_THREADS = "process.threads"
    PROCESS_READ = "process.read_bytes_per_s"
    PROCESS_WRITTEN = "process.written_bytes_per_s"
    PROCESS_WAITING = "process.waiting_s"
    STEP_MEAN = "step.mean_s"
    STEP_MEDIAN = "step.median_s"
    STEP_LONGEST = "step.longest_s"
    DEVICE_UTILIZATION = "device.utilization_share"
    DEVICE_MEMORY = "device.memory_used_bytes"
    DEVICE_POWER = "device.power_w"
    DEVICE_TEMPERATURE = "device.temperature_c"


@dataclass(frozen=True, slots=True, kw_only=True)
class _BaseRule:
    """What all rules have: the condition must be true for `for_s` before the alert fires.

    It clears once the condition was false for `clear_s`; None is the same time as `for_s`.
    """

    name: str
    severity: AlertSeverity = AlertSeverity.WARNING
    for_s: float = 0.0
    clear_s: float | None = None

    @property
    def quiet_s(self) -> float:
        """How long the condition must be false before the alert clears."""
        return self.for_s if self.clear_s is None else self.clear_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdRule(_BaseRule):
    """A figure is above or below a limit; one of the two is set."""

    figure: AlertFigure
    above: float | None = None
    below: float | None = None
    kind: RuleKind = RuleKind.THRESHOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionRule(_BaseRule):
    """The last `steps` steps take longer than the first ones after `warmup`, by more than `margin`.

    The lower end of the interval of the ratio must be above the margin.
    """

    margin: float = 0.2
    steps: int = 200
    warmup: int = 20
    for_s: float = 30.0
    kind: RuleKind = RuleKind.REGRESSION


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakRule(_BaseRule):
    """A figure grows over `window_s`, in all parts of its second half, and does not flatten.

    `bytes_per_s` is the growth that is no leak; the growth must also exceed `share` of the level.
    """

    figure: AlertFigure = AlertFigure.PROCESS_RSS
    bytes_per_s: float = 100e3
    share: float = 0.02
    window_s: float = 600.0
    for_s: float = 60.0
    kind: RuleKind = RuleKind.LEAK


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStepRule(_BaseRule):
    """A step takes longer than `factor` times the median of the up to `steps` steps before it."""

    factor: float = 3.0
    steps: int = 1_000
    fewest: int = 20
    clear_s: float | None = 60.0
    kind: RuleKind = RuleKind.SLOW_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class StallRule(_BaseRule):
    """No step ends for `for_s`, after some did."""

    severity: AlertSeverity = AlertSeverity.CRITICAL
    for_s: float = 600.0
    clear_s: float | None = 0.0
    kind: RuleKind = RuleKind.STALL


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottlingRule(_BaseRule):
    """A device reports one of some throttle reasons, by their names in `THROTTLE_REASONS`."""

    reasons: tuple[str, ...] = THROTTLING
    for_s: float = 30.0
    kind: RuleKind = RuleKind.THROTTLING


AlertRule: TypeAlias = ThresholdRule | RegressionRule | LeakRule | SlowStepRule | StallRule | ThrottlingRule

BUILT_IN_RULES: tuple[AlertRule, ...] = (
    RegressionRule(name="step-regression"),
    SlowStepRule(name="slow-step"),
    StallRule(name="stalled"),
    LeakRule(name="memory-leak"),
    LeakRule(name="device-memory-leak", figure=AlertFigure.DEVICE_MEMORY),
    ThrottlingRule(name="throttling"),
    ThresholdRule(
        name="memory-nearly-full",
        severity=AlertSeverity.CRITICAL,
        figure=AlertFigure.MACHINE_MEMORY_SHARE,
        above=0.95,
        for_s=30.0,
    ),
)
