# SPDX-License-Identifier: Apache-2.0
"""A gate for changes: whether a candidate is slower than its baseline by more than a margin that matters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gpuprof.analyze.text_table import Column, format_duration, text_table, wrapped
from gpuprof.bench.comparison import MARGIN, Comparison, compare_many
from gpuprof.bench.pooling import WIDEST_FACTOR
from gpuprof.bench.stored import Configuration, StoredResults, launch_medians_s
from gpuprof.errors import BenchmarkError

Outcome = Literal["passed", "failed", "open"]
_COLUMNS = (
    Column("configuration", right=False),
    Column("baseline"),
    Column("candidate"),
    Column("ratio"),
    Column("its interval"),
    Column("launches"),
    Column("verdict", right=False),
)
_MISSING = "not measured"


@dataclass(frozen=True, slots=True)
class GateRow:
    """One configuration: the medians of its launches' medians, and how they compare.

    `comparison` is None where the candidate did not measure it.
    """

    configuration: Configuration
    baseline_s: float
    candidate_s: float | None
    comparison: Comparison | None

    @property
    def verdict(self) -> str:
        """What is shown: the comparison's verdict, or that there is none."""
        return _MISSING if self.comparison is None else self.comparison.verdict


@dataclass(frozen=True, slots=True)
class Gate:
    """What a gate found. `failed` where anything is slower, `open` where anything is not settled."""

    rows: tuple[GateRow, ...]
    margin: float
    notes: tuple[str, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst of all rows."""
        verdicts = {row.verdict for row in self.rows}
        if "slower" in verdicts:
            return "failed"
        return "open" if verdicts & {"inconclusive", _MISSING} else "passed"

    @property
    def slower(self) -> tuple[GateRow, ...]:
        """The rows that let it fail."""
        return tuple(row for row in self.rows if row.verdict == "slower")

    def __str__(self) -> str:
        table = text_table(_COLUMNS, [_cells(row) for row in self.rows])
        reasons = [
            wrapped(f"{row.configuration}: {row.comparison.reason}")
            for row in self.rows
            if row.comparison is not None and row.verdict != "same"
        ]
        notes = [wrapped(f"note: {note}") for note in self.notes]
        head = f"{self.outcome}: {_sentence(self)}"
        return "\n".join([head, "", table, "", *dict.fromkeys(reasons), *notes]).rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "outcome": self.outcome,
            "margin": self.margin,
            "rows": [
                {
                    **row.configuration._asdict(),
                    "baseline_s": row.baseline_s,
                    "candidate_s": row.candidate_s,
                    "verdict": row.verdict,
                    "comparison": None if row.comparison is None else row.comparison.to_dict(),
                }
                for row in self.rows
            ],
            "notes": list(self.notes),
        }


def judge(
    baseline: StoredResults, candidate: StoredResults, *, margin: float = MARGIN, any_machine: bool = False
) -> Gate:
    """Compare the latencies of all configurations that the baseline has, launch by launch.

    Raises BenchmarkError where the two were measured on different machines (unless `any_machine`), in
    different ways, or have nothing in common.
    """
    notes = _differences(baseline, candidate, any_machine)
    shared = [each for each in baseline.results if each in candidate.results]
    if not shared:
        first = next(iter(baseline.results))
        raise BenchmarkError(
            f"{candidate.path} measured nothing that {baseline.path} did ({first}, ...): "
            "measure the same model, framework, dtype, inputs and batch sizes"
        )
    for each in shared:
        _check_settings(each, baseline, candidate)
    metrics = {
        str(index): (_figures(baseline, each), _figures(candidate, each)) for index, each in enumerate(shared)
    }
    found = compare_many(metrics, margin=margin)
    compared = {each: found[str(index)] for index, each in enumerate(shared)}
    rows = [
        GateRow(
            configuration=each,
            baseline_s=_middle(_figures(baseline, each)),
            candidate_s=_middle(_figures(candidate, each)) if each in compared else None,
            comparison=compared.get(each),
        )
        for each in baseline.results
    ]
    new = [str(each) for each in candidate.results if each not in baseline.results]
    if new:
        notes.append(f"only the candidate measured {'; '.join(new)}: not judged")
    return Gate(tuple(rows), margin, tuple(notes))


def _differences(baseline: StoredResults, candidate: StoredResults, any_machine: bool) -> list[str]:
    told = [
        f"{name} {baseline.machine[name]} and {candidate.machine[name]}"
        for name in baseline.machine
        if baseline.machine[name] != candidate.machine[name]
    ]
    if told and not any_machine:
        raise BenchmarkError(
            f"{baseline.path} was measured on another machine or with other threads than {candidate.path} "
            f"({'; '.join(told)}): measure the baseline again as the candidate, or add --any-machine"
        )
    if baseline.data != candidate.data:
        raise BenchmarkError(
            f"{baseline.path} was measured with data {baseline.data} and {candidate.path} with "
            f"{candidate.data}: measure both alike"
        )
    notes = [f"measured on different machines: {'; '.join(told)}"] if told else []
    names = sorted({*baseline.versions, *candidate.versions})
    versions = [
        f"{name} {baseline.versions.get(name, 'none')} and {candidate.versions.get(name, 'none')}"
        for name in names
        if baseline.versions.get(name) != candidate.versions.get(name)
    ]
    return notes + ([f"different versions: {'; '.join(versions)}"] if versions else [])


def _check_settings(each: Configuration, baseline: StoredResults, candidate: StoredResults) -> None:
    for name in ("mode", "caches"):
        old, new = (getattr(side.results[each].settings, name) for side in (baseline, candidate))
        if old != new:
            raise BenchmarkError(
                f"{each} was measured with {name} {old} in {baseline.path} and {new} in {candidate.path}: "
                "measure both alike"
            )


def _figures(side: StoredResults, each: Configuration) -> list[float]:
    figures = launch_medians_s(side.results[each])
    if not figures:
        raise BenchmarkError(f"{side.path}: no launch of {each} has samples: measure it again")
    return figures


def _middle(figures: list[float]) -> float:
    ordered = sorted(figures)
    half = len(ordered) // 2
    return (ordered[half] + ordered[-half - 1]) / 2


def _sentence(gate: Gate) -> str:
    count = len(gate.rows)
    beyond = f"by more than {gate.margin:.1%}"
    if gate.outcome == "failed":
        return f"{len(gate.slower)} of {count} slower {beyond}"
    if gate.outcome == "passed":
        return f"none of {count} slower {beyond}"
    unsettled = sum(row.verdict in ("inconclusive", _MISSING) for row in gate.rows)
    return f"{unsettled} of {count} not settled; none shown to be slower {beyond}"


def _cells(row: GateRow) -> tuple[str, ...]:
    compared = row.comparison
    if compared is None:
        return (str(row.configuration), _time(row.baseline_s), "-", "-", "-", "-", row.verdict)
    ends = "-" if _is_wide(compared) else f"{compared.low:.3f} to {compared.high:.3f}"
    launches = f"{compared.old_launches} + {compared.new_launches}"
    times = (_time(row.baseline_s), _time(row.candidate_s))
    return (str(row.configuration), *times, f"{compared.ratio:.3f}", ends, launches, row.verdict)


def _is_wide(compared: Comparison) -> bool:
    """Whether there is no interval, or one that nobody could read anything from."""
    low, high = compared.low, compared.high
    return low is None or high is None or high / max(low, 1e-9) > WIDEST_FACTOR**2


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds * 1e9)
