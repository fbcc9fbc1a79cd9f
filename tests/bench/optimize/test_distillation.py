# SPDX-License-Identifier: Apache-2.0
"""Distillation: the loss by its formula, and what training reaches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from gpuprof.bench.optimize.distillation import (  # noqa: E402
    Distillation,
    DistillationSettings,
    _loss,
    distill,
)
from gpuprof.errors import BenchmarkError  # noqa: E402

SHORT = DistillationSettings(steps=60, batch_size=16, samples=160, learning_rate=0.05)


def batches(count: int = 10, size: int = 16) -> list[tuple[Any, ...]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(size, 6, generator=generator),) for _ in range(count)]


def linear(seed: int, outputs: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(6, outputs)


def test_the_loss_is_that_of_the_formula() -> None:
    generator = np.random.default_rng(5)
    student, teacher = generator.normal(size=(2, 7, 4))
    temperature = 3.0

    def softened(scores: Any) -> Any:
        powers = np.exp(scores / temperature)
        return powers / powers.sum(1, keepdims=True)

    aim, soft = softened(teacher), softened(student)
    expected = temperature**2 * (aim * np.log(aim / soft)).sum(1).mean()
    found = _loss([torch.tensor(student)], [torch.tensor(teacher)], temperature)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_features_have_a_squared_error() -> None:
    student, teacher = torch.zeros(2, 3, 5), torch.full((2, 3, 5), 2.0)
    assert float(_loss([student], [teacher], 4.0)) == 4.0


def test_a_student_that_can_be_the_teacher_becomes_it() -> None:
    student = linear(2)
    reached = distill(linear(1), student, batches(), SHORT)
    assert (reached.steps, reached.held_out_samples) == (60, 32)
    assert reached.loss_after < 0.02 * reached.loss_before
    assert reached.agreement_after is not None
    assert reached.agreement_after > 0.9 > (reached.agreement_before or 0)
    assert reached.has_learned
    assert not student.training


def test_an_interrupted_training_keeps_what_it_has() -> None:
    def interrupt(step: int, _steps: int, _loss: float) -> None:
        if step == 30:
            raise KeyboardInterrupt

    reached = distill(linear(1), linear(2), batches(), SHORT, progress=interrupt)
    assert (reached.steps, reached.asked_steps) == (29, 60)
    assert reached.has_learned


def test_held_out_samples_are_not_trained_on() -> None:
    """A teacher that is another one on the held-out batches cannot be learned there."""
    seen: list[float] = []

    class Watched(nn.Linear):
        def forward(self, x: Any) -> Any:
            if self.training:
                seen.append(float(x[0, 0]))
            return super().forward(x)

    data = batches()
    distill(linear(1), Watched(6, 4), data, SHORT)
    assert {float(batch[0][0, 0]) for batch in data[::5]}.isdisjoint(seen)
    assert len(set(seen)) == 8


def test_outputs_of_other_shapes_are_refused() -> None:
    with refused(BenchmarkError, "other_outputs"):
        distill(linear(1), linear(2, outputs=3), batches(), SHORT)


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    settings = DistillationSettings(steps=60, batch_size=16, samples=160, learning_rate=1e30)
    with refused(BenchmarkError, "loss_not_finite"):
        distill(linear(1), nn.Sequential(linear(2, 8), nn.Linear(8, 4)), batches(), settings)


@pytest.mark.parametrize(
    "values", [{"steps": 0}, {"samples": 32}, {"learning_rate": 0.0}, {"temperature": float("nan")}]
)
def test_settings_that_cannot_be(values: dict[str, Any]) -> None:
    with pytest.raises(BenchmarkError):
        DistillationSettings(**values)


def test_equal_losses_are_not_learning() -> None:
    assert not Distillation(0, 5, 32, 0.5, 0.5, None, None).has_learned
