# SPDX-License-Identifier: Apache-2.0
"""Training programs with a planted cause of lost time, and the same ones repaired."""
# mypy: allow-subclassing-any

from __future__ import annotations

import atexit
import gc
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import gpuprof
from examples.transformer import LanguageModel
from gpuprof.analyze.findings.finding import Rule
from gpuprof.record.processor import usable_processors

Steps = Callable[[int], None]


@dataclass
class Cause:
    """A slow program and its repair.

    `rule` is that of the finding, None if it is no cause. `changes` are what `run.whatif` is given. If no
    replay has the repair, it is None, and the gain is that of the finding: `model` is recorded with its work,
    for a re-run or a bound.
    """

    slow: Steps
    repaired: Steps
    changes: dict[str, Any] | None
    rule: Rule | None = None
    model: torch.nn.Module | None = None
    batch: int = 1  # steps of one measurement; more where a queue needs them


class Training:
    """Trains a small language model."""

    def __init__(self, layers: int = 4, *, fused: bool = True) -> None:
        torch.manual_seed(0)
        self.tokens = torch.randint(0, 512, (4, 65))
        self.model = LanguageModel(layers, width=128, heads=4, context=64)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=fused)

    def step(self, tokens: torch.Tensor | None = None) -> None:
        """Train with a batch of `tokens` (4 x 65 numbers), or always the same one."""
        tokens = self.tokens if tokens is None else tokens
        loss = functional.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def steps(self, count: int) -> None:
        """Train with the same batch."""
        for _ in range(count):
            self.step()


class Samples:
    """Samples that take time to fetch."""

    def __init__(self, fetch: Callable[[], None]) -> None:
        self.fetch = fetch
        self.sample = torch.randint(0, 512, (65,))

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.fetch()
        return self.sample


def compute() -> None:
    """Compute for some milliseconds."""
    total = 0
    for number in range(50_000):
        total += number * number % 7


def in_process_loader() -> Cause:
    """Fetch in the main process, by computing."""
    training = Training()
    batches = iter(DataLoader(Samples(compute), batch_size=4))

    def slow(count: int) -> None:
        for _ in range(count):
            training.step(next(batches))

    return Cause(slow, training.steps, {"remove": "enumerate(DataLoader)*"}, Rule.LOADER)


def with_workers(fetch: Callable[[], None], workers: int, threads: int = 1) -> Cause:
    """Fetch in the main process; workers are the repair. Operators use so many threads."""
    training = Training()
    samples = Samples(fetch)
    batches = iter(DataLoader(samples, batch_size=4))
    fetched = iter(DataLoader(samples, batch_size=4, num_workers=workers))

    def take(batches: Iterator[torch.Tensor]) -> Steps:
        def steps(count: int) -> None:
            torch.set_num_threads(threads)
            for _ in range(count):
                training.step(next(batches))

        return steps

    take(fetched)(4 * workers)  # the queue is full
    return Cause(take(batches), take(fetched), {"workers": workers}, batch=10 * workers)


def sleeping_loader(workers: int) -> Cause:
    """Fetch by waiting: a batch takes 32 ms and a step 20 to 30 ms, so that one worker is too slow."""
    return with_workers(lambda: time.sleep(0.008), workers)


def computing_loader(workers: int, threads: int = 1) -> Cause:
    """Fetch by computing, which takes a processor from the operators if they use all."""
    return with_workers(compute, workers, threads)


def collections(every: int = 1) -> Cause:
    """Collect all garbage in each step, or in each `every`-th one: then the median step has no collection."""
    training = Training(2)
    kept = [{number: [number]} for number in range(60_000)]
    numbers = itertools.count(1)

    def collect() -> None:
        gc.collect()

    def slow(count: int) -> None:
        for _ in range(count):
            training.step()
            if next(numbers) % every == 0:
                collect()
        assert kept

    return Cause(slow, training.steps, {"remove": "gc:*"}, Rule.COLLECTIONS, batch=every)


def logged_norms() -> Cause:
    """Write the norms of all parameters and gradients to a log in each step."""
    training = Training()
    log = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the program

    def write_norms() -> None:
        for name, parameter in list(training.model.named_parameters()) * 3:
            gradient = parameter.grad
            assert gradient is not None
            print(name, parameter.norm().item(), gradient.norm().item(), file=log)

    def slow(count: int) -> None:
        for _ in range(count):
            training.step()
            with gpuprof.span("log"):
                write_norms()

    return Cause(slow, training.steps, {"remove": "span:log"}, Rule.LOGGING)


def two_layers_more() -> Cause:
    """Remove two of six blocks; their part of the optimizer's step has no name in the recording."""
    large, small = Training(6), Training(4)
    return Cause(large.steps, small.steps, {"remove": ["layer:layers.4", "layer:layers.5"]})


def prefetched() -> Cause:
    """Fetch ahead in a thread: this time is hidden."""
    training = Training()

    def queued(fetch: Callable[[], None]) -> Steps:
        batches: queue.Queue[torch.Tensor] = queue.Queue(2)

        def produce() -> None:
            while True:
                with gpuprof.span("fetch"):
                    fetch()
                batches.put(training.tokens)

        threading.Thread(target=produce, daemon=True).start()

        def steps(count: int) -> None:
            for _ in range(count):
                training.step(batches.get())

        return steps

    slow, repaired = queued(lambda: time.sleep(0.008)), queued(lambda: None)
    return Cause(slow, repaired, {"remove": "span:fetch"}, batch=10)


def waiting_for_a_file() -> Cause:
    """Wait in each step, as for a file or a lock."""
    training = Training()

    def wait() -> None:
        time.sleep(0.02)

    def slow(count: int) -> None:
        for _ in range(count):
            training.step()
            wait()

    return Cause(slow, training.steps, {"remove": "python:*wait"}, Rule.WAITING)


def waiting_for_a_lock() -> Cause:
    """Wait in each step for a lock that another thread holds."""
    training = Training()
    lock, is_held, is_wanted = threading.Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        while True:
            is_wanted.wait()
            is_wanted.clear()
            with lock:
                is_held.set()
                time.sleep(0.02)

    threading.Thread(target=hold, daemon=True).start()

    def take_lock() -> None:
        is_wanted.set()
        is_held.wait()
        is_held.clear()
        with lock:
            pass

    def slow(count: int) -> None:
        for _ in range(count):
            training.step()
            take_lock()

    return Cause(slow, training.steps, {"remove": "python:*take_lock"}, Rule.WAITING)


def optimizer_loop() -> Cause:
    """Update parameter by parameter; the fused optimizer is the repair."""
    training = Training(fused=False)
    return Cause(training.steps, Training().steps, None, Rule.OPTIMIZER, training.model)


def too_many_threads() -> Cause:
    """Calculate with four times as many threads as there are processors."""
    training = Training()
    processors = len(usable_processors())

    def with_threads(count: int) -> Steps:
        def steps(number: int) -> None:
            torch.set_num_threads(count)  # and it remains, because the recording reads it at its end
            training.steps(number)

        return steps

    slow, repaired = with_threads(4 * processors), with_threads(processors)
    return Cause(slow, repaired, None, Rule.THREADS, training.model)


def subnormal_numbers() -> Cause:
    """Calculate with numbers below the normal range, which are zero after the repair."""
    training = Training()
    values = torch.full((1_000_000,), -100.0)

    def flushing(flush: bool) -> Steps:
        def steps(count: int) -> None:
            torch.set_flush_denormal(flush)
            for _ in range(count):
                training.step()
                functional.softplus(values)
            torch.set_flush_denormal(False)

        return steps

    return Cause(flushing(False), flushing(True), None, Rule.SUBNORMALS, training.model)


def faster_function() -> Cause:
    """Make a function before each step three times as fast."""
    training = Training()

    def part(rounds: int) -> Steps:
        def normalize() -> None:
            with gpuprof.span("normalize"):
                for _ in range(rounds):
                    compute()

        def steps(count: int) -> None:
            for _ in range(count):
                normalize()
                training.step()

        return steps

    return Cause(part(6), part(2), {"speed_up": {"span:normalize": 3}})


class Tokens:
    """Trains a classifier of token sequences with one batch."""

    def __init__(self, model: torch.nn.Module, tokens: torch.Tensor) -> None:
        self.model, self.tokens = model, tokens
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def steps(self, count: int) -> None:
        """Train."""
        for _ in range(count):
            loss = self.model(self.tokens).float().square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


class Encoder(torch.nn.Module):
    """A small transformer that masks padding, which is token 0."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(512, 128, padding_idx=0)
        layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a vector for each sequence."""
        found: torch.Tensor = self.layers(self.embedding(tokens), src_key_padding_mask=tokens == 0)
        return found.mean(1)


def padded_batches() -> Cause:
    """Fill sequences of 40 tokens up to 128."""
    torch.manual_seed(0)
    tokens = torch.randint(1, 512, (8, 128))
    tokens[:, 40:] = 0
    model = Encoder()
    slow, repaired = Tokens(model, tokens), Tokens(model, tokens[:, :40].contiguous())
    return Cause(slow.steps, repaired.steps, None, Rule.PADDING, model)


def dense_gradients() -> Cause:
    """Train a large table of which a step uses few rows."""

    def training(*, is_sparse: bool) -> Tokens:
        torch.manual_seed(0)
        layers = torch.nn.Embedding(100_000, 64, sparse=is_sparse), torch.nn.Linear(64, 512)
        return Tokens(torch.nn.Sequential(*layers), torch.randint(0, 100_000, (16, 64)))

    slow = training(is_sparse=False)
    return Cause(slow.steps, training(is_sparse=True).steps, None, Rule.LOOKUPS, slow.model)


class Fp32LayerNorm(torch.nn.LayerNorm):
    """Calculates in fp32, whatever the type of its input."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the normalized values in the type of the input."""
        return super().forward(values.float()).to(values.dtype)


class Layers(torch.nn.Module):
    """Normalization layers before a product in bfloat16, which has most of the FLOPs.

    It is small: processors without instructions for bfloat16 need long for it.
    """

    def __init__(self, kind: type[torch.nn.LayerNorm], dtype: torch.dtype) -> None:
        super().__init__()
        norms = [kind(512, dtype=dtype) for _ in range(24)]
        product = torch.nn.Linear(512, 128, dtype=torch.bfloat16)
        self.layers = torch.nn.Sequential(*norms, product)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values after all layers."""
        found: torch.Tensor = self.layers(values)
        return found


def norms_in_fp32() -> Cause:
    """Normalize in fp32 in a model whose products are in bfloat16."""

    def training(kind: type[torch.nn.LayerNorm], dtype: torch.dtype) -> Tokens:
        torch.manual_seed(0)
        return Tokens(Layers(kind, dtype), torch.randn(1024, 512, dtype=torch.bfloat16))

    slow = training(Fp32LayerNorm, torch.float32)
    repaired = training(torch.nn.LayerNorm, torch.bfloat16)
    return Cause(slow.steps, repaired.steps, None, Rule.FP32_NORMS, slow.model)


def computing_thread() -> Cause:
    """Execute Python code in another thread, which takes the interpreter lock; a process is the repair.

    The process needs as much of the processors as the thread.
    """
    training = Training()
    is_wanted = threading.Event()

    def prepare() -> None:
        while True:
            is_wanted.wait()
            compute()

    threading.Thread(target=prepare, daemon=True).start()

    def slow(count: int) -> None:
        is_wanted.set()
        training.steps(count)
        is_wanted.clear()

    code = "while True: sum(number * number % 7 for number in range(50_000))"
    process = subprocess.Popen([sys.executable, "-c", code])
    process.send_signal(signal.SIGSTOP)
    atexit.register(process.kill)

    def repaired(count: int) -> None:
        process.send_signal(signal.SIGCONT)
        training.steps(count)
        process.send_signal(signal.SIGSTOP)

    return Cause(slow, repaired, None, Rule.INTERPRETER_LOCK, training.model)


CAUSES: dict[str, Callable[[], Cause]] = {
    "loader in the main process": in_process_loader,
    "sleeping loader, 1 worker": lambda: sleeping_loader(1),
    "sleeping loader, 2 workers": lambda: sleeping_loader(2),
    "computing loader, 1 worker": lambda: computing_loader(1),
    "computing loader, 2 workers": lambda: computing_loader(2),
    "computing loader, all threads": lambda: computing_loader(2, len(usable_processors())),
    "garbage collection": collections,
    "collection each 10th step": lambda: collections(10),
    "logged norms": logged_norms,
    "two of six layers": two_layers_more,
    "prefetched batches": prefetched,
    "wait in each step": waiting_for_a_file,
    "lock in each step": waiting_for_a_lock,
    "optimizer loop": optimizer_loop,
    "too many threads": too_many_threads,
    "subnormal numbers": subnormal_numbers,
    "function 3 times as fast": faster_function,
    "padded batches": padded_batches,
    "dense gradients": dense_gradients,
    "norms in fp32": norms_in_fp32,
    "computing thread": computing_thread,
}
