# SPDX-License-Identifier: Apache-2.0
"""Compare the outputs of a smaller dtype with the baseline, and find the first layer that diverges."""

import argparse
import copy
from collections.abc import Iterator

import torch
from torch import nn

from gpuprof.bench import compare_layers, compare_outputs

BATCH, CLASSES = 64, 10


def network() -> nn.Sequential:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    convolutions = [
        nn.Sequential(nn.Conv2d(inputs, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        for inputs in (3, 16, 16)
    ]
    head = nn.Linear(256, CLASSES)
    model = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(4), nn.Flatten(), head).eval()
    with torch.no_grad():
        # Without training, but every class is predicted, as after training.
        head.bias -= model(images(256)).mean(0)
    return model


def images(samples: int) -> torch.Tensor:
    return torch.randn(samples, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def labeled(model: nn.Module, samples: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield inputs and labels, as a DataLoader does: the model's own predictions, a tenth of them wrong."""
    for batch in images(samples).split(BATCH):
        with torch.no_grad():
            labels = model(batch).argmax(1)
        labels[::10] = (labels[::10] + 1) % CLASSES
        yield batch, labels


def with_4_bits(model: nn.Sequential, layer: str) -> nn.Sequential:
    """Return a copy with the weights of one layer rounded to 4 bits."""
    changed = copy.deepcopy(model)
    weight = changed.get_submodule(layer).weight
    with torch.no_grad():
        step = weight.abs().max() / 7
        weight.copy_((weight / step).round() * step)
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_024)
    samples = parser.parse_args().samples
    model = network()
    small = copy.deepcopy(model).bfloat16()
    print("--- bfloat16")
    print(compare_outputs(model, small, labeled(model, samples), reference=True), end="\n\n")
    print("--- bfloat16, and one layer of it in 4 bits")
    broken = with_4_bits(model, "1.0").bfloat16()
    print(compare_outputs(model, broken, labeled(model, samples), reference=True), end="\n\n")
    print(compare_layers(model, broken, images(8)))


if __name__ == "__main__":
    main()
