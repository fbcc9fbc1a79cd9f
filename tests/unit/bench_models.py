# SPDX-License-Identifier: Apache-2.0
"""Factories that `gpuprof bench` is pointed at; each with what may go wrong."""

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

    if os.fork() == 0:  # a child that outlives the launch, as a data loader's worker may
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
