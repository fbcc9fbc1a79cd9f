# SPDX-License-Identifier: Apache-2.0
"""Published image networks with random weights, for machines without a library that has them.

Each is written from its paper and has as many parameters as the published one: ResNet-50 25,557,032,
ViT-B/16 86,567,656.
"""

from __future__ import annotations
