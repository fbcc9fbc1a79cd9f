# SPDX-License-Identifier: Apache-2.0
"""The networks of `torch_networks` in flax, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from flax import linen
from jax import numpy

EXPANSION = 4
STAGE_CHANNELS = (64, 128, 256, 512)
NORM_EPSILON = 1e-6


def _convolution(images: Any, outputs: int, kernel: int, stride: int = 1) -> Any:
    padding = [(kernel // 2, kernel // 2)] * 2
    sizes = (kernel, kernel), (stride, stride)
    dtype = images.dtype
    images = linen.Conv(outputs, *sizes, padding=padding, use_bias=False, dtype=dtype, param_dtype=dtype)(
        images
    )
    return linen.BatchNorm(use_running_average=True, dtype=dtype, param_dtype=dtype)(images)


class FlaxBottleneck(linen.Module):
    """Reduce, convolve, expand, and add the input."""

    channels: int
    stride: int

    @linen.compact
    def __call__(self, images: Any) -> Any:
        """Return the block's features."""
        outputs = self.channels * EXPANSION
        features = linen.relu(_convolution(images, self.channels, 1))
        features = linen.relu(_convolution(features, self.channels, 3, self.stride))
        features = _convolution(features, outputs, 1)
        if self.stride != 1 or images.shape[-1] != outputs:
            images = _convolution(images, outputs, 1, self.stride)
        return linen.relu(features + images)


class FlaxResNet(linen.Module):
    """Images (batch, height, width, 3) to logits (batch, classes)."""

    blocks: Sequence[int]
    classes: int = 1_000

    @linen.compact
    def __call__(self, images: Any) -> Any:
        """Return logits."""
        features = linen.relu(_convolution(images, 64, 7, 2))
        features = linen.max_pool(features, (3, 3), (2, 2), padding=[(1, 1), (1, 1)])
        for stage, (channels, count) in enumerate(zip(STAGE_CHANNELS, self.blocks, strict=True)):
            for block in range(count):
                features = FlaxBottleneck(channels, 2 if stage and not block else 1)(features)
        pooled = features.mean(axis=(1, 2))
        return linen.Dense(self.classes, dtype=pooled.dtype, param_dtype=pooled.dtype)(pooled)


def resnet50(classes: int = 1_000) -> FlaxResNet:
    """Return FlaxResNet-50, 25,557,032 parameters with 1,000 classes."""
    return FlaxResNet((3, 4, 6, 3), classes)


class FlaxEncoderBlock(linen.Module):
    """Attention and a perceptron, each after a norm and with a residual connection."""

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
