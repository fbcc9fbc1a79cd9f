# SPDX-License-Identifier: Apache-2.0
"""Fresh processes as launches, in a random and counterbalanced order, each with a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from gpuprof.bench.child_process import end_session, last_words, python_path
from gpuprof.bench.measurement import Measurement
from gpuprof.bench.plan import LAUNCH_VARIABLE, Plan
from gpuprof.bench.result import Launch, Result
from gpuprof.bench.settings import Settings
from gpuprof.errors import BenchmarkError

TIME_LIMIT_S = 600.0
_POLL_S = 0.2
_CLOSING_S = 5.0
_END: None = None


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
    if LAUNCH_VARIABLE in os.environ:
        raise BenchmarkError(
            "a launch may not start launches: call this under `if __name__ == '__main__':`, so that "
            "importing the file starts nothing"
        )
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
            child = _Child(name, plans[name], position)
            try:
                child.follow(time_limit_s)
            except KeyboardInterrupt:
                child.failure = "interrupted"
                raise
            finally:
                child.end()
                done.outcomes.append(child.outcome())
            if progress is not None:
                progress(done.outcomes[-1], position + 1, len(order))
    except KeyboardInterrupt:
        done.interrupted = True
    return done


class _Child:
    """One launch: the process, its messages, and how it ended."""

    def __init__(self, name: str, plan: Plan, position: int) -> None:
        self.failure: str | None = None
        self._name, self._plan, self._position = name, plan, position
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._facts: dict[str, Any] = {}
        self._wall: list[int] = []
        self._enqueue: list[int] | None = None
        self._calls = 1
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        # A session of its own: what it starts can be ended with it, and Ctrl-C is ours to pass on.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpuprof.bench.launch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            start_new_session=True,
            env={**os.environ, LAUNCH_VARIABLE: "1", "PYTHONPATH": python_path()},
        )

    def follow(self, time_limit_s: float) -> None:
        """Read what the launch says until it ends or its time is over."""
        deadline = time.monotonic() + time_limit_s
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(json.dumps(self._plan.to_dict()).encode() + b"\n")
        reader = threading.Thread(target=_read, args=(self._process.stdout, self._messages), daemon=True)
        reader.start()
        while "done" not in self._facts and self.failure is None:
            has_ended = self._process.poll() is not None
            try:
                message = self._messages.get(timeout=_POLL_S)
            except queue.Empty:
                # What it started may hold the pipe open after its end.
                message = _END if has_ended else {"event": "nothing"}
            if message is _END:
                break
            self._take(message)
            if time.monotonic() > deadline and "done" not in self._facts:
                self.failure = f"the launch was ended after {time_limit_s:g} s, its time limit"
        if "done" not in self._facts and self.failure is None:
            self.failure = self._last_words()

    def end(self) -> None:
        """End the process and everything of its session, and let go of its files."""
        if "done" in self._facts:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSING_S)
        end_session(self._process)
        self._complaints.close()

    def outcome(self) -> Outcome:
        """Return what is known of the launch."""
        done = self._facts.get("done")
        measured = self._partly() if done is None else Measurement.from_dict(done)
        if measured is not None and self.failure is None:
            self.failure = measured.failure
        launch = Launch(self._position, measured, self.failure, self._facts.get("extra", {}))
        return Outcome(self._name, launch, self._facts.get("description"), self._facts.get("environment"))

    def _take(self, message: dict[str, Any]) -> None:
        event = message.pop("event")
        if event == "samples":
            self._wall += message["wall_ns"]
            if message["enqueue_ns"] is not None:
                self._enqueue = (self._enqueue or []) + message["enqueue_ns"]
            self._calls = message["calls"]
        elif event == "failed":
            self.failure = str(message["reason"])
        elif event in ("ready", "done"):
            if event == "done":
                self._facts["done"] = message.pop("measurement")
            self._facts |= message

    def _partly(self) -> Measurement | None:
        """Return the samples of a launch that did not get to its end; None where it had sent none."""
        if not self._wall:
            return None
        reason = self.failure or "the launch ended before its measurement did"
        return Measurement(
            settings=self._plan.settings,
            wall_ns=np.array(self._wall, dtype=np.int64),
            enqueue_ns=None if self._enqueue is None else np.array(self._enqueue, dtype=np.int64),
            calls_per_sample=self._calls,
            warmup=None,
            stopped_by="interrupted" if reason == "interrupted" else "failure",
            stop_reason=reason,
            failure=reason,
            timer_ns=0.0,
            elapsed_s=sum(self._wall) / 1e9,
            machine=None,
        )

    def _last_words(self) -> str:
        code = self._process.wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"the launch {how}: {last_words(self._complaints) or 'it said nothing'}"


def _read(pipe: IO[bytes], messages: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    with pipe:
        for line in pipe:
            # A launch that was ended in the middle of a line leaves half of one.
            with contextlib.suppress(ValueError):
                messages.put(json.loads(line))
    messages.put(_END)


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
