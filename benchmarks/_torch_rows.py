# SPDX-License-Identifier: Apache-2.0
"""What recording adds to PyTorch: to a module call, to an operator, to a real model. One thread computes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from benchmarks import _models
from benchmarks._measure import Contestant, Row, Settings, added, entries, ratios, repeated, time_rounds
from benchmarks._recorders import gpuprof_on, torch_profiler_on

ModelMaker = Callable[[], tuple[Any, Callable[[int], None]]]

_BASE = "bare"
_UNCOUNTED = "gpuprof without work"
_CONTROL = "bare again: what is not resolved"
_FIRST_STEPS = 3  # which have calls with new inputs, and make the optimizer's state
# The option with_modules alone records nothing of eager modules; with_stack does, as "nn.Module: ..." frames.
_NAMES_MODULES = "torch.profiler, with_stack + with_modules"


def layer_rows(settings: Settings) -> list[Row]:
    """Record module calls."""
    model, inputs, calls = _models.identities()
    forward = _forward(model, inputs)
    many, few = settings.iterations(300, 20), settings.iterations(50, 5)
    recording = gpuprof_on(settings.folder, model, layers=True, operators=False)
    contestants = [
        Contestant(_BASE, forward(), many, role="base"),
        Contestant(_CONTROL, forward(), many, role="scale"),
        Contestant("gpuprof, layers only", forward(), many, recording, "gpuprof"),
        Contestant("a pair of forward hooks that do nothing", forward(), many, lambda: _hooked(model)),
        Contestant("a pair of global hooks that do nothing", forward(), many, _globally_hooked),
        Contestant(_NAMES_MODULES, forward(), few, torch_profiler_on(with_stack=True, with_modules=True)),
        Contestant(
            "torch.profiler, with_modules: names none here",
            forward(),
            many,
            torch_profiler_on(with_modules=True),
            "scale",
        ),
    ]
    with _one_thread():
        figures = added(time_rounds(contestants, settings.rounds, settings.seed), _BASE, calls)
    measured = figures["gpuprof, layers only"]
    return [Row("layer", "layer call, added", "ns", measured, 100, entries(contestants, figures))]


def operator_rows(settings: Settings) -> list[Row]:
    """Record operators, their announcement by PyTorch included."""
    model, inputs = _models.tiny_linears()
    forward = _forward(model, inputs)
    many, few = settings.iterations(200, 20), settings.iterations(40, 10)
    contestants = [
        Contestant(_BASE, forward(), many, role="base"),
        Contestant(_CONTROL, forward(), many, role="scale"),
        Contestant(
            "gpuprof, operators only",
            forward(),
            many,
            gpuprof_on(settings.folder, model, layers=False, operators=True),
            "gpuprof",
        ),
        Contestant("torch.profiler", forward(), few, torch_profiler_on()),
    ]
    with _one_thread(), torch.no_grad():
        operators = _models.count_operators(model, inputs)
        figures = added(time_rounds(contestants, settings.rounds, settings.seed), _BASE, operators)
    notes = (
        f"{operators} operators in a forward",
        "what torch.profiler does after its loop is in row million",
    )
    measured = figures["gpuprof, operators only"]
    others = entries(contestants, figures)
    return [Row("operator", "recorded, announcement included", "ns", measured, 200, others, notes)]


def model_rows(settings: Settings) -> list[Row]:
    """Record all sources of a real model."""
    return _rows_of_models("model", _model_row, settings)


def work_rows(settings: Settings) -> list[Row]:
    """Record real models with their work counted, over the same recording without."""
    return _rows_of_models("work", _work_row, settings)


def _rows_of_models(
    prefix: str, row_of: Callable[[str, str, ModelMaker, int, Settings], Row], settings: Settings
) -> list[Row]:
    with _one_thread():
        return [
            row_of(f"{prefix}.transformer", "training step", _models.transformer_step, 2, settings),
            row_of(f"{prefix}.convnet", "eval forward", _models.convnet_eval, 10, settings),
        ]


def _work_row(name: str, what: str, make: ModelMaker, steps: int, settings: Settings) -> Row:
    model, loop = make()
    count = settings.iterations(steps, 1)
    first = gpuprof_on(settings.folder, model, layers=True, operators=True, work=True)
    plain = _after_first_steps(gpuprof_on(settings.folder, model, layers=True, operators=True), loop)
    counted = _after_first_steps(first, loop)
    contestants = [
        Contestant(_UNCOUNTED, loop, count, plain, role="base"),
        Contestant(f"{_UNCOUNTED} again: what is not resolved", loop, count, plain, role="scale"),
        Contestant("gpuprof, work=True", loop, count, counted, "gpuprof"),
        Contestant(
            f"its first {_FIRST_STEPS} steps, which keep their inputs", loop, _FIRST_STEPS, first, "scale"
        ),
    ]
    # The look at the ceilings after a recording leaves caches and clocks as no program would find them.
    with mock.patch("gpuprof.analyze.ceilings.of_run._measure_again", return_value=None):
        figures = ratios(time_rounds(contestants, settings.rounds, settings.seed), _UNCOUNTED)
    return Row(
        name,
        f"later {what}, work=True over without",
        "x",
        figures["gpuprof, work=True"],
        budget=1.02,
        others=entries(contestants, figures),
        notes=("the work is counted after the recording has ended, outside the timed pass",),
    )


def _after_first_steps(recording: Callable[[], Any], loop: Callable[[int], None]) -> Callable[[], Any]:
    """Return a maker of blocks in which a recording has seen the first steps of a program already."""

    @contextlib.contextmanager
    def recorded() -> Iterator[None]:
        with recording():
            loop(_FIRST_STEPS)
            yield

    return recorded


def _model_row(name: str, what: str, make: ModelMaker, steps: int, settings: Settings) -> Row:
    model, loop = make()
    count = settings.iterations(steps, 1)
    recording = gpuprof_on(settings.folder, model, layers=True, operators=True)
    contestants = [
        Contestant(_BASE, loop, count, role="base"),
        Contestant(_CONTROL, loop, count, role="scale"),
        Contestant("gpuprof, all sources", loop, count, recording, "gpuprof"),
        Contestant("torch.profiler", loop, count, torch_profiler_on()),
        Contestant(_NAMES_MODULES, loop, count, torch_profiler_on(with_stack=True, with_modules=True)),
    ]
    times = time_rounds(contestants, settings.rounds, settings.seed)
    figures = ratios(times, _BASE)
    bare_ms = sorted(times[_BASE])[len(times[_BASE]) // 2] / 1e6
    return Row(
        name,
        f"{what}, over bare",
        "x",
        figures["gpuprof, all sources"],
        others=entries(contestants, figures),
        notes=(f"bare {bare_ms:.2f} ms a step",),
    )


def _forward(model: Any, inputs: Any) -> Callable[[], Callable[[int], None]]:
    return lambda: repeated("model(inputs)", model=model, inputs=inputs)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _before(module: Any, inputs: Any) -> None:
    """Do nothing, as a forward pre-hook."""


def _after(module: Any, inputs: Any, output: Any) -> None:
    """Do nothing, as a forward hook."""


@contextlib.contextmanager
def _hooked(model: Any) -> Iterator[None]:
    handles = []
    for module in model.modules():
        handles += [module.register_forward_pre_hook(_before), module.register_forward_hook(_after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _globally_hooked() -> Iterator[None]:
    register = torch.nn.modules.module
    handles = [
        register.register_module_forward_pre_hook(_before),
        register.register_module_forward_hook(_after),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
