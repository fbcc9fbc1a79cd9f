# SPDX-License-Identifier: Apache-2.0
"""Train a small language model for a few steps, then generate text.

The program does not use gpuprof. To see where its time goes:

    gpuprof run examples/transformer.py --steps 5
"""
# mypy: allow-subclassing-any

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 512


class Attention(nn.Module):
    """Causal self-attention with several heads. Tensors are (batch, time, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each position with those before it."""
        q, k, v = (self._split(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """The gated feed-forward half of a block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, 3 * width, bias=False)
        self.up_proj = nn.Linear(width, 3 * width, bias=False)
        self.down_proj = nn.Linear(3 * width, width, bias=False)
        self.activation = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Work on each position by itself."""
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One layer: attention and feed-forward, each around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        """Add what both halves found."""
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    """A decoder: tokens (batch, time) to logits (batch, time, vocabulary)."""

    def __init__(self, layers: int, width: int = 256, heads: int = 8, context: int = 128) -> None:
        super().__init__()
        self.context = context
        self.embed_tokens = nn.Embedding(VOCABULARY, width)
        self.embed_positions = nn.Embedding(context, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Predict, at each position, the token that follows."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embed_tokens(tokens) + self.embed_positions(positions)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class CountingText(Dataset):
    """Synthetic sequences that can be learnt: each counts up by its own step, modulo the vocabulary."""

    def __init__(self, sequences: int, length: int) -> None:
        self.sequences = sequences
        self.length = length

    def __len__(self) -> int:
        return self.sequences

    def __getitem__(self, index: int) -> Tensor:
        start, step = index * 37 % VOCABULARY, index % 7 + 1
        return (start + step * torch.arange(self.length + 1)) % VOCABULARY


def train(model: LanguageModel, steps: int, batch: int) -> None:
    """Take `steps` optimizer steps and print the loss of some."""
    text = CountingText(steps * batch, length=model.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for step, tokens in enumerate(DataLoader(text, batch_size=batch, shuffle=True), start=1):
        begin = time.perf_counter()
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        milliseconds = (time.perf_counter() - begin) * 1000
        if step == 1 or step == steps or step % 5 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}  {milliseconds:6.1f} ms")


def generate(model: LanguageModel, prompt: list[int], count: int) -> list[int]:
    """Append the likeliest token `count` times."""
    model.eval()
    tokens = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(count):
            logits = model(tokens[:, -model.context :])
            tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=1)
    return [int(token) for token in tokens[0]]


def main() -> None:
    """Build, train, generate."""
    parser = argparse.ArgumentParser(description="Train a small language model on synthetic text.")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps (10)")
    parser.add_argument("--layers", type=int, default=4, help="transformer blocks (4)")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a step (8)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens to generate (32)")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = LanguageModel(options.layers)
    parameters = sum(each.numel() for each in model.parameters())
    print(f"a transformer of {options.layers} layers, {parameters:,} parameters")
    train(model, options.steps, options.batch)
    begin = time.perf_counter()
    tokens = generate(model, prompt=[1, 2, 3, 4], count=options.tokens)
    print(f"generated {options.tokens} tokens in {time.perf_counter() - begin:.2f} s: {tokens[:12]} ...")


if __name__ == "__main__":
    main()
