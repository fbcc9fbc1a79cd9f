# SPDX-License-Identifier: Apache-2.0
"""Which formula belongs to which operator.

Conventions of all formulas: a multiply-add is two FLOPs; an operator that holds products (matrix products,
convolutions, attention, recurrent layers) counts its products alone, as published totals do, so biases,
activations and softmax that ride along inside it are left out; operations on integers count like those on
floats; arithmetic on complex numbers counts its real operations; a transcendental function counts as one
FLOP an element and makes the count an estimate.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuprof.record.work.call import Count, OperatorCall

Formula = Callable[[OperatorCall], Count | None]

_formulas: dict[str, Formula] = {}


def formula(names: str, *, namespace: str = "aten") -> Callable[[Formula], Formula]:
    """Register the decorated function for operators, in-place and out forms included.

    The function returns None where it cannot tell, which makes that call unknown.
    """

    def register(function: Formula) -> Formula:
        for name in names.split():
            if _formulas.setdefault(f"{namespace}::{name}", function) is not function:
                raise ValueError(f"{namespace}::{name} has two formulas")
        return function

    return register


def find_formula(name: str) -> Formula | None:
    """Return the formula of an operator such as `aten::mm` or `aten::add_`, None where there is none."""
    found = _formulas.get(name)
    if found is None and name.endswith("_") and not name.endswith("__"):
        found = _formulas.get(name[:-1])
    return found


def known_operators() -> list[str]:
    """Return the names of all operators that have a formula, sorted."""
    return sorted(_formulas)
