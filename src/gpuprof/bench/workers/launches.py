# SPDX-License-Identifier: Apache-2.0
"""Fresh processes as launches, in a random and counterbalanced order, each with a time limit."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuprof.bench.config import Settings
from gpuprof.bench.measure.measurement import Measurement, StoppedBy
from gpuprof.bench.models.importing import Plan
from gpuprof.bench.results.result import Launch, Result
from gpuprof.bench.workers.launcher import Event, refuse_in_launch, run_launch
from gpuprof.bench.workers.samples import INTERRUPTED, SamplesSoFar
from gpuprof.errors import BenchmarkError, GpuprofError
from gpuprof.stats.distributions import require_scipy

TIME_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One launch that came to an end, and what it said of itself (None where it did not get so far)."""

    name: str
    launch: Launch
    description: Mapping[str, Any] | None
    environment: Mapping[str, Any] | None


Progress = Callable[[Outcome, int, int], None]


@dataclass(slots=True)
class Launches:
    """All outcomes in the order of their making; `interrupted` after Ctrl-C."""

    plans: Mapping[str, Plan]
    outcomes: list[Outcome] = field(default_factory=list)
    interrupted: bool = False

    def results(self) -> dict[str, Result]:
        """Return one result for each configuration that was launched at least once."""
        found = {}
        for name, plan in self.plans.items():
            own = [outcome for outcome in self.outcomes if outcome.name == name]
            if own:
                found[name] = _result(name, plan, own)
        return found


def launch_order(names: Sequence[str], launches: int, seed: int) -> list[str]:
    """Return who is launched when: a random order, then its reverse (ABBA), then a new one.

    A drift of the machine then meets all configurations alike, and neither can gain by being first.
    """
    generator = random.Random(seed)  # noqa: S311 - an order, no secret
    order: list[str] = []
    for number in range(launches):
        order += (
            generator.sample(list(names), len(names)) if number % 2 == 0 else order[: -len(names) - 1 : -1]
        )
    return order


def run_launches(
    plans: Mapping[str, Plan],
    launches: int,
    *,
    seed: int = 0,
    time_limit_s: float = TIME_LIMIT_S,
    progress: Progress | None = None,
) -> Launches:
    """Launch each plan so many times. One that fails or hangs is an outcome like any other.

    `progress(outcome, done, planned)` is called after each. Ctrl-C ends the running launch and all that it
    started and returns what there is, with `interrupted` set. Raises BenchmarkError inside a launch.
    """
    refuse_in_launch()
    require_scipy()
    if launches < 1 or not time_limit_s > 0:
        raise BenchmarkError(
            f"{launches} launches of {time_limit_s} s: give at least one, and a time above 0"
        )
    for name, plan in plans.items():
        plan.check(name)
    order = launch_order(list(plans), launches, seed)
    done = Launches(plans)
    try:
        for position, name in enumerate(order):
            done.outcomes.append(_launch(name, plans[name], position, time_limit_s))
            if progress is not None:
                progress(done.outcomes[-1], position + 1, len(order))
    except _Interrupted as interrupt:
        done.outcomes.append(interrupt.outcome)
        done.interrupted = True
    except KeyboardInterrupt:
        done.interrupted = True
    return done


class _Interrupted(KeyboardInterrupt):
    """Ctrl-C, with what the running launch had told."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


class _Told:
    """What one launch has told, and what it comes to."""

    def __init__(self, name: str, plan: Plan, position: int) -> None:
        self._name, self._plan, self._position = name, plan, position
        self._facts: dict[str, Any] = {}
        self._so_far = SamplesSoFar()

    def take(self, event: Event) -> None:
        """Take one event."""
        if event["event"] == "samples":
            self._so_far.take(event)
        elif event["event"] in ("ready", "measured"):
            self._facts |= event

    def outcome(self, failure: str | None) -> Outcome:
        """Return what is known of the launch, which failed for the reason that is given."""
        measured = self._measured(failure or "the launch ended before its measurement did")
        if measured is not None and failure is None:
            failure = measured.failure
        launch = Launch(self._position, measured, failure, self._facts.get("extra", {}))
        return Outcome(self._name, launch, self._facts.get("description"), self._facts.get("environment"))

    def _measured(self, reason: str) -> Measurement | None:
        if "measurement" in self._facts:
            return Measurement.from_dict(self._facts["measurement"])
        stopped_by: StoppedBy = "interrupted" if reason == INTERRUPTED else "failure"
        return self._so_far.measurement(self._plan.settings, reason, stopped_by)


def _launch(name: str, plan: Plan, position: int, time_limit_s: float) -> Outcome:
    told = _Told(name, plan, position)
    job = {"plan": plan.to_dict()}
    try:
        run_launch(job, time_limit_s=time_limit_s, on_event=told.take, limits_whole=True)
    except KeyboardInterrupt as interrupt:
        raise _Interrupted(told.outcome(INTERRUPTED)) from interrupt
    except GpuprofError as error:
        return told.outcome(str(error))
    return told.outcome(None)


def _result(name: str, plan: Plan, outcomes: Sequence[Outcome]) -> Result:
    described = next((each.description for each in outcomes if each.description is not None), None)
    environment = next((each.environment for each in outcomes if each.environment is not None), None)
    settings: Settings = plan.settings
    return Result(
        name=name,
        description=described,
        settings=settings,
        launches=tuple(each.launch for each in outcomes),
        environment=environment or {},
        batch_size=plan.batch_size,
    )
