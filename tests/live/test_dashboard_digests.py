# SPDX-License-Identifier: Apache-2.0
"""Which JSON files the dashboard takes for results."""

from __future__ import annotations

from pathlib import Path

import pytest
from dashboard_folders import result_text
from refusals import refused

from gpuprof.errors import GpuprofError
from gpuprof.live.dashboard import digests
from gpuprof.live.dashboard.digests import digest_of
from gpuprof.live.dashboard.items import ItemKind

HALF = result_text(0, 10.0, 1)[:500]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("body.json", '{"kind": "chat", "input": {{index}}}'),
        ("deep.json", "[" * 100_000),
        ("package.json", '{"name": "another program"}'),
        ("empty.json", ""),
    ],
)
def test_a_file_of_other_software_is_left_out(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert digest_of(tmp_path, name, ItemKind.RESULT) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("half.json", HALF),
        ("max_rate.json", ""),
        ("other.json", '{"kind": "comparison", "name": '),
        ("gate.json", '{\n "outcome": "passed", "margin": 0.05, "rows": ['),
    ],
)
def test_a_file_that_looks_like_a_result_is_damaged(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with refused(GpuprofError, "not_json", name):
        digest_of(tmp_path, name, ItemKind.RESULT)


def test_a_large_file_is_listed_only_if_it_looks_like_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "LARGEST_FILE", 100)
    (tmp_path / "data.json").write_text(f'["{"x" * 100}"]', encoding="utf-8")
    (tmp_path / "half.json").write_text(HALF, encoding="utf-8")
    assert digest_of(tmp_path, "data.json", ItemKind.RESULT) is None
    with refused(GpuprofError, "too_large", "half.json"):
        digest_of(tmp_path, "half.json", ItemKind.RESULT)
