# SPDX-License-Identifier: Apache-2.0
"""gpuprof: where a neural network's time goes, why, and whether a change made it better.

>>> with gpuprof.profile(model, out="run.gpuprof") as recording:
...     model(x)
>>> print(recording.run.summary())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuprof.record.collector import offer_collector as _offer_collector

if TYPE_CHECKING:
    from gpuprof._native import span
    from gpuprof.api import (
        Profile,
        Run,
        benchmark,
        count_work,
        import_trace,
        open,  # noqa: A004 - the contract's name
        plan_capacity,
        profile,
        windows,
    )
    from gpuprof.errors import (
        BenchmarkError,
        GpuprofError,
        RecordingError,
        RunError,
        UnavailableError,
        WorkError,
    )
    from gpuprof.load import LoadPackage
    from gpuprof.record.ranges import nsight_range

    __version__: str
    load: LoadPackage

__all__ = [
    "BenchmarkError",
    "GpuprofError",
    "Profile",
    "RecordingError",
    "Run",
    "RunError",
    "UnavailableError",
    "WorkError",
    "__version__",
    "benchmark",
    "count_work",
    "import_trace",
    "load",
    "nsight_range",
    "open",
    "plan_capacity",
    "profile",
    "span",
    "windows",
]

_offer_collector()


def __getattr__(name: str) -> Any:
    # The native core is loaded at the first use of a name, so that `gpuprof doctor` works without it, and
    # importing the package is fast.
    if name not in __all__:
        raise AttributeError(f"module 'gpuprof' has no attribute {name!r}")
    from gpuprof import api

    globals().update({each: getattr(api, each) for each in __all__})
    # A module that has this function pays for it at each access: 14 ns on CPython 3.11.
    globals().pop("__getattr__", None)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
