# SPDX-License-Identifier: Apache-2.0
"""JAX: a flax module or a function of arrays, compiled ahead for each batch size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuprof.bench.failures import reason_of
from gpuprof.bench.frameworks.base import FrameworkSystem, Package, processor_name, require
from gpuprof.bench.models.data import InputSpec
from gpuprof.bench.models.sources import ModelKind, NamedModel, build_flax
from gpuprof.errors import BenchmarkError

# What flax calls the parameters of norms, and what they begin with.
CONSTANTS = {"scale": 1.0, "var": 1.0, "mean": 0.0, "bias": 0.0}
WEIGHT_DEVIATION = 1.0

_FLAX: Package = ("flax", "flax", "flax")


class JaxSystem(FrameworkSystem):
    """A compiled function. JAX enqueues on a CPU too: outputs are kept until `synchronize` waits for them."""

    framework = "jax"
    compiles = True
    package = ("jax", "JAX", "jax")
    kinds = ("name", "factory")
    devices = ("tpu", "cuda", "cpu")
    dtypes = ("float32", "float16", "bfloat16")
    named: NamedModel | None = None  # one of our own networks
    variables: Any = None

    @classmethod
    def packages(cls, kind: ModelKind) -> tuple[Package, ...]:
        """Return JAX, and what our own networks are built with."""
        return (cls.package, *([_FLAX] if kind == "name" else []))

    def _load(self) -> None:
        self.jax = require(*self.package)
        self.device_type = self._choose_device()
        self.device = self.jax.devices(self.device_type)[0]
        self._outstanding: list[Any] = []
        if self.source.kind == "name":
            require(*_FLAX)
            self.named = build_flax(self.source.text)
            self.model = self.named.model
            self.details["model_source"] = self.named.library
        if not callable(self.model):
            raise BenchmarkError(
                "kind_of_model",
                f"{self.source.text}: JAX runs flax modules and functions",
                hint="name a factory that returns one, as in file.py:build",
            )
        self._function = self._pure_function()
        self.details["jax"] = self.jax.__version__

    def _has(self, device: str) -> bool:
        try:
            return bool(self.jax.devices(device))
        except RuntimeError:
            return False

    def _pure_function(self) -> Any:
        """Return a function of (variables, *inputs), and place the variables on the device."""
        if hasattr(self.model, "init") and hasattr(self.model, "apply"):
            self.variables = self.jax.device_put(self._initial_variables(), self.device)
            return self.model.apply
        model = self.model
        return lambda _variables, *inputs: model(*inputs)

    def _initial_variables(self) -> Any:
        key = self.jax.random.key(self.spec.seed)
        sample = self._batch(1)
        if self.named is not None:
            return self._filled(self.jax.eval_shape(self.model.init, key, *sample))
        self.batch_size = 1
        with self.explaining():
            return self.jax.jit(self.model.init)(key, *sample)

    def _filled(self, shapes: Any) -> Any:
        """Return random weights of these shapes: flax's initializers take longer to compile than the."""
        import numpy as np

        generator = np.random.default_rng(self.spec.seed)

        def fill(path: Any, leaf: Any) -> Any:
            name = str(path[-1].key)
            if name in CONSTANTS:
                return np.full(leaf.shape, CONSTANTS[name]).astype(leaf.dtype)
            deviation = WEIGHT_DEVIATION / max(1, int(np.prod(leaf.shape[:-1]))) ** 0.5
            return (generator.standard_normal(leaf.shape, dtype=np.float32) * deviation).astype(leaf.dtype)

        return self.jax.tree_util.tree_map_with_path(fill, shapes)

    def _inputs(self) -> InputSpec:
        if self.named is None:
            return InputSpec(self._named_shape())
        shape = self.named.input_shape if self.spec.input_shape is None else self.spec.input_shape
        # A shape as PyTorch has it, channels first, means the same images.
        is_channels_first = len(shape) == 3 and shape[0] == 3 and shape[2] != 3
        return InputSpec((*shape[1:], shape[0]) if is_channels_first else shape)

    def _place(self, array: Any) -> Any:
        return self.jax.device_put(self.jax.numpy.asarray(array, dtype=self.dtype), self.device)

    def _compile(self) -> None:
        self._outstanding.clear()
        self._compiled = self.jax.jit(self._function).lower(self.variables, *self.arguments).compile()
        self._former_peak = self._peak() or 0

    def _call(self, *arguments: Any) -> object:
        outputs = self._compiled(self.variables, *arguments)
        self._outstanding.append(outputs)
        return outputs

    def waiting(self) -> Callable[[], object]:
        """Return what waits: JAX enqueues on a CPU too."""
        return self.synchronize

    def synchronize(self) -> None:
        """Wait for all that was enqueued."""
        self.jax.block_until_ready(self._outstanding)
        self._outstanding.clear()

    def close(self) -> None:
        """Let go of the variables and of what was compiled."""
        super().close()
        self.variables = self._compiled = None
        self._outstanding = []

    def _peak(self) -> int | None:
        try:
            return (self.device.memory_stats() or {}).get("peak_bytes_in_use")
        except Exception as error:
            self.details["allocator"] = f"unavailable: {reason_of(error)}"
            return None

    def _allocator_peak(self) -> int | None:
        # JAX's peak is of the whole process: only where it rose since `prepare` is it this batch's.
        peak = self._peak()
        return peak if peak is not None and peak > self._former_peak else None

    def _device_name(self) -> str:
        return processor_name() if self.device_type == "cpu" else str(self.device.device_kind)

    def _parameters(self) -> int | None:
        if self.variables is None:
            return None
        leaves = self.jax.tree_util.tree_leaves(self.variables.get("params", self.variables))
        return sum(int(leaf.size) for leaf in leaves)

    def _model_bytes(self) -> int | None:
        if self.variables is None:
            return None
        return sum(int(leaf.nbytes) for leaf in self.jax.tree_util.tree_leaves(self.variables))
