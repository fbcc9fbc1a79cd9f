# SPDX-License-Identifier: Apache-2.0
"""Small models, and readings of what ran that owe nothing to gpuprof: hooks and torch.profiler."""

from __future__ import annotations

# Before torch, which looks for the collector of its operators while it is imported.
import gpuprof

# isort: split
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.data import DataLoader, TensorDataset

Path = tuple[str, ...]

# The models are too small for more, and a forked child cannot use its parent's threads.
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape

        def split(t: torch.Tensor) -> torch.Tensor:
            return t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        weights = (q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5).softmax(-1)
        mixed = (self.dropout(weights) @ v).transpose(1, 2).reshape(batch, length, width)
        return self.out_proj(mixed)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Own attention blocks, then PyTorch's encoder, which in eval takes a fused path of its own."""

    def __init__(self, width: int = 16, heads: int = 2, vocabulary: int = 11) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(2))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.encoder(x)).mean(1)


class Residual(nn.Module):
    def __init__(self, channels: int, activation: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation(self.bn1(self.conv1(x)))
        return self.activation(x + self.bn2(self.conv2(y)))


class ConvNet(nn.Module):
    """Residual blocks with one activation module for all of them."""

    def __init__(self, channels: int = 4, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.activation = nn.ReLU()
        self.stages = nn.Sequential(*(Residual(channels, self.activation) for _ in range(2)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stages(self.activation(self.stem(x))))
        return self.classifier(x.flatten(1))


class Mlp(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.activation = nn.ReLU()
        self.second = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.activation(self.first(x)))


class Image(torch.utils.data.Dataset):
    """Items that are made by operators, so that a worker has something to announce."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((3, 8, 8), float(index)).sin(), torch.tensor(index % 5)


MODELS: dict[str, Callable[[], nn.Module]] = {"transformer": Transformer, "convnet": ConvNet}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def make_input(model: str, batch: int = 2) -> torch.Tensor:
    if model == "transformer":
        return torch.arange(batch * 5).reshape(batch, 5) % 11
    return torch.linspace(-1, 1, batch * 3 * 8 * 8).reshape(batch, 3, 8, 8)


def make_dataset(model: str) -> Any:
    if model == "convnet":
        return Image()
    return TensorDataset(torch.arange(20).reshape(4, 5) % 11, torch.arange(4))


class Job:
    """A pass over a data set, in eval or with a full training step; every pass does the same."""

    def __init__(self, model: str, mode: str, workers: int = 2) -> None:
        torch.manual_seed(0)
        self.model = MODELS[model]()
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = OPTIMIZERS[mode](self.model.parameters()) if mode != "eval" else None
        self.model.train(mode != "eval")
        self._loader = {"dataset": make_dataset(model), "batch_size": 2, "num_workers": workers}
        if workers:
            self._loader["multiprocessing_context"] = "fork"

    def __call__(self) -> list[torch.Tensor]:
        results = []
        for inputs, targets in DataLoader(**self._loader):
            if self.optimizer is None:
                with torch.no_grad():
                    results.append(self.model(inputs))
                continue
            self.optimizer.zero_grad()
            loss = self.loss(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            results.append(loss.detach())
        return results


class Span(NamedTuple):
    """A row of the table `spans`, with what encloses it, outermost first."""

    span_id: int
    parent_id: int | None
    process_id: int
    thread_id: int
    kind: str
    name: str
    start_ns: int
    duration_ns: int
    depth: int


def small_step() -> Any:
    model, x = Mlp(), torch.randn(2, 4)

    def step() -> None:
        model(x).sum().backward()

    step()
    return step


def record(program: Callable[[], Any], *modules: nn.Module, **options: Any) -> gpuprof.Run:
    with gpuprof.profile(*modules, **options) as recording:
        program()
    return recording.run


def spans_of(run: gpuprof.Run, kind: str | None = None) -> list[Span]:
    columns = ", ".join(Span._fields)
    rows = run.sql(f"SELECT {columns} FROM spans ORDER BY process_id, start_ns, span_id").fetchall()
    return [span for span in map(Span._make, rows) if kind is None or span.kind == kind]


def layer_calls(run: gpuprof.Run) -> Counter[str]:
    return Counter(span.name for span in spans_of(run, "layer"))


def paths_of(run: gpuprof.Run, kind: str = "layer") -> list[Path]:
    """Each span's path of names, of the spans of this kind only, in the order in which they began."""
    spans = spans_of(run)
    by_id = {span.span_id: span for span in spans}

    def path(span: Span | None) -> Path:
        if span is None:
            return ()
        above = path(by_id.get(-1 if span.parent_id is None else span.parent_id))
        return (*above, span.name) if span.kind == kind else above

    return [path(span) for span in spans if span.kind == kind]


def announced(run: gpuprof.Run, process_id: int | None = None) -> Counter[str]:
    """Calls by name of everything that PyTorch announced: operators, autograd nodes, user ranges."""
    process_id = run.meta["process_id"] if process_id is None else process_id
    spans = (span for span in spans_of(run) if span.kind != "layer")
    return Counter(span.name for span in spans if span.process_id == process_id)


def torch_profile(program: Callable[[], Any], **options: Any) -> torch.profiler.profile:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, **options) as profiler:
        program()
    return profiler


def shown_counts(profiler: torch.profiler.profile) -> dict[str, int]:
    """Calls by name, of operators, autograd nodes and user ranges alike."""
    return {event.key: event.count for event in profiler.key_averages()}


def shown_nesting(profiler: torch.profiler.profile) -> Counter[tuple[str | None, str]]:
    """How often which name is called by which."""
    return Counter((e.cpu_parent and e.cpu_parent.name, e.name) for e in profiler.events())


@contextlib.contextmanager
def hooked_paths(*roots: nn.Module) -> Iterator[list[Path]]:
    """The layer calls that global hooks see. Hooks on modules would turn off the encoder's fused path."""
    names = {}
    for root in reversed(roots):
        names.update({module: name or type(root).__name__ for name, module in root.named_modules()})
    seen: list[Path] = []
    stack: list[str] = []

    def enter(module: nn.Module, _: Any) -> None:
        stack.append(names.get(module, type(module).__name__))
        seen.append(tuple(stack))

    def leave(module: nn.Module, *_: Any) -> None:
        stack.pop()

    handles = [
        torch_module.register_module_forward_pre_hook(enter),
        torch_module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def module_states(model: nn.Module) -> dict[str, Any]:
    """What every module holds, in order: which objects, and what is in those that are dictionaries."""
    return {name: [held(key, value) for key, value in vars(m).items()] for name, m in model.named_modules()}


def held(key: str, value: Any) -> Any:
    return key, id(value), list(value.items()) if isinstance(value, dict) else None
