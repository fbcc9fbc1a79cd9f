# SPDX-License-Identifier: Apache-2.0
"""Device memory while kernels of a CUDA graph are recorded: `python -m benchmarks.gpu._growth`.

Prints a line of JSON after each hundred replays of a graph of a thousand kernels: bytes of device memory
taken since the recording began; at the end the counts of the run.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

# isort: off
import gpuprof  # before torch, so that PyTorch finds its operator collector
import torch

# isort: on

KERNELS = 1000
REPLAYS = 1500
BETWEEN = 100


def main() -> None:
    """Replay, and print what is taken meanwhile."""
    numbers = torch.zeros(1024, device="cuda")
    numbers.add_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(KERNELS):
            numbers.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        with gpuprof.profile(out=Path(folder) / "run", layers=False, operators=False) as recording:
            free = torch.cuda.mem_get_info()[0]
            for number in range(1, REPLAYS + 1):
                graph.replay()
                if number % BETWEEN == 0:
                    torch.cuda.synchronize()
                    taken = free - torch.cuda.mem_get_info()[0]
                    print(json.dumps({"kernels": KERNELS * number, "taken_bytes": taken}), flush=True)
        meta = recording.run.meta
        print(json.dumps({"gpu": meta["gpu"], "complete": meta["complete"], "notes": meta["notes"]}))


if __name__ == "__main__":
    main()
