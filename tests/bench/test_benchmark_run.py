# SPDX-License-Identifier: Apache-2.0
"""A benchmark from its settings: how the search for the largest batch measures."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpuprof.bench.benchmark_run import Benchmark, Request
from gpuprof.bench.config import JobSettings, Settings, SystemSpec
from gpuprof.bench.results.target import parse_target
from gpuprof.bench.workers.session import Session
from gpuprof.errors import BenchmarkError


def test_a_search_measures_as_it_was_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Settings] = []

    def refuse(session: Session, **_more: Any) -> None:
        asked.append(session.result.settings.measuring)
        session.result.failure = BenchmarkError("failed", "not measured here")

    monkeypatch.setattr(Session, "run", refuse)
    job = JobSettings((1,), Settings(iterations=300, warmup=5))
    request = Request(SystemSpec("any"), job, target=parse_target("p50<1s"), find_largest=True)
    assert Benchmark(request).run().session.failure is not None
    assert [(each.iterations, each.warmup, each.duration_s) for each in asked] == [(300, 5, None)]
    asked.clear()
    timed = JobSettings((1,), Settings(duration_s=0.25))
    Benchmark(dataclasses.replace(request, job=timed)).run()
    assert [(each.iterations, each.duration_s) for each in asked] == [(None, 0.25)]
    asked.clear()
    Benchmark(dataclasses.replace(request, job=JobSettings())).run()
    assert [(each.iterations, each.duration_s) for each in asked] == [(None, pytest.approx(7.2))]
