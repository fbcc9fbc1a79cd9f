# SPDX-License-Identifier: Apache-2.0
"""Why a verdict about load is what it is, as typed values; the text of each code is here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuprof.text.messages import Messages, Template


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


_TEMPLATES: dict[str, Template] = {
    # MLPerf-style scenarios
    "too_short": "the run took {seconds:.3g} s, and the rule is {least_s:.3g} s",
    "too_few_queries": "too few queries (n={queries:,}, needs {least:,})",
    "too_few_samples": "too few samples (n={samples:,}, needs {least:,})",
    "early_stopping": "{over:,} of {queries:,} queries are over the bound; to stop early with as "
    "many, {least:,} queries are needed",
    "latency_bound": "p{percent:g} of {latency_s:time} is above the bound of {bound_s:time}",
    "failed_queries": "{failed:,} of {queries:,} queries failed or have no response",
    # Intervals of queues
    "too_few_runs": "too few independent runs (n={runs}, needs {least})",
    "short_runs": "each run has {requests:,} requests, which are correlated and count as {effective:,.0f} "
    "independent ones; p{percent:g} needs {least:,}, in runs of about {needed:,} requests",
    # Search of the highest rate
    "never_met": "no rate was shown to meet the target; the lowest was {rate:.4g}/s",
    "never_missed": "no rate was shown to miss the target; the highest was {rate:.4g}/s",
    "rates_left": "the search ended after {rates} rates; rates between {low:.4g}/s and {high:.4g}/s are open",
    # Tests of several runs
    "all_failed": "stopped: each of {requests:,} requests failed ({cause})",
    "cannot_continue": "stopped: {error}",
    # Leaks, drift, throttling
    "unavailable": "{meter} cannot be read on this machine",
    "short_series": "too few readings (n={readings}, needs {least})",
    "grows": "growth of {meter}: {low:.3g} to {high:.3g} {unit} a request",
    "within_margin": "growth of {meter}: at most {high:.3g} {unit} a request, within {margin:.3g}",
    "flattens": "the growth of {meter} is flattening: run longer",
    "wide_interval": "growth of {meter}: {low:.3g} to {high:.3g} {unit} a request, margin {margin:.3g}: "
    "run longer",
    "slower_over_time": "service times rise by {low:.3%} to {high:.3%} a minute",
    "faster_over_time": "service times fall by {low:.3%} to {high:.3%} a minute",
    "steady": "service times change by {low:.3%} to {high:.3%} a minute, within {margin:.3%}",
    "drift_open": "service times change by {low:.3%} to {high:.3%} a minute, margin {margin:.3%}: run longer",
    "throttled_slower": "{cause}: throttled in {throttled} of {intervals} intervals, where service is "
    "{low:.1%} to {high:.1%} slower",
    "throttled_harmless": "{cause}: throttled in {throttled} of {intervals} intervals, where service is not "
    "slower by more than {margin:.1%}",
    "not_throttled": "{cause}: not throttled in {intervals} intervals",
    "throttled_throughout": "{cause}: throttled in {throttled} of {intervals} intervals, too few "
    "are left to compare with",
    "throttled_unclear": "{cause}: throttled in {throttled} of {intervals} intervals, where service is "
    "{low:.1%} to {high:.1%} slower: run longer",
    # Capacity
    "machines_planned": "{machines:#machine} for {target}, by the simulation of measured service times",
    "cpu_above": "CPU usage of {percent:.4g}% is above {limit:g}%: use {instances:#instance}",
    "memory_above": "memory usage of {megabytes:,.4g} MB is above {limit:,g} MB: use a machine "
    "with more memory",
    "far_extrapolation": "concurrency {asked:g} is beyond twice the largest that was measured, {most:g}",
}  # fmt: skip
MESSAGES = Messages(_TEMPLATES)
