# SPDX-License-Identifier: Apache-2.0
"""Windows of a long program: a training loop that is recorded for a part of its time."""

import argparse
import tempfile
import time
from pathlib import Path

import torch

import gpuprof


def main() -> None:
    """Train for some seconds, and print where the time of the last window went."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    values = torch.randn(32, 64)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.windows")
        with gpuprof.windows(out=path, every="400ms", duration="100ms", when="step > p99") as windows:
            end = time.monotonic() + options.seconds
            while time.monotonic() < end:
                optimizer.zero_grad()
                model(values).square().mean().backward()
                optimizer.step()
        for window in windows.index["windows"]:
            print(window["run"], window["reason"], *window["kept_as"], window["steps"], "steps")
        if windows.runs:
            print(windows.runs[-1].summary())


if __name__ == "__main__":
    main()
