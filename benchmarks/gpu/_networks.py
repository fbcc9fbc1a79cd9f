# SPDX-License-Identifier: Apache-2.0
"""The networks that are measured. Their weights are random: what counts is what they launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Bottleneck(nn.Module):  # type: ignore[misc]
    """Three convolutions and a way around them."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels = 4 * width
        self.body = nn.Sequential(
            *_convolution(channels_in, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, channels, 1),
        )
        same = stride == 1 and channels_in == channels
        self.around = (
            nn.Identity() if same else nn.Sequential(*_convolution(channels_in, channels, 1, stride))
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: torch.Tensor) -> Any:
        """Add both ways."""
        return self.relu(self.body(images) + self.around(images))


class ResNet(nn.Module):  # type: ignore[misc]
    """He et al., "Deep Residual Learning for Image Recognition", 2015; blocks (3, 4, 6, 3) make ResNet-50."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *_convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)
        )
        stages: list[nn.Module] = []
        channels = width
        for number, count in enumerate(blocks):
            stage = []
            for block in range(count):
                stage.append(Bottleneck(channels, width << number, 2 if block == 0 and number > 0 else 1))
                channels = 4 * (width << number)
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> Any:
        """Return logits, (batch, classes), of images (batch, 3, height, width)."""
        return self.classifier(self.pool(self.stages(self.stem(images))).flatten(1))


def _convolution(channels_in: int, channels: int, size: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(channels_in, channels, size, stride, padding=size // 2, bias=False)
    return [convolution, nn.BatchNorm2d(channels)]


class Attention(nn.Module):  # type: ignore[misc]
    """Causal self-attention that keeps keys and values of earlier tokens."""

    def __init__(self, width: int, heads: int, batch: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.projection = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        shape = (2, batch, heads, length, width // heads)
        self.register_buffer("cache", torch.zeros(shape), persistent=False)

    def forward(self, states: torch.Tensor, position: int) -> Any:
        """Attend from tokens (batch, tokens, width), the first of which is at `position`."""
        batch, tokens, width = states.shape
        split = self.projection(states).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        end = position + tokens
        self.cache[0, :, :, position:end] = key
        self.cache[1, :, :, position:end] = value
        keys, values = self.cache[:, :, :, :end]
        mixed = nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=tokens > 1)
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))


class DecoderLayer(nn.Module):  # type: ignore[misc]
    """Attention and a feed-forward network, each after a normalization and with a residual connection."""

    def __init__(self, width: int, heads: int, batch: int, length: int) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, batch, length)
        self.second_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: torch.Tensor, position: int) -> Any:
        """Return states of the same shape."""
        states = states + self.attention(self.first_norm(states), position)
        return states + self.feed_forward(self.second_norm(states))


class Decoder(nn.Module):  # type: ignore[misc]
    """A language model's decoder with a cache of `length` tokens for `batch` sequences."""

    def __init__(
        self, *, layers: int, width: int, heads: int, vocabulary: int, batch: int, length: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, batch, length) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, position: int) -> Any:
        """Return the logits of the token after the last of `tokens` (batch, tokens)."""
        states = self.embedding(tokens)
        for layer in self.layers:
            states = layer(states, position)
        return self.head(self.norm(states[:, -1]))
