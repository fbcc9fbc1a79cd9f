# SPDX-License-Identifier: Apache-2.0
"""The formulas, one file a family of operators. Importing this registers them all."""

from gpuprof.record.work.formulas import (
    attention,
    convolution,
    indexing,
    linear_algebra,
    losses,
    movement,
    normalization,
    optimizers,
    pointwise,
    pooling,
    products,
    quantized,
    recurrent,
    reductions,
)

__all__ = [
    "attention",
    "convolution",
    "indexing",
    "linear_algebra",
    "losses",
    "movement",
    "normalization",
    "optimizers",
    "pointwise",
    "pooling",
    "products",
    "quantized",
    "recurrent",
    "reductions",
]
