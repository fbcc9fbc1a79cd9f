# SPDX-License-Identifier: Apache-2.0
"""Programs of programs.py that only a real GPU can run: PyTorch's own kernels, copies, waits, other tools."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# isort: off
import gpuprof  # before torch, so that PyTorch finds its operator collector
import torch
from torch import nn

# isort: on
import known_work
from known_layers import OPERATORS
from known_work import (
    capture,
    known_kernels,
    many,
    start_cuda,
    synchronize,
)

Facts = dict[str, Any]


class _Operator(nn.Module):
    """One of PyTorch's operators, which is one kernel."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._call = getattr(torch, name)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self._call(inputs)


def _operators_model() -> nn.Module:
    model = nn.Sequential()
    for name in OPERATORS:
        model.add_module(name, _Operator(name))
    return model


def runtime_launches(folder: Path) -> Facts:
    """PyTorch's own kernels, which it launches through the runtime: recorded twice, then as a graph."""
    start_cuda()
    model, inputs = _operators_model(), torch.ones(1024, device="cuda")
    with torch.no_grad():
        model(inputs)
        synchronize()
        for number in range(2):
            with gpuprof.profile(model, out=folder / f"run-{number}"):
                for _ in range(3):
                    model(inputs)
                synchronize()
        with gpuprof.profile(model, out=folder / "graph"):
            replay = capture(lambda: model(inputs))
            for _ in range(3):
                replay()
            synchronize()
    return {}


def after_torch_profiler(folder: Path) -> Facts:
    """The same, after torch.profiler was used in the process and has ended."""
    from torch.profiler import ProfilerActivity, profile

    start_cuda()
    model, inputs = _operators_model(), torch.ones(1024, device="cuda")
    with torch.no_grad():
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            model(inputs)
            synchronize()
        with gpuprof.profile(model, out=folder / "run"):
            for _ in range(3):
                model(inputs)
            synchronize()
    return {"theirs": len(_kernels_of(profiler))}


def network(folder: Path) -> Facts:
    """Kernels of cuBLAS and cuDNN, which launch in ways of their own."""
    torch.manual_seed(0)
    layers = {"conv": nn.Conv2d(3, 16, 3), "norm": nn.BatchNorm2d(16), "pool": nn.AdaptiveAvgPool2d(4)}
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    model.add_module("flatten", nn.Flatten())
    model.add_module("linear", nn.Linear(256, 512))
    model.cuda().eval()
    images = torch.randn(32, 3, 64, 64, device="cuda")
    with torch.no_grad():
        model(images)
        synchronize()
        with gpuprof.profile(model, out=folder / "run"):
            for _ in range(3):
                model(images)
            synchronize()
    return {"layers": [*layers, "linear"]}


def _network() -> tuple[nn.Module, Callable[[], None]]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(64, 3, 128, 128, device="cuda")
    labels = torch.zeros(64, dtype=torch.long, device="cuda")

    def train() -> None:
        for _ in range(5):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        torch.cuda.synchronize()

    return model, train


def in_turn_with_torch_profiler(folder: Path) -> Facts:
    """The same training steps, recorded in turn by torch.profiler and by gpuprof."""
    from torch.profiler import ProfilerActivity, profile

    model, train = _network()
    for _ in range(5):
        train()
    theirs: list[list[tuple[str, float]]] = []
    for number in range(5):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            train()
        theirs.append(_kernels_of(profiler))
        with gpuprof.profile(model, out=folder / f"run-{number}"):
            train()
    return {"theirs": theirs}


def _kernels_of(profiler: Any) -> list[tuple[str, float]]:
    """Return the kernels' names and nanoseconds, in the order of their begin."""
    events = [event for event in profiler.profiler.kineto_results.events() if _is_kernel(event)]
    events.sort(key=lambda event: event.start_ns())
    return [(event.name(), event.duration_ns()) for event in events]


def _is_kernel(event: Any) -> bool:
    if hasattr(event, "activity_type"):
        return bool(event.activity_type() in ("kernel", "concurrent_kernel"))
    is_annotation = getattr(event, "is_user_annotation", lambda: False)()
    on_device = event.device_type() == torch.autograd.DeviceType.CUDA
    return on_device and not is_annotation and not event.name().startswith(("Memcpy", "Memset"))


def inside_gpuprof(folder: Path) -> Facts:
    """torch.profiler is used in the middle of a recording."""
    from torch.profiler import ProfilerActivity, profile

    start_cuda()
    kernels = known_kernels()
    with gpuprof.profile(out=folder / "run"):
        list(many(kernels, 10))
        synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            list(many(kernels, 20))
            synchronize()
        list(many(kernels, 30))
        synchronize()
    return {"theirs": len(_kernels_of(profiler))}


def inside_torch_profiler(folder: Path) -> Facts:
    """A recording is made while torch.profiler is active."""
    from torch.profiler import ProfilerActivity, profile

    start_cuda()
    kernels = known_kernels()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        list(many(kernels, 10))
        synchronize()
        with gpuprof.profile(out=folder / "run"):
            list(many(kernels, 20))
            synchronize()
        list(many(kernels, 30))
        synchronize()
    return {"theirs": len(_kernels_of(profiler))}


def compiled(folder: Path) -> Facts:
    """A compiled module, and one that is not."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fused: Any = torch.compile(nn.Sequential(nn.LayerNorm(256), nn.GELU(), nn.LayerNorm(256)))
            self.plain = nn.Softmax(dim=-1)

        def forward(self, inputs: torch.Tensor) -> Any:
            return self.plain(self.fused(inputs))

    model = Model().cuda()
    inputs = torch.randn(64, 256, device="cuda")
    with torch.no_grad():
        model(inputs)
        synchronize()
        with gpuprof.profile(model, out=folder / "run"):
            model(inputs)
            synchronize()
    return {}


SIZES = (1, 4096, 1_000_003)


def transfers(folder: Path) -> Facts:
    """Copies each way and fills, of known sizes, each kind in a span of its own name."""
    start_cuda()
    with gpuprof.profile(out=folder / "run", layers=False, operators=False):
        for size in SIZES:
            pageable = torch.ones(size, dtype=torch.uint8)
            pinned = pageable.pin_memory()
            device = torch.empty(size, dtype=torch.uint8, device="cuda")
            other = torch.empty_like(device)
            synchronize()
            for name, action in {
                "pageable to device": lambda a=device, b=pageable: a.copy_(b),
                "pinned to device": lambda a=device, b=pinned: a.copy_(b, non_blocking=True),
                "device to pageable": lambda a=pageable, b=device: a.copy_(b),
                "device to pinned": lambda a=pinned, b=device: a.copy_(b, non_blocking=True),
                "device to device": lambda a=other, b=device: a.copy_(b),
                "fill": lambda a=device: a.zero_(),
            }.items():
                with gpuprof.span(name):
                    action()
                synchronize()
    return {}


def waits(folder: Path) -> Facts:
    """Waits for the context, a stream and an event, each of them for a long kernel."""
    start_cuda()
    kernels = known_kernels()
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    taken = {}
    with gpuprof.profile(out=folder / "run", layers=False, operators=False), torch.cuda.stream(stream):
        for name, wait in {
            "context": torch.cuda.synchronize,
            "stream": stream.synchronize,
            "event": event.synchronize,
        }.items():
            kernels.launch("forward_a", cycles=50_000_000)
            event.record(stream)
            begin = time.monotonic_ns()
            with gpuprof.span(name):
                wait()
            taken[name] = time.monotonic_ns() - begin
    return {"taken_ns": taken}


def second_opinion(folder: Path, recorder: str) -> Facts:
    """Training steps and copies of known sizes in NVTX ranges, recorded by gpuprof or by cupti-python."""
    from second_opinion import recorded_by_cupti_python

    _, train = _network()
    host = torch.ones(1 << 20, dtype=torch.uint8).pin_memory()
    device = torch.empty_like(host, device="cuda")

    def work() -> None:
        for number in range(ROUNDS):
            with _nvtx_range(f"round {number}"):
                with gpuprof.span("training"):
                    train()
                for size in SIZES:
                    device[:size].copy_(host[:size], non_blocking=True)
                    host[:size].copy_(device[:size], non_blocking=True)
                synchronize()

    work()
    if recorder == "cupti-python":
        return recorded_by_cupti_python(work)
    with gpuprof.profile(out=folder / "run"):
        work()
    return {}


ROUNDS = 5


def _nvtx_range(name: str) -> Any:
    """Return a range of the package nvtx; without the package, none."""
    try:
        import nvtx
    except ImportError:
        return contextlib.nullcontext()
    return nvtx.annotate(name)


def load(folder: Path) -> Facts:
    """Matrix products for four seconds while the device is sampled."""
    matrix = torch.randn(4096, 4096, device="cuda")
    with gpuprof.profile(out=folder / "run", layers=False, operators=False):
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            for _ in range(10):
                torch.mm(matrix, matrix)
            torch.cuda.synchronize()
    return {}


def bounded_launches(folder: Path) -> Facts:
    """Kernels one at a time, each with the time before its launch and after its end."""
    start_cuda()
    kernels = known_kernels()
    calls = []
    with gpuprof.profile(out=folder / "run", layers=False, operators=False):
        origin = time.monotonic_ns()
        with gpuprof.span("origin"):
            pass
        for _ in range(500):
            before = time.monotonic_ns() - origin
            kernels.launch("forward_a")
            synchronize()
            calls.append([before, time.monotonic_ns() - origin])
    return {"calls": calls}


def counters(folder: Path, elements: str, size: str) -> Facts:
    """An addition of one to so many float32, and a product of square matrices in bf16, with counters."""

    class Known(nn.Module):
        def forward(self, values: torch.Tensor, matrix: torch.Tensor) -> Any:
            return values + 1, matrix @ matrix

    start_cuda()
    values = torch.ones(int(elements), device=known_work.DEVICE)
    matrix = torch.ones(int(size), int(size), device=known_work.DEVICE, dtype=torch.bfloat16)
    model = Known()
    with torch.no_grad():
        model(values, matrix)
        synchronize()
        with gpuprof.profile(model, out=folder / "run", counters=True):
            model(values, matrix)
            synchronize()
    return {"l2_bytes": _l2_bytes()}


def _l2_bytes() -> int | None:
    if known_work.DEVICE != "cuda":
        return None
    return getattr(torch.cuda.get_device_properties(0), "L2_cache_size", None)
