# SPDX-License-Identifier: Apache-2.0
"""What is run under each profiler. A step is the smallest thing that is worth repeating."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.gpu._networks import Decoder, ResNet


@dataclass(frozen=True, slots=True)
class Job:
    """A workload made ready: `step` runs once without waiting for the GPU; `model` names its layers."""

    step: Callable[[], object]
    model: nn.Module | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the networks are; the defaults are those that are reported."""

    elements: int = 1024
    launches: int = 100
    image: int = 224
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    batch: int = 32
    layers: int = 12
    states: int = 1024
    heads: int = 16
    vocabulary: int = 32_000
    context: int = 512
    prompt: int = 1024
    prompts: int = 4
    matrix: int = 512

    @classmethod
    def tiny(cls) -> Sizes:
        """Return what a test can afford."""
        return cls(
            elements=8,
            launches=3,
            image=32,
            blocks=(1, 1, 1, 1),
            width=4,
            batch=2,
            layers=2,
            states=32,
            heads=2,
            vocabulary=64,
            context=8,
            prompt=8,
            prompts=2,
            matrix=16,
        )


Make = Callable[[torch.device, Sizes], Job]


@dataclass(frozen=True, slots=True)
class Workload:
    """`budget` is the largest ratio to unprofiled that the design allows gpuprof, or None.

    `captured_before`: a CUDA graph that is captured before the profiler starts.
    """

    what: str
    make: Make
    budget: float | None = None
    needs_cuda: bool = False
    captured_before: bool = False


def _small_kernels(device: torch.device, sizes: Sizes) -> Job:
    numbers = torch.zeros(sizes.elements, device=device)

    def step() -> None:
        for _ in range(sizes.launches):
            numbers.add_(1)

    return Job(step)


def _convnet_inference(batch: int) -> Make:
    def make(device: torch.device, sizes: Sizes) -> Job:
        model, images = _convnet(device, sizes, batch)
        model.eval()

        def step() -> None:
            with torch.no_grad():
                model(images)

        return Job(step, model)

    return make


def _convnet_training(batch: int) -> Make:
    def make(device: torch.device, sizes: Sizes) -> Job:
        # A normalization over one value of each channel is refused: small images end in 1 by 1.
        model, images = _convnet(device, sizes, max(batch, 2) if sizes.image < 64 else batch)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
        labels = torch.zeros(len(images), dtype=torch.long, device=device)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

        return Job(step, model)

    return make


def _convnet(device: torch.device, sizes: Sizes, batch: int) -> tuple[nn.Module, torch.Tensor]:
    count = min(batch, sizes.batch)
    model = ResNet(sizes.blocks, sizes.width).to(device)
    return model, torch.randn(count, 3, sizes.image, sizes.image, device=device)


def _decoder(device: torch.device, sizes: Sizes, batch: int, length: int) -> Decoder:
    model = Decoder(
        layers=sizes.layers,
        width=sizes.states,
        heads=sizes.heads,
        vocabulary=sizes.vocabulary,
        batch=batch,
        length=length,
    )
    model.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32).eval()
    return model


def _decode(device: torch.device, sizes: Sizes) -> Job:
    model = _decoder(device, sizes, 1, sizes.context)
    token = torch.zeros(1, 1, dtype=torch.long, device=device)

    def step() -> None:
        with torch.no_grad():
            model(token, sizes.context - 1)

    return Job(step, model)


def _prefill(device: torch.device, sizes: Sizes) -> Job:
    model = _decoder(device, sizes, sizes.prompts, sizes.prompt)
    tokens = torch.zeros(sizes.prompts, sizes.prompt, dtype=torch.long, device=device)

    def step() -> None:
        with torch.no_grad():
            model(tokens, 0)

    return Job(step, model)


def _captured(job: Job) -> Job:
    """Return the same step as the replay of a CUDA graph, captured now."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            job.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        job.step()
    return Job(graph.replay, job.model)


def _graph_of_small_kernels(device: torch.device, sizes: Sizes) -> Job:
    return _captured(_small_kernels(device, sizes))


def _graph_of_decode(device: torch.device, sizes: Sizes) -> Job:
    return _captured(_decode(device, sizes))


def _streams(device: torch.device, sizes: Sizes) -> Job:
    streams = [torch.cuda.Stream(device) for _ in range(4)]
    matrices = [torch.randn(sizes.matrix, sizes.matrix, device=device) for _ in streams]

    def step() -> None:
        for stream, matrix in zip(streams, matrices, strict=True):
            with torch.cuda.stream(stream):
                for _ in range(5):
                    torch.mm(matrix, matrix)

    return Job(step)


def _compiled(device: torch.device, sizes: Sizes) -> Job:
    width = sizes.states
    model = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
    model = model.to(device)
    compiled: Any = torch.compile(model)
    states = torch.randn(8, width, device=device)

    def step() -> None:
        with torch.no_grad():
            compiled(states)

    return Job(step, model)


WORKLOADS: dict[str, Workload] = {
    "small_kernels": Workload("100 small kernels, one after the other", _small_kernels, 1.10),
    "convnet.inference.1": Workload("ResNet-50, forward, batch 1", _convnet_inference(1), 1.01),
    "convnet.inference.32": Workload("ResNet-50, forward, batch 32", _convnet_inference(32), 1.01),
    "convnet.training.1": Workload("ResNet-50, training step, batch 1", _convnet_training(1), 1.01),
    "convnet.training.32": Workload("ResNet-50, training step, batch 32", _convnet_training(32), 1.01),
    "transformer.decode": Workload("12 decoder layers, one token after 511", _decode, 1.01),
    "transformer.prefill": Workload("12 decoder layers, 4 prompts of 1024 tokens", _prefill, 1.01),
    "graph.small_kernels": Workload(
        "replay of a CUDA graph of 100 small kernels",
        _graph_of_small_kernels,
        1.10,
        needs_cuda=True,
        captured_before=True,
    ),
    "graph.decode": Workload(
        "replay of a CUDA graph of one token",
        _graph_of_decode,
        1.01,
        needs_cuda=True,
        captured_before=True,
    ),
    "streams": Workload("20 matrix products on 4 streams", _streams, needs_cuda=True),
    "compiled": Workload("a block under torch.compile", _compiled),
}
