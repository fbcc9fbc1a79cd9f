# SPDX-License-Identifier: Apache-2.0
"""Programs that the tests of this folder run, each in a process of its own: CUPTI remembers, and CUDA does
not survive a fork.

    python programs.py NAME FOLDER [ARGUMENT]...

Prints the program's own facts as one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
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
from known_layers import LABELS, OPERATORS
from known_work import (
    capture,
    known_kernels,
    known_model,
    many,
    start_cuda,
    stream_of_its_own,
    synchronize,
)

Facts = dict[str, Any]


def values() -> torch.Tensor:
    return torch.ones(4, device=known_work.DEVICE, requires_grad=True)


# --- programs whose kernels are known -------------------------------------------------------------


def forward(folder: Path) -> Facts:
    """Two forward passes."""
    start_cuda()
    model, inputs = known_model(known_kernels()), values()
    synchronize()
    with gpuprof.profile(model, out=folder / "run"):
        for _ in range(2):
            model(inputs)
        synchronize()
    return {}


def backward(folder: Path) -> Facts:
    """A forward and a backward pass."""
    start_cuda()
    model, inputs = known_model(known_kernels()), values()
    gradient = torch.ones_like(inputs)
    synchronize()
    with gpuprof.profile(model, out=folder / "run"):
        model(inputs).backward(gradient)
        synchronize()
    return {}


def graph(folder: Path) -> Facts:
    """A forward pass captured while it is recorded, replayed three times."""
    start_cuda()
    model, inputs = known_model(known_kernels()), values()
    synchronize()
    with torch.no_grad(), gpuprof.profile(model, out=folder / "run"):
        replay = capture(lambda: model(inputs))
        for _ in range(3):
            replay()
        synchronize()
    return {}


def graph_from_before(folder: Path) -> Facts:
    """A graph that was captured before the recording began, replayed three times in a span."""
    start_cuda()
    model, inputs = known_model(known_kernels()), values()
    with torch.no_grad():
        replay = capture(lambda: model(inputs))
    replay()
    synchronize()
    with gpuprof.profile(model, out=folder / "run"), gpuprof.span("replays"):
        for _ in range(3):
            replay()
        synchronize()
    return {}


def begun_in_a_capture(folder: Path) -> Facts:
    """The recording begins when half of the model is captured."""
    start_cuda()
    kernels, inputs = known_kernels(), values()
    model = known_model(kernels)
    recording = gpuprof.profile(model, out=folder / "run")

    def body() -> None:
        kernels.launch("forward_a")
        recording.__enter__()
        model(inputs)

    with torch.no_grad():
        replay = capture(body)
    replay()
    synchronize()
    recording.__exit__(None, None, None)
    return {}


def restarts(folder: Path, count: str) -> Facts:
    """Many recordings, with as many kernels as the recording's number, and unrecorded ones between."""
    start_cuda()
    kernels = known_kernels()
    for number in range(int(count)):
        with gpuprof.profile(out=folder / f"run-{number}"):
            list(many(kernels, number))
            synchronize()
        kernels.launch("backward_a")
        synchronize()
    return {}


def killed(folder: Path) -> Facts:
    """Launches for three seconds, prints how many kernels had ended a second before, and is killed."""
    start_cuda()
    kernels = known_kernels()
    gpuprof.profile(out=folder / "run").__enter__()
    begin, launched, early = time.monotonic(), 0, 0
    while time.monotonic() < begin + 3:
        launched += len(list(many(kernels, 10)))
        synchronize()
        if time.monotonic() < begin + 1:
            early = launched
        threading.Event().wait(0.001)
    print(json.dumps({"launched": launched, "early": early}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def forked(folder: Path) -> Facts:
    """A child is forked after CUDA is in use and while it is recorded."""
    start_cuda()
    kernels = known_kernels()
    with gpuprof.profile(out=folder / "run"):
        list(many(kernels, 10))
        synchronize()
        child = os.fork()
        if child == 0:
            with gpuprof.span("in the child"):
                pass
            os._exit(0)
        _, status = os.waitpid(child, 0)
        list(many(kernels, 10))
        synchronize()
    return {"child": os.waitstatus_to_exitcode(status)}


def without_gpu(folder: Path) -> Facts:
    """The GPU is used and not wanted in the recording."""
    start_cuda()
    kernels = known_kernels()
    with gpuprof.profile(out=folder / "run", gpu=False):
        list(many(kernels, 10))
        synchronize()
    return {}


def threads(folder: Path) -> Facts:
    """Three threads, each with a model and a span of its own."""
    start_cuda()
    kernels = known_kernels()

    def body(label: str) -> None:
        with gpuprof.span(f"thread {label}"):
            for _ in range(20):
                kernels.launch(f"forward_{label}")
            synchronize()

    with gpuprof.profile(out=folder / "run"):
        started = [threading.Thread(target=body, args=(label,)) for label in LABELS[:3]]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    return {}


def long_run(folder: Path, total: str) -> Facts:
    """Replays a graph of a thousand kernels until `total` have run; prints how the memory grew."""
    start_cuda()
    kernels = known_kernels()
    replay = capture(lambda: list(many(kernels, 1000)))
    replays = int(total) // 1000
    with gpuprof.profile(out=folder / "warm-up"):
        replay()
        synchronize()
    before = resident_bytes()
    recording = gpuprof.profile(out=folder / "run")
    recording.__enter__()
    highest = before
    for number in range(replays):
        replay()
        if number % 50 == 0:
            synchronize()  # graphs that wait for the GPU take memory too
            highest = max(highest, resident_bytes())
    synchronize()
    highest = max(highest, resident_bytes())
    begin = time.monotonic()
    recording.__exit__(None, None, None)
    closed = {"closing_s": time.monotonic() - begin, "after_bytes": resident_bytes() - before}
    return {"launched": 1000 * replays, "recording_bytes": highest - before, **closed}


def streams(folder: Path) -> Facts:
    """Layers on streams of their own."""
    start_cuda()
    model, inputs = known_model(known_kernels()), values()
    synchronize()
    with gpuprof.profile(model, out=folder / "run"):
        for number in range(1, 4):
            with stream_of_its_own(number):
                model(inputs)
        synchronize()
    return {}


# --- programs that need a real GPU ----------------------------------------------------------------


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


def resident_bytes() -> int:
    """Return the memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


PROGRAMS: dict[str, Callable[..., Facts]] = {
    program.__name__: program
    for program in (
        forward, backward, graph, graph_from_before, begun_in_a_capture, restarts, killed, forked,
        without_gpu, threads, long_run, streams, runtime_launches, after_torch_profiler, network,
        second_opinion, in_turn_with_torch_profiler, inside_gpuprof,
        inside_torch_profiler, compiled, transfers, waits, load, bounded_launches, counters,
    )
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])))
