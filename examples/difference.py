# SPDX-License-Identifier: Apache-2.0
"""The cost of a change of a model: several runs of each side, compared with confidence intervals.

    python examples/difference.py [--steps N]

Writes difference.html.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import gpuprof  # before torch, so that PyTorch announces its operators to it

# isort: split
import torch
from torch import nn

from gpuprof import api

RUNS = 3


def make_model(*, wide: bool) -> nn.Module:
    """Return a small model; the wide one has a larger layer in the middle."""
    width = 1_024 if wide else 256
    return nn.Sequential(
        nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 10)
    )


def record(path: Path, steps: int, *, wide: bool) -> gpuprof.Run:
    """Record some steps; the first, in which PyTorch sets things up, is made before."""
    model, batch = make_model(wide=wide), torch.randn(64, 256)
    model(batch).sum().backward()
    with gpuprof.profile(model, out=path) as recording:
        for _ in range(steps):
            with gpuprof.span("step"):
                model(batch).sum().backward()
    return recording.run


def main() -> None:
    """Record both sides by turns and print what changed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    new, old = [], []
    with tempfile.TemporaryDirectory() as folder:
        # In turns, so that a machine that gets slower does so for both.
        for number in range(RUNS):
            old.append(record(Path(folder) / f"old-{number}.gpuprof", steps, wide=False))
            new.append(record(Path(folder) / f"new-{number}.gpuprof", steps, wide=True))
        print(api.summary_difference(new, old))
        page = api.flamegraph_difference("difference.html", new, old)
        print(f"\nwrote {page}")


if __name__ == "__main__":
    main()
