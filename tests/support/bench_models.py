# SPDX-License-Identifier: Apache-2.0
"""Factories that `gpuprof bench` is pointed at; each with what may go wrong."""

import itertools
import time

import numpy as np


def doubled():
    return lambda batch: batch * 2


def raising():
    raise ValueError("no weights\nare here")


def not_a_number():
    return lambda batch: batch * np.nan


def changing():
    def change(batch):
        batch += 1
        return batch

    return change


def hanging_at_two():
    return lambda batch: time.sleep(3600) if len(batch) == 2 else batch * 2


def not_callable():
    return 7


def too_large_at_two():
    def grow(batch):
        if len(batch) == 2:
            raise MemoryError("Unable to allocate 9.00 EiB")
        return batch * 2

    return grow


def dying():
    import os

    return lambda batch: os.abort()


def killed():
    import os
    import signal

    return lambda batch: os.kill(os.getpid(), signal.SIGKILL)


def leaving():
    raise SystemExit(3)


def forking():
    import os

    if os.fork() == 0:  # a child that outlives the process run, as a data loader's worker may
        time.sleep(3600)
    return doubled()


def printing():
    print("hello from the factory")
    return doubled()


def with_inputs():
    return (lambda left, right: left + right), (lambda size: (np.ones(size), np.ones(size)))


def network():
    import torch

    return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def embedding():
    import torch

    return torch.nn.Embedding(100, 8), lambda size: torch.zeros(size, 12, dtype=torch.int64)


def without_memory_later():
    calls = itertools.count()

    def call(batch):
        if next(calls) > 10:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return batch

    return call


def crashing():
    import os
    import signal

    def call(batch):
        print("invalid memory access", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    return call


def hanging_later():
    calls = itertools.count()
    return lambda batch: time.sleep(3600) if next(calls) > 50 else time.sleep(0.004)


def slow():
    return lambda batch: time.sleep(0.1)


def deaf():
    """A call that blocks interrupts and never lets another thread have the interpreter."""
    import ctypes
    import os
    import signal

    def call():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.write(os.open(os.environ["HELD"], os.O_WRONLY), b"alive")
        ctypes.PyDLL(None).sleep(3600)

    return call


def flaky():
    calls = itertools.count(1)

    def call(batch):
        if next(calls) % 5 == 0:
            raise ValueError("overloaded")
        return batch * 2

    return call


def network_with_inputs():
    import torch

    return torch.nn.Linear(4, 2), lambda size: torch.ones(size, 4)


def rounded_network():
    model = network()
    weight = model[2].weight.data
    step = weight.abs().max() / 7
    model[2].weight.data = (weight / step).round() * step
    return model


def network_with_nan():
    model = network()
    model[0].weight.data[3] = float("nan")
    return model


def whole_batches(batch_size):
    return [np.full((batch_size, 3), number, np.float32) for number in range(4)]


def one_pass():
    for number in range(12):
        yield np.full((2, 3), number, np.float32), number


def no_batches():
    return []


def ending_loader():
    for number in range(12):
        yield np.full((1, 3), number, np.float32)
    raise OSError("the disk is gone")


def texts():
    return ["a", "b"]
