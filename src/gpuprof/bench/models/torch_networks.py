# SPDX-License-Identifier: Apache-2.0
"""Published image networks with random weights, for machines without a library that has them.

Each is written from its paper and has as many parameters as the published one: ResNet-50 25,557,032 (He et
al., 2015, arXiv:1512.03385, the stride in the 3x3 convolution, "v1.5"), ViT-B/16 86,567,656 (Dosovitskiy et
al., 2020, arXiv:2010.11929).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

EXPANSION = 4
STAGE_CHANNELS = (64, 128, 256, 512)
NORM_EPSILON = 1e-6


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


class EncoderBlock(nn.Module):
    """Attention and a perceptron, each after a norm and with a residual connection."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, NORM_EPSILON)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.perceptron_norm = nn.LayerNorm(width, NORM_EPSILON)
        self.perceptron = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return (batch, tokens, width)."""
        tokens = tokens + self._attend(self.attention_norm(tokens))
        changed: torch.Tensor = tokens + self.perceptron(self.perceptron_norm(tokens))
        return changed

    def _attend(self, tokens: torch.Tensor) -> torch.Tensor:
        split = self.query_key_value(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        projected: torch.Tensor = self.project(mixed.transpose(1, 2).flatten(2))
        return projected


class VisionTransformer(nn.Module):
    """Images (batch, 3, size, size) to logits (batch, classes)."""

    def __init__(
        self,
        *,
        size: int = 224,
        patch: int = 16,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        hidden: int = 3_072,
        classes: int = 1_000,
    ) -> None:
        super().__init__()
        self.size = size
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, hidden) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, NORM_EPSILON)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits. Raises ValueError for images of another size, which have other positions."""
        if tuple(images.shape[-2:]) != (self.size, self.size):
            given = " x ".join(str(length) for length in images.shape[-2:])
            raise ValueError(f"it takes images of {self.size} x {self.size}, not {given}")
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        first = self.class_token.expand(tokens.shape[0], -1, -1)
        tokens = torch.cat([first, tokens], dim=1) + self.positions
        logits: torch.Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits


def vit_b_16(classes: int = 1_000) -> VisionTransformer:
    """Return ViT-B/16 for images of 224 x 224, 86,567,656 parameters with 1,000 classes."""
    return VisionTransformer(classes=classes)
