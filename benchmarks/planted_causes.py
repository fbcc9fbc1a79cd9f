# SPDX-License-Identifier: Apache-2.0
"""What `run.whatif` predicts for planted causes, and what their removal gains in reality.

    python benchmarks/planted_causes.py [--cause NAME]... [--steps 20] [--pairs 20] [--json FILE|-]

Each cause is planted into the training step of a small transformer. The slow program is recorded and the
gain of its repair predicted; then the slow and the repaired program run in turns without a recording.
`real` is the difference of the medians of a step, with a bootstrap interval of 95%. `contains`: the
predicted interval contains the real gain; `agrees`: it overlaps that of the real gain; `sign`: both are a
gain, a loss, or not significant; unknown if only the prediction is significant. A replay predicts what is
removed or made faster by a known factor. The gains of other causes (optimizer, threads, subnormal
numbers) are those of `run.findings(rerun=True)`. Run it on a quiet machine. Ctrl-C ends it after the
causes that are measured, which are printed and written.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import queue
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import gpuprof
from benchmarks._machine import describe_code, describe_machine
from benchmarks._output import Column, plain_table, show
from examples.transformer import LanguageModel
from gpuprof.analyze.findings.finding import GainKind, Rule
from gpuprof.record.processor import usable_processors

Steps = Callable[[int], None]
FEWEST_STEPS = 20  # for findings, which depend on how steady the steps are
LEAST_GAIN = 0.02  # of a step, that is significant


@dataclass
class Cause:
    """A slow program and its repair.

    `changes` are what `run.whatif` is given. If no replay has the repair, it is None, and `rule` is that of
    the finding, whose gain is measured by a re-run of what `model` and the rest of the program calculate.
    """

    slow: Steps
    repaired: Steps
    changes: dict[str, Any] | None
    rule: Rule | None = None
    model: torch.nn.Module | None = None
    batch: int = 1  # steps of one measurement; more where a queue needs them


@dataclass(frozen=True)
class Predicted:
    """The predicted gain of a step."""

    low_ms: float
    high_ms: float
    confidence: float


class Training:
    """Trains a small language model."""

    def __init__(self, layers: int = 4, *, fused: bool = True) -> None:
        torch.manual_seed(0)
        self.tokens = torch.randint(0, 512, (4, 65))
        self.model = LanguageModel(layers, width=128, heads=4, context=64)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=fused)

    def step(self, tokens: torch.Tensor | None = None) -> None:
        """Train with a batch of `tokens` (4 x 65 numbers), or always the same one."""
        tokens = self.tokens if tokens is None else tokens
        loss = functional.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def steps(self, count: int) -> None:
        """Train with the same batch."""
        for _ in range(count):
            self.step()


class Samples:
    """Samples that take time to fetch."""

    def __init__(self, fetch: Callable[[], None]) -> None:
        self.fetch = fetch
        self.sample = torch.randint(0, 512, (65,))

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.fetch()
        return self.sample


def compute() -> None:
    """Compute for some milliseconds."""
    total = 0
    for number in range(50_000):
        total += number * number % 7


def in_process_loader() -> Cause:
    """Fetch in the main process, by computing."""
    training = Training()
    batches = iter(DataLoader(Samples(compute), batch_size=4))

    def slow(count: int) -> None:
        for _ in range(count):
            training.step(next(batches))

    return Cause(slow, training.steps, {"remove": "enumerate(DataLoader)*"})


def sleeping_loader(workers: int) -> Cause:
    """Fetch in the main process, by waiting; workers are the repair."""
    training = Training()
    samples = Samples(lambda: time.sleep(0.012))
    batches = iter(DataLoader(samples, batch_size=4))
    fetched = iter(DataLoader(samples, batch_size=4, num_workers=workers))

    def take(batches: Iterator[torch.Tensor]) -> Steps:
        def steps(count: int) -> None:
            for _ in range(count):
                training.step(next(batches))

        return steps

    take(fetched)(4 * workers)  # the queue is full
    return Cause(take(batches), take(fetched), {"workers": workers}, batch=10 * workers)


def collections() -> Cause:
    """Collect all garbage in each step."""
    training = Training(2)
    kept = [{number: [number]} for number in range(60_000)]

    def collect() -> None:
        gc.collect()

    def slow(count: int) -> None:
        for _ in range(count):
            training.step()
            collect()
        assert kept

    return Cause(slow, training.steps, {"remove": "gc:*"})


def logged_norms() -> Cause:
    """Write the norms of all parameters and gradients to a log in each step."""
    training = Training()
    log = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the program

    def write_norms() -> None:
        for name, parameter in list(training.model.named_parameters()) * 3:
            gradient = parameter.grad
            assert gradient is not None
            print(name, parameter.norm().item(), gradient.norm().item(), file=log)

    def slow(count: int) -> None:
        for _ in range(count):
            training.step()
            with gpuprof.span("log"):
                write_norms()

    return Cause(slow, training.steps, {"remove": "span:log"})


def two_layers_more() -> Cause:
    """Remove two of six blocks; their part of the optimizer's step has no name in the recording."""
    large, small = Training(6), Training(4)
    return Cause(large.steps, small.steps, {"remove": ["layer:layers.4", "layer:layers.5"]})


def prefetched() -> Cause:
    """Fetch ahead in a thread: this time is hidden."""
    training = Training()

    def queued(fetch: Callable[[], None]) -> Steps:
        batches: queue.Queue[torch.Tensor] = queue.Queue(2)

        def produce() -> None:
            while True:
                with gpuprof.span("fetch"):
                    fetch()
                batches.put(training.tokens)

        threading.Thread(target=produce, daemon=True).start()

        def steps(count: int) -> None:
            for _ in range(count):
                training.step(batches.get())

        return steps

    return Cause(queued(lambda: time.sleep(0.008)), queued(lambda: None), {"remove": "span:fetch"})


def waiting_for_a_file() -> Cause:
    """Wait in each step, as for a file or a lock."""
    training = Training()

    def wait() -> None:
        time.sleep(0.02)

    def slow(count: int) -> None:
        for _ in range(count):
            training.step()
            wait()

    return Cause(slow, training.steps, {"remove": "python:*wait"})


def waiting_for_a_lock() -> Cause:
    """Wait in each step for a lock that another thread holds."""
    training = Training()
    lock, is_held, is_wanted = threading.Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        while True:
            is_wanted.wait()
            is_wanted.clear()
            with lock:
                is_held.set()
                time.sleep(0.02)

    threading.Thread(target=hold, daemon=True).start()

    def take_lock() -> None:
        is_wanted.set()
        is_held.wait()
        is_held.clear()
        with lock:
            pass

    def slow(count: int) -> None:
        for _ in range(count):
            training.step()
            take_lock()

    return Cause(slow, training.steps, {"remove": "python:*take_lock"})


def optimizer_loop() -> Cause:
    """Update parameter by parameter; the fused optimizer is the repair."""
    training = Training(fused=False)
    return Cause(training.steps, Training().steps, None, Rule.OPTIMIZER, training.model)


def too_many_threads() -> Cause:
    """Calculate with four times as many threads as there are processors."""
    training = Training()
    processors = len(usable_processors())

    def with_threads(count: int) -> Steps:
        def steps(number: int) -> None:
            torch.set_num_threads(count)  # and it remains, because the recording reads it at its end
            training.steps(number)

        return steps

    slow, repaired = with_threads(4 * processors), with_threads(processors)
    return Cause(slow, repaired, None, Rule.THREADS, training.model)


def subnormal_numbers() -> Cause:
    """Calculate with numbers below the normal range, which are zero after the repair."""
    training = Training()
    values = torch.full((1_000_000,), -100.0)

    def flushing(flush: bool) -> Steps:
        def steps(count: int) -> None:
            torch.set_flush_denormal(flush)
            for _ in range(count):
                training.step()
                functional.softplus(values)
            torch.set_flush_denormal(False)

        return steps

    return Cause(flushing(False), flushing(True), None, Rule.SUBNORMALS, training.model)


def faster_function() -> Cause:
    """Make a function before each step three times as fast."""
    training = Training()

    def part(rounds: int) -> Steps:
        def normalize() -> None:
            with gpuprof.span("normalize"):
                for _ in range(rounds):
                    compute()

        def steps(count: int) -> None:
            for _ in range(count):
                normalize()
                training.step()

        return steps

    return Cause(part(6), part(2), {"speed_up": {"span:normalize": 3}})


CAUSES: dict[str, Callable[[], Cause]] = {
    "loader in the main process": in_process_loader,
    "sleeping loader, 1 worker": lambda: sleeping_loader(1),
    "sleeping loader, 2 workers": lambda: sleeping_loader(2),
    "garbage collection": collections,
    "logged norms": logged_norms,
    "two of six layers": two_layers_more,
    "prefetched batches": prefetched,
    "wait in each step": waiting_for_a_file,
    "lock in each step": waiting_for_a_lock,
    "optimizer loop": optimizer_loop,
    "too many threads": too_many_threads,
    "subnormal numbers": subnormal_numbers,
    "function 3 times as fast": faster_function,
}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="Predicted and real gains of planted causes.")
    parser.add_argument("--cause", action="append", choices=list(CAUSES), help="only this; repeatable")
    parser.add_argument("--steps", type=int, default=20, help="recorded steps (%(default)s)")
    parser.add_argument("--pairs", type=int, default=20, help="measurements of each side (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output, no table")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    causes = options.cause or list(CAUSES)
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
        Column("agrees", 7, lambda row: {True: "yes", False: "NO", None: "-"}[row["agrees"]]),
        Column("sign", 5, lambda row: {True: "yes", False: "NO", None: "-"}[row["sign"]]),
    ]
    total = (
        f"of {len(predicted)} predictions {result['contain']} contain the real gain, "
        f"{result['agree']} agree, "
        f"{result['same_sign']} have the right sign"
    )
    show(result, f"{plain_table(columns, rows)}\n{total}", options.json, indent=1)
    return 0 if result["is_complete"] else 130


def measure(name: str, steps: int, pairs: int) -> dict[str, Any]:
    """Record, predict, and measure one cause; times in milliseconds a step."""
    torch.set_num_threads(1)
    cause = CAUSES[name]()
    found = measured_again(cause, steps) if cause.changes is None else predict(name, cause, steps)
    cause.slow(1)
    slow, repaired = in_turns(cause, pairs)
    real = statistics.median(slow) - statistics.median(repaired)
    real_low, real_high = bootstrap(slow, repaired)
    row: dict[str, Any] = {
        "cause": name,
        "slow_ms": statistics.median(slow),
        "real_ms": real,
        "real_low_ms": real_low,
        "real_high_ms": real_high,
        **dict.fromkeys(("low_ms", "high_ms", "ratio", "agrees", "contains", "sign", "confidence")),
    }
    if found is None:
        return row
    low, high = found.low_ms, found.high_ms
    least = LEAST_GAIN * statistics.median(slow)
    is_gain = abs(real) > least
    return row | {
        "low_ms": low,
        "high_ms": high,
        "ratio": (low + high) / 2 / real if is_gain else None,
        "agrees": low <= real_high and real_low <= high,
        "contains": low <= real <= high,
        "sign": same_sign((low + high) / 2, (real_low, real, real_high), least),
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
    """Record the slow program and measure the gain of its repair again; None if its rule has no such gain."""
    cause.slow(1)
    models = () if cause.model is None else (cause.model,)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "r.gpuprof"
        with gpuprof.profile(*models, work=True, out=out) as recording:
            cause.slow(max(steps, FEWEST_STEPS))
        found = recording.run.findings(rerun=True)
    for each in found:
        if each.rule is cause.rule and each.gain.kind is GainKind.RERUN and each.gain.step is not None:
            return Predicted(each.gain.step.low_ns / 1e6, each.gain.step.high_ns / 1e6, each.confidence)
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
    return Predicted(found.step.low_ns / 1e6, found.step.high_ns / 1e6, found.confidence)


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


def bootstrap(slow: list[float], repaired: list[float]) -> tuple[float, float]:
    """Return an interval of 95% of the difference of the medians, by percentiles over resampled pairs."""
    draw = random.Random(1)
    gains = []
    for _ in range(2_000):
        chosen = [draw.randrange(len(slow)) for _ in slow]
        gains.append(
            statistics.median(slow[each] for each in chosen)
            - statistics.median(repaired[each] for each in chosen)
        )
    gains.sort()
    return gains[50], gains[1949]


def _predicted(row: dict[str, Any]) -> str:
    return "-" if row["low_ms"] is None else f"{row['low_ms']:.2f} to {row['high_ms']:.2f} ms"


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
