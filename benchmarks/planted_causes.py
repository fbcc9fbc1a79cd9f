# SPDX-License-Identifier: Apache-2.0
"""What is predicted for planted causes, what their repair gains in reality, and which rules fire after it.

    python benchmarks/planted_causes.py [--cause NAME]... [--steps 20] [--pairs 40] [--json FILE|-]
    python benchmarks/planted_causes.py --repaired 20 [--cause NAME]... [--steps 20] [--json FILE|-]

Each cause is planted into the training step of a small model (`planted_programs.py`). The slow program is
recorded and the gain of its repair predicted; before and after that, the slow and the repaired program run in
turns without a recording. `real` is the median of the differences of pairs, which the drift of a shared
machine does not change, with a bootstrap interval of 95%. `contains`: the predicted interval contains the
real gain; `agrees`: it overlaps that of the real gain; `sign`: both are a gain, a loss, or not significant;
unknown if only the prediction is significant, or if it may be a gain or a loss. Of a bound, the predicted
interval begins at 0 and has the sign of its upper end. `part`: the interval contains the real gain as a part
of the step. A recorded step is longer than one without a recording, and a shared machine is faster or slower
later; both change the gain and its step alike.

A replay predicts what is removed or made faster by a known factor. The gains of other causes are those of
`run.findings(rerun=True)`: measured again (optimizer, threads, subnormal numbers), or bounds (padding, dense
gradients, normalization in fp32, a computing thread).

`--repaired N` records each repaired program N times, and the example. A rule that finds something there is
printed with the number of runs. Run both on a quiet machine. Ctrl-C ends it after the causes that are
measured, which are printed and written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

import gpuprof
from benchmarks._machine import describe_code, describe_machine
from benchmarks._output import Column, plain_table, show
from benchmarks.planted_programs import CAUSES, Cause, Steps
from gpuprof.analyze.ceilings import of_run
from gpuprof.analyze.findings.finding import GainKind, Rule
from gpuprof.analyze.findings.text import title

FEWEST_STEPS = 20  # for findings, which depend on how steady the steps are
LEAST_GAIN = 0.02  # of a step, that is significant
WITH_RERUN = (Rule.OPTIMIZER, Rule.THREADS, Rule.SUBNORMALS)
EXAMPLE = "the example"
# Values of a row that has a prediction.
PREDICTED = (
    *("low_ms", "high_ms", "recorded_step_ms", "ratio", "agrees", "contains", "contains_part", "sign"),
    "confidence",
)
# What is true of a program after its repair, too.
TRUE_FINDINGS = {EXAMPLE: {Rule.OPTIMIZER}, "sleeping loader, 1 worker": {Rule.LOADER}}


@dataclass(frozen=True)
class Predicted:
    """The predicted gain of a step."""

    low_ms: float
    high_ms: float
    confidence: float
    step_ms: float  # the mean recorded one
    is_bound: bool = False

    @property
    def middle_ms(self) -> float:
        """A single value: the upper end of a bound, else the middle."""
        return self.high_ms if self.is_bound else (self.low_ms + self.high_ms) / 2


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="Predicted and real gains of planted causes.")
    parser.add_argument("--cause", action="append", choices=[*CAUSES, EXAMPLE], help="only this; repeatable")
    parser.add_argument("--steps", type=int, default=20, help="recorded steps (%(default)s)")
    parser.add_argument("--pairs", type=int, default=40, help="measurements of each side (%(default)s)")
    parser.add_argument("--repaired", type=int, metavar="N", help="record repaired programs N times instead")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output, no table")
    options = parser.parse_args(arguments)
    if options.repaired:
        return repaired(options)
    rows: list[dict[str, Any]] = []
    causes = [each for each in options.cause or CAUSES if each in CAUSES]
    with contextlib.suppress(KeyboardInterrupt):
        for name in causes:
            rows.append(measure(name, options.steps, options.pairs))
    predicted = [row for row in rows if row["low_ms"] is not None]
    result = {
        "benchmark": "planted_causes",
        "machine": describe_machine(),
        "gpuprof": describe_code(),
        "steps": options.steps,
        "pairs": options.pairs,
        "is_complete": len(rows) == len(causes),
        "predicted": len(predicted),
        "agree": sum(row["agrees"] for row in predicted),
        "contain": sum(row["contains"] for row in predicted),
        "contain_part": sum(row["contains_part"] for row in predicted),
        "same_sign": sum(row["sign"] is True for row in predicted),
        "rows": rows,
    }
    columns = [
        Column("cause", 28, lambda row: str(row["cause"])),
        Column("step", 10, lambda row: f"{row['slow_ms']:.2f} ms"),
        Column(
            "real gain", 22, lambda row: _interval(row["real_ms"], row["real_low_ms"], row["real_high_ms"])
        ),
        Column("predicted", 18, _predicted),
        Column("ratio", 7, lambda row: "-" if row["ratio"] is None else f"{row['ratio']:.2f}"),
        Column("contains", 8, lambda row: {True: "yes", False: "NO", None: "-"}[row["contains"]]),
        Column("part", 4, lambda row: {True: "yes", False: "NO", None: "-"}[row["contains_part"]]),
        Column("agrees", 7, lambda row: {True: "yes", False: "NO", None: "-"}[row["agrees"]]),
        Column("sign", 5, lambda row: {True: "yes", False: "NO", None: "-"}[row["sign"]]),
    ]
    total = (
        f"of {len(predicted)} predictions {result['contain']} contain the real gain, "
        f"{result['contain_part']} as a part of the step, {result['agree']} agree, "
        f"{result['same_sign']} have the right sign\n"
    )
    show(result, f"{plain_table(columns, rows)}\n{total}", options.json, indent=1)
    return 0 if result["is_complete"] else 130


def repaired(options: argparse.Namespace) -> int:
    """Record the repaired programs, print which rules find something, and return the exit code."""
    names = options.cause or [*CAUSES, EXAMPLE]
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(KeyboardInterrupt):
        for name in names:
            rows.append(silence(name, options.repaired, max(options.steps, FEWEST_STEPS)))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    runs = options.repaired * len(rows)
    by_rule = {
        rule.value: runs - sum(row["wrong"].get(rule.value, 0) for row in rows if row["wrong"])
        for rule in Rule
    }
    result = {
        "benchmark": "planted_causes --repaired",
        "machine": describe_machine(),
        "gpuprof": describe_code(),
        "steps": max(options.steps, FEWEST_STEPS),
        "runs_of_each": options.repaired,
        "runs": runs,
        "silent_runs_by_rule": by_rule,
        "is_complete": len(rows) == len(names),
        "rows": rows,
    }
    columns = [
        Column("repaired program", 28, lambda row: str(row["program"])),
        Column("rule of the cause", 18, lambda row: str(row["rule"] or "-")),
        Column("silent", 9, lambda row: f"{row['silent']} of {row['runs']}"),
        Column("true findings", 20, lambda row: _counts(row["true"])),
        Column("wrong findings", 40, lambda row: _counts(row["wrong"])),
    ]
    always = sum(count == runs for count in by_rule.values())
    total = f"{always} of {len(by_rule)} rules have no wrong finding in {runs} runs\n"
    show(result, f"{plain_table(columns, rows)}\n{total}", options.json, indent=1)
    return 0 if result["is_complete"] else 130


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{rule} {count}" for rule, count in found.items()) or "-"


def silence(name: str, runs: int, steps: int) -> dict[str, Any]:
    """Record a repaired program some times and count the runs in which each rule finds something."""
    torch.set_num_threads(1)
    cause = None if name == EXAMPLE else CAUSES[name]()
    found: Counter[str] = Counter()
    silent = 0
    titles: list[str] = []
    true = {rule.value for rule in TRUE_FINDINGS.get(name, ())}
    rule = None if cause is None or cause.rule is None else cause.rule.value
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "r.gpuprof"
            run = _recorded_example(out, steps) if cause is None else _recorded(cause, out, steps)
            findings = list(run.findings())
        rules = {each.rule.value for each in findings}
        titles += [title(each) for each in findings if each.rule.value not in true]
        found.update(rules)
        silent += rules <= true if rule is None else rule not in rules
    return {
        "program": name,
        "rule": rule,
        "runs": runs,
        "silent": silent,
        "true": {each: count for each, count in found.items() if each in true},
        "wrong": {each: count for each, count in found.items() if each not in true},
        "titles": titles,
    }


def _recorded(cause: Cause, out: Path, steps: int) -> gpuprof.Run:
    cause.repaired(2 * cause.batch)
    return recorded((), cause.repaired, steps, out)


def recorded(models: tuple[torch.nn.Module, ...], program: Steps, steps: int, out: Path) -> gpuprof.Run:
    """Record steps of a program with everything that rules need.

    No rule for CPUs uses the ceilings of the machine, which take seconds to measure.
    """
    recording = gpuprof.profile(*models, python=True, work=True, out=out)
    with mock.patch.object(of_run, "add_ceilings"), recording:
        program(steps)
    return recording.run


def _recorded_example(out: Path, steps: int) -> gpuprof.Run:
    """Record the example as a user does."""
    example = Path(__file__).resolve().parent.parent / "examples" / "transformer.py"
    command = [sys.executable, "-m", "gpuprof", "run", "--out", str(out), str(example)]
    subprocess.run([*command, "--steps", str(steps)], check=True, capture_output=True)
    return gpuprof.open(out)


def measure(name: str, steps: int, pairs: int) -> dict[str, Any]:
    """Record, predict, and measure one cause; times in milliseconds a step."""
    torch.set_num_threads(1)
    cause = CAUSES[name]()
    # Half of the pairs before the recording: the speed of a shared machine drifts.
    before = in_turns(cause, pairs // 2)
    found = measured_again(cause, steps) if cause.changes is None else predict(name, cause, steps)
    cause.slow(1)
    slow, repaired = (
        one + more for one, more in zip(before, in_turns(cause, pairs - pairs // 2), strict=True)
    )
    gains = [one - other for one, other in zip(slow, repaired, strict=True)]
    real = statistics.median(gains)
    real_low, real_high = bootstrap(gains)
    row: dict[str, Any] = {
        "cause": name,
        "slow_ms": statistics.median(slow),
        "real_ms": real,
        "real_low_ms": real_low,
        "real_high_ms": real_high,
        **dict.fromkeys(PREDICTED),
    }
    if found is None:
        return row
    low, high = found.low_ms, found.high_ms
    part = statistics.median(1 - other / one for one, other in zip(slow, repaired, strict=True))
    least = LEAST_GAIN * statistics.median(slow)
    is_gain = abs(real) > least
    return row | {
        "low_ms": low,
        "high_ms": high,
        "ratio": found.middle_ms / real if is_gain else None,
        "agrees": low <= real_high and real_low <= high,
        "contains": low <= real <= high,
        "recorded_step_ms": found.step_ms,
        "contains_part": low <= part * found.step_ms <= high,
        "sign": None
        if is_gain and low < 0 < high
        else same_sign(found.middle_ms, (real_low, real, real_high), least),
        "confidence": found.confidence,
    }


def sign(gain: float, least: float) -> int:
    """Return 1 for a gain, -1 for a loss, 0 for what is less than the least gain."""
    return 0 if abs(gain) <= least else 1 if gain > 0 else -1


def same_sign(predicted: float, real: tuple[float, float, float], least: float) -> bool | None:
    """Return whether a gain has the predicted sign; None if its interval contains 0 and so has no sign."""
    low, median, high = real
    if low <= 0 <= high:
        return True if sign(predicted, least) == 0 else None
    return sign(predicted, least) == sign(median, least)


def measured_again(cause: Cause, steps: int) -> Predicted | None:
    """Record the slow program and return the gain of its finding; None if its rule has no such gain.

    Of a rule with a re-run, that is the gain of the re-run. Other rules have a bound.
    """
    cause.slow(1)
    models = () if cause.model is None else (cause.model,)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "r.gpuprof"
        run = recorded(models, cause.slow, max(steps, FEWEST_STEPS), out)
        found = run.findings(rerun=True)
    kind = GainKind.RERUN if cause.rule in WITH_RERUN else GainKind.BOUND
    for each in found:
        if each.rule is cause.rule and each.gain.kind is kind and each.gain.step is not None:
            low_ns, high_ns = each.gain.step.low_ns, each.gain.step.high_ns
            step_ms = (found.mean_step_ns or 0.0) / 1e6
            is_bound = kind is GainKind.BOUND
            return Predicted(low_ns / 1e6, high_ns / 1e6, each.confidence, step_ms, is_bound=is_bound)
    return None


def predict(name: str, cause: Cause, steps: int) -> Predicted:
    """Record the slow program and predict the gain of its repair."""
    cause.slow(1)
    with tempfile.TemporaryDirectory() as folder:
        with gpuprof.profile(python=True, out=Path(folder) / "r.gpuprof") as recording:
            cause.slow(steps * cause.batch)
        found = recording.run.whatif(**(cause.changes or {}))
    if found.step is None:
        raise SystemExit(f"{name}: not predicted, {found.explained:.1%} of the time is explained")
    step = found.step
    return Predicted(step.low_ns / 1e6, step.high_ns / 1e6, found.confidence, step.recorded_ns / 1e6)


def in_turns(cause: Cause, pairs: int) -> tuple[list[float], list[float]]:
    """Return the times of a step of the slow and the repaired program, in pairs of changing order."""
    sides: tuple[tuple[Steps, list[float]], ...] = ((cause.slow, []), (cause.repaired, []))
    for pair in range(pairs + 1):
        for steps, times in sides if pair % 2 else sides[::-1]:
            begin = time.perf_counter()
            steps(cause.batch)
            if pair:  # the first warms up
                times.append((time.perf_counter() - begin) / cause.batch * 1e3)
    return sides[0][1], sides[1][1]


def bootstrap(gains: list[float]) -> tuple[float, float]:
    """Return an interval of 95% of the median, by percentiles over resampled gains."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(gains, k=len(gains))) for _ in range(2_000))
    return medians[50], medians[1949]


def _predicted(row: dict[str, Any]) -> str:
    return "-" if row["low_ms"] is None else f"{row['low_ms']:.2f} to {row['high_ms']:.2f} ms"


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
