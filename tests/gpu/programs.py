# SPDX-License-Identifier: Apache-2.0
"""Programs that the tests of this folder run, each in a process of its own: CUPTI remembers, and CUDA does
not survive a fork.

    python programs.py NAME FOLDER [ARGUMENT]...

Prints the program's own facts as one line of JSON.
"""

from __future__ import annotations

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

# isort: on
import known_work
from known_layers import LABELS
from known_work import (
    capture,
    known_kernels,
    known_model,
    many,
    start_cuda,
    stream_of_its_own,
    synchronize,
)
from pytorch_programs import (
    after_torch_profiler,
    bounded_launches,
    compiled,
    counters,
    in_turn_with_torch_profiler,
    inside_gpuprof,
    inside_torch_profiler,
    load,
    network,
    runtime_launches,
    second_opinion,
    transfers,
    waits,
)

Facts = dict[str, Any]


def values() -> torch.Tensor:
    return torch.ones(4, device=known_work.DEVICE, requires_grad=True)


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
