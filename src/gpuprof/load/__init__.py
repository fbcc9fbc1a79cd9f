# SPDX-License-Identifier: Apache-2.0
"""Load: what happens to requests that arrive by a plan, whether the system is ready for them or not.

    schedules -> driver -> targets (in process, HTTP, gRPC) -> requests -> result

Latency is counted from the planned arrival, so that a system that stalls cannot hide the requests that
waited meanwhile.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuprof.load.result import LoadResult, open_result

__all__ = ["open_result"]


class LoadPackage(types.ModuleType):
    """The package is a function too: `gpuprof.load(...)`, of the same name, would otherwise hide it."""

    def __call__(
        self,
        target: Any,
        inputs: Any = None,
        *,
        scenario: str = "server",
        rate: float | None = None,
        duration_s: float | None = None,
        count: int | None = None,
        pattern: str | None = None,
        mix: str | None = None,
        concurrency: int | None = None,
        slo: str | None = None,
        max_batch: int | None = None,
        batch_wait_s: float | None = None,
        seed: int = 0,
        out: str | None = None,
        profile: bool = False,
    ) -> LoadResult:
        """Send requests to a target by a plan, and measure their latencies from the plan (docs/load.md).

        `target` is a function or coroutine function, called for each request (with `inputs`, if any), a
        module with its `inputs`, the name of a model, `python:module:function`, or an object of
        `gpuprof.load.targets`. A named model is called with up to `max_batch` waiting requests at once, of
        which the oldest waits for others until it has waited `batch_wait_s`. `rate` is in requests per
        second. `out` is a folder for the result. With `profile`, the process is recorded while it serves
        the requests, into `profile.gpuprof` in `out`: `result.slowest()` has the slowest ones with what they
        spent their time on. Raises BenchmarkError, before the first request, for what
        cannot work.
        """
        from pathlib import Path

        from gpuprof.errors import BenchmarkError
        from gpuprof.load.result import PROFILE_FOLDER, LoadSettings
        from gpuprof.load.run import LoadOptions, run_load

        if profile and out is None:
            raise BenchmarkError("no_out", "profile=True without a folder", hint="set out, as in out='load'")
        run = Path(out) / PROFILE_FOLDER if profile and out is not None else None

        name = (
            target if isinstance(target, str) else str(getattr(target, "__qualname__", type(target).__name__))
        )
        settings = LoadSettings(
            name, scenario, pattern, rate, duration_s, count, concurrency, mix, slo, seed,
            max_batch=max_batch, batch_wait_s=batch_wait_s,
        )  # fmt: skip
        result = run_load(target, settings, inputs, LoadOptions(profile=run))
        if out is not None:
            result.save(out)
        return result

    def __getattr__(self, name: str) -> Any:
        # Importing gpuprof imports this package, which must cost nothing.
        if name not in __all__:
            raise AttributeError(f"module 'gpuprof.load' has no attribute {name!r}")
        from gpuprof.load import result

        return getattr(result, name)


sys.modules[__name__].__class__ = LoadPackage
