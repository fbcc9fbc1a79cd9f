# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's own kernels reach here, and what it costs at least to dispatch an operator.

PyTorch runs them on its own threads, as many as it is set to: no setting of the program is changed.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from gpuprof.analyze.ceiling_rows import ALL_CORES, Ceiling, relative_spread

MATRIX_SIZE = 1536
# Batch, channels and the result's edge of a 3x3 convolution such as residual networks are made of.
IMAGES, CHANNELS, EDGE = 8, 64, 56
_ADDITIONS = 500
_TYPES = {"fp32": "float32", "bf16": "bfloat16"}


def library_ceilings(seconds: float) -> Iterator[Ceiling]:
    """Yield one measurement after the other, each in about `seconds`; raises what PyTorch raises."""
    torch = importlib.import_module("torch")
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for dtype, name in _TYPES.items():
            yield from _matrix_product(torch, dtype, getattr(torch, name), seconds)
            yield from _convolution(torch, dtype, getattr(torch, name), seconds)


def launch_ceiling(seconds: float) -> Ceiling:
    """Return the least time from one `aten::add` of a single number to the next, called from Python."""
    torch = importlib.import_module("torch")
    a, b = (torch.ones(1, dtype=torch.float32, device="cpu") for _ in range(2))
    add = torch.add

    def batch() -> None:
        for _ in range(_ADDITIONS):
            add(a, b)

    with torch.no_grad():
        times_ns = [ns / _ADDITIONS for ns in _repeat(batch, seconds)]
    method = "aten::add of 1 number, from Python"
    return Ceiling(ALL_CORES, "launch", None, min(times_ns), "ns", relative_spread(times_ns), method)


def _matrix_product(torch: Any, dtype: str, kind: Any, seconds: float) -> Iterator[Ceiling]:
    n = MATRIX_SIZE
    a, b, out = (torch.ones(n, n, dtype=kind, device="cpu") for _ in range(3))
    what = f"torch.mm {n}x{n}"
    flops = 2.0 * n**3
    yield from _rate(torch, "compute.matmul", dtype, flops, what, lambda: torch.mm(a, b, out=out), seconds)


def _convolution(torch: Any, dtype: str, kind: Any, seconds: float) -> Iterator[Ceiling]:
    # Without padding, so that each product that is counted is one that is made.
    options = {"dtype": kind, "device": "cpu"}
    images = torch.ones(IMAGES, CHANNELS, EDGE + 2, EDGE + 2, **options)
    weights = torch.ones(CHANNELS, CHANNELS, 3, 3, **options)
    images, weights = (each.to(memory_format=torch.channels_last) for each in (images, weights))
    what = f"torch.conv2d 3x3x{CHANNELS}"
    flops = 2.0 * IMAGES * EDGE**2 * CHANNELS**2 * 9
    call = functools.partial(torch.conv2d, images, weights)
    yield from _rate(torch, "compute.convolution", dtype, flops, what, call, seconds)


def _rate(
    torch: Any,
    resource: str,
    dtype: str,
    flops: float,
    what: str,
    call: Callable[[], object],
    seconds: float,
) -> Iterator[Ceiling]:
    try:
        rates = [flops / ns * 1e9 for ns in _repeat(call, seconds)]
    except RuntimeError:
        # A build that lacks the product in this type: no ceiling, and no other of this type suffers.
        return
    method = f"{what}, {torch.get_num_threads()} threads"
    yield Ceiling(ALL_CORES, resource, dtype, max(rates), "flop_per_s", relative_spread(rates), method)


def _repeat(call: Callable[[], object], seconds: float) -> list[int]:
    """Return the times of calls for about `seconds`; one more warms up before.

    Three at least, unless the product is so slow here that they would take three times as long.
    """
    start_ns = time.perf_counter_ns()
    enough_ns, longest_ns = start_ns + int(seconds * 1e9), start_ns + int(3 * seconds * 1e9)
    call()
    times_ns: list[int] = []
    while True:
        start_ns = time.perf_counter_ns()
        call()
        end_ns = time.perf_counter_ns()
        times_ns.append(end_ns - start_ns)
        if end_ns >= (enough_ns if len(times_ns) >= 3 else longest_ns):
            return times_ns
