# SPDX-License-Identifier: Apache-2.0
"""The benchmark of all rules, on a small training."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import findings
from gpuprof.analyze.findings.finding import Rule


def test_each_rule_has_a_time(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    assert findings.main(["--operators", "2000", "--tries", "1", "--json", str(file)]) == 0
    result = json.loads(file.read_text(encoding="utf-8"))
    asked = set(Rule) - {Rule.ATTENTION, Rule.SUBNORMALS}  # these need a re-run
    assert result["operators"] >= 2000
    assert {each["rule"] for each in result["rows"]} >= {"all rules", *(rule.value for rule in asked)}
    assert all(each["time_s"] > 0 for each in result["rows"])
