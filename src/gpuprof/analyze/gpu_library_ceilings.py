# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's matrix products reach on a GPU. For a process that does nothing else."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from gpuprof.analyze.ceiling_rows import Ceiling, relative_spread

# Large enough for every multiprocessor; what is slow here takes a smaller one.
_SIZES = {"fp64": 4096, "fp32": 8192, "tf32": 8192, "fp16": 8192, "bf16": 8192, "int8": 8192, "fp8": 8192}
_LEAST_TIMES = 3
_Product = Callable[[], object]


def gpu_library_ceilings(device: str, seconds: float) -> Iterator[Ceiling]:
    """Yield a row for each type that PyTorch multiplies on `device`, each in about `seconds`."""
    torch = importlib.import_module("torch")
    with torch.no_grad(), torch.autocast("cuda", enabled=False), torch.cuda.device(device):
        for dtype, size in _SIZES.items():
            # A type that this build, this GPU or its memory cannot multiply has no row.
            with contextlib.suppress(RuntimeError, TypeError, AttributeError, ValueError):
                yield _ceiling(torch, device, dtype, size, seconds)
            torch.cuda.empty_cache()


def _ceiling(torch: Any, device: str, dtype: str, size: int, seconds: float) -> Ceiling:
    with _precision(torch, "high" if dtype == "tf32" else "highest"):
        name, product = _product(torch, device, dtype, size)
        times_ms = _times_ms(torch, product, seconds)
    rates = [2.0 * size**3 / ms * 1e3 for ms in times_ms]
    method = f"{name} {size}x{size}"
    return Ceiling(device, "compute.matmul", dtype, max(rates), "flop_per_s", relative_spread(rates), method)


@contextlib.contextmanager
def _precision(torch: Any, precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _product(torch: Any, device: str, dtype: str, size: int) -> tuple[str, _Product]:
    # Values as networks have them: how fast a GPU clocks depends on how many bits change.
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    if dtype == "int8":
        left, right = ((each * 30).to(torch.int8) for each in (a, b))
        return "torch._int_mm", lambda: torch._int_mm(left, right)
    if dtype == "fp8":
        return "torch._scaled_mm", _scaled_product(torch, device, a, b)
    kinds = {"fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16}
    left, right = (each.to(kinds.get(dtype, torch.float32)) for each in (a, b))
    out = torch.empty_like(left)
    return "torch.mm", lambda: torch.mm(left, right, out=out)


def _scaled_product(torch: Any, device: str, a: Any, b: Any) -> _Product:
    left, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _times_ms(torch: Any, product: _Product, seconds: float) -> list[float]:
    """Return the times of products by events on the GPU; two more warm up before."""
    for _ in range(2):
        product()
    torch.cuda.synchronize()
    times: list[float] = []
    end_s = time.monotonic() + seconds
    while len(times) < _LEAST_TIMES or time.monotonic() < end_s:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        product()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return times
