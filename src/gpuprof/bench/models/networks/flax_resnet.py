# SPDX-License-Identifier: Apache-2.0
"""The FlaxResNet of `torch_resnet` in flax, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flax import linen

EXPANSION = 4
STAGE_CHANNELS = (64, 128, 256, 512)


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
