# SPDX-License-Identifier: Apache-2.0
"""Kernels whose names, grids and layers are known, launched through the driver below PyTorch.

`GPUPROF_REHEARSAL` puts stub libraries in the place of a GPU, for testing the tests: no kernel runs then.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from known_layers import BLOCKS, LABELS
from torch import nn

REHEARSAL = bool(os.environ.get("GPUPROF_REHEARSAL"))
DEVICE = "cpu" if REHEARSAL else "cuda"

_HEAD = ".version 7.0\n.target sm_75\n.address_size 64\n"
# Lasts `cycles` clock cycles.
_KERNEL = """
.visible .entry NAME(.param .u64 cycles) {
    .reg .b64 %time<4>;
    .reg .pred %waits;
    ld.param.u64 %time0, [cycles];
    mov.u64 %time1, %clock64;
again:
    mov.u64 %time2, %clock64;
    sub.s64 %time3, %time2, %time1;
    setp.lt.u64 %waits, %time3, %time0;
    @%waits bra again;
    ret;
}
"""


def source(names: Sequence[str]) -> str:
    """Return a program in PTX with a kernel of each name."""
    return _HEAD + "".join(_KERNEL.replace("NAME", name) for name in names)


def start_cuda() -> None:
    """Initialize CUDA, or its stub."""
    if REHEARSAL:
        _pretend()
    else:
        torch.zeros(1, device="cuda")


def synchronize() -> None:
    """Wait for the device."""
    if REHEARSAL:
        _set_primary_context()
        assert ctypes.CDLL("libcuda.so.1").cuCtxSynchronize() == 0
    else:
        torch.cuda.synchronize()


class KnownKernels:
    """Kernels by name, for any thread. CUDA is in use, and the thread that makes them has a context."""

    def __init__(self, names: Sequence[str]) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._context = self._current_context()
        assert self._context.value is not None, "no CUDA context: start_cuda() comes first"
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(source(names).encode()))
        self._functions = {name: self._function(module, name) for name in names}

    def launch(self, name: str, blocks: int = 1, cycles: int = 2000) -> None:
        """Launch on PyTorch's current stream."""
        # The runtime makes a context current at its first call on a thread; the driver does not.
        if self._current_context().value is None:
            self._call("cuCtxSetCurrent", self._context)
        argument = ctypes.c_uint64(cycles)
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(argument), ctypes.c_void_p))
        grid = [ctypes.c_uint(number) for number in (blocks, 1, 1, 32, 1, 1, 0)]
        self._call("cuLaunchKernel", self._functions[name], *grid, _current_stream(), arguments, None)

    def _current_context(self) -> ctypes.c_void_p:
        context = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        return context

    def _function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
        return function

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._cuda, name)(*arguments)
        assert error == 0, f"{name}: error {error}"


class _Launch(torch.autograd.Function):
    """A kernel on the way there and one on the way back; the values pass through, with no other kernel."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, kernels: KnownKernels, label: str, blocks: int) -> Any:
        context.known = kernels, label, blocks
        kernels.launch(f"forward_{label}", blocks)
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        kernels, label, blocks = context.known
        kernels.launch(f"backward_{label}", blocks)
        return gradient, None, None, None


class KnownLayer(nn.Module):
    """Launches `forward_LABEL`, and `backward_LABEL` in the backward pass, with a grid of its own."""

    def __init__(self, kernels: KnownKernels, label: str, blocks: int) -> None:
        super().__init__()
        self.known = kernels, label, blocks

    def forward(self, values: torch.Tensor) -> Any:
        return _Launch.apply(values, *self.known)


def known_kernels() -> KnownKernels:
    return KnownKernels([f"{way}_{label}" for label in LABELS for way in ("forward", "backward")])


def known_model(kernels: KnownKernels) -> nn.Module:
    """Return a model of which each layer of LAYERS launches the kernels with its label."""
    layer = {label: KnownLayer(kernels, label, BLOCKS[label]) for label in LABELS}
    model = nn.Sequential()
    model.add_module("first", layer["a"])
    model.add_module("body", nn.Sequential(layer["b"], layer["c"], nn.Sequential(layer["d"])))
    model.add_module("last", layer["e"])
    return model


def capture(body: Callable[[], object]) -> Callable[[], None]:
    """Capture what `body` launches as a CUDA graph; returns its replay."""
    graph: Any = _StubGraph() if REHEARSAL else torch.cuda.CUDAGraph()
    with graph if REHEARSAL else torch.cuda.graph(graph):
        body()
    replay: Callable[[], None] = graph.replay
    return replay


_stand_in = threading.local()  # the stream that is current in a rehearsal


@contextlib.contextmanager
def stream_of_its_own(number: int) -> Iterator[None]:
    """Make a new stream PyTorch's current one; numbers from 1 distinguish the stub's streams."""
    if not REHEARSAL:
        with torch.cuda.stream(torch.cuda.Stream()):
            yield
        return
    _stand_in.stream = 100 + number
    try:
        yield
    finally:
        _stand_in.stream = None


def _current_stream() -> ctypes.c_void_p:
    if REHEARSAL:
        return ctypes.c_void_p(getattr(_stand_in, "stream", None))
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class _StubGraph:
    """A graph of the stub driver, on its default stream."""

    def __enter__(self) -> _StubGraph:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        # As PyTorch does before it begins to capture: it fills the state of the random number generators.
        fills = KnownKernels(["fill"])
        for _ in range(2):
            fills.launch("fill")
        assert self._cuda.cuStreamBeginCapture_v2(None, 2) == 0
        return self

    def __exit__(self, *_: object) -> None:
        graph, self._executable = ctypes.c_void_p(), ctypes.c_void_p()
        assert self._cuda.cuStreamEndCapture(None, ctypes.byref(graph)) == 0
        instantiate = self._cuda.cuGraphInstantiateWithFlags
        assert instantiate(ctypes.byref(self._executable), graph, ctypes.c_uint64(0)) == 0

    def replay(self) -> None:
        assert self._cuda.cuGraphLaunch(self._executable, None) == 0


def _set_primary_context() -> None:
    """Do what the runtime does at its first call on a thread."""
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0


def _pretend() -> None:
    """Make torch look like a CUDA build whose CUDA is in use."""
    cuda: Any = torch.cuda
    assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    _set_primary_context()
    torch.version.cuda = "13.0"
    cuda.is_initialized = lambda: True
    cuda.is_current_stream_capturing = lambda: False


def many(kernels: KnownKernels, count: int) -> Iterator[str]:
    """Launch `count` kernels, one after the other; yields their names."""
    for number in range(count):
        name = f"forward_{LABELS[number % len(LABELS)]}"
        kernels.launch(name)
        yield name
