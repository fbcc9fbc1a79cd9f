# SPDX-License-Identifier: Apache-2.0
"""What is to be measured, as plain values: it goes to a fresh process as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "int32", "int64")
DEVICES = ("auto", "cpu", "cuda", "mps", "tpu")


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """A model, the framework that runs it, and its inputs.

    `framework` is a name of `systems.FRAMEWORKS`, or "auto" for what suits the model. `input_shape` is that
    of one sample, None for the model's own. `dtype` None is the model's own, float32 where it has none.
    `data` is "synthetic", a folder of images in class folders, or a `.npz` file. `recipe` is a name of
    `recipes.RECIPES` with its options, such as "pruned:0.5"; `recipes.with_recipe` sets what belongs to it.
    """

    model: str
    framework: str = "auto"
    device: str = "auto"
    dtype: str | None = None
    input_shape: tuple[int, ...] | None = None
    data: str = "synthetic"
    seed: int = 0
    trust_pickle: bool = False
    recipe: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SystemSpec:
        """Read what `to_dict` wrote, from JSON too, where tuples are lists."""
        shape = values.get("input_shape")
        return cls(**{**values, "input_shape": None if shape is None else tuple(shape)})
