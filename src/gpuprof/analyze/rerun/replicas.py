# SPDX-License-Identifier: Apache-2.0
"""Replicas of recorded work: inputs of the recorded shapes and types, without and with a fix."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpuprof.analyze.findings.finding import RerunProblem
from gpuprof.analyze.rerun.experiment import ExperimentKind
from gpuprof.analyze.rerun.turns import Side, sample

_MEMORY_PART = 0.25  # of the free memory, which inputs may take
_COPIES = 2 * 6  # for both sides: parameter, gradient, states, and what a step needs in between
# Inputs for which results are below the normal range: of exponentials, and of other functions.
_SUBNORMAL_RESULT = -100.0
_SUBNORMAL = 1e-40


class ReplicaError(Exception):
    """A replica cannot be made."""

    def __init__(self, problem: RerunProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Replica:
    """Both sides. `ordinary`: the same work on ordinary numbers, where numbers are the cause."""

    before: Side
    after: Side
    operators: tuple[str, ...] = ()
    ordinary: Side | None = None


def make(kind: str, threads: int, values: Mapping[str, Any]) -> Replica:
    """Make the replica of an experiment. Raises ReplicaError, or what PyTorch raises."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    makers: dict[str, Callable[[int, Mapping[str, Any]], Replica]] = {
        ExperimentKind.OPTIMIZER: _optimizer,
        ExperimentKind.THREADS: _threads,
        ExperimentKind.ATTENTION: _attention,
        ExperimentKind.SUBNORMALS: _subnormals,
    }
    return makers[kind](threads, values)


def _optimizer(_threads: int, values: Mapping[str, Any]) -> Replica:
    """Make parameters, gradients and an optimizer of PyTorch; never a class of the program."""
    kind = vars(torch.optim).get(values["name"])
    if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer):
        raise ReplicaError(RerunProblem.NO_REPLICA)
    elements = sum(prod(each["shape"]) * each["count"] for each in values["shapes"])
    _check_memory(4 * elements * _COPIES)

    def side(options: Mapping[str, Any]) -> Side:
        parameters = []
        for each in values["shapes"]:
            for _ in range(each["count"]):
                parameter = torch.nn.Parameter(torch.ones(each["shape"], dtype=_dtype(each["dtype"])))
                parameter.grad = torch.full_like(parameter, 1e-3)
                parameters.append(parameter)
        optimizer = kind(parameters, **_accepted(kind, {**values["options"], **options}))
        return Side(optimizer.step)

    return Replica(side(values["before"]), side(values["after"]))


def _accepted(kind: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a class is made with: some of its defaults are its own decision."""
    known = inspect.signature(kind).parameters
    return {name: value for name, value in options.items() if name in known}


def _threads(threads: int, values: Mapping[str, Any]) -> Replica:
    """Make the operators of a model's call, which are executed with both numbers of threads."""
    _check_memory(sum(prod(shape) for each in values["operators"] for shape in each["shapes"]) * 4)
    calls = []
    names = []
    for each in values["operators"]:
        call = _call(each)
        if call is not None:
            calls += [call] * each["count"]
            names.append(each["operator"])
    if not calls:
        raise ReplicaError(RerunProblem.REFUSED)

    def run() -> None:
        with torch.no_grad():
            for call in calls:
                call()

    return Replica(
        Side(run, lambda: torch.set_num_threads(threads)),
        Side(run, lambda: torch.set_num_threads(values["fewer"])),
        tuple(dict.fromkeys(names)),
    )


def _attention(_threads: int, values: Mapping[str, Any]) -> Replica:
    """Make the inputs of attention: once as a chain of operators, once with the backend PyTorch selects."""
    calls = []
    for each in values["calls"]:
        # Query, key, value and, if there is one, the mask.
        given = [torch.ones(shape, dtype=_dtype(each["dtype"])) for shape in each["shapes"][:4]]
        calls += [given] * each["count"]

    def run() -> None:
        with torch.no_grad():
            for given in calls:
                torch.nn.functional.scaled_dot_product_attention(*given)

    def with_math() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            run()

    return Replica(Side(with_math), Side(run))


def _subnormals(_threads: int, values: Mapping[str, Any]) -> Replica:
    """Make an operator's inputs so that it calculates with numbers below the normal range.

    Of two kinds of such inputs, the slower one is taken.
    """
    ordinary, *slow = (_call(values["operator"], number) for number in (1.0, _SUBNORMAL_RESULT, _SUBNORMAL))
    if ordinary is None:
        raise ReplicaError(RerunProblem.REFUSED)

    def flush(enabled: bool) -> Callable[[], object]:
        return lambda: torch.set_flush_denormal(enabled)

    sides = [Side(call, flush(False)) for call in slow if call is not None]
    before = max(sides, key=_duration_ns)
    return Replica(
        before, Side(before.run, flush(True)), (values["operator"]["operator"],), Side(ordinary, flush(False))
    )


def _duration_ns(side: Side) -> float:
    return min(sample(side, 1, time.perf_counter_ns) for _ in range(3))


# ---- operators -------------------------------------------------------------------------------


def _call(operator: Mapping[str, Any], number: float = 1.0) -> Callable[[], object] | None:
    """Return a call of an operator on new tensors; None if its other arguments cannot be guessed.

    In-place operators on ones remain in the normal range.
    """
    namespace, _, name = operator["operator"].partition("::")
    packet = getattr(getattr(torch.ops, namespace, None), name, None)
    overload = getattr(packet, operator["overload"] or "default", None)
    if overload is None:
        return None
    dtype = _dtype(operator["dtype"])
    tensors = [torch.full(shape, number, dtype=dtype) for shape in operator["shapes"]]
    try:
        arguments = _arguments(overload._schema.arguments, tensors)
        overload(*arguments)
    except Exception:  # an operator that needs other arguments is left out, and its time is not covered
        return None
    return lambda: overload(*arguments)


def _arguments(declared: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Return positional arguments of an operator. Raises ValueError for one of an unknown meaning."""
    remaining = list(tensors)
    found: list[Any] = []
    for argument in declared:
        if argument.kwarg_only:
            continue
        kind = str(argument.type)
        if kind in ("Tensor", "Optional[Tensor]") and remaining:
            found.append(remaining.pop(0))
        elif argument.has_default_value():
            found.append(argument.default_value)
        elif kind.startswith("Optional["):
            found.append(None)
        elif argument.name == "normalized_shape" and remaining:
            found.append(list(remaining[0].shape))
        elif argument.name == "dim" and kind == "List[int]":
            found.append([-1])
        elif kind in _GUESSES:
            found.append(_GUESSES[kind])
        else:
            raise ValueError(argument.name)
    if remaining:
        raise ValueError("more tensors than arguments")
    return found


_GUESSES = {"number": 1.0, "float": 0.5, "int": -1, "bool": False}


def _dtype(name: str | None) -> torch.dtype:
    found = getattr(torch, name or "", None)
    if not isinstance(found, torch.dtype):
        raise ReplicaError(RerunProblem.SHAPES)
    return found


def _check_memory(needed_bytes: int) -> None:
    try:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError):
        return
    if needed_bytes > _MEMORY_PART * free:
        raise ReplicaError(RerunProblem.MEMORY)
