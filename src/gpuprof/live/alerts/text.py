# SPDX-License-Identifier: Apache-2.0
"""The texts of alerts, made from their codes and values; nothing reads them back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpuprof.live.alerts.figures import AlertSubject, SubjectKind
from gpuprof.text.messages import Messages, Values
from gpuprof.text.sanitize import escape_text
from gpuprof.text.units import format_bytes, format_duration, format_quantity, format_share

_MOST_DECIMALS = 6  # of a percentage


def _figure(figure: str, value: float) -> str:
    """Return a figure in the unit that its name ends with."""
    name = figure.rpartition(".")[2]
    if name.endswith("_share"):
        return format_share(value)
    if name.endswith("_bytes_per_s"):
        return f"{format_bytes(value)}/s"
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_s"):
        return format_duration(value * 1e9)
    units = {"power_w": "W", "temperature_c": "°C", "cpu_cores": "cores"}
    return f"{value:.4g} {units[name]}" if name in units else format_quantity(value)


def _fractions(value: float, limit: float) -> tuple[str, str]:
    """Return a fraction and its limit as percentages, with the digits by which the limit is recognized."""
    if not (math.isfinite(value) and math.isfinite(limit)):
        return format_share(value), format_share(limit)
    for decimals in range(1, _MOST_DECIMALS + 1):
        texts = f"{value:.{decimals}%}", f"{limit:.{decimals}%}"
        is_exact = math.isclose(float(texts[1].removesuffix("%")), 100 * limit, rel_tol=1e-6)
        if is_exact and texts[0] != texts[1]:
            return texts
    return f"{100 * value:.4g}%", f"{100 * limit:.4g}%"


def _limited(comparison: str) -> Any:
    def text(values: Values) -> str:
        figure = str(values["figure"])
        pair = values["value"], values["limit"]
        value, limit = (
            _fractions(*pair) if figure.endswith("_share") else (_figure(figure, each) for each in pair)
        )
        return f"{figure} is {value}, {comparison} {limit}"

    return text


def _slow_step(values: Values) -> str:
    slow = values["slow"]
    more = f" ({slow:,} slow steps in the interval)" if slow > 1 else ""
    duration, median = format_duration(values["duration_ns"]), format_duration(values["median_ns"])
    return (
        f"step {values['step']} took {duration}, above {values['factor']:g} times the median of the "
        f"steps before it, {median}{more}"
    )


def _growth(values: Values) -> str:
    low, high = (f"{format_bytes(values[name])}/s" for name in ("low", "high"))
    return (
        f"{values['figure']} grows by {low} to {high} and does not flatten in "
        f"{format_duration(values['window_s'] * 1e9)}; it is {format_bytes(values['now'])}"
    )


_MESSAGES = Messages(
    {
        "above": _limited("above"),
        "below": _limited("below"),
        "slow_step": _slow_step,
        "slower_steps": "the last {steps:,} steps take {ratio:.3g} times as long as the first ones "
        "(99% CI {low:.3g} to {high:.3g}), margin {margin:.0%}",
        "grows": _growth,
        "no_step": "no step has ended for {since_s:time}",
        "throttled": "clocks are lowered: {reasons:list}",
        "worse_results": "{metric} of {candidate} is {ratio:.3g} times that of {files:#file} since the last "
        "change (CI {low:.3g} to {high:.3g}), margin {margin:.0%}",
    }
)
_SUBJECTS = {
    SubjectKind.MACHINE: "machine",
    SubjectKind.PROCESS: "process {key}",
    SubjectKind.DEVICE: "device {key}",
    SubjectKind.RESULTS: "{key}",
}


def alert_text(code: str, values: Mapping[str, Any]) -> str:
    """Return what an alert found, in one line."""
    return escape_text(_MESSAGES.text(code, values))


def subject_text(subject: AlertSubject) -> str:
    """Return what an alert is about."""
    return escape_text(_SUBJECTS[subject.kind].format(key=subject.key))


def alert_line(text: str, subject: AlertSubject, head: str, source: str, at_unix_ns: int) -> str:
    """Return an alert with its time, `head` (state, severity and rule), run and subject."""
    at = datetime.fromtimestamp(at_unix_ns / 1e9).astimezone().strftime("%H:%M:%S")
    run = f"{escape_text(source)}, " if source else ""
    return f"{at} {escape_text(head)}: {run}{subject_text(subject)}: {text}"
