# SPDX-License-Identifier: Apache-2.0
"""What a launch does with a plan, inside its process. `job.py` is the same for a spec of a framework."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gpuprof.bench.callable_system import CallableSystem
from gpuprof.bench.environment import describe_environment
from gpuprof.bench.failures import reason_of
from gpuprof.bench.measure import measure
from gpuprof.bench.plan import find_named
from gpuprof.bench.sample_stream import SampleSender, Send
from gpuprof.bench.settings import Settings
from gpuprof.errors import BenchmarkError, GpuprofError


def make_callable(target: str, inputs: str | None, name: str | None) -> CallableSystem:
    """Return the system of a named function, whose inputs another named function makes."""
    made = None if inputs is None else find_named(inputs)
    return CallableSystem(find_named(target), made, name=name)


def run_plan(plan: Mapping[str, Any], send: Send) -> None:
    """Make the system of a plan and measure it, in a process that is a launch; raises GpuprofError."""
    sys.path[:] = plan["path"]
    try:
        _measure(plan, send)
    except GpuprofError:
        raise
    except Exception as error:
        raise BenchmarkError(reason_of(error)) from error


def _measure(plan: Mapping[str, Any], send: Send) -> None:
    factory = find_named(plan["factory"])
    began = time.perf_counter()
    system = factory(**plan["arguments"])
    send("imported")
    system.load()
    loaded = time.perf_counter()
    send("loaded")
    system.prepare(plan["batch_size"] or 1)
    prepared = time.perf_counter()
    extra: dict[str, Any] = {
        "load_s": loaded - began,
        "prepare_s": prepared - loaded,
        "process_id": os.getpid(),
    }
    send("ready", extra=extra, description=asdict(system.describe()), environment=describe_environment())
    measured = measure(system, Settings.from_dict(plan["settings"]), progress=SampleSender(send).progress)
    extra["memory"] = asdict(system.memory())
    send("measured", measurement=measured.to_dict(), extra=extra)
    system.close()
