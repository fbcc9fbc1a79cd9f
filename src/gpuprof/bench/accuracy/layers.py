# SPDX-License-Identifier: Apache-2.0
"""Layer by layer: where an optimized model diverges from its baseline, separately from what it inherits.

Each layer of the optimized model is given the inputs that the baseline's layer of the same path got: the
local error is that of the layer itself; the accumulated error is that of the model's run up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuprof.bench.accuracy.layer_figures import LayerComparison, LayersComparison
from gpuprof.bench.accuracy.layer_pairs import (
    ROOT,
    LayerCall,
    OriginSearch,
    is_above,
    is_called,
    is_compiled,
    layers_of,
    paths_of,
    uncompiled,
    watched,
    without_compiled_code,
)
from gpuprof.bench.accuracy.numerics import NumericsSum
from gpuprof.bench.accuracy.tolerance import (
    SLACK,
    UNIT_ROUNDOFF,
    allowance,
    coarsest,
    is_coarser,
    known_dtype,
    rounding_copy,
)
from gpuprof.bench.accuracy.variants import (
    ComparedModel,
    copied,
    copied_to,
    double_precision,
    in_double,
    is_module,
    kept_random_states,
    no_gradients,
    unharmed,
)
from gpuprof.bench.failures import reason_of
from gpuprof.bench.measure.outputs import Outputs, named_arrays
from gpuprof.bench.verdicts import LayerVerdict
from gpuprof.errors import BenchmarkError
from gpuprof.record.call_arguments import CallArguments, arguments


def compare_layers(
    baseline: Any,
    optimized: Any,
    inputs: Any,
    *,
    reference: bool = True,
    tolerance: float | None = None,
    optimized_dtype: str | None = None,
) -> LayersComparison:
    """Compare two modules of PyTorch layer by layer on one batch of inputs (as `gpuprof.benchmark` has).

    What a layer's error may be: `tolerance` where it is given; else, with `reference`, from the baseline's
    layer in float64 on the same inputs, as tolerance.py tells; without a reference SLACK roundings in the
    layer's type and 128 in float32. A copy of the baseline in float64, the optimized model's outputs of every
    layer, and each layer's run inside each module around it are what it costs: take a small batch.

    Both models are evaluated in evaluation mode and left as they were. Raises BenchmarkError.
    """
    for name, model in (("baseline", baseline), ("optimized", optimized)):
        if not is_module(model):
            raise BenchmarkError(
                f"{name}: compare_layers looks into modules of PyTorch, not {type(model).__name__}"
            )
    dtype = optimized_dtype and known_dtype(optimized_dtype, "optimized_dtype")
    run = LayerRun(baseline, optimized, tolerance, dtype)
    if reference and tolerance is None:
        run.add_reference(baseline)
    with unharmed(baseline, optimized):
        given = CallArguments(*arguments(inputs))
        run.run_optimized(given)
        run.run_baseline(given)
    return run.result()


class LayerRun:
    """Both models' layers, what the optimized ones returned, and what was found so far."""

    def __init__(self, baseline: Any, optimized: Any, tolerance: float | None, dtype: str | None) -> None:
        self._models = baseline, optimized
        self._baseline, self._optimized = layers_of(baseline), layers_of(optimized)
        self._partners, self._baseline_paths = paths_of(optimized), paths_of(baseline)
        self._high: Any = None
        self._reference: dict[str, Any] = {}
        self._rounding: dict[str, dict[str, Any]] = {}
        self._tolerance, self._dtype = tolerance, dtype
        self._returned: dict[tuple[str, int], Outputs] = {}
        self._found: list[LayerComparison] = []
        self._origins = OriginSearch(), OriginSearch()
        self._notes: list[str] = []
        self._is_compiled = any(map(is_compiled, self._models))
        if self._is_compiled:
            self._notes.append(
                "compiled modules were run without their compiled code: hooks see no layers in it"
            )

    def add_reference(self, baseline: Any) -> None:
        """Copy the baseline to float64; where it cannot be copied, a note says so."""
        try:
            high = double_precision(baseline).eval()
        except BenchmarkError as error:
            self._notes.append(f"no reference: {error}")
            return
        self._high, self._reference = high, paths_of(high)

    def run_optimized(self, inputs: Any) -> None:
        """Run the optimized model and keep what its layers return."""

        def see(call: LayerCall) -> None:
            self._origins[1].see(call)
            self._returned[call.path, call.ordinal] = _kept(call.output)

        self._run("optimized", self._models[1], self._optimized, inputs, see)

    def run_baseline(self, inputs: Any) -> None:
        """Run the baseline, and the optimized model's layers next to it."""

        def see(call: LayerCall) -> None:
            self._origins[0].see(call)
            if call.path in self._partners:
                self._found.append(self._compared(call))

        self._run("baseline", self._models[0], self._baseline, inputs, see)

    def _run(
        self, name: str, model: Any, layers: Mapping[str, Any], inputs: Any, see: Callable[[LayerCall], None]
    ) -> None:
        variant = ComparedModel(name, uncompiled(model), mend="hand over inputs that both models take")
        with watched(layers, see), without_compiled_code(self._is_compiled):
            variant(inputs, batch=1)

    def _compared(self, call: LayerCall) -> LayerComparison:
        partner = self._partners[call.path]
        own = _kept(call.output)
        dtype = self._dtype or _dtype_of(partner, own)
        local = _local_error(partner, call, own)
        reference = self._reference.get(call.path)
        # Not measured where it decides nothing: a layer that returns the same bits is within.
        allowed = self._allowed(reference, call, own, dtype) if local.error != 0 else None
        accumulated = self._accumulated(call, own)
        verdict, reason = _verdict(local, allowed)
        return LayerComparison(
            path=call.path,
            ordinal=call.ordinal,
            type=type(call.module).__name__,
            optimized_type=type(partner).__name__,
            is_leaf=next(call.module.children(), None) is None,
            dtype=dtype,
            local_error=local.error,
            allowed=allowed,
            accumulated_error=accumulated,
            verdict=verdict,
            reason=reason,
        )

    def _allowed(self, reference: Any, call: LayerCall, own: Outputs, dtype: str | None) -> float | None:
        if self._tolerance is not None:
            return self._tolerance
        if dtype is None:
            return None
        own_dtype = _dtype_of(call.module, own)
        if reference is not None and own_dtype is not None:
            inputs = in_double((call.args, call.kwargs))
            true, _ = _outputs_of(reference, inputs)
            error = None if true is None else _relative_error(true, own)
            if true is not None and error is not None:
                rounding = self._rounding_error(call.path, inputs, true, (own_dtype, dtype))
                return allowance(error, own_dtype, dtype, rounding)
        return SLACK * UNIT_ROUNDOFF[dtype] + 128 * UNIT_ROUNDOFF["float32"]

    def _rounding_error(self, path: str, inputs: Any, true: Outputs, dtypes: tuple[str, str]) -> float | None:
        """Return the error of the layer that rounds as the optimized one's type does, where it is coarser."""
        if not is_coarser(dtypes[1], dtypes[0]):
            return None
        if dtypes[1] not in self._rounding:
            self._rounding[dtypes[1]] = paths_of(rounding_copy(self._high, dtypes[1]))
        found, _ = _outputs_of(self._rounding[dtypes[1]][path], inputs)
        return None if found is None else _relative_error(true, found)

    def _accumulated(self, call: LayerCall, own: Outputs) -> float | None:
        theirs = self._returned.pop((call.path, call.ordinal), None)
        return None if theirs is None else _relative_error(own, theirs)

    def result(self) -> LayersComparison:
        """Return what was found."""
        called = {each.path for each in self._found}
        both = [path for path, each in self._baseline.items() if path in self._partners and is_called(each)]
        if not called - {ROOT}:
            self._notes.append("no layer below the model was called in a way that hooks see")
        return LayersComparison(
            layers=_with_compensation(self._found),
            only_baseline=tuple(path for path in self._baseline if path not in self._partners),
            only_optimized=tuple(path for path in self._optimized if path not in self._baseline_paths),
            not_called=tuple(path for path in both if path not in called),
            nan=self._origins[1].nan,
            infinite=self._origins[1].infinite,
            baseline_nan=self._origins[0].nan,
            baseline_infinite=self._origins[0].infinite,
            notes=tuple(self._notes),
        )


def _kept(output: Any) -> Outputs:
    """Return copies: the next layer may work in place."""
    return named_arrays(copied(output))


def _outputs_of(module: Any, inputs: tuple[Any, Any]) -> tuple[Outputs | None, str]:
    """Run a layer on a copy of another's inputs; returns why not where it fails."""
    with no_gradients(), kept_random_states(0):
        try:
            args, kwargs = copied_to(inputs, module)
            return named_arrays(module(*args, **kwargs)), ""
        except Exception as error:
            return None, f"failed on the baseline's inputs: {reason_of(error)}"


@dataclass(frozen=True, slots=True)
class _Local:
    """A layer's own error. Without one, `diverges` says whether the layer diverges."""

    error: float | None
    diverges: bool = False
    reason: str = ""


def _local_error(partner: Any, call: LayerCall, own: Outputs) -> _Local:
    theirs, why = _outputs_of(partner, (call.args, call.kwargs))
    if theirs is None:
        return _Local(None, reason=why)
    if not own.arrays:
        return _Local(None, reason="returns nothing that has plain values")
    if own.shapes != theirs.shapes:
        both = f"{_shapes(own)}, and {_shapes(theirs)} in the optimized model"
        return _Local(None, diverges=True, reason=f"returns other shapes: {both}")
    error = _relative_error(own, theirs)
    if error is None:
        return _Local(None, diverges=True, reason="NaN or infinity on one side, or a baseline of zeros")
    return _Local(error)


def _shapes(outputs: Outputs) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in outputs.shapes.items()) or "nothing"


def _relative_error(old: Outputs, new: Outputs) -> float | None:
    """Return the largest relative error of the outputs; None where an element is finite on one side only."""
    errors = []
    for name, each in old.arrays.items():
        other = new.arrays.get(name)
        if other is None or other.values.shape != each.values.shape:
            return None
        sums = NumericsSum(name)
        sums.add(each.values, other.values)
        figures = sums.result()
        if figures.baseline_not_finite.count != figures.optimized_not_finite.count:
            return None
        errors.append(sums.relative_l2)
    known = [error for error in errors if error is not None]
    return max(known) if known and len(known) == len(errors) else None


def _dtype_of(module: Any, outputs: Outputs) -> str | None:
    names = [str(each.dtype).removeprefix("torch.") for each in module.parameters()]
    names += [each.dtype for each in outputs.arrays.values()] if not names else []
    return coarsest([each for each in names if "float" in each])


def _verdict(local: _Local, allowed: float | None) -> tuple[LayerVerdict, str]:
    if local.error is None:
        return (LayerVerdict.DIVERGES if local.diverges else LayerVerdict.UNKNOWN), local.reason
    if local.error == 0:
        return LayerVerdict.WITHIN, ""
    if allowed is None:
        return (
            LayerVerdict.UNKNOWN,
            "the type that it computes in is not known: name it with optimized_dtype=",
        )
    if local.error <= allowed:
        return LayerVerdict.WITHIN, ""
    return LayerVerdict.DIVERGES, f"{local.error / allowed:.3g} times what is allowed"


def _with_compensation(found: list[LayerComparison]) -> tuple[LayerComparison, ...]:
    """Mark layers whose divergence does not show in a module around them, such as those of a fused pair."""
    fine = {each.path for each in found if each.verdict == LayerVerdict.WITHIN}
    fine -= {each.path for each in found if each.verdict != LayerVerdict.WITHIN}
    marked = []
    for each in found:
        around = (
            [path for path in fine if is_above(path, each.path)]
            if each.verdict == LayerVerdict.DIVERGES
            else []
        )
        if around:
            reason = f"{each.reason}, but {_innermost(around)} around it does not diverge"
            each = replace(each, verdict=LayerVerdict.COMPENSATED, reason=reason)
        marked.append(each)
    return tuple(marked)


def _innermost(paths: list[str]) -> str:
    return max(paths, key=lambda path: -1 if path == ROOT else len(path))
