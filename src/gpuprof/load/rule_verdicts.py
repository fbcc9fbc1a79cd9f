# SPDX-License-Identifier: Apache-2.0
"""What the rules of MLPerf give for a load in one of its scenarios that gpuprof itself ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuprof.bench.results.target import parse_target
from gpuprof.load.mlperf import RULES, MlperfScenario, ScenarioResult, ScenarioRules, judge, queries_of

if TYPE_CHECKING:
    from gpuprof.load.requests import Rows


@dataclass(frozen=True, slots=True)
class RuleVerdicts:
    """`as_set` has the duration that was set, as a run of LoadGen has, and `by_rules` those of MLPerf."""

    as_set: ScenarioResult
    by_rules: ScenarioResult

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; times are in seconds."""
        return {"same_settings": self.as_set.to_dict(), "rules_of_mlperf": self.by_rules.to_dict()}

    def lines(self) -> Iterator[str]:
        """Yield lines for people."""
        yield f"MLPerf-style: {self.as_set.verdict} as set, {self.by_rules.verdict} by the rules of MLPerf"
        yield from (f"  {each}" for each in self.by_rules.reasons)


def rule_verdicts(
    rows: Rows,
    *,
    scenario: str,
    pattern: str | None,
    slo: str | None,
    set_s: float | None,
    sent_s: float | None,
) -> RuleVerdicts | None:
    """Return the verdicts on requests that were to be sent for `set_s`, and were sent for `sent_s`.

    These are None where another thing than the time ends the load. The result is None of a load that is in no
    scenario of MLPerf: that of server has a Poisson process and a bound of p99.
    """
    rules = _rules_of(scenario, pattern, slo)
    if rules is None or not len(rows):
        return None
    queries = queries_of(rows, sent_s, per_sample=rules.scenario is MlperfScenario.OFFLINE)
    as_set = rules.with_duration(set_s or 0.0)
    return RuleVerdicts(judge(queries, as_set), judge(queries, rules))


def _rules_of(scenario: str, pattern: str | None, slo: str | None) -> ScenarioRules | None:
    if scenario not in [*MlperfScenario]:
        return None
    rules = RULES[MlperfScenario(scenario)]
    if rules.scenario is not MlperfScenario.SERVER:
        return rules
    target = None if slo is None else parse_target(slo)
    if target is None or target.share != rules.quantile or pattern not in (None, "poisson"):
        return None
    return rules.with_bound(target.limit_s)
