# SPDX-License-Identifier: Apache-2.0
"""What tests of several commands need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_api import FakeApi, FakeRun

import gpuprof


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeApi:
    fake = FakeApi(FakeRun(tmp_path / "demo.gpuprof", "span", "layer", "operator"))
    monkeypatch.setitem(sys.modules, "gpuprof.api", fake)
    monkeypatch.setattr(gpuprof, "api", fake, raising=False)
    monkeypatch.setattr("gpuprof.recorded_program.run_program", fake.run_program)
    return fake
