# SPDX-License-Identifier: Apache-2.0
"""Stress tests of a model in this process: sustained load, and load that varies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuprof.bench.in_process.inputs import own_maker
from gpuprof.bench.measure.callable import CallableSystem
from gpuprof.errors import BenchmarkError
from gpuprof.load.result import LoadResult, LoadSettings
from gpuprof.load.run import LoadOptions, run_load
from gpuprof.load.soak_run import SoakResult, run_soak
from gpuprof.load.targets.module_calls import inference_call, is_module
from gpuprof.text.units import format_rate

_UTILIZATION = 0.5  # of the rate that one client reaches
_CALLS_OF_RATE = 50
_RAMP = (0.2, 1.8)  # of the mean rate
_NO_PROBE = LoadOptions(probe=False)


def sustained_load_test(
    model: Any,
    duration_minutes: float = 10,
    inputs: Any = None,
    *,
    rate: float | None = None,
    concurrency: int = 1,
    seed: int = 0,
) -> SoakResult:
    """Put load on a model for minutes, and judge leaks, drift of the service time, and throttling.

    `model` is a callable, a module or the name of a model. `inputs` are those of each call; None is none for
    a callable, and made for a module that has its shape (`example_input_array`, or a first layer that is
    linear). With a `rate` per second requests arrive as a Poisson process, without one each of `concurrency`
    clients waits for its response. `result.verdict` is yes, no, open, inconclusive or unavailable;
    `result.report` has the parts. Raises BenchmarkError for what cannot work.
    """
    settings = LoadSettings(
        _name_of(model), "soak", rate=rate, duration_s=60 * duration_minutes,
        concurrency=concurrency, seed=seed,
    )  # fmt: skip
    if isinstance(model, str):
        return run_soak(model, settings, inputs)
    return run_soak(_SizedTarget(model, _input_maker(model, inputs), (1,)), settings)


@dataclass(frozen=True, slots=True)
class VariableLoadResult:
    """What a load that varies gave, by the kind of variation; a kind that was not run is missing.

    The kinds are `bursts`, `ramp`, `mixed_batches` and `concurrent`. `rate` is the mean rate per second.
    """

    rate: float
    phases: Mapping[str, LoadResult]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the test: later kinds are missing."""
        return any(each.run.interrupted for each in self.phases.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; times are in seconds."""
        return {"rate": self.rate, "phases": {name: each.to_dict() for name, each in self.phases.items()}}

    def __str__(self) -> str:
        parts = [f"mean rate {format_rate(self.rate)}"]
        parts += [f"{name.replace('_', ' ')}: {result}" for name, result in self.phases.items()]
        return "\n\n".join(parts)


def variable_load_test(
    model: Any,
    inputs: Any = None,
    *,
    rate: float | None = None,
    duration_s: float = 10.0,
    batch_sizes: Sequence[int] = (1, 8),
    concurrency: int = 4,
    slo: str | None = None,
    seed: int = 0,
) -> VariableLoadResult:
    """Put bursts, a ramp, mixed batch sizes and concurrent requests on a model, each for `duration_s`.

    `model` and `inputs` are as of `sustained_load_test`. `rate` is the mean rate per second; by default half
    of what one client reaches. Bursts have 5 times the rate for a tenth of the time, the ramp goes from
    0.2 to 1.8 times the rate, batch sizes are equally frequent, and `concurrency` clients wait for their
    responses.
    Mixed batch sizes need a named model, a module with a known shape, or `inputs` that are a function of the
    batch size. Raises BenchmarkError for what cannot work.
    """
    if concurrency < 1 or not batch_sizes or min(batch_sizes) < 1:
        raise BenchmarkError(
            "invalid_load", f"concurrency {concurrency}, batch sizes {batch_sizes}", hint="use 1 or more"
        )
    name, make = _name_of(model), None if isinstance(model, str) else _input_maker(model, inputs)

    def run(sizes: Sequence[int], **settings: Any) -> LoadResult:
        wanted = LoadSettings(name, slo=slo, seed=seed, **settings)
        if make is None:
            return run_load(model, wanted, options=_NO_PROBE)
        return run_load(_SizedTarget(model, make, sizes, seed), wanted, options=_NO_PROBE)

    if rate is None:
        # The target of the latency is not one of the closed loop.
        alone = LoadSettings(name, "single-stream", count=_CALLS_OF_RATE, seed=seed)
        target = model if make is None else _SizedTarget(model, make, (1,))
        rate = _UTILIZATION * run_load(target, alone, options=_NO_PROBE).achieved_rate
        if rate <= 0:
            raise BenchmarkError(
                "failed_requests", f"{name}: every call failed", hint="call it once yourself"
            )
    planned = _planned(rate, duration_s, batch_sizes, concurrency)
    if isinstance(model, str):
        planned["mixed_batches"][1]["mix"] = "batch=" + ",".join(f"{size}:1" for size in batch_sizes)
    elif make is not None and not make.has_sizes:
        del planned["mixed_batches"]
    phases: dict[str, LoadResult] = {}
    for kind, (sizes, settings) in planned.items():
        phases[kind] = run(sizes, **settings)
        if phases[kind].run.interrupted:
            break
    return VariableLoadResult(rate, phases)


def _planned(
    rate: float, duration_s: float, batch_sizes: Sequence[int], concurrency: int
) -> dict[str, tuple[Sequence[int], dict[str, Any]]]:
    """Return by phase its batch sizes and the settings of its load."""
    low, high = (each * rate for each in _RAMP)
    every_s = min(duration_s, 10.0)
    return {
        "bursts": ((1,), {"scenario": "burst", "rate": rate, "duration_s": duration_s,
                          "pattern": f"burst:5x,{every_s / 10:.9g}s,every={every_s:.9g}s"}),
        "ramp": ((1,), {"scenario": "ramp", "duration_s": duration_s,
                        "pattern": f"ramp:{low:.9g}-{high:.9g}"}),
        "mixed_batches": (batch_sizes, {"scenario": "server", "rate": rate / float(np.mean(batch_sizes)),
                                        "duration_s": duration_s}),
        "concurrent": ((1,), {"scenario": "closed-loop", "concurrency": concurrency,
                              "duration_s": duration_s}),
    }  # fmt: skip


def _name_of(model: Any) -> str:
    return model if isinstance(model, str) else str(getattr(model, "__qualname__", type(model).__name__))


@dataclass(frozen=True, slots=True)
class _InputMaker:
    """Makes the inputs of a call; with `has_sizes` of any batch size. No function is no inputs."""

    make: Callable[[int], Any] | None
    has_sizes: bool


def _input_maker(model: Any, inputs: Any) -> _InputMaker:
    if inputs is None:
        if not is_module(model):
            return _InputMaker(None, False)
        made = own_maker(model)
        if made is None:
            raise BenchmarkError(
                "unknown_input_shape",
                f"{type(model).__name__}: the shape of its input is not known",
                hint="set inputs, as in inputs=lambda size: torch.randn(size, 3, 224, 224)",
            )
        return _InputMaker(made, True)
    if callable(inputs):
        return _InputMaker(inputs, True)
    return _InputMaker(lambda _size: inputs, False)


class _SizedTarget:
    """Calls a model; request i has the batch size `sizes[i]` of sizes that are drawn at random."""

    def __init__(self, model: Any, make: _InputMaker, sizes: Sequence[int], seed: int = 0) -> None:
        drawn: npt.NDArray[np.int64] = np.random.default_rng(seed).choice(np.asarray(sizes), 4_096)
        self._sizes: list[int] = [sizes[0]] if len(set(sizes)) == 1 else drawn.tolist()
        inputs = {size: None if make.make is None else make.make(size) for size in set(sizes)}
        self._systems = {size: CallableSystem(inference_call(model), each) for size, each in inputs.items()}
        self._wait = CallableSystem(model, inputs[sizes[0]]).waiting()

    def prepare(self) -> None:
        """Call the model once with each batch size."""
        for system in self._systems.values():
            system.run()
        if self._wait is not None:
            self._wait()

    def call(self, index: int) -> int:
        """Call the model and wait for the device; returns the batch size."""
        size = self._sizes[index % len(self._sizes)]
        self._systems[size].run()
        if self._wait is not None:
            self._wait()
        return size

    def close(self) -> None:
        """Do nothing: the model is the caller's."""
