# SPDX-License-Identifier: Apache-2.0
"""What a model costs per call, and whether a change made it faster: launches are what is compared."""

import argparse

import torch

import gpuprof
from gpuprof.bench.comparison import compare

BATCH, WIDTH = 8, 256


def model(activation: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), activation, torch.nn.Linear(WIDTH, 10)).eval()


GELU, RELU = model(torch.nn.GELU()), model(torch.nn.ReLU())


# Fresh processes find what they measure by its name.
@torch.inference_mode()
def with_gelu(inputs: torch.Tensor) -> torch.Tensor:
    return GELU(inputs)


@torch.inference_mode()
def with_relu(inputs: torch.Tensor) -> torch.Tensor:
    return RELU(inputs)


def inputs() -> torch.Tensor:
    return torch.ones(BATCH, WIDTH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=3)
    launches = parser.parse_args().launches
    # In this process: what a call costs here and now.
    print(gpuprof.benchmark(with_gelu, inputs, duration_s=1.0), end="\n\n")
    # In fresh processes: how much runs differ. `gpuprof.bench.launches` interleaves several configurations.
    old = gpuprof.benchmark(with_gelu, inputs, duration_s=0.5, launches=launches)
    new = gpuprof.benchmark(with_relu, inputs, duration_s=0.5, launches=launches)
    print("ReLU against GELU:", compare(old.launch_figures(), new.launch_figures()))


if __name__ == "__main__":
    main()
