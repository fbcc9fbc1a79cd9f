# SPDX-License-Identifier: Apache-2.0
"""The vision transformer (Dosovitskiy et al., 2020, arXiv:2010.11929)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

NORM_EPSILON = 1e-6


class EncoderBlock(nn.Module):
    """Attention and a perceptron, each behind a norm and beside a residual."""

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
