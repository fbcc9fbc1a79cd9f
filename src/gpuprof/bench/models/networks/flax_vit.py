# SPDX-License-Identifier: Apache-2.0
"""The vision transformer of `torch_vit` in flax, channels last."""

from __future__ import annotations

from typing import Any

import jax
from flax import linen
from jax import numpy

NORM_EPSILON = 1e-6


class FlaxEncoderBlock(linen.Module):
    """Attention and a perceptron, each behind a norm and beside a residual."""

    heads: int
    hidden: int

    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        """Return (batch, tokens, width)."""
        types = {"dtype": tokens.dtype, "param_dtype": tokens.dtype}
        width = tokens.shape[-1]
        normed = linen.LayerNorm(NORM_EPSILON, **types)(tokens)
        split = linen.Dense(3 * width, **types)(normed)
        split = split.reshape(*tokens.shape[:2], 3, self.heads, width // self.heads)
        mixed = jax.nn.dot_product_attention(split[:, :, 0], split[:, :, 1], split[:, :, 2])
        tokens = tokens + linen.Dense(width, **types)(mixed.reshape(tokens.shape))
        normed = linen.LayerNorm(NORM_EPSILON, **types)(tokens)
        hidden = linen.gelu(linen.Dense(self.hidden, **types)(normed), approximate=False)
        return tokens + linen.Dense(width, **types)(hidden)


class FlaxVisionTransformer(linen.Module):
    """Images (batch, size, size, 3) to logits (batch, classes)."""

    patch: int = 16
    width: int = 768
    depth: int = 12
    heads: int = 12
    hidden: int = 3_072
    classes: int = 1_000

    @linen.compact
    def __call__(self, images: Any) -> Any:
        """Return logits."""
        types = {"dtype": images.dtype, "param_dtype": images.dtype}
        sizes = ((self.patch, self.patch),) * 2
        tokens = linen.Conv(self.width, *sizes, padding="VALID", **types)(images)
        tokens = tokens.reshape(images.shape[0], -1, self.width)
        first = self.param("class_token", linen.initializers.zeros, (1, 1, self.width), images.dtype)
        first = numpy.broadcast_to(first, (images.shape[0], 1, self.width))
        tokens = numpy.concatenate([first, tokens], axis=1)
        shape = (1, tokens.shape[1], self.width)
        tokens = tokens + self.param("positions", linen.initializers.normal(0.02), shape, images.dtype)
        for _ in range(self.depth):
            tokens = FlaxEncoderBlock(self.heads, self.hidden)(tokens)
        tokens = linen.LayerNorm(NORM_EPSILON, **types)(tokens)
        return linen.Dense(self.classes, **types)(tokens[:, 0])


def vit_b_16(classes: int = 1_000) -> FlaxVisionTransformer:
    """Return ViT-B/16, 86,567,656 parameters with 1,000 classes at 224 x 224."""
    return FlaxVisionTransformer(classes=classes)
