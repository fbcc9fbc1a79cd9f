# SPDX-License-Identifier: Apache-2.0
"""The cost of a model per call, and whether a change made it faster, over several process runs."""

import argparse

import torch

import gpuprof
from gpuprof.bench.benchmark import plan_for, run_callables
from gpuprof.bench.config import Settings
from gpuprof.stats.ratio_test import compare

BATCH, WIDTH = 8, 256


def model(activation: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), activation, torch.nn.Linear(WIDTH, 10)).eval()


GELU, RELU = model(torch.nn.GELU()), model(torch.nn.ReLU())


# Fresh processes find these functions by name.
def with_gelu(inputs: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return GELU(inputs)


def with_relu(inputs: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return RELU(inputs)


def inputs() -> torch.Tensor:
    return torch.ones(BATCH, WIDTH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=3)
    launches = parser.parse_args().launches
    # In this process.
    print(gpuprof.benchmark(with_gelu, inputs, duration_s=1.0), end="\n\n")
    # In fresh processes, alternating: how much process runs differ, and which function is faster.
    settings = Settings(duration_s=0.5)
    plans = {"gelu": plan_for(with_gelu, inputs, settings), "relu": plan_for(with_relu, inputs, settings)}
    results = run_callables(plans, launches).results()
    verdict = compare(results["gelu"].launch_figures(), results["relu"].launch_figures())
    print("ReLU compared with GELU:", verdict)


if __name__ == "__main__":
    main()
