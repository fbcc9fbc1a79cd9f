# SPDX-License-Identifier: Apache-2.0
"""Time limits of process runs that do not depend on how long Python takes to start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuprof.bench.workers import process


@pytest.fixture
def limit_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`limit_calls(quiet_s)` applies time limits to calls of the model alone, with `quiet_s` added."""

    def limit(quiet_s: float) -> None:
        whole = process._Listener._step_limit_s

        def step_limit_s(listener: process._Listener) -> float:
            return whole(listener) if listener.last.state in process._CALLING else 120.0

        monkeypatch.setattr(process, "QUIET_S", quiet_s)
        monkeypatch.setattr(process._Listener, "_step_limit_s", step_limit_s)

    return limit
