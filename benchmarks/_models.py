# SPDX-License-Identifier: Apache-2.0
"""The models that are measured, made of PyTorch's own modules with fixed random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

TINY_LAYERS = 50


def tiny_linears() -> tuple[Any, Any]:
    """Return 50 linear layers, so small that what takes time is PyTorch's own work, and an input."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(TINY_LAYERS)))
    return model.eval(), torch.randn(1, 8)


def identities() -> tuple[Any, Any, int]:
    """Return a chain of modules that do nothing, an input, and how many module calls a forward makes."""
    model = nn.Sequential(*(nn.Identity() for _ in range(100)))
    return model, torch.randn(1), sum(1 for _ in model.modules())


def count_operators(model: Any, inputs: Any) -> int:
    """Return how many operators a forward calls, as torch.profiler counts them."""
    from benchmarks._recorders import torch_profiler_on

    with torch.no_grad(), torch_profiler_on()() as profiler:
        model(inputs)
    return sum(1 for event in profiler.events() if event.name.startswith("aten::"))


def transformer_step() -> tuple[Any, Callable[[int], None]]:
    """Return a small transformer and `train(steps)`: forward, loss, backward, AdamW."""
    torch.manual_seed(0)
    width, length, batch, vocabulary = 128, 64, 8, 512
    block = nn.TransformerEncoderLayer(
        width, nhead=4, dim_feedforward=4 * width, batch_first=True, norm_first=True
    )
    model = nn.Sequential(
        nn.Embedding(vocabulary, width),
        nn.TransformerEncoder(block, num_layers=4, enable_nested_tensor=False),
        nn.Linear(width, vocabulary),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(vocabulary, (batch, length + 1))

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()

    return model, train


def convnet_eval() -> tuple[Any, Callable[[int], None]]:
    """Return a small convolutional network and `infer(steps)`: forward passes in eval mode."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *_stage(3, 32),
        *_stage(32, 64),
        *_stage(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    ).eval()
    images = torch.randn(8, 3, 32, 32)

    def infer(steps: int) -> None:
        with torch.no_grad():
            for _ in range(steps):
                model(images)

    return model, infer


def _stage(channels_in: int, channels: int) -> list[Any]:
    layers: list[Any] = []
    for source in (channels_in, channels):
        layers += [nn.Conv2d(source, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return [*layers, nn.MaxPool2d(2)]
