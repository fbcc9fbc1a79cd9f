# SPDX-License-Identifier: Apache-2.0
"""A small classifier for suite.toml: run as a program it trains it, and writes weights.pt and test.npz."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

CLASSES, FEATURES, WIDTH = 10, 64, 512
HERE = Path(__file__).resolve().parent


def network() -> torch.nn.Module:
    """Return it with random weights."""
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, CLASSES),
    )


def build() -> torch.nn.Module:
    """Return it as it was trained; this is what the suite names."""
    model = network()
    model.load_state_dict(torch.load(HERE / "weights.pt", weights_only=True))
    return model


def samples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw points around a center for each class. The classes overlap."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    return centres[labels] + 2.5 * torch.randn(count, FEATURES, generator=generator), labels


def main() -> None:
    torch.manual_seed(0)
    model, (inputs, labels) = network(), samples(4_000, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(3):
        for rows in torch.randperm(len(inputs)).split(200):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    torch.save(model.state_dict(), HERE / "weights.pt")
    inputs, labels = samples(2_000, seed=2)
    np.savez(HERE / "test.npz", inputs=inputs.numpy(), labels=labels.numpy())
    accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
    print(f"trained: accuracy {accuracy:.1%} on test.npz")


if __name__ == "__main__":
    main()
