# SPDX-License-Identifier: Apache-2.0
"""Layer by layer: where an optimized model diverges from its baseline, separately from what it inherits.

Each layer of the optimized model is given the inputs that the baseline's layer of the same path got: the
local error is that of the layer itself; the accumulated error is that of the model's run up to there.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpuprof.bench.accuracy.layer_figures import ROOT, LayerComparison, LayersComparison, Origin, is_above
from gpuprof.bench.accuracy.numerics import NotFiniteCount, NumericsSum
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
from gpuprof.bench.facts import Diagnostic, note
from gpuprof.bench.failures import reason_of
from gpuprof.bench.measure.outputs import NamedArray, Outputs, named_arrays
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
    layer in float64 on the same inputs, see tolerance.py; without a reference SLACK roundings in the
    layer's type and 128 in float32. A copy of the baseline in float64, the optimized model's outputs of every
    layer, and each layer's run inside each module around it are what it costs: take a small batch.

    Both models are evaluated in evaluation mode and left as they were. Raises BenchmarkError.
    """
    for name, model in (("baseline", baseline), ("optimized", optimized)):
        if not is_module(model):
            raise BenchmarkError(
                "not_a_torch_module",
                f"{name}: compare_layers looks into modules of PyTorch, not {type(model).__name__}",
                hint="use a torch.nn.Module, or compare outputs only",
            )
        if is_script(model):
            raise BenchmarkError(
                "no_layers_in_script",
                f"{name}: a program of TorchScript reports no calls of its layers",
                hint="compare the modules that the programs were made of",
            )
    dtype = optimized_dtype and known_dtype(optimized_dtype, "optimized_dtype")
    run = _LayerRun(baseline, optimized, tolerance, dtype)
    if reference and tolerance is None:
        run.add_reference(baseline)
    with unharmed(baseline, optimized):
        given = CallArguments(*arguments(inputs))
        run.run_optimized(given)
        run.run_baseline(given)
    return run.result()


class _LayerRun:
    """Both models' layers, what the optimized ones returned, and what was found so far."""

    def __init__(self, baseline: Any, optimized: Any, tolerance: float | None, dtype: str | None) -> None:
        self._models = baseline, optimized
        self._baseline, self._optimized = _modules_of(baseline), _modules_of(optimized)
        self._baseline_paths = _modules_of(baseline, every_path=True)
        self._partners = _modules_of(optimized, every_path=True)
        self._high: Any = None
        self._reference: dict[str, Any] = {}
        self._rounding: dict[str, dict[str, Any]] = {}
        self._tolerance, self._dtype = tolerance, dtype
        self._returned: dict[tuple[str, int], Outputs] = {}
        self._found: list[LayerComparison] = []
        self._origins = _OriginSearch(), _OriginSearch()
        self._notes: list[Diagnostic] = []
        self._is_compiled = any(map(_is_compiled, self._models))
        if self._is_compiled:
            self._notes.append(note("compiled_code_left_out"))

    def add_reference(self, baseline: Any) -> None:
        """Copy the baseline to float64; where it cannot be copied, there is a note."""
        try:
            high = double_precision(baseline).eval()
        except BenchmarkError as error:
            self._notes.append(note("no_reference_copy", reason=str(error)))
            return
        self._high, self._reference = high, _modules_of(high, every_path=True)

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
        variant = ComparedModel(
            name, getattr(model, _COMPILED, model), hint="use inputs that both models take"
        )
        with _watched(layers, see), _without_compiled_code(self._is_compiled):
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
            self._rounding[dtypes[1]] = _modules_of(rounding_copy(self._high, dtypes[1]), every_path=True)
        found, _ = _outputs_of(self._rounding[dtypes[1]][path], inputs)
        return None if found is None else _relative_error(true, found)

    def _accumulated(self, call: LayerCall, own: Outputs) -> float | None:
        theirs = self._returned.pop((call.path, call.ordinal), None)
        return None if theirs is None else _relative_error(own, theirs)

    def result(self) -> LayersComparison:
        """Return what was found."""
        called = {each.path for each in self._found}
        both = [path for path, each in self._baseline.items() if path in self._partners and _is_called(each)]
        if not called - {ROOT}:
            self._notes.append(note("no_layers_seen"))
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


def _outputs_of(module: Any, inputs: tuple[Any, Any]) -> tuple[Outputs | None, Diagnostic | None]:
    """Run a layer on a copy of another's inputs; returns why not where it fails."""
    with no_gradients(), kept_random_states(0):
        try:
            args, kwargs = copied_to(inputs, module)
            return named_arrays(module(*args, **kwargs)), None
        except Exception as error:
            return None, note("layer_failed", reason=reason_of(error))


@dataclass(frozen=True, slots=True)
class _Local:
    """A layer's own error. Without one, `diverges` is whether the layer diverges."""

    error: float | None
    diverges: bool = False
    reason: Diagnostic | None = None


def _local_error(partner: Any, call: LayerCall, own: Outputs) -> _Local:
    theirs, why = _outputs_of(partner, (call.args, call.kwargs))
    if theirs is None:
        return _Local(None, reason=why)
    if not own.arrays:
        return _Local(None, reason=note("layer_without_values"))
    if own.shapes != theirs.shapes:
        reason = note("other_shapes", baseline=own.shapes, optimized=theirs.shapes)
        return _Local(None, diverges=True, reason=reason)
    error = _relative_error(own, theirs)
    if error is None:
        return _Local(None, diverges=True, reason=note("not_comparable"))
    return _Local(error)


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


def _verdict(local: _Local, allowed: float | None) -> tuple[LayerVerdict, Diagnostic | None]:
    if local.error is None:
        return (LayerVerdict.DIVERGES if local.diverges else LayerVerdict.UNKNOWN), local.reason
    if local.error == 0:
        return LayerVerdict.WITHIN, None
    if allowed is None:
        return LayerVerdict.UNKNOWN, note("layer_dtype_unknown")
    if local.error <= allowed:
        return LayerVerdict.WITHIN, None
    return LayerVerdict.DIVERGES, note("beyond_allowed", times=local.error / allowed)


def _with_compensation(found: list[LayerComparison]) -> tuple[LayerComparison, ...]:
    """Mark layers whose divergence does not show in a module around them, such as those of a fused pair."""
    fine = {each.path for each in found if each.verdict == LayerVerdict.WITHIN}
    fine -= {each.path for each in found if each.verdict != LayerVerdict.WITHIN}

    def marked(each: LayerComparison) -> LayerComparison:
        around = [path for path in fine if is_above(path, each.path)]
        if not around or each.verdict != LayerVerdict.DIVERGES:
            return each
        innermost = max(around, key=lambda path: -1 if path == ROOT else len(path))
        reason = note("compensated", reason=each.reason, layer=innermost)
        return replace(each, verdict=LayerVerdict.COMPENSATED, reason=reason)

    return tuple(map(marked, found))


# --- modules and their calls ---------------------------------------------------------------------

# The name that torch.compile gives to the module that it wraps.
_COMPILED = "_orig_mod"


def _modules_of(model: Any, *, every_path: bool = False) -> dict[str, Any]:
    """Return modules by their first path, or by every path; of torch.compile's wrappers what they wrap."""
    found = model.named_modules(remove_duplicate=not every_path)
    return {
        ".".join(part for part in path.split(".") if part != _COMPILED) or ROOT: module
        for path, module in found
    }


def _is_compiled(model: Any) -> bool:
    """Whether torch.compile wrapped the model or a module in it."""
    return any(_COMPILED in path.split(".") for path, _ in model.named_modules())


@contextmanager
def _without_compiled_code(is_so: bool) -> Iterator[None]:
    """Run compiled modules as plain Python, so that their layers are seen."""
    set_stance = getattr(sys.modules["torch"].compiler, "set_stance", None)
    with set_stance("force_eager") if is_so and set_stance is not None else nullcontext():
        yield


def is_script(module: Any) -> bool:
    """Whether a module is a program of TorchScript, which runs its layers without calling them."""
    return isinstance(module, sys.modules["torch"].jit.ScriptModule)


def _is_called(module: Any) -> bool:
    """Whether a module can be called; lists and dictionaries of modules cannot."""
    nn = sys.modules["torch"].nn
    return not isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict))


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of a layer: a copy of its inputs, and what it returned."""

    path: str
    ordinal: int
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


@contextmanager
def _watched(layers: Mapping[str, Any], see: Callable[[LayerCall], None]) -> Iterator[None]:
    """Call `see` after every call of a layer; the hooks are removed after the block.

    What `see` runs itself is not seen.
    """
    is_seeing = False
    ordinals: Counter[str] = Counter()
    # A layer may change its inputs, as activations in place do: copies wait here for its end.
    running: list[tuple[Any, Any, Any]] = []

    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not is_seeing:
            running.append((module, copied(args), copied(kwargs)))

    def after(path: str, module: Any, _args: Any, _kwargs: Any, output: Any) -> None:
        nonlocal is_seeing
        if is_seeing:
            return
        # A layer that raised, and whose exception the model caught, left its inputs here.
        while running and running[-1][0] is not module:
            running.pop()
        if not running:
            return
        _, args, kwargs = running.pop()
        is_seeing = True
        try:
            see(LayerCall(path, ordinals[path], module, args, kwargs, output))
        finally:
            is_seeing = False
        ordinals[path] += 1

    with ExitStack() as stack:
        for path, module in layers.items():
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            hook = module.register_forward_hook(partial(after, path), with_kwargs=True)
            stack.callback(hook.remove)
        yield


class _OriginSearch:
    """Looks for the first NaN and the first infinity, layer by layer in the order in which they end."""

    def __init__(self) -> None:
        self.nan: Origin | None = None
        self.infinite: Origin | None = None

    def see(self, call: LayerCall) -> None:
        """Look at one call."""
        if self.nan is not None and self.infinite is not None:
            return
        outputs = named_arrays(call.output).arrays
        if all(each.is_finite for each in outputs.values()):
            return
        inputs = [*named_arrays((call.args, call.kwargs)).arrays.values()]
        if self.nan is None:
            self.nan = _origin(call, outputs, inputs, np.isnan)
        if self.infinite is None:
            self.infinite = _origin(call, outputs, inputs, np.isinf)


def _origin(
    call: LayerCall, outputs: Mapping[str, NamedArray], inputs: list[NamedArray], test: Callable[[Any], Any]
) -> Origin | None:
    if any(each.values.dtype.kind in "fc" and test(each.values).any() for each in inputs):
        return None
    for name, each in outputs.items():
        if each.values.dtype.kind not in "fc" or not test(each.values).any():
            continue
        values = np.atleast_1d(each.values)
        count = NotFiniteCount()
        count.add(values, ~test(values), 0)
        return Origin(call.path, type(call.module).__name__, name, count.result(), _broken(call.module))
    return None


def _broken(module: Any) -> tuple[str, ...]:
    """Return the layer's own parameters and buffers that hold NaN or infinity."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    return tuple(
        name
        for name, tensor in tensors
        if not all(each.is_finite for each in named_arrays(tensor).arrays.values())
    )
