# SPDX-License-Identifier: Apache-2.0
"""One call of an operator, its arguments by the names of its schema, and what a formula says about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from gpuprof.record.work.rows import Exactness
from gpuprof.record.work.sizes import Traffic, shape_of

# They write to an argument, or take its shape, without reading it.
_OVERWRITES = frozenset(
    (
        "fill_",
        "zero_",
        "copy_",
        "uniform_",
        "normal_",
        "bernoulli_",
        "random_",
        "exponential_",
        "cauchy_",
        "geometric_",
        "log_normal_",
        "_foreach_zero_",
        "_foreach_copy_",
    )
)


@dataclass(frozen=True, slots=True)
class Count:
    """What a formula says. `reads` and `writes` are None where all is read, or all results written."""

    flops: int | None
    exactness: Exactness = "exact"
    reads: Sequence[Traffic] | None = None
    writes: Sequence[Traffic] | None = None


class OperatorCall:
    """An operator with its arguments; `outputs` are set once it has run."""

    def __init__(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.schema = operator._schema
        self.name: str = self.schema.name
        self.overload: str = operator._overloadname
        self.arguments: dict[str, Any] = {}
        positional = iter(args)
        for argument in self.schema.arguments:
            default = argument.default_value if argument.has_default_value() else None
            value = kwargs.get(argument.name, default)
            self.arguments[argument.name] = value if argument.kwarg_only else next(positional, value)
        self.inputs: list[torch.Tensor] = list(tensors_in(self.arguments.values()))
        self.input_shapes = tuple(shape_of(tensor) for tensor in self.inputs)
        self.outputs: list[torch.Tensor] = []

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or `default` where this overload has none of that name."""
        return self.arguments.get(name, default)

    @property
    def base_name(self) -> str:
        """The name without its namespace and without the mark of the in-place form."""
        name = self.name.split("::")[-1]
        return name[:-1] if name.endswith("_") and not name.endswith("__") else name

    @property
    def output(self) -> torch.Tensor:
        """The first tensor of the result, or of what was written where there is no result."""
        return (self.outputs or self.written)[0]

    @cached_property
    def written(self) -> list[torch.Tensor]:
        """The arguments that are written to."""
        return list(self._written(overwritten_only=False))

    def default_reads(self) -> list[torch.Tensor]:
        """Return every tensor among the arguments but those that are only written to."""
        unread = {id(tensor) for tensor in self._written(overwritten_only=True)}
        return [tensor for tensor in self.inputs if id(tensor) not in unread]

    def default_writes(self) -> list[torch.Tensor]:
        """Return the results, and the arguments that were written to."""
        return [*self.outputs, *self.written]

    def _written(self, *, overwritten_only: bool) -> Iterator[torch.Tensor]:
        overwrites = self.name.split("::")[-1] in _OVERWRITES
        for argument in self.schema.arguments:
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            if not overwritten_only or overwrites or argument.kwarg_only:
                yield from tensors_in([self.arguments[argument.name]])


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in arguments or results, inside lists, tuples and dictionaries too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())
