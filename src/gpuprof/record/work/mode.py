# SPDX-License-Identifier: Apache-2.0
"""The dispatch mode that sees each operator call, lets it run, and counts it."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass,
)

from gpuprof.record.work.call import OperatorCall, tensors_in
from gpuprof.record.work.call_work import computed_in, count_call, dtype_name, is_composite
from gpuprof.record.work.layer_stack import LayerStack
from gpuprof.record.work.observe import Observer
from gpuprof.record.work.preserve import Preserved
from gpuprof.record.work.rows import CountedPass, Exactness, OperatorWork, Phase, UnknownWork

# What PyTorch announces around operators, and questions that the compiler asks: no operators.
_NO_OPERATORS = frozenset(("prim", "profiler"))


class CountingMode(TorchDispatchMode):  # type: ignore[misc]  # torch is not type-checked here
    """Counts the operators of the threads that it is active on, backward passes included."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled while this is active, and the protection would import the whole compiler.
        return False

    def __init__(
        self,
        counted: CountedPass,
        layers: LayerStack,
        preserved: Preserved | None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__()
        self.in_optimizer = False
        self._counted = counted
        self._layers = layers
        self._preserved = preserved
        self._ordinals: Counter[str] = Counter()
        self._observer = observer
        self._lock = threading.Lock()  # backward passes of several devices run on several threads

    def is_active(self) -> bool:
        """Whether operators of this thread are counted."""
        return any(mode is self for mode in _get_current_dispatch_mode_stack())

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator and count it."""
        kwargs = kwargs or {}
        if not isinstance(operator, torch._ops.OpOverload):
            return self._run_higher_order(operator, args, kwargs)
        if any(is_traceable_wrapper_subclass(tensor) for tensor in tensors_in((args, kwargs))):
            return NotImplemented  # the subclass calls operators on what it wraps: these are counted
        if operator.namespace in _NO_OPERATORS:
            return operator(*args, **kwargs)
        call = OperatorCall(operator, args, kwargs)
        if is_composite(operator, call.inputs):
            with self:
                result = operator.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if self._preserved is not None:
            self._preserved.before(call)
        if self._observer is not None:
            self._observer.begin()
        result = operator(*args, **kwargs)
        if self._observer is not None:
            self._observer.end()
        call.outputs = list(tensors_in([result]))
        if self._preserved is not None:
            self._preserved.after(call)
        self._add(call, operator)
        return result

    def _run_higher_order(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator that takes functions; what it does inside is not known."""
        inputs = list(tensors_in((args, kwargs)))
        shapes = tuple(tuple(int(size) for size in tensor.shape) for tensor in inputs)
        result = operator(*args, **kwargs)
        name = f"higher_order::{operator.name()}"
        self._append(name, "", None, None, "unknown", inputs, shapes, inputs)
        return result

    def _add(self, call: OperatorCall, operator: Any) -> None:
        work = count_call(call, operator)
        for error in work.errors:
            unknown = UnknownWork(call.name, error)
            if unknown not in self._counted.unknown:
                self._counted.unknown.append(unknown)
        if self._observer is not None:
            self._observer.moves(work.reads, work.writes)
        values = call.inputs or call.outputs
        self._append(
            call.name,
            call.overload,
            work.flops,
            work.bytes,
            work.exactness,
            call.inputs,
            call.input_shapes,
            values,
        )

    def _append(
        self,
        name: str,
        overload: str,
        flops: int | None,
        moved: int | None,
        exactness: Exactness,
        inputs: list[torch.Tensor],
        shapes: tuple[tuple[int, ...], ...],
        values: list[torch.Tensor],
    ) -> None:
        layer, is_backward = self._layers.current()
        phase: Phase = "backward" if is_backward else "optimizer" if self.in_optimizer else "forward"
        dtypes = tuple(dtype_name(tensor) for tensor in inputs)
        with self._lock:
            ordinal = self._ordinals[layer]
            self._ordinals[layer] += 1
            if self._observer is not None and self._counted.observed is not None:
                self._counted.observed.append(self._observer.take())
            self._counted.rows.append(
                OperatorWork(
                    layer,
                    ordinal,
                    name,
                    overload,
                    phase,
                    flops,
                    moved,
                    exactness,
                    computed_in(values),
                    shapes,
                    dtypes,
                )
            )
