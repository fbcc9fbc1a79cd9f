# SPDX-License-Identifier: Apache-2.0
"""A run of LoadGen on a model: its verdict next to that of our rules on the same queries.

What it gives is MLPerf-style: LoadGen ran it, and it is no submission.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.results.files import to_json, write_whole
from gpuprof.bench.results.target import parse_target
from gpuprof.bench.serialization import to_finite
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.errors import BenchmarkError, RunError
from gpuprof.load.loadgen import LoadgenResult, LoadgenSettings, run_loadgen
from gpuprof.load.mlperf import RULES, MlperfScenario, ScenarioResult, ScenarioVerdict, judge
from gpuprof.load.out_folder import MLPERF_RESULT
from gpuprof.load.reasons import LoadReason, reason
from gpuprof.load.result import LoadSettings
from gpuprof.load.run import DURATION_S
from gpuprof.load.targets.address import is_address
from gpuprof.text.sanitize import escape_text
from gpuprof.text.units import counted, format_duration, format_number

_LABEL_WIDTH = 25


@dataclass(frozen=True, slots=True)
class LoadgenComparison:
    """What LoadGen reports of a run, what our rules give for its queries, and for the rules of MLPerf.

    `ours` has the duration that was set, as LoadGen has; `by_rules` that of the rules, 600 s.
    """

    target: str
    loadgen: LoadgenResult
    ours: ScenarioResult
    by_rules: ScenarioResult

    @property
    def is_same_verdict(self) -> bool:
        """Whether LoadGen and our rules agree."""
        return (self.ours.verdict is ScenarioVerdict.VALID) == self.loadgen.is_valid

    @property
    def verdict(self) -> TargetVerdict:
        """LoadGen's verdict; a run that is not valid is missed, or inconclusive where it is too short."""
        if self.loadgen.is_valid:
            return TargetVerdict.MET
        is_missed = self.ours.verdict is ScenarioVerdict.INVALID
        return TargetVerdict.MISSED if is_missed else TargetVerdict.INCONCLUSIVE

    @property
    def advice(self) -> LoadReason | None:
        """What may make a run valid that LoadGen calls invalid and that missed no bound; None for others.

        Except for server, LoadGen plans its queries by an expected rate. One that was measured while the
        machine was busy is too low, and the run stops early.
        """
        if self.verdict is not TargetVerdict.INCONCLUSIVE:
            return None
        ours = self.ours
        if ours.scenario is MlperfScenario.SERVER:
            return reason("repeat_longer")
        # Of streams it is queries a second, of offline samples.
        return reason("repeat_faster", rate=ours.samples_per_s / RULES[ours.scenario].samples_per_query)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; times are in seconds."""
        found, settings = self.loadgen, self.loadgen.settings
        plain: dict[str, Any] = to_finite(
            {
                "kind": "mlperf_style",
                "target": self.target,
                "settings": dataclasses.asdict(settings),
                "loadgen": {
                    "is_valid": found.is_valid,
                    "latency_constraint_met": found.latency_constraint_met,
                    "duration_met": found.duration_met,
                    "queries_met": found.queries_met,
                    "early_stopping_met": found.early_stopping_met,
                    "percentile_s": found.percentile_s,
                    "figures": dict(found.figures),
                    "errors": list(found.errors),
                    "warnings": list(found.warnings),
                    "logs": str(found.folder),
                },
                "same_settings": self.ours.to_dict(),
                "rules_of_mlperf": self.by_rules.to_dict(),
                "verdict": str(self.verdict),
                "advice": None if (advice := self.advice) is None else advice.to_dict(),
            }
        )
        return plain

    def save(self, folder: Path) -> Path:
        """Write `mlperf.json` to a folder. Raises RunError."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / MLPERF_RESULT, to_json(self.to_dict()))
        except OSError as error:
            raise RunError(
                "cannot_write",
                f"{folder}: cannot be written ({error.strerror})",
                hint="free disk space, or use another --out",
            ) from error
        return folder / MLPERF_RESULT

    def __str__(self) -> str:
        ours, settings = self.ours, self.loadgen.settings
        lines = [f"{escape_text(self.target)}: MLPerf-style {settings.scenario}, run by LoadGen"]
        queries = counted(ours.queries, "query", "queries")
        lines.append(f"{queries} in {ours.duration_s:,.4g} s, {format_number(ours.samples_per_s)} samples/s")
        if ours.quantile is not None and ours.latency_s is not None:
            percentile = format_duration(ours.latency_s * 1e9)
            lines.append(f"p{100 * ours.quantile:g} latency: {percentile}")
        verdicts = {
            "LoadGen": "valid" if self.loadgen.is_valid else "invalid",
            "gpuprof, same settings": str(ours.verdict),
            "gpuprof, rules of MLPerf": str(self.by_rules.verdict),
        }
        lines += ["", *(f"{name:<{_LABEL_WIDTH}}{verdict}" for name, verdict in verdicts.items())]
        lines += [f"  {each}" for each in self.by_rules.reasons]
        lines += [f"warning: {each}" for each in self._warnings()]
        lines += [] if (advice := self.advice) is None else [f"hint: {advice}"]
        return "\n".join(lines)

    def _warnings(self) -> Iterator[str]:
        if not self.is_same_verdict:
            yield "LoadGen and gpuprof differ in their verdict: see LoadGen's summary"
        for each in (*self.loadgen.errors, *self.loadgen.warnings):
            yield f"LoadGen: {escape_text(' '.join(each.split()))}"


def loadgen_settings(settings: LoadSettings, batch_size: int | None = None) -> LoadgenSettings:
    """Return LoadGen's settings of a load. Raises BenchmarkError for what LoadGen has not."""
    if settings.scenario not in [*MlperfScenario]:
        raise BenchmarkError(
            "unknown_scenario",
            f"LoadGen has no scenario {settings.scenario}",
            hint=f"use {', '.join(MlperfScenario)}",
        )
    given = {"pattern": settings.pattern, "mix": settings.mix, "concurrency": settings.concurrency}
    for name, value in given.items():
        if value is not None:
            raise BenchmarkError("invalid_load", f"--mlperf with --{name}", hint=f"omit --{name}")
    if is_address(settings.target) or settings.target.startswith("python:"):
        raise BenchmarkError(
            "invalid_load",
            f"--mlperf runs a model, not {settings.target}",
            hint="name a model, as in resnet50 or model.py:build",
        )
    return LoadgenSettings(
        scenario=MlperfScenario(settings.scenario),
        rate=settings.rate,
        duration_s=DURATION_S if settings.duration_s is None else settings.duration_s,
        least_queries=1 if settings.count is None else settings.count,
        latency_bound_s=_bound_s(settings),
        batch_size=batch_size or 1,
        seed=settings.seed,
        trace=True,
    )


def _bound_s(settings: LoadSettings) -> float | None:
    if settings.slo is None:
        return None
    target = parse_target(settings.slo)
    quantile = RULES[MlperfScenario(settings.scenario)].quantile
    if settings.scenario != MlperfScenario.SERVER or target.share != quantile:
        raise BenchmarkError(
            "invalid_load",
            f"--slo {target.text} with --mlperf --scenario {settings.scenario}",
            hint="server has a bound of p99, as in 'p99<20ms'; omit --slo for other scenarios",
        )
    return target.limit_s


def run_mlperf(settings: LoadSettings, folder: Path, batch_size: int | None = None) -> LoadgenComparison:
    """Run LoadGen on a model that is named; its logs are in a new folder `loadgen` in `folder`.

    Raises UnavailableError without LoadGen, BenchmarkError for what LoadGen has not, and what
    `run_loadgen` raises.
    """
    wanted = loadgen_settings(settings, batch_size)
    system = settings.system or SystemSpec(settings.target)
    found = run_loadgen(system, wanted, _new_folder(folder))
    rules = dataclasses.replace(RULES[wanted.scenario], latency_bound_s=wanted.latency_bound_s)
    same = rules.with_duration(wanted.duration_s)  # LoadGen counts `least_queries` before early stopping
    queries = found.traced_queries()
    return LoadgenComparison(settings.target, found, judge(queries, same), judge(queries, rules))


def _new_folder(folder: Path) -> Path:
    """Return a folder that is not there: LoadGen overwrites its logs."""
    number, path = 1, folder / "loadgen"
    while path.exists():
        number += 1
        path = folder / f"loadgen-{number}"
    return path
