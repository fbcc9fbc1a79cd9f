# SPDX-License-Identifier: Apache-2.0
"""The layers of two models that have the same path, and what is looked at where one of them is called."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof.bench.accuracy.numerics import NotFiniteCount
from gpuprof.bench.accuracy.variants import copied
from gpuprof.bench.measure.outputs import NamedArray, named_arrays

ROOT = "(model)"
# The name that torch.compile gives to the module that it wraps.
_COMPILED = "_orig_mod"


def layers_of(model: Any) -> dict[str, Any]:
    """Return modules by path, each under its first path; what torch.compile wrapped, not the wrapper."""
    return {plain_path(path): module for path, module in model.named_modules()}


def paths_of(model: Any) -> dict[str, Any]:
    """Return modules by every path that leads to them."""
    return {plain_path(path): module for path, module in model.named_modules(remove_duplicate=False)}


def plain_path(path: str) -> str:
    """Return a module's path without wrappers; the model itself is `(model)`."""
    return ".".join(part for part in path.split(".") if part != _COMPILED) or ROOT


def is_compiled(model: Any) -> bool:
    """Whether torch.compile wrapped the model or a module in it."""
    return any(_COMPILED in path.split(".") for path, _ in model.named_modules())


def uncompiled(model: Any) -> Any:
    """Return the module that torch.compile wrapped; any other as it is."""
    return getattr(model, _COMPILED, model)


@contextmanager
def without_compiled_code(is_so: bool) -> Iterator[None]:
    """Run compiled modules as plain Python, so that their layers are seen."""
    set_stance = getattr(sys.modules["torch"].compiler, "set_stance", None)
    with set_stance("force_eager") if is_so and set_stance is not None else nullcontext():
        yield


def is_called(module: Any) -> bool:
    """Whether a module can be called; lists and dictionaries of modules cannot."""
    nn = sys.modules["torch"].nn
    return not isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict))


def is_above(path: str, other: str) -> bool:
    """Whether the module at `path` holds the one at `other`."""
    return path != other and (path == ROOT or other.startswith(f"{path}."))


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
def watched(layers: Mapping[str, Any], see: Callable[[LayerCall], None]) -> Iterator[None]:
    """Call `see` behind every call of a layer; the hooks are gone behind the block.

    What `see` runs itself is not seen.
    """
    watch = _Watch(see)
    with ExitStack() as stack:
        for path, module in layers.items():
            stack.callback(module.register_forward_pre_hook(watch.before, with_kwargs=True).remove)
            hook = watch.behind(path)
            stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        yield


class _Watch:
    def __init__(self, see: Callable[[LayerCall], None]) -> None:
        self._see = see
        self._is_seeing = False
        self._ordinals: Counter[str] = Counter()
        # A layer may change its inputs, as activations in place do: copies wait here for its end.
        self._open: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_seeing:
            self._open.append((module, copied(args), copied(kwargs)))

    def behind(self, path: str) -> Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]:
        def seen(module: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any], output: Any) -> None:
            if self._is_seeing:
                return
            # A layer that raised, and whose exception the model caught, left its inputs here.
            while self._open and self._open[-1][0] is not module:
                self._open.pop()
            if not self._open:
                return
            _, args, kwargs = self._open.pop()
            self._is_seeing = True
            try:
                self._see(LayerCall(path, self._ordinals[path], module, args, kwargs, output))
            finally:
                self._is_seeing = False
            self._ordinals[path] += 1

        return seen


@dataclass(frozen=True, slots=True)
class Origin:
    """The first layer of a model that makes NaN, or infinity, from inputs that hold none."""

    path: str
    type: str
    output: str
    what: str
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        held = f"; not finite in its {', '.join(self.parameters)}" if self.parameters else ""
        return f"{self.path} ({self.type}) makes {self.what} in its {self.output}{held}"


class OriginSearch:
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
        return Origin(call.path, type(call.module).__name__, name, str(count.result()), _broken(call.module))
    return None


def _broken(module: Any) -> tuple[str, ...]:
    """Return the layer's own parameters and buffers that hold NaN or infinity."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    return tuple(
        name
        for name, tensor in tensors
        if not all(each.is_finite for each in named_arrays(tensor).arrays.values())
    )
