# SPDX-License-Identifier: Apache-2.0
"""Whether two recordings of one network, one after the other, label it alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks._roofline_case import CALLS
from benchmarks._roofline_models import ModelAndInputs
from benchmarks._roofline_tries import record, until_undisturbed

# isort: split
import torch
from torch import nn

from gpuprof.analyze.roofline.build import Roofline
from gpuprof.analyze.roofline.rows import RooflineRow

AGREEMENT = 0.95


@dataclass(slots=True)
class Agreement:
    """The fraction of operator time whose labels are the same in both runs."""

    model: str
    share: float
    passed: bool | None
    differing: list[str] = field(default_factory=list)


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


def residual() -> ModelAndInputs:
    """Return a network like a ResNet."""
    stem = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100)]
    model = nn.Sequential(
        stem, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), *(Block(64) for _ in range(4)), *head
    )
    return model, (torch.randn(8, 3, 128, 128),)


def transformer() -> ModelAndInputs:
    """Return an encoder of four layers."""
    layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4), (torch.randn(8, 128, 256),)


def agree(name: str, make: Callable[[], ModelAndInputs], device: str = "cpu") -> Agreement:
    """Record a model twice, one after the other, and compare the labels; again while it is disturbed."""
    torch.manual_seed(0)
    model, inputs = make()
    model, inputs = model.to(device), tuple(each.to(device) for each in inputs)
    found = Agreement(name, 0.0, None)

    def attempt() -> tuple[bool, list[str]]:
        (first, early), (second, late) = (
            record(model, inputs, CALLS, backward=True, device=device) for _ in range(2)
        )
        found.share, found.differing = compare(first, second)
        return found.share >= AGREEMENT, [*early, *late]

    found.passed, _ = until_undisturbed(attempt)
    return found


def compare(first: Roofline, second: Roofline) -> tuple[float, list[str]]:
    """Return the fraction of the first one's time with equal labels, and the operators that differ."""
    labels = {key(row): row.bound for row in second.operators}
    total = sum(row.total_ns for row in first.operators)
    differing = [row for row in first.operators if labels.get(key(row)) != row.bound]
    lines = [
        f"{row.name} ({row.total_ns / total:.1%}): {row.bound}, then {labels.get(key(row))}"
        for row in differing
    ]
    return 1 - sum(row.total_ns for row in differing) / total, lines[:8]


def key(row: RooflineRow) -> tuple[str, str | None, int | None]:
    """Return the key that identifies an operator."""
    return row.layer, row.phase, row.ordinal
