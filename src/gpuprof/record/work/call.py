# SPDX-License-Identifier: Apache-2.0
"""One call of an operator, its arguments by the names of its schema, and the formulas that count it.

Conventions of all formulas: a multiply-add is two FLOPs; an operator that holds products (matrix products,
convolutions, attention, recurrent layers) counts its products alone, as published totals do, so biases,
activations and softmax that ride along inside it are left out; operations on integers count like those on
floats; arithmetic on complex numbers counts its real operations; a transcendental function counts as one
FLOP an element and makes the count an estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from gpuprof.record.work.rows import Exactness
from gpuprof.record.work.sizes import Traffic, elements, shape_of

# They write to an argument, or take its shape, without reading it.
_OVERWRITES = frozenset(
    (
        *("fill_", "zero_", "copy_", "uniform_", "normal_", "bernoulli_", "random_", "exponential_"),
        *("cauchy_", "geometric_", "log_normal_", "_foreach_zero_", "_foreach_copy_"),
    )
)


@dataclass(frozen=True, slots=True)
class Count:
    """The result of a formula. `reads` and `writes` are None where all is read, or all results written."""

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

    def first(self, *names: str) -> Any:
        """Return the first of these arguments that this overload has, None where it has none of them."""
        return next((self.arguments[name] for name in names if name in self.arguments), None)

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
        return self.inputs_except(*self._written(overwritten_only=True))

    def default_writes(self) -> list[torch.Tensor]:
        """Return the results, and the arguments that were written to."""
        return [*self.outputs, *self.written]

    def inputs_except(self, *left_out: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors among the arguments without these."""
        unread = {id(tensor) for tensor in left_out}
        return [tensor for tensor in self.inputs if id(tensor) not in unread]

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


def elements_in(value: Any) -> int:
    """Return the elements of a tensor, or of all tensors of a list."""
    return sum(elements(tensor) for tensor in tensors_in([value]))


# ---- formulas --------------------------------------------------------------------------------

Formula = Callable[[OperatorCall], Count | None]

_formulas: dict[str, Formula] = {}


def formula(names: str, *, namespace: str = "aten") -> Callable[[Formula], Formula]:
    """Register the decorated function for operators, in-place and out forms included.

    The function returns None where the work is unknown.
    """

    def register(function: Formula) -> Formula:
        for name in names.split():
            if _formulas.setdefault(f"{namespace}::{name}", function) is not function:
                raise ValueError(f"{namespace}::{name} has two formulas")
        return function

    return register


def per_element(
    flops: int,
    names: str,
    of: str = "",
    exactness: Exactness = "exact",
    *,
    reads: str | None = None,
    namespace: str = "aten",
) -> None:
    """Register `flops` for each element of the result, or of the tensors in the first of the arguments `of`.

    `of="*"` is the first tensor of all. `reads` names the arguments that are read, where not all of them are.
    """

    def count(call: OperatorCall) -> Count:
        read = None if reads is None else [call[name] for name in reads.split()]
        if not flops:
            return Count(0, exactness, read)
        counted = call.inputs[0] if of == "*" else call.first(*of.split()) if of else call.output
        return Count(flops * elements_in(counted), exactness, read)

    formula(names, namespace=namespace)(count)


def find_formula(name: str) -> Formula | None:
    """Return the formula of an operator such as `aten::mm` or `aten::add_`, None where there is none."""
    found = _formulas.get(name)
    if found is None and name.endswith("_") and not name.endswith("__"):
        found = _formulas.get(name[:-1])
    return found


def known_operators() -> list[str]:
    """Return the names of all operators that have a formula, sorted."""
    return sorted(_formulas)
