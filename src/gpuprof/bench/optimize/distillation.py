# SPDX-License-Identifier: Apache-2.0
"""Knowledge distillation: train a small model, the student, on the outputs of a large one, the teacher.

Hinton, Vinyals, Dean, "Distilling the Knowledge in a Neural Network", 2015 (arXiv 1503.02531). No labels are
used.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from gpuprof.errors import BenchmarkError

Batch = tuple[Any, ...]
Progress = Callable[[int, int, float], None]  # step, steps, loss
HELD_OUT = 5  # every fifth batch measures, and is not trained on


@dataclass(frozen=True, slots=True)
class DistillationSettings:
    """How long and how a student is trained: Adam, batches of `batch_size` of `samples` samples."""

    steps: int = 200
    batch_size: int = 32
    samples: int = 1_024
    learning_rate: float = 1e-3
    temperature: float = 4.0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "samples"):
            if getattr(self, name) < 1:
                raise BenchmarkError(
                    "invalid_training", f"{name}={getattr(self, name)}", hint="use a whole number from 1"
                )
        for name in ("learning_rate", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise BenchmarkError(
                    "invalid_training", f"{name}={getattr(self, name)}", hint="use a number above 0"
                )
        if self.samples < 2 * self.batch_size:
            raise BenchmarkError(
                "too_few_samples",
                f"{self.samples} samples in batches of {self.batch_size}",
                hint="use at least two batches, one to train on and one to measure with",
            )


@dataclass(frozen=True, slots=True)
class Distillation:
    """What the training reached, on held-out samples.

    `loss` is that of the training; `agreement` the fraction of samples whose largest output is the teacher's,
    None where outputs are not scores of classes.
    """

    steps: int
    asked_steps: int
    held_out_samples: int
    loss_before: float
    loss_after: float
    agreement_before: float | None
    agreement_after: float | None

    @property
    def has_learned(self) -> bool:
        """Whether the student is closer to the teacher than before."""
        return self.loss_after < self.loss_before


def distill(
    teacher: nn.Module,
    student: nn.Module,
    batches: Sequence[Batch],
    settings: DistillationSettings,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Distillation:
    """Train `student` in place. Ctrl-C ends the training early; what was learned is kept and measured.

    Raises BenchmarkError for outputs of different shapes, and for a loss that is not finite.
    """
    teacher.eval()
    examples = [(batch, _teacher_outputs(teacher, batch)) for batch in batches]
    held_out = examples[::HELD_OUT]
    training = [each for number, each in enumerate(examples) if number % HELD_OUT] or held_out
    before = _measured(student, held_out, settings.temperature)
    steps = _trained(student, training, settings, seed, progress)
    after = _measured(student, held_out, settings.temperature)
    samples = sum(len(expected[0]) for _, expected in held_out)
    return Distillation(steps, settings.steps, samples, before[0], after[0], before[1], after[1])


def _trained(
    student: nn.Module,
    examples: Sequence[tuple[Batch, list[Any]]],
    settings: DistillationSettings,
    seed: int,
    progress: Progress | None,
) -> int:
    """Train the student; return the number of steps that were made."""
    optimizer = torch.optim.Adam(student.parameters(), lr=settings.learning_rate)
    order = random.Random(seed)  # noqa: S311 - an order, no secret
    places: list[int] = []
    student.train()
    step = 0
    try:
        for step in range(settings.steps):
            places = places or order.sample(range(len(examples)), len(examples))
            batch, expected = examples[places.pop()]
            optimizer.zero_grad()
            loss = _loss(_outputs(student(*batch)), expected, settings.temperature)
            loss.backward()
            optimizer.step()
            value = float(loss.detach())
            if not math.isfinite(value):
                raise BenchmarkError(
                    "loss_not_finite",
                    f"the loss of step {step + 1} is {value}",
                    hint="use a smaller --learning-rate",
                )
            if progress is not None:
                progress(step + 1, settings.steps, value)
    except KeyboardInterrupt:
        return step
    finally:
        student.eval()
    return settings.steps


def _teacher_outputs(teacher: nn.Module, batch: Batch) -> list[Any]:
    with torch.no_grad():
        return [each.detach() for each in _outputs(teacher(*batch))]


def _measured(
    student: nn.Module, examples: Sequence[tuple[Batch, list[Any]]], temperature: float
) -> tuple[float, float | None]:
    """Return the mean loss, and the fraction of samples of the same class."""
    student.eval()
    losses: list[float] = []
    same: list[float] = []
    with torch.no_grad():
        for batch, expected in examples:
            outputs = _outputs(student(*batch))
            losses.append(float(_loss(outputs, expected, temperature)))
            if _are_scores(expected[0]):
                same += (outputs[0].argmax(1) == expected[0].argmax(1)).float().tolist()
    return sum(losses) / len(losses), sum(same) / len(same) if same else None


def _outputs(value: Any) -> list[Any]:
    """Return the floating-point tensors in what a module returned. Raises BenchmarkError without any."""
    found = [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
    found = [each for each in found if each.is_floating_point()]
    if not found:
        raise BenchmarkError(
            "no_scores",
            f"a model returns {type(value).__name__} without floating-point tensors",
            hint="distill models that return scores or features",
        )
    return found


def _loss(outputs: Sequence[Any], expected: Sequence[Any], temperature: float) -> Any:
    """Return the sum over the outputs: divergence of softened scores of classes, squared error of others.

    The divergence is multiplied by the square of the temperature, so that gradients keep their size (Hinton
    et al., section 2.1).
    """
    found, wanted = ([tuple(each.shape) for each in those] for those in (outputs, expected))
    if found != wanted:
        raise BenchmarkError(
            "other_outputs",
            f"the student returns {_shapes(found)}, the teacher {_shapes(wanted)}",
            hint="give the student outputs of the teacher's shape",
        )
    return torch.stack(
        [
            _divergence(output, each, temperature)
            if _are_scores(each)
            else nn.functional.mse_loss(output.float(), each.float())
            for output, each in zip(outputs, expected, strict=True)
        ]
    ).sum()


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)


def _divergence(output: Any, expected: Any, temperature: float) -> Any:
    soft = torch.log_softmax(output.float() / temperature, 1)
    aim = torch.log_softmax(expected.float() / temperature, 1)
    divergence = nn.functional.kl_div(soft, aim, reduction="batchmean", log_target=True)
    return divergence * temperature**2


def _are_scores(tensor: Any) -> bool:
    return bool(tensor.ndim == 2 and tensor.shape[1] > 1)
