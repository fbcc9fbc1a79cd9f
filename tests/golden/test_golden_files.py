# SPDX-License-Identifier: Apache-2.0
"""What golden files have in place of the moment."""

from __future__ import annotations

import datetime
import re

from golden_files import INPUTS, normalized

RECORDED = '"2026-11-23T05:52:31+00:00"'


def test_times_of_today_are_replaced_and_those_of_inputs_are_not() -> None:
    assert any(re.search(re.escape(RECORDED), each.read_text()) for each in INPUTS.rglob("*.json"))
    for days in range(-2, 3):
        today = datetime.date(2026, 11, 23) + datetime.timedelta(days=days)
        assert normalized(RECORDED, {}, today) == RECORDED
        assert normalized(f"at {today}T01:02:03Z, {today} 01:02:03", {}, today) == "at <time>, <time>"
