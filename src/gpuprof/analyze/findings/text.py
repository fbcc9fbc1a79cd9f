# SPDX-License-Identifier: Apache-2.0
"""Findings as lines of text and as plain data for JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuprof.analyze.compared_runs import before_and_now, without_line
from gpuprof.analyze.findings.finding import GainKind, Rule, Verdict
from gpuprof.analyze.findings.messages import (
    FACTORS,
    FIGURES,
    FIXES,
    KINDS,
    MEANINGS_OF_FACTORS,
    MISSING,
    OUTCOMES,
    PARTS,
    RERUN_PROBLEMS,
    RULES,
    TITLES,
    figure_text,
)
from gpuprof.analyze.findings.promises import Outcome
from gpuprof.text.sanitize import escape_text
from gpuprof.text.table import wrapped
from gpuprof.text.units import (
    counted,
    format_duration,
    format_duration_range,
    format_missing_ranks,
    format_share,
    format_share_range,
)

if TYPE_CHECKING:
    from gpuprof.analyze.findings.engine import Findings
    from gpuprof.analyze.findings.finding import Finding, Rerun, RuleResult, TimeRange
    from gpuprof.analyze.findings.promises import Score
    from gpuprof.analyze.findings.step_parts import PartDifference
    from gpuprof.analyze.processor_waits import ProcessorWaits

OTHER_VERDICTS = {
    Verdict.NOT_SIGNIFICANT: "too small",
    Verdict.NOT_FOUND: "not found",
    Verdict.UNKNOWN: "unknown",
}
NOTHING_FOUND = "no cause of lost time was found"
UNCERTAIN = "no cause of lost time is certain"
_LARGE = 0.05  # of a step: a cause that is worth another recording
_NOISY = 0.2  # of the time in steps, waited for a processor
_LABEL_WIDTH = 11
_WIDTH = 100


def title(finding: Finding) -> str:
    """Return the sentence of a finding."""
    return TITLES.text(finding.rule.value, finding.values)


def title_with_rank(finding: Finding, rank: int | None) -> str:
    """Return the sentence of a finding, with its rank in a program that has ranks."""
    whole = title(finding)
    return whole if rank is None or finding.rule is Rule.SLOW_RANK else f"Rank {rank}: {whole}"


def repair(finding: Finding) -> str:
    """Return the repair, a few lines of code."""
    return FIXES.text(finding.rule.value, finding.values)


def gain_amount(finding: Finding, mean_step_ns: float | None) -> str:
    """Return the gain of a step, or of the run for a cause outside the steps."""
    gain = finding.gain
    if gain.step is not None and mean_step_ns:
        return (
            f"{_range(gain.step, gain.kind)} of the mean step ({_share(gain.step, gain.kind, mean_step_ns)})"
        )
    return f"{_range(gain.run, gain.kind)} of the run"


def gain_basis(finding: Finding) -> str:
    """Return how the gain was found, and the confidence in it."""
    return f"{KINDS.text(finding.gain.kind.value, {})}, confidence {finding.confidence:.2f}"


def gain_text(finding: Finding, mean_step_ns: float | None) -> str:
    """Return the gain with its kind and the confidence."""
    kind = "" if finding.gain.kind is GainKind.BOUND else f", {KINDS.text(finding.gain.kind.value, {})}"
    return f"gain {gain_amount(finding, mean_step_ns)}{kind}, confidence {finding.confidence:.2f}"


def short_lines(findings: Findings, most: int, run: str) -> list[tuple[str, str]]:
    """Return labels and lines: the first findings with their gains, evidence and fix of the first one.

    `run` is the name of the run in the command that compares it with a new one.
    """
    other = other_python_text(findings)
    lines: list[tuple[str, str]] = []
    for number, each in enumerate(findings.found[:most]):
        gain = gain_text(each, findings.mean_step_ns).capitalize()
        lines.append(("finding", f"{title_with_rank(each, findings.rank)}. {gain}"))
        if number == 0:
            first, *more = repair(each).split("\n")
            # The title has the function, if it has no span.
            is_named = each.places.function in each.values.values() and each.values.get("span") is None
            where = [] if is_named or each.places.function is None else [("where", place_text(each))]
            lines += [("evidence", evidence_figures(each)), *where, ("fix", first)]
            lines += [("", line) for line in more]
    if not lines:
        searched = f"{_searched(findings)}: gpuprof explain {run}"
        lines = [("finding", f"{NOTHING_FOUND} {searched}")]
        if hidden := uncertainty(findings):
            lines = [("finding", f"{UNCERTAIN} {searched}"), ("uncertain", hidden)]
    else:
        lines.append(("check", check_command(run)))
    lines = [("Python", other), *lines] if other else lines
    return [(label, escape_text(text)) for label, text in lines]


def _searched(findings: Findings) -> str:
    known = sum(each.verdict is not Verdict.UNKNOWN for each in findings.results)
    return f"({known} of {len(findings.results)} rules searched)"


def _insignificant_cause(findings: Findings) -> str | None:
    """Return the largest cause that would matter if the steps did not vary so much; None without one."""
    whole_ns = findings.mean_step_ns
    if not whole_ns:
        return None
    small = [each for each in findings.results if each.verdict is Verdict.NOT_SIGNIFICANT and each.is_of_step]
    largest = max(small, key=lambda each: each.largest_ns or 0.0, default=None)
    if largest is None or largest.largest_ns is None or largest.largest_ns < _LARGE * whole_ns:
        return None
    share = format_share(largest.largest_ns / whole_ns)
    name = RULES.text(largest.rule.value, {})
    return (
        f"{name}: at most {format_duration(largest.largest_ns)} of the mean step ({share}), but the steps "
        f"vary by {format_duration(largest.least_ns)}; record more steps, with nothing else on the machine"
    )


def uncertainty(findings: Findings) -> str | None:
    """Return why a run without findings can have a cause: a large one, or noise; None without a reason."""
    if cause := _insignificant_cause(findings):
        return cause
    waits = findings.processor_waits
    if waits is None or waits.contention is None or waits.fraction < _NOISY:
        return None
    return (
        f"threads waited for a processor in {format_share(waits.fraction)} of their time, so that times vary "
        "and a cause can be missed; record with fewer threads, or with nothing else on the machine"
    )


_COMPREHENSION = re.compile(r"\.<locals>\.<(?:list|dict|set)comp>|\.<locals>\.<genexpr>")


def _is_inside_of(function: str, named: set[str]) -> bool:
    """Return whether a function is a comprehension in one of others; from Python 3.12 on it has no frame."""
    outer, count = _COMPREHENSION.subn("", function)
    return bool(count) and without_line(outer) in map(without_line, named)


def other_python_text(findings: Findings) -> str | None:
    """Return which function has most of a step's time outside of the model; None if a finding names it."""
    found = findings.other_python
    named = {value for each in findings for value in (each.places.function, *each.values.values())
             if isinstance(value, str)}  # fmt: skip
    if found is None or found.function in named or _is_inside_of(found.function, named):
        return None
    share, caller = format_share(found.fraction), f", called by {found.caller}" if found.caller else ""
    return f"{share} of the mean step, outside of the model, in {found.function}{caller}"


def explanation(findings: Findings, run: str) -> str:
    """Return all findings with their evidence, and the other rules' results; `run` is the name of the run."""
    lines = _of_ranks(findings)
    if other := other_python_text(findings):
        lines += [wrapped(f"{'Python':<{_LABEL_WIDTH}}{escape_text(other)}", _WIDTH, " " * _LABEL_WIDTH), ""]
    for number, finding in enumerate(findings, start=1):
        lines += [
            wrapped(escape_text(f"{number}  {title(finding)}"), _WIDTH, "   "),
            *_details(finding, findings, run),
            "",
        ]
    if not findings:
        hidden = uncertainty(findings)
        first = f"{NOTHING_FOUND if hidden is None else UNCERTAIN} {_searched(findings)}"
        text = first if hidden is None else f"{first}; {hidden}"
        lines += [wrapped(text, _WIDTH, "  "), ""]
    lines += _meanings(findings)
    lines += [
        wrapped(f"{OTHER_VERDICTS[verdict]:<{_LABEL_WIDTH}}{text}", _WIDTH, " " * _LABEL_WIDTH)
        for verdict, text in other_results(findings)
    ]
    return "\n".join(lines).rstrip()


def _meanings(findings: Findings) -> list[str]:
    """Return what the factors of the printed confidences are."""
    names = dict.fromkeys(name for each in findings for name in each.factors)
    if not names:
        return []
    texts = [f"{FACTORS.text(name, {})}: {MEANINGS_OF_FACTORS.text(name, {})}" for name in names]
    head = "confidence is the product of its factors, from 0 to 1: a weight, not a probability"
    return [head, *(wrapped(f"   {text}", _WIDTH, "      ") for text in texts), ""]


def _of_ranks(findings: Findings) -> list[str]:
    lines = [] if findings.rank is None else [f"the findings are those of rank {findings.rank}"]
    if findings.missing_ranks:
        lines.append(format_missing_ranks(findings.missing_ranks))
    return [*(wrapped(line, _WIDTH, "  ") for line in lines), ""] if lines else []


def score_text(found: Score) -> str:
    """Return what an old run's findings predicted and what the new run got."""
    lines = []
    for name, old_ns, new_ns in (
        ("mean", found.old_mean_step_ns, found.new_mean_step_ns),
        ("median", found.old_step_ns, found.new_step_ns),
    ):
        if old_ns is not None and new_ns is not None:
            lines.append(f"{name + ' step':<12}{before_and_now(old_ns, new_ns)}{_longer(old_ns, new_ns)}")
    for each in found.promises:
        unit = " a step" if each.is_of_step else ""
        lines.append(f"{OUTCOMES.text(each.outcome.value, {})}: {title(each.finding)}")
        lines.append(f"  predicted {_range(each.predicted, each.finding.gain.kind)}{unit}")
        if each.now is not None:
            lines.append(f"  now       {_range(each.now, each.finding.gain.kind)}{unit}")
        if each.outcome is Outcome.NOT_REPAIRED:
            continue
        if each.part is not None:
            where = PARTS.text(each.part.part.value, {})
            own = each.part.own
            lines.append(f"  got       {_got(own.saved_ns, own.interval, f'{unit} {where}')}")
            lines.append(f"  rest      {_rest(each.part)}")
        if each.outcome is not Outcome.TOGETHER:
            whole = " in the whole" if each.part is not None else ""
            if each.got_ns is None:
                lines.append(f"  got       {_not_compared(each.is_of_step, found.rank)}")
            else:
                text = _got(each.got_ns, each.got, f"{unit}{whole}", is_of_step=each.is_of_step)
                lines.append(f"  got       {text}")
    if found.together is not None:
        predicted, got, outcome = found.together
        lines.append(f"{OUTCOMES.text(outcome.value, {})}: all causes that are gone")
        lines.append(f"  predicted {_range(predicted, GainKind.REPLAYED)} a step")
        lines.append("  got       unknown" if got is None else f"  got       {_got(None, got, ' a step')}")
    if not found.promises:
        lines.append("the old run has no finding")
    lines += [f"{'warning':<12}{each}" for each in found.warnings]
    lines.append("" if found.kept_in is None else f"score written to {found.kept_in}")
    return "\n".join(wrapped(escape_text(line), _WIDTH, " " * 12) for line in lines).rstrip()


def _longer(old_ns: float, new_ns: float) -> str:
    """Return by how much a time became longer or shorter; empty where that rounds to nothing."""
    share = format_share(abs(new_ns / old_ns - 1)) if old_ns else ""
    if not old_ns or share == format_share(0):
        return ""
    return f" ({share} {'longer' if new_ns > old_ns else 'shorter'})"


def _rest(part: PartDifference) -> str:
    """Return by how much the rest of the step changed."""
    rest = part.rest
    if rest.interval is not None and not part.has_drifted:
        return "no significant change of the rest of the step"
    direction = "shorter" if rest.saved_ns >= 0 else "longer"
    return f"{format_duration(abs(rest.saved_ns))} {direction} now, the step without this part"


def _not_compared(is_of_step: bool, rank: int | None) -> str:
    """Return why there is no difference of two runs."""
    if not is_of_step:
        return "unknown: one of the runs does not have this time"
    return f"unknown: one of the runs has no steps{'' if rank is None else f' of rank {rank}'}"


def _got(got_ns: float | None, got: TimeRange | None, of: str, *, is_of_step: bool = True) -> str:
    """Return a difference, `of` what it is one, and what is known of its error."""
    if not is_of_step:
        return f"{format_duration(got_ns)}{of}, without an interval: one run on each side"
    if got is None:
        return f"{format_duration(got_ns)}{of}, without an interval: fewer than five steps"
    text = ends = f"{format_duration(got.low_ns)} to {format_duration(got.high_ns)}"
    if got_ns is not None:
        text = format_duration(got_ns)
        text += "" if got.low_ns == got.high_ns else f" (90% CI {ends})"
    if got.low_ns <= 0 <= got.high_ns:
        return f"{text}{of}, no significant difference"
    return f"{text}{of}{', slower than before' if got.high_ns < 0 else ''}"


def plain(findings: Findings) -> dict[str, Any]:
    """Return values for JSON, with units in the keys."""
    return {
        "wall_ns": findings.wall_ns,
        "step_ns": findings.step_ns,
        "mean_step_ns": findings.mean_step_ns,
        "rank": findings.rank,
        "missing_ranks": list(findings.missing_ranks),
        "processor_waits": None
        if findings.processor_waits is None
        else _plain_values(findings.processor_waits),
        "other_python": None if findings.other_python is None else asdict(findings.other_python),
        "findings": [_plain(each) for each in findings],
        "rules": [_plain_values(each) for each in findings.results],
    }


def _plain(finding: Finding) -> dict[str, Any]:
    values = asdict(finding)
    return {
        **values,
        "rule": finding.rule.value,
        "title": title(finding),
        "fix": repair(finding),
        "gain": {**values["gain"], "kind": finding.gain.kind.value},
        "confidence": finding.confidence,
        "symptoms": [each.value for each in finding.symptoms],
        "rerun": None if finding.rerun is None else _plain_values(finding.rerun),
    }


def _plain_values(facts: Rerun | RuleResult | ProcessorWaits) -> dict[str, Any]:
    """Return the fields, with the values of codes."""
    return {name: getattr(value, "value", value) for name, value in asdict(facts).items()}


def _details(finding: Finding, findings: Findings, run: str) -> Iterator[str]:
    yield _line("gain", gain_text(finding, findings.mean_step_ns).removeprefix("gain "))
    cost = f"{format_duration(finding.cost_run_ns)} of the run"
    if finding.cost_step_ns is not None:
        cost = f"{format_duration(finding.cost_step_ns)} a step, {cost}"
    yield _line("cost", cost)
    yield _line("evidence", evidence_figures(finding))
    if finding.rerun is not None:
        yield _line("re-run", _rerun_text(finding.rerun))
    factors = [f"{FACTORS.text(name, {})} {value:.2f}" for name, value in finding.factors.items()]
    yield _line("confidence", " x ".join(factors))
    where = [place_text(finding)] if finding.places.function is not None else []
    where += [f"spans {', '.join(map(str, finding.places.spans))}"] if finding.places.spans else []
    if where:
        yield _line("where", ", ".join(where))
    if finding.symptoms:
        yield _line("explains", ", ".join(RULES.text(each.value, {}) for each in finding.symptoms))
    first, *more = repair(finding).split("\n")
    yield _line("fix", first)
    yield from (_line("", line) for line in more)
    yield _line("check", check_command(run))


def evidence_figures(finding: Finding) -> str:
    """Return the figures that a finding is based on, each with its name."""
    return ", ".join(
        f"{FIGURES.text(each.code, {})} {figure_text(each.unit, each.value)}" for each in finding.evidence
    )


def _rerun_text(rerun: Rerun) -> str:
    """Return the median times of a call of the replica, or why there are none."""
    pairs = counted(rerun.pairs, "pair")
    problem = "" if rerun.problem is None else f"none: {RERUN_PROBLEMS.text(rerun.problem.value, {})}"
    if rerun.before_ns is None:
        return f"{problem} ({pairs})" if rerun.pairs else problem
    before, after = format_duration(rerun.before_ns), format_duration(rerun.after_ns)
    return f"{problem and problem + '; '}{before} without the fix, {after} with it ({pairs})"


def check_command(run: str) -> str:
    """Return the command that compares a new run with the findings of a run."""
    return f"gpuprof explain NEW --against {run}"


def place_text(finding: Finding) -> str:
    """Return the function and the source line, as far as they are known."""
    places = finding.places
    words = [] if places.function is None else [places.function]
    words += [] if places.line is None else [f"line {places.line}"]
    return ", ".join(words)


def other_results(findings: Findings) -> Iterator[tuple[Verdict, str]]:
    """Yield what is not significant, not found and unknown, and why."""
    for each in findings.results:
        if each.verdict is Verdict.NOT_SIGNIFICANT:
            yield each.verdict, _small(each)
    absent = [each for each in findings.results if each.verdict is Verdict.NOT_FOUND]
    if absent:
        yield Verdict.NOT_FOUND, ", ".join(RULES.text(each.rule.value, {}) for each in absent)
    for missing in dict.fromkeys(each.missing for each in findings.results if each.missing is not None):
        rules = [RULES.text(each.rule.value, {}) for each in findings.results if each.missing is missing]
        why = MISSING.text(missing.value, {"ranks": findings.missing_ranks})
        yield Verdict.UNKNOWN, f"{', '.join(rules)}: {why}"
    for problem in dict.fromkeys(each.problem for each in findings.results if each.problem is not None):
        rules = [RULES.text(each.rule.value, {}) for each in findings.results if each.problem is problem]
        yield Verdict.UNKNOWN, f"{', '.join(rules)}: {RERUN_PROBLEMS.text(problem.value, {})}"


def _small(result: RuleResult) -> str:
    gain, least = format_duration(result.largest_ns), format_duration(result.least_ns)
    base = "a step" if result.is_of_step else "the run"
    name = RULES.text(result.rule.value, {})
    return f"{name}: a gain of at most {gain} of {base}, below the threshold of {least}"


def _line(label: str, text: str) -> str:
    return wrapped(f"   {label:<{_LABEL_WIDTH}}{escape_text(text)}", _WIDTH, " " * (_LABEL_WIDTH + 3))


def _range(time: TimeRange, kind: GainKind) -> str:
    if kind is GainKind.BOUND and time.low_ns <= 0:
        return f"at most {format_duration(time.high_ns)}"
    return format_duration_range(time.low_ns, time.high_ns)


def _share(time: TimeRange, kind: GainKind, whole_ns: float) -> str:
    low_ns = time.high_ns if kind is GainKind.BOUND else time.low_ns
    return format_share_range(low_ns / whole_ns, time.high_ns / whole_ns)
