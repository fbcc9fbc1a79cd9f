# SPDX-License-Identifier: Apache-2.0
"""The layers of the model whose kernels are known: labels, paths in the model, grids."""

from __future__ import annotations

LABELS = ("a", "b", "c", "d", "e")
LAYERS = dict(zip(LABELS, ("first", "body.0", "body.1", "body.2.0", "last"), strict=True))
BLOCKS = {label: 3 * place + 2 for place, label in enumerate(LABELS)}
