# SPDX-License-Identifier: Apache-2.0
"""gpuprof: where a neural network's time goes, why, and whether a change made it better.

>>> with gpuprof.profile(model, out="run.gpuprof") as recording:
...     model(x)
>>> print(recording.run.summary())
"""

from gpuprof import _native
from gpuprof.api import Profile, Run, open_run, profile
from gpuprof.errors import GpuprofError, RecordingError, RunError, UnavailableError
from gpuprof.record.decorate import decorate as _decorate
from gpuprof.record.operators import offer_collector as _offer_collector

__version__: str = _native.build_info()["version"]

open = open_run  # noqa: A001 - the contract's name; the builtin stays within this module's reach
span = _native.span

_native._set_decorate_hook(_decorate)
_offer_collector()

__all__ = [
    "GpuprofError",
    "Profile",
    "RecordingError",
    "Run",
    "RunError",
    "UnavailableError",
    "__version__",
    "open",
    "profile",
    "span",
]
