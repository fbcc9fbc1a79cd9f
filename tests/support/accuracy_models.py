# SPDX-License-Identifier: Apache-2.0
"""Small networks for comparisons, and errors to plant into copies of them."""

from __future__ import annotations

import copy

import torch
from torch import nn

torch.set_num_threads(1)  # The networks are too small for more.

CLASSES = 10
CONVOLUTIONAL, PERCEPTRON = "convolutional", "perceptron"
# For each network: its inputs' shape, the layer that errors are planted into, the head.
PLACES = {CONVOLUTIONAL: ((3, 8, 8), "6", "14"), PERCEPTRON: ((12,), "4", "8")}


def network(kind):
    torch.manual_seed(0)
    if kind == PERCEPTRON:
        layers = [nn.Linear(12, 24), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Linear(24, 24), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(24, CLASSES))
    else:
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
        for _ in range(3):
            layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES))
    model.eval()
    # As in a trained network, every class is predicted.
    inputs = torch.randn(200, *PLACES[kind][0])
    with torch.no_grad():
        scores = model(inputs)
        model[-1].weight /= scores.std(0)[:, None]
        model[-1].bias -= scores.mean(0)
        model[-1].bias /= scores.std(0)
    return model


def loader(model, kind, batches=5, size=32):
    generator = torch.Generator().manual_seed(1)
    for _ in range(batches):
        inputs = torch.randn(size, *PLACES[kind][0], generator=generator)
        with torch.no_grad():
            yield inputs, model(inputs).argmax(1)


def rounded_to_4_bits(model, path):
    """Return a copy with one layer's weights rounded."""
    changed = copy.deepcopy(model)
    weight = changed.get_submodule(path).weight
    with torch.no_grad():
        step = weight.abs().max() / 7
        weight.copy_((weight / step).round() * step)
    return changed


def with_nan(model, path, channel):
    """Return a copy with a NaN among the weights of one channel."""
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.get_submodule(path).weight[channel].view(-1)[0] = float("nan")
    return changed


def with_swapped_classes(model, one, other):
    """Return a copy whose last layer has two rows exchanged."""
    changed = copy.deepcopy(model)
    order = list(range(CLASSES))
    order[one], order[other] = other, one
    with torch.no_grad():
        changed[-1].weight.copy_(changed[-1].weight[order].clone())
        changed[-1].bias.copy_(changed[-1].bias[order].clone())
    return changed


def state_of(model):
    """Return what a comparison must leave as it is."""
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    return tensors, modes, hooks, [id(each) for each in model.buffers()]


def is_same_state(one, other):
    """Compare two results of `state_of`."""
    same = one[0].keys() == other[0].keys() and all(
        torch.equal(value, other[0][name]) for name, value in one[0].items()
    )
    return same and one[1:] == other[1:]
