# SPDX-License-Identifier: Apache-2.0
"""A small GPT-2 by hand: learned positions, pre-norm blocks, a cache of keys and values, the loss inside."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass
class Cache:
    """Keys and values of each block so far, as (batch, heads, time, width of a head)."""

    keys: list[Tensor]
    values: list[Tensor]

    def tokens(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, cache: Cache | None, number: int) -> Tensor:
        parts = self.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        is_causal = x.shape[1] > 1
        if cache is not None:
            if number < len(cache.keys):
                k, v = torch.cat([cache.keys[number], k], 2), torch.cat([cache.values[number], v], 2)
                cache.keys[number], cache.values[number] = k, v
            else:
                cache.keys.append(k)
                cache.values.append(v)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        x = x + self.c_proj(mixed.transpose(1, 2).flatten(2))
        return x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers: int = 2, width: int = 64, heads: int = 4, vocabulary: int = 128) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(128, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """Return the loss where there are labels, else the logits."""
        first = cache.tokens() if cache is not None else 0
        x = self.wte(tokens) + self.wpe(torch.arange(first, first + tokens.shape[1]))
        for number, block in enumerate(self.h):
            x = block(x, cache, number)
        logits = self.lm_head(self.ln_f(x))
        if labels is None:
            return logits
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def train(model: GPT2, batches: list[int], tokens: int) -> None:
    """Take a step for each batch size."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for batch in batches:
        ids = torch.randint(0, 128, (batch, tokens))
        model(ids, labels=ids).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def generate(model: GPT2, batch: int, prompt: int, count: int) -> None:
    """Read a prompt, then append the likeliest token again and again."""
    model.eval()
    cache = Cache([], [])
    tokens = torch.randint(0, 128, (batch, prompt))
    with torch.no_grad():
        for _ in range(count):
            tokens = model(tokens, cache=cache)[:, -1:].argmax(-1)
