# SPDX-License-Identifier: Apache-2.0
"""ResNet (He et al., 2015, arXiv:1512.03385) with bottlenecks, the stride in the 3x3 convolution ("v1.5")."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

EXPANSION = 4
STAGE_CHANNELS = (64, 128, 256, 512)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """Reduce, convolve, expand, and add the input."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        outputs = channels * EXPANSION
        self.reduce = _convolution(inputs, channels, 1)
        self.convolve = _convolution(channels, channels, 3, stride)
        self.expand = _convolution(channels, outputs, 1)
        is_same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if is_same else _convolution(inputs, outputs, 1, stride)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the block's features."""
        features = self.activation(self.reduce(images))
        features = self.activation(self.convolve(features))
        return self.activation(self.expand(features) + self.shortcut(images))


class ResNet(nn.Module):
    """Images (batch, 3, height, width) to logits (batch, classes)."""

    def __init__(self, blocks: Sequence[int], classes: int = 1_000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
        )
        stages, inputs = [], 64
        for stage, (channels, count) in enumerate(zip(STAGE_CHANNELS, blocks, strict=True)):
            for block in range(count):
                stages.append(Bottleneck(inputs, channels, 2 if stage and not block else 1))
                inputs = channels * EXPANSION
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        features: torch.Tensor = self.stages(self.stem(images))
        logits: torch.Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


def resnet50(classes: int = 1_000) -> ResNet:
    """Return ResNet-50, 25,557,032 parameters with 1,000 classes."""
    return ResNet((3, 4, 6, 3), classes)
