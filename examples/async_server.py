# SPDX-License-Identifier: Apache-2.0
"""Spans in asyncio: tasks interleave on one thread, and each span has the correct parent.

A small server receives requests of several clients at once, tokenizes them, waits for the model, and
responds. While one request waits, others continue.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import gpuprof  # isort: skip - before torch, so that PyTorch announces its operators to it
import torch
from torch import nn


class Server:
    """Processes one request at a time, as a model on one device does."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.turn = asyncio.Lock()

    @gpuprof.span
    async def tokenize(self, text: str) -> torch.Tensor:
        """Simulate waiting for work elsewhere."""
        await asyncio.sleep(0.001)
        return torch.tensor([[float(len(word)) for word in text.split()]])

    async def respond(self, text: str) -> float:
        """Serve one request."""
        with gpuprof.span("request"):
            tokens = await self.tokenize(text)
            with gpuprof.span("wait for the model"):
                await self.turn.acquire()
            try:
                with gpuprof.span("infer"), torch.inference_mode():
                    score = float(self.model(tokens))
                    await asyncio.sleep(0)  # others may run, while this span is open
            finally:
                self.turn.release()
            return score


async def client(server: Server, name: str, requests: int) -> None:
    """Send requests one after the other."""
    with gpuprof.span(f"client {name}"):
        for _ in range(requests):
            await server.respond("the quick brown fox")


async def serve(model: nn.Module, requests: int) -> None:
    """Serve three clients at once."""
    server = Server(model)
    await asyncio.gather(*(client(server, name, requests) for name in "ABC"))


def main() -> None:
    """Record the server, then print where the time of each client went."""
    parser = argparse.ArgumentParser(description="Spans in asyncio tasks.")
    parser.add_argument("--requests", type=int, default=20, help="requests of each client (20)")
    parser.add_argument("--out", type=Path, default=Path("async.gpuprof"), help="the run's folder")
    options = parser.parse_args()

    model = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 1)).eval()
    with gpuprof.profile(model, out=options.out) as recording:
        asyncio.run(serve(model, options.requests))
    print(recording.run.summary(by="span"))
    print(
        recording.run.sql("""
            SELECT client.name AS client, count(*) AS requests,
                   round(avg(request.duration_ns) / 1e6, 2) AS mean_ms
            FROM spans AS request JOIN spans AS client ON request.parent_id = client.span_id
            WHERE request.name = 'request'
            GROUP BY 1 ORDER BY 1
        """)
    )


if __name__ == "__main__":
    main()
