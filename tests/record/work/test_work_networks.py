# SPDX-License-Identifier: Apache-2.0
"""Published totals of networks that are built here from their definitions, by shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from work_rows import flops_of

import gpuprof

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional


def products(work: Any) -> float:
    """Return the FLOPs of convolutions and matrix products, in billions."""
    return flops_of(work, "forward", "aten::convolution", "aten::addmm", "aten::mm", "aten::bmm") / 1e9


class Residual(nn.Module):
    """A bottleneck of ResNet-50, with the stride in its 3x3 convolution (version 1.5)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *unit(channels, width, 1),
            nn.ReLU(),
            *unit(width, width, 3, stride),
            nn.ReLU(),
            *unit(width, 4 * width, 1),
        )
        same = stride == 1 and channels == 4 * width
        self.shortcut = nn.Identity() if same else nn.Sequential(*unit(channels, 4 * width, 1, stride))

    def forward(self, x: Any) -> Any:
        return F.relu(self.body(x) + self.shortcut(x))


def unit(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[Any]:
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(out)]


def resnet50() -> Any:
    layers, channels = [*unit(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Residual(channels, width, first if block == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def vgg16() -> Any:
    layers: list[Any] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


def mobilenet_v2() -> Any:
    layers, channels = [*unit(3, 32, 3, 2), nn.ReLU6()], 32
    settings = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expansion, out, count, first in settings:
        for block in range(count):
            hidden = channels * expansion
            if expansion != 1:
                layers += [*unit(channels, hidden, 1), nn.ReLU6()]
            layers += [*unit(hidden, hidden, 3, first if block == 0 else 1, groups=hidden), nn.ReLU6()]
            layers += unit(hidden, out, 1)
            channels = out
    return nn.Sequential(
        *layers, *unit(320, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)
    )


@pytest.mark.parametrize(
    ("make", "giga_multiply_adds"),
    # He et al., 2016, and the model zoo for version 1.5; Simonyan, Zisserman, 2015; Sandler et al., 2018.
    [(resnet50, 4.089), (vgg16, 15.47), (mobilenet_v2, 0.3008)],
)
def test_networks_have_their_published_totals(make: Callable[[], Any], giga_multiply_adds: float) -> None:
    with torch.device("meta"):
        model, image = make().eval(), torch.empty(1, 3, 224, 224)
    work = gpuprof.count_work(model, image)
    assert products(work) == pytest.approx(2 * giga_multiply_adds, rel=2e-3)
    assert not work.unknown
    assert work.flops / 1e9 == pytest.approx(2 * giga_multiply_adds, rel=0.08)


def test_a_bert_layer_has_the_published_total() -> None:
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, dropout=0.0)
        tokens = torch.empty(2, 128, 768)
    work = gpuprof.count_work(layer, tokens, backward=True)
    # 24 * tokens * width^2 for the maps, 4 * tokens * length * width for attention (Kaplan et al., 2020).
    forward = 24 * 256 * 768**2 + 4 * 256 * 128 * 768
    assert products(work) * 1e9 == forward
    assert flops_of(work, "backward", "aten::mm", "aten::bmm") == 2 * forward - 2 * 256 * 768 * 3 * 768
