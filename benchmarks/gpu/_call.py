# SPDX-License-Identifier: Apache-2.0
"""A call of the benchmark: its limits, its journal, and the commands that it runs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu._build import BUILD, environment
from benchmarks.gpu._journal import VARIABLE, Entry, Journal, State
from benchmarks.gpu._processes import MARK, Done, end_marked, run
from benchmarks.gpu._pytest_journal import STEP_VARIABLE

# An item that has less time than this is not begun.
LEAST_S = 3.0
AT_ONCE = 4
_MOST_OUTPUT = 20_000


@dataclass(frozen=True, slots=True)
class Options:
    """What the steps are to do."""

    device: str = "cuda"
    quick: bool = False
    workloads: tuple[str, ...] = ()
    profilers: tuple[str, ...] = ()
    rounds: int = 40
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """An item that is a command. `facts` makes what is reported of its output; without it, JSON lines are."""

    item: str
    words: Sequence[str | Path]
    limit_s: float
    variables: Mapping[str, str] = field(default_factory=dict)
    facts: Callable[[Done], Any] | None = None
    # Exit codes of a command that has done its work: what is wrong is in its figures.
    good_codes: tuple[int, ...] = (0,)
    # Of a command that found nothing to do.
    skipped_code: int | None = None
    # Without an optional item the step is as good.
    optional: bool = False


@dataclass(slots=True)
class Call:
    """`end_s` and `step_end_s` are times of the monotonic clock."""

    out: Path
    name: str
    options: Options
    end_s: float
    step: str = "call"
    step_end_s: float = float("inf")
    failed: set[str] = field(default_factory=set)

    @property
    def journal(self) -> Journal:
        """The lines of this call's items."""
        return Journal(self.out / f"{self.name}.jsonl")

    @property
    def log(self) -> Path:
        """Where the output of all commands goes."""
        return self.out / f"{self.name}.log"

    def begin(self, step: str, limit_s: float) -> float:
        """Begin a step; returns the seconds that it has."""
        self.step = step
        self.step_end_s = min(self.end_s, time.monotonic() + limit_s)
        return self.left_s()

    def left_s(self) -> float:
        """Return the seconds that are left for the step."""
        return self.step_end_s - time.monotonic()

    def add(self, item: str, state: State, *, optional: bool = False, **more: Any) -> None:
        """Write an item of the current step."""
        if state not in ("ok", "skipped") and not optional:
            self.failed.add(self.step)
        self.journal.add(Entry(self.step, item, state, **more))
        seconds = "" if more.get("seconds") is None else f" in {more['seconds']:.1f} s"
        problem = "" if more.get("problem") is None else f": {more['problem']}"
        print(f"{self.step}: {item}: {state}{seconds}{problem}"[:300], flush=True)

    def run(self, command: Command) -> Done | None:
        """Run an item within its own limit and the step's; None where no time is left for it."""
        limit_s = min(command.limit_s, self.left_s())
        if limit_s < LEAST_S:
            self.add(command.item, "skipped", problem="no time was left")
            return None
        done = run(
            command.words, limit_s=limit_s, log=self.log, environment=self._variables(command.variables)
        )
        state = _state(command, done.code)
        self.add(
            command.item,
            state,
            optional=command.optional,
            seconds=round(done.seconds, 2),
            problem=None if state == "ok" else done.problem,
            facts=(command.facts or json_lines)(done),
        )
        return done

    def run_together(self, commands: Iterable[Command], at_once: int = AT_ONCE) -> None:
        """Run items that do not disturb each other."""
        pool = ThreadPoolExecutor(at_once)
        try:
            list(pool.map(self.run, commands))
        except BaseException:
            end_marked(os.environ[MARK])  # the threads wait for them
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def work(self, item: str, body: Callable[[float], Any]) -> None:
        """Run an item that is a function of the seconds left; its result may have a `problem`."""
        begin = time.monotonic()
        try:
            facts = body(self.left_s())
        except Exception as error:
            facts = {"problem": f"{type(error).__name__}: {error}"}
        problem = facts.pop("problem", None)
        state: State = "ok" if problem is None else "failed"
        self.add(item, state, seconds=round(time.monotonic() - begin, 2), problem=problem, facts=facts)

    def _variables(self, more: Mapping[str, str]) -> dict[str, str]:
        compiled = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
        return {
            **environment(),
            **{name: str(BUILD / folder) for name, folder in compiled.items()},
            VARIABLE: str(self.journal.path.resolve()),
            STEP_VARIABLE: self.step,
            "PYTHONUNBUFFERED": "1",
            **more,
        }


def _state(command: Command, code: int | None) -> State:
    if code is None:
        return "timed out"
    if code in command.good_codes:
        return "ok"
    return "skipped" if code == command.skipped_code else "failed"


def python(*words: str | Path) -> list[str | Path]:
    """Return a command line of this Python."""
    return [sys.executable, *words]


def json_lines(done: Done) -> Any:
    """Return what a command printed as lines of JSON: the one, or a list; else the end of its output."""
    found = []
    for line in done.output.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:  # cut off where the command was ended
                continue
    if found:
        return found[0] if len(found) == 1 else found
    return {"output": done.output[-_MOST_OUTPUT:]} if done.output else None


def json_text(done: Done) -> Any:
    """Return what a command printed as one JSON text of several lines."""
    try:
        return json.loads(done.output)
    except ValueError:
        return {"output": done.output[-_MOST_OUTPUT:]}
