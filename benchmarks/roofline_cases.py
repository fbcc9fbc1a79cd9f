# SPDX-License-Identifier: Apache-2.0
"""Cases whose label is known beforehand, and whether two runs agree. Wants an otherwise idle machine.

python benchmarks/roofline_cases.py [--device cuda] [--json] [--only NAME] [--no-agreement]

Each case is a model of one operator, recorded with work=True and the roofs of right before and after; PASS
where what binds is what must bind. A case that fails while the machine is disturbed (other programs, roofs
that change) is made again, and has no verdict where that never ends. The exit code is 1 where a case fails,
3 where one has no verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof  # noqa: F401

# isort: split
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._roofline_tries import TRIES, record, until_undisturbed
from gpuprof import _native
from gpuprof.analyze.roofline.rows import Roofline, RooflineRow
from gpuprof.run.processor import data_caches, usable_processors

CALLS = 15
ABOVE_ROOF = 1.05
AGREEMENT = 0.95
# A library that takes this many times as long as reading alone is slow, and one that takes so little is not.
_SURELY_SLOW, _SURELY_FAST = 0.5, 0.8
_AS_THE_LIBRARY_READS = "memory where the library reads as fast as memory delivers, else under-utilised"


@dataclass(frozen=True, slots=True)
class Case:
    """A model with its inputs, the operator that counts, and what must hold of its row."""

    name: str
    make: Callable[[], tuple[nn.Module, tuple[Any, ...]]]
    operator: str
    must: str
    holds: Callable[[RooflineRow], bool]
    backward: bool = False
    phase: str = "forward"
    calls: int = CALLS


@dataclass(slots=True)
class Result:
    """`passed` is None where the machine was disturbed each time; `disturbed` says by what."""

    name: str
    must: str
    passed: bool | None
    bound: str = "-"
    roof_share: float | None = None
    confidence: float | None = None
    evidence: str = ""
    tries: int = 0
    disturbed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Agreement:
    """The share of the time in operators that both runs labelled alike."""

    model: str
    share: float
    passed: bool | None
    differing: list[str] = field(default_factory=list)


class Call(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: Any) -> Any:
        """Call it."""
        return self.function(*values)


def last_cache_bytes() -> int:
    """Return what the last level of cache holds; where nobody tells, what is common."""
    caches = data_caches(usable_processors())
    last = max((cache.level for cache in caches), default=0)
    return sum(cache.bytes for cache in caches if cache.level == last) or 32 << 20


def cases() -> list[Case]:
    """Return the cases, with sizes that fit this machine's caches."""
    far = 4 * last_cache_bytes() // 4  # elements of fp32, four times the cache
    return [
        Case("copy, 4x the cache", lambda: streamed(far, 1), "aten::copy_", "memory, u >= 0.8", memory(0.8)),
        Case(
            "add, 4x the cache, preallocated",
            lambda: streamed(far, 2),
            "aten::add",
            "memory, u >= 0.8",
            memory(0.8),
        ),
        Case("bf16 product 2048", lambda: product(2048), "aten::mm", "compute, u >= 0.7", compute(0.7)),
        Case("3x3 convolution, 64 channels", convolution, "aten::convolution", "compute", compute(0.0)),
        Case(
            "bf16 linear, batch 1",
            lambda: linear(torch.bfloat16),
            "aten::addmm",
            _AS_THE_LIBRARY_READS,
            as_the_library_reads,
        ),
        Case(
            "fp32 linear, batch 1",
            lambda: linear(torch.float32),
            "aten::addmm",
            _AS_THE_LIBRARY_READS,
            as_the_library_reads,
        ),
        Case("add of 3 MB", lambda: streamed(250_000, 2), "aten::add", "a cache, at most 105%", cached),
        Case("add of 12 MB", lambda: streamed(1_000_000, 2), "aten::add", "a cache, at most 105%", cached),
        Case(
            "softmax into fresh 134 MB", lambda: softmax(fresh=True), "aten::_softmax", "page faults", faults
        ),
        Case("softmax, preallocated", lambda: softmax(fresh=False), "aten::_softmax", "memory", memory(0.0)),
        Case("relu into fresh 256 MB", lambda: relu(fresh=True), "aten::relu", "page faults", faults),
        Case("relu in place, 256 MB", lambda: relu(fresh=False), "aten::relu_", "memory", memory(0.0)),
        Case(
            "add of 4 elements",
            lambda: streamed(4, 2),
            "aten::add",
            "latency",
            lambda row: row.bound == "latency",
            calls=200,
        ),
        Case(
            "depthwise convolution, backward",
            depthwise,
            "aten::convolution_backward",
            f"{4 * 8 * 32 * 32 * 64 * 9:,} FLOPs",
            lambda row: row.flops == 4 * 8 * 32 * 32 * 64 * 9,
            backward=True,
            phase="backward",
        ),
        Case(
            "attention",
            attention,
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            f"{4 * 2 * 8 * 256 * 256 * 64:,} FLOPs",
            lambda row: row.flops == 4 * 2 * 8 * 256 * 256 * 64,
        ),
        Case(
            "LSTM",
            lstm,
            "LSTM",
            f"{2 * 8 * 32 * 4 * 128 * (64 + 128):,} FLOPs",
            lambda row: row.flops == 2 * 8 * 32 * 4 * 128 * (64 + 128),
        ),
    ]


# ---- what must hold --------------------------------------------------------------------------


def memory(least: float) -> Callable[[RooflineRow], bool]:
    """Bound by memory, with so much of the roof used."""
    return lambda row: row.bound == "memory" and (row.roof_share or 0) >= least


def compute(least: float) -> Callable[[RooflineRow], bool]:
    """Bound by arithmetic, with so much of the roof used."""
    return lambda row: row.bound == "compute" and (row.roof_share or 0) >= least


def cached(row: RooflineRow) -> bool:
    """Tell whether a cache served it, and not faster than it can."""
    return row.memory_level in ("l1", "l2", "l3") and (row.used["memory"] or 0) <= ABOVE_ROOF


def as_the_library_reads(row: RooflineRow) -> bool:
    """Hold the label against the time that the same bytes need when they are only read, right now."""
    array_bytes = 4 * last_cache_bytes()
    rates = _native.measure_streams(["read"], array_bytes, usable_processors(), 0.01, 8)["read"]["per_second"]
    share = (row.bytes or 0) / max(rates) * 1e9 / row.time_ns
    may_be = ({"memory"} if share > _SURELY_SLOW else set()) | (
        {"under-utilised"} if share < _SURELY_FAST else set()
    )
    return row.bound in may_be


def faults(row: RooflineRow) -> bool:
    """Bound by the pages that the system hands out."""
    return row.bound == "page faults"


# ---- models of one operator ------------------------------------------------------------------


def streamed(elements: int, inputs: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a copy or a sum into memory that is there already."""
    out = torch.zeros(elements)
    values = tuple(torch.ones(elements) for _ in range(inputs))
    if inputs == 1:
        return Call(lambda a: out.copy_(a)), values
    return Call(lambda a, b: torch.add(a, b, out=out)), values


def product(size: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a matrix product in bf16, into memory that is there already."""
    a, b, out = (torch.ones(size, size, dtype=torch.bfloat16) for _ in range(3))
    return Call(lambda x, y: torch.mm(x, y, out=out)), (a, b)


def convolution() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a convolution such as residual networks are made of."""
    model = nn.Conv2d(64, 64, 3, bias=False).to(memory_format=torch.channels_last)
    return model, (torch.ones(8, 64, 58, 58).to(memory_format=torch.channels_last),)


def linear(dtype: torch.dtype) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a layer whose weights are four times as large as the cache, for one row."""
    columns = 4096
    rows = 4 * last_cache_bytes() // (columns * dtype.itemsize)
    return nn.Linear(columns, rows, dtype=dtype), (torch.ones(1, columns, dtype=dtype),)


def softmax(*, fresh: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a softmax over 134 MB."""
    values = torch.ones(8192, 4096)
    if fresh:
        return nn.Softmax(dim=-1), (values,)
    out = torch.zeros_like(values)
    return Call(lambda x: torch._softmax(x, -1, False, out=out)), (values,)


def relu(*, fresh: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a relu of 256 MB."""
    return nn.ReLU(inplace=not fresh), (torch.ones(64_000_000),)


def depthwise() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a convolution with one group for each channel."""
    return nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False), (
        torch.ones(8, 64, 32, 32, requires_grad=True),
    )


def attention() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return scaled dot products of 8 heads."""
    values = tuple(torch.ones(2, 8, 256, 64) for _ in range(3))
    return Call(torch.nn.functional.scaled_dot_product_attention), values


def lstm() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return one layer, for 8 sequences of 32 steps."""
    return nn.LSTM(64, 128, batch_first=True, bias=False), (torch.ones(8, 32, 64),)


# ---- running ---------------------------------------------------------------------------------


def run_case(case: Case) -> Result:
    """Run one case, again while the machine is disturbed."""
    torch.manual_seed(0)
    model, inputs = case.make()
    result = Result(case.name, case.must, None)

    def attempt() -> tuple[bool, list[str]]:
        roofline, disturbed = record(model, inputs, case.calls, backward=case.backward)
        result.tries += 1
        return _judge(case, roofline, result), disturbed

    result.passed, result.disturbed = until_undisturbed(attempt)
    return result


def _judge(case: Case, roofline: Roofline, result: Result) -> bool:
    row = find(roofline, case.operator, case.phase)
    if row is None:
        seen = ", ".join(sorted({str(each.operator) for each in roofline.operators}))
        result.evidence = f"no {case.operator} among {seen}"
        return False
    result.bound, result.roof_share = row.bound_text, row.roof_share
    result.confidence, result.evidence = row.confidence, row.evidence
    return case.holds(row)


def find(roofline: Roofline, operator: str, phase: str) -> RooflineRow | None:
    """Return the row of an operator, or of a layer where the name is no operator's."""
    if "::" not in operator:
        return next((row for row in roofline.layers if row.layer == operator), None)
    return next((row for row in roofline.operators if (row.operator, row.phase) == (operator, phase)), None)


# ---- agreement -------------------------------------------------------------------------------


class Block(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Two convolutions with a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the convolutions give."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(y)))


def residual() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a network like a ResNet."""
    stem = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100)]
    model = nn.Sequential(
        stem, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), *(Block(64) for _ in range(4)), *head
    )
    return model, (torch.randn(8, 3, 128, 128),)


def transformer() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return an encoder of four layers."""
    layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4), (torch.randn(8, 128, 256),)


def agree(name: str, make: Callable[[], tuple[nn.Module, tuple[Any, ...]]], device: str = "cpu") -> Agreement:
    """Record a model twice, one after the other, and compare the labels; again while it is disturbed."""
    torch.manual_seed(0)
    model, inputs = make()
    model, inputs = model.to(device), tuple(each.to(device) for each in inputs)
    found = Agreement(name, 0.0, None)

    def attempt() -> tuple[bool, list[str]]:
        (first, early), (second, late) = (record(model, inputs, CALLS, backward=True) for _ in range(2))
        found.share, found.differing = compare(first, second)
        return found.share >= AGREEMENT, [*early, *late]

    found.passed, _ = until_undisturbed(attempt)
    return found


def compare(first: Roofline, second: Roofline) -> tuple[float, list[str]]:
    """Return the share of the first one's time whose labels are the same, and the operators that differ."""
    labels = {key(row): row.bound for row in second.operators}
    total = sum(row.total_ns for row in first.operators)
    differing = [row for row in first.operators if labels.get(key(row)) != row.bound]
    lines = [
        f"{row.name} ({row.total_ns / total:.1%}): {row.bound}, then {labels.get(key(row))}"
        for row in differing
    ]
    return 1 - sum(row.total_ns for row in differing) / total, lines[:8]


def key(row: RooflineRow) -> tuple[str, str | None, int | None]:
    """Return what tells an operator from the others."""
    return row.layer, row.phase, row.ordinal


# ---- output ----------------------------------------------------------------------------------

_VERDICTS = {True: "PASS", False: "FAIL", None: "----"}


def main() -> int:
    """Run what is asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", help="run the cases whose name holds this")
    parser.add_argument("--no-agreement", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("roofline_cases.py: torch finds no CUDA device: leave out --device", file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    if not options.json:
        print(f"load average {load:.2f} on {len(usable_processors())} processors, torch {torch.__version__}")
    results = []
    for case in _cases(options.device):
        if options.only is None or options.only in case.name:
            results.append(run_case(case))
            if not options.json:
                print(line(results[-1]), flush=True)
    agreements = []
    if not options.no_agreement and options.only is None:
        for name, make in (("transformer", transformer), ("residual network", residual)):
            agreements.append(agree(name, make, options.device))
            if not options.json:
                print(agreement_line(agreements[-1]), flush=True)
    if options.json:
        values = {
            "load": load,
            "cases": list(map(asdict, results)),
            "agreement": list(map(asdict, agreements)),
        }
        print(json.dumps(values, indent=2))
    return exit_code([*(each.passed for each in results), *(each.passed for each in agreements)])


def exit_code(verdicts: list[bool | None]) -> int:
    """Return 1 where one failed, else 3 where one is open, else 0."""
    return 1 if False in verdicts else 3 if None in verdicts else 0


def _cases(device: str) -> list[Case]:
    if device == "cpu":
        return cases()
    from benchmarks._roofline_gpu_cases import gpu_cases

    # Of the module as it imports it, which is another one than this script.
    return [Case(**{key: getattr(case, key) for key in Case.__slots__}) for case in gpu_cases()]


def line(result: Result) -> str:
    """Return a case in two lines."""
    share = "-" if result.roof_share is None else f"{result.roof_share:.0%}"
    sure = "-" if result.confidence is None else f"{result.confidence:.2f}"
    lines = [
        f"{_VERDICTS[result.passed]}  {result.name}: must be {result.must}",
        f"      {result.bound}, {share} of the roof, sure {sure}: {result.evidence}",
    ]
    if result.disturbed:
        lines.append(f"      disturbed in each of {TRIES} tries, at last: {'; '.join(result.disturbed)}")
    return "\n".join(lines)


def agreement_line(result: Agreement) -> str:
    """Return the agreement of two runs, with what differs."""
    lines = [
        f"{_VERDICTS[result.passed]}  two runs, {result.model}: agree for {result.share:.1%} of the time"
    ]
    return "\n".join([*lines, *(f"      {each}" for each in result.differing)])


if __name__ == "__main__":
    sys.exit(main())
