# SPDX-License-Identifier: Apache-2.0
"""The benchmark of predictions: a row has the predicted and the real gain of a cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import planted_causes


def test_a_row_has_the_predicted_and_the_real_gain(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    arguments = ["--cause", "wait in each step", "--steps", "2", "--pairs", "2", "--json", str(file)]
    assert planted_causes.main(arguments) == 0
    (row,) = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert row["cause"] == "wait in each step"
    # Each step sleeps 20 ms, and the error of sampling is about 1 ms.
    assert 15 < row["low_ms"] <= row["high_ms"]
    assert row["real_low_ms"] <= row["real_ms"] <= row["real_high_ms"]


def test_the_bootstrap_interval_of_equal_times_has_no_width() -> None:
    assert planted_causes.bootstrap([5.0] * 9, [3.0] * 9) == (2.0, 2.0)


def test_an_unknown_cause_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        planted_causes.main(["--cause", "moon"])
    assert refused.value.code == 2
    assert "moon" in capsys.readouterr().err


def test_a_cause_that_no_replay_predicts_has_a_real_gain_only(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    assert planted_causes.main(["--cause", "optimizer loop", "--pairs", "2", "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert row["low_ms"] is row["ratio"] is row["agrees"] is None
    assert row["real_low_ms"] <= row["real_ms"] <= row["real_high_ms"]
