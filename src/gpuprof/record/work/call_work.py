# SPDX-License-Identifier: Apache-2.0
"""The work of one operator call: by its formula, or by what is known of operators of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpuprof.record.facts import error_line
from gpuprof.record.work import formulas  # noqa: F401 - registers the formulas
from gpuprof.record.work.call import Count, OperatorCall, find_formula
from gpuprof.record.work.rows import Exactness
from gpuprof.record.work.sizes import Traffic, elements, storage_key, traffic_bytes

_COMPOSITE = "CompositeImplicitAutograd"


@dataclass(frozen=True, slots=True)
class CallWork:
    """FLOPs and bytes, None where unknown, with what is read and written; `errors` are those of formulas."""

    flops: int | None
    bytes: int | None
    exactness: Exactness
    reads: Sequence[Traffic]
    writes: Sequence[Traffic]
    errors: tuple[str, ...] = ()


def count_call(call: OperatorCall, operator: Any) -> CallWork:
    """Return the work of a call whose outputs are set. Nothing is computed, so meta tensors do."""
    errors: list[str] = []
    count = None
    moved: int | None = None
    reads: Sequence[Traffic] = ()
    writes: Sequence[Traffic] = ()
    try:
        count = _count(call, operator)
    except Exception as error:  # a formula must not stop the program that it counts
        errors.append(error_line(error))
    if count is not None or call.outputs or call.written:
        try:
            reads, writes = _traffic(call, count)
            moved = traffic_bytes(reads) + traffic_bytes(writes)
        except Exception as error:
            errors.append(error_line(error))
            reads = writes = ()
    flops = None if count is None else count.flops
    is_known = count is not None and flops is not None and moved is not None
    return CallWork(
        flops, moved, count.exactness if is_known and count else "unknown", reads, writes, tuple(errors)
    )


def _count(call: OperatorCall, operator: Any) -> Count | None:
    formula = find_formula(call.name)
    if formula is not None:
        return formula(call)
    if _is_view(call):
        return Count(0, reads=[], writes=[])
    if torch.Tag.pointwise in operator.tags:
        return Count(elements(call.output), "estimated")  # a special function: one FLOP an element
    return None


def _traffic(call: OperatorCall, count: Count | None) -> tuple[Sequence[Traffic], Sequence[Traffic]]:
    """Return what is read and what is written."""
    if count is None or count.reads is None:
        if _is_view(call):
            return (), ()
        reads: Sequence[Traffic] = call.default_reads()
    else:
        reads = list(count.reads)
    return reads, call.default_writes() if count is None or count.writes is None else count.writes


def computed_in(tensors: Sequence[torch.Tensor]) -> str | None:
    """Return the type of the first floating-point tensor, else that of the first one."""
    floating = (t for t in tensors if t.is_floating_point() or t.is_complex())
    chosen = next(floating, tensors[0] if tensors else None)
    return None if chosen is None else dtype_name(chosen)


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's type: `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _is_view(call: OperatorCall) -> bool:
    """Whether the operator only gives an argument's memory another shape."""
    if call.written or not call.outputs:
        return False
    memory = {storage_key(tensor) for tensor in call.inputs}
    keys = {storage_key(tensor) for tensor in call.outputs}
    return None not in keys and keys <= memory


def is_composite(operator: Any, inputs: list[torch.Tensor]) -> bool:
    """Whether the operator is made of others; in inference mode it is for us to take it apart."""
    if not operator.has_kernel_for_dispatch_key(getattr(torch._C.DispatchKey, _COMPOSITE)):
        return False
    # A backend with a kernel of its own for the whole of it would not take it apart.
    return not any(tensor.is_nested for tensor in inputs)
