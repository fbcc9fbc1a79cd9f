# SPDX-License-Identifier: Apache-2.0
"""Why a verdict about load is what it is, as typed values; the text of each code is here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuprof.text.messages import Messages, Template, Values
from gpuprof.text.units import counted, format_change, format_duration, format_number, format_share


@dataclass(frozen=True, slots=True)
class LoadReason:
    """What decided a verdict: a code and plain values in SI units; `str()` is its text."""

    code: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return MESSAGES.text(self.code, self.values)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the text for people."""
        return {"code": self.code, "values": dict(self.values), "text": str(self)}


def reason(code: str, **values: Any) -> LoadReason:
    """Return a reason with its values."""
    return LoadReason(code, values)


def _within_margin(values: Values) -> str:
    high = max(values["high"], 0)
    unit, margin = values["unit"], format_number(values["margin"])
    found = f"growth of at most {format_number(high)} {unit} per request (95% CI)" if high else "no growth"
    return f"{values['meter']}: {found}, within the margin of {margin}"


def _drift(what: str, more: str = "") -> Callable[[Values], str]:
    """Return the text of a change of the service time: a minute, or within the time of a shorter test."""

    def text(values: Values) -> str:
        minutes = min(values["seconds"] / 60, 1.0)
        # Of logarithms, so that no change is below -100%.
        low, high = (
            format_change(math.expm1(min(values[name] * minutes, 700)), 2) for name in ("low", "high")
        )
        median = format_duration(values["median_s"] * 1e9)
        base = "per minute" if minutes == 1 else f"in {values['seconds']:.3g} s"
        return (
            f"service time (median {median}): change of {low} to {high} {base} (95% CI), {what} "
            f"{100 * values['margin'] * minutes:.2g}%{more.format_map(values)}"
        )

    return text


# What a soak test asks.
SOAK_QUESTION = "leak, slower service or throttling"
_THROTTLED = "{cause}: throttled in {throttled} of {intervals:#interval} between readings; in these, "


def _throttled_harmless(values: Values) -> str:
    low, high = values["low"], values["high"]
    took = f"took at most {format_share(high)} longer"
    if high <= 0:
        took = f"was not slower: it took {format_share(-high)} to {format_share(-low)} less time"
    where = f"{values['throttled']} of {counted(values['intervals'], 'interval')} between readings"
    return f"{values['cause']}: throttled in {where}, in which service {took} (95% CI)"


# Of the shortest run.
_SHORT_RUNS = (
    "{requests:#request}, which are correlated and count as {effective:,.0f} independent ones; p{percent:g} "
    "needs {least:,}, in runs of about {needed:,} requests"
)
_TEMPLATES: dict[str, Template] = {
    # MLPerf-style scenarios
    "too_short": "the run took {seconds:.3g} s, and the rule is {least_s:.3g} s",
    "too_few_queries": "too few queries (n={queries:,}, needs {least:,})",
    "too_few_samples": "too few samples (n={samples:,}, needs {least:,})",
    "above_bound": "{over:,} of {queries:#query/queries} failed or took longer than the bound, and at most "
    "{most:.3g}% may",
    "early_stopping": "{over:,} of {queries:#query/queries} took longer than the bound; to stop early with "
    "as many, {least:,} queries are needed",
    "latency_bound": "p{percent:g} by LoadGen's definition, {latency_s:time}, is above the bound of "
    "{bound_s:time}",
    "failed_quantile": "p{percent:g} is that of a query that failed or had no response, and the bound is "
    "{bound_s:time}",
    "failed_queries": "{failed:,} of {queries:#query/queries} failed or had no response",
    "repeat_longer": "repeat on a quieter machine, or with a longer --duration",
    "repeat_faster": "repeat on a quieter machine, with a longer --duration, or with a --rate above the "
    "measured {rate:rate}",
    # Intervals of queues
    "too_few_runs": "too few independent runs (n={runs}, needs {least})",
    "short_runs": f"each run has {_SHORT_RUNS}",
    "short_runs_at_rate": f"at {{rate:rate}}, each run has {_SHORT_RUNS}",
    # Search of the highest rate
    "never_met": "no rate was shown to meet the target; the lowest was {rate:rate}",
    "lower_rates_short": "lower rates were not measured: below {rate:rate}, a run has fewer than the "
    "{least:,} requests that p{percent:g} needs; use a longer --duration",
    "never_missed": "no rate was shown to miss the target; the highest was {rate:rate}",
    "rates_left": "the search ended after {rates:#rate}; rates between {low:rate} and {high:rate} are open",
    "not_in_order": "the rates are not in order: {missed:rate} is missed, and {rate:rate} is {verdict}; "
    "repeat on a quieter machine, or with more --runs",
    # Tests of several runs
    "all_failed": "stopped: every request failed (n={requests:,}; {cause})",
    "cannot_continue": "stopped: {error}",
    # Leaks, drift, throttling
    "unavailable": "{meter}: cannot be read on this machine",
    "other_process": "{meter}: cannot be read: the target is another process",
    "short_series": "{meter}: too few readings (n={readings}, needs {least})",
    "grows": "{meter}: growth of {low:number} to {high:number} {unit} per request (95% CI), above the "
    "margin of {margin:number}",
    "within_margin": _within_margin,
    "flattens": "{meter}: the growth is flattening: run longer",
    "wide_interval": "{meter}: growth of {low:number} to {high:number} {unit} per request (95% CI), and the "
    "margin is {margin:number}: run longer",
    "slower_over_time": _drift("above the margin of"),
    "faster_over_time": _drift("below the margin of"),
    "steady": _drift("within the margin of"),
    "drift_open": _drift("and the margin is", ": run longer"),
    "slower_in_short_test": _drift(
        "above the margin of", ": shorter than {least_s:g} s after the warm-up: run longer"
    ),
    "throttled_slower": _THROTTLED + "service took {low:.1%} to {high:.1%} longer (95% CI)",
    "throttled_harmless": _throttled_harmless,
    "not_throttled": "{cause}: throttled in none of {intervals:#interval} between readings",
    "throttled_throughout": "{cause}: throttled in {throttled} of {intervals:#interval} between readings: "
    "too few, or too few others, to compare the service times",
    "throttled_unclear": _THROTTLED
    + "the service time changed by {low:+.1%} to {high:+.1%} (95% CI): run longer",
    # Capacity
    "machines_planned": "{machines:#machine} for {target}, by the simulation of measured service times",
    "cpu_above": "CPU usage of {percent:.4g}% is above {limit:g}%: use {instances:#instance}",
    "memory_above": "memory usage of {megabytes:,.4g} MB is above {limit:,g} MB: use a machine "
    "with more memory",
    "far_extrapolation": "concurrency {asked:g} is beyond twice the largest that was measured, {most:g}",
}  # fmt: skip
MESSAGES = Messages(_TEMPLATES, {"number": format_number})
