# SPDX-License-Identifier: Apache-2.0
"""The benchmark of predictions: a row has the predicted and the real gain of a cause."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from benchmarks import planted_causes


def test_a_row_has_the_predicted_and_the_real_gain(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    arguments = ["--cause", "wait in each step", "--steps", "8", "--pairs", "2", "--json", str(file)]
    assert planted_causes.main(arguments) == 0
    (row,) = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert row["cause"] == "wait in each step"
    # Each step but the first one, with which the recording begins, sleeps 20 ms.
    assert 0 < row["low_ms"] < row["high_ms"]
    assert row["low_ms"] < 20
    assert 15 < row["high_ms"] < 60
    assert row["real_low_ms"] <= row["real_ms"] <= row["real_high_ms"]


def test_the_bootstrap_interval_of_equal_times_has_no_width() -> None:
    assert planted_causes.bootstrap([2.0] * 9) == (2.0, 2.0)


def test_the_bootstrap_interval_contains_most_of_what_medians_of_other_samples_are() -> None:
    random = Random(1)
    samples = [[random.gauss(3.0, 1.0) for _ in range(40)] for _ in range(60)]
    intervals = [planted_causes.bootstrap(each) for each in samples]
    assert 51 <= sum(low <= 3.0 <= high for low, high in intervals) <= 60


def test_an_unknown_cause_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        planted_causes.main(["--cause", "moon"])
    assert refused.value.code == 2
    assert "moon" in capsys.readouterr().err


def test_a_cause_that_no_replay_predicts_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = planted_causes.Predicted(1.0, 2.0, 0.9, step_ms=40.0)
    monkeypatch.setattr(planted_causes, "measured_again", lambda cause, steps: measured)
    file = tmp_path / "found.json"
    assert planted_causes.main(["--cause", "optimizer loop", "--pairs", "2", "--json", str(file)]) == 0
    result = json.loads(file.read_text(encoding="utf-8"))
    (row,) = result["rows"]
    assert (row["low_ms"], row["high_ms"]) == (1.0, 2.0)
    assert row["real_low_ms"] <= row["real_ms"] <= row["real_high_ms"]
    assert result["is_complete"]
    assert result["agree"] == row["agrees"]
    assert result["contain_part"] == row["contains_part"]
    assert row["recorded_step_ms"] == 40.0


def test_an_interruption_keeps_the_causes_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"cause": "a", "slow_ms": 1.0, "real_ms": 0.0, "real_low_ms": 0.0, "real_high_ms": 0.0}
    rows = [row | dict.fromkeys(planted_causes.PREDICTED)]

    def measure(_name: str, _steps: int, _pairs: int) -> object:
        if rows:
            return rows.pop()
        raise KeyboardInterrupt

    monkeypatch.setattr(planted_causes, "measure", measure)
    file = tmp_path / "found.json"
    assert planted_causes.main(["--json", str(file)]) == 130
    result = json.loads(file.read_text(encoding="utf-8"))
    assert (result["is_complete"], [each["cause"] for each in result["rows"]]) == (False, ["a"])


@pytest.mark.parametrize(("gain", "expected"), [(0.5, 1), (0.1, 0), (-0.1, 0), (-3, -1)])
def test_the_sign_of_a_gain(gain: float, expected: int) -> None:
    assert planted_causes.sign(gain, 0.2) == expected


@pytest.mark.parametrize(
    ("predicted", "real", "expected"),
    [
        (3.0, (2.0, 4.0, 5.0), True),
        (3.0, (-5.0, -4.0, -2.0), False),
        (3.0, (-1.0, 1.0, 2.0), None),
        (0.0, (-1.0, 0.1, 2.0), True),
        (0.0, (2.0, 4.0, 5.0), False),
    ],
)
def test_a_sign_is_unknown_if_the_real_gain_is_not_significant(
    predicted: float, real: tuple[float, float, float], expected: bool | None
) -> None:
    assert planted_causes.same_sign(predicted, real, 0.2) is expected
