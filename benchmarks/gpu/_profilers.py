# SPDX-License-Identifier: Apache-2.0
"""The profilers that are compared: each starts, stops and returns facts of what it recorded."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gpuprof  # before torch, so that PyTorch finds its operator collector
from benchmarks.gpu._rounds import BASE

_CUPTI_BUFFER_BYTES = 8 << 20


class Active(Protocol):
    """A profiler that records; `stop` ends it and returns facts of its recording."""

    def stop(self) -> dict[str, Any]:
        """End it."""


@dataclass(frozen=True, slots=True)
class Profiler:
    """`start(folder, model)` begins to record; `missing(device)` returns why it is unavailable, or None."""

    start: Callable[[Path, Any], Active]
    missing: Callable[[str], str | None]
    wrapper: Callable[[Path], list[str]] | None = None  # a command that goes before the child's
    is_blind_to_earlier_graphs: bool = False  # does not see kernels of graphs captured before it starts
    only_graphs: bool = False  # differs from another one in graphs alone


class _Nothing:
    def stop(self) -> dict[str, Any]:
        return {}


class _Gpuprof:
    def __init__(
        self, folder: Path, model: Any, *, everything: bool = False, whole_graphs: bool = False
    ) -> None:
        self._path = folder / f"{os.getpid()}.gpuprof"
        modules = () if model is None or not everything else (model,)
        self._wanted = ["layers", "operators"] if everything else []
        if _cuda_is_there():
            self._wanted.append("kernels")
        self._profile = gpuprof.profile(
            *modules,
            out=self._path,
            layers=everything,
            operators=everything,
            gpu="whole-graphs" if whole_graphs else "auto",
        )
        self._profile.__enter__()

    def stop(self) -> dict[str, Any]:
        self._profile.__exit__(None, None, None)
        meta = self._profile.run.meta
        if off := [name for name in self._wanted if meta["sources"][name]["state"] == "off"]:
            raise RuntimeError(f"gpuprof did not record {', '.join(off)}: {meta['sources']}")
        size = sum(file.stat().st_size for file in self._path.rglob("*") if file.is_file())
        shutil.rmtree(self._path)
        kept = {key: meta[key] for key in ("complete", "sources", "totals", "gpu", "notes")}
        return {**kept, "bytes": size}


class _TorchProfiler:
    def __init__(self, *, cpu: bool, cuda: bool) -> None:
        from torch.profiler import ProfilerActivity, profile

        wanted = {ProfilerActivity.CPU: cpu, ProfilerActivity.CUDA: cuda}
        self._profile = profile(activities=[activity for activity, on in wanted.items() if on])
        self._profile.start()

    def stop(self) -> dict[str, Any]:
        self._profile.stop()
        return {}


class _Proton:
    def __init__(self, folder: Path) -> None:
        self._proton: Any = importlib.import_module("triton.profiler")
        self._path = folder / f"{os.getpid()}-proton"
        self._proton.start(str(self._path), context="shadow")

    def stop(self) -> dict[str, Any]:
        self._proton.finalize()
        size = 0
        for file in self._path.parent.glob(self._path.name + "*"):
            size += file.stat().st_size
            with contextlib.suppress(OSError):
                file.unlink()
        return {"bytes": size}


class _CuptiPython:
    """Kernel records as Python objects, which the user's installation of cupti-python makes."""

    def __init__(self) -> None:
        self._cupti: Any = importlib.import_module("cupti.cupti")
        self._count = 0
        self._cupti.activity_register_callbacks(lambda: (_CUPTI_BUFFER_BYTES, 0), self._take)
        self._cupti.activity_enable(self._cupti.ActivityKind.CONCURRENT_KERNEL)

    def _take(self, records: list[Any]) -> None:
        self._count += len(records)

    def stop(self) -> dict[str, Any]:
        self._cupti.activity_disable(self._cupti.ActivityKind.CONCURRENT_KERNEL)
        self._cupti.activity_flush_all(1)
        return {"kernels": self._count}


def _always(_device: str) -> str | None:
    return None


def _needs_cuda(device: str) -> str | None:
    return None if device == "cuda" else "needs a CUDA device"


def _needs_proton(device: str) -> str | None:
    try:
        found = importlib.util.find_spec("triton.profiler") is not None
    except ImportError:
        found = False
    return _needs_cuda(device) or (None if found else "triton.profiler cannot be imported")


def _needs_cupti_python(device: str) -> str | None:
    is_there = importlib.util.find_spec("cupti") is not None
    return _needs_cuda(device) or (None if is_there else "cupti-python is not installed")


def _needs_nsys(device: str) -> str | None:
    return _needs_cuda(device) or (None if shutil.which("nsys") else "there is no command nsys")


def _nsys(folder: Path) -> list[str]:
    report = str(folder / "nsys-report")
    return [
        "nsys",
        "profile",
        "--trace=cuda",
        "--sample=none",
        "--force-overwrite=true",
        f"--output={report}",
    ]


PROFILERS: dict[str, Profiler] = {
    BASE: Profiler(lambda _folder, _model: _Nothing(), _always),
    "gpuprof": Profiler(lambda folder, model: _Gpuprof(folder, model, everything=True), _always),
    "gpuprof, kernels only": Profiler(lambda folder, model: _Gpuprof(folder, model), _needs_cuda),
    "gpuprof, whole graphs": Profiler(
        lambda folder, model: _Gpuprof(folder, model, whole_graphs=True), _needs_cuda, only_graphs=True
    ),
    "torch.profiler": Profiler(
        lambda _folder, _model: _TorchProfiler(cpu=True, cuda=_cuda_is_there()), _always
    ),
    "torch.profiler, CUDA only": Profiler(
        lambda _folder, _model: _TorchProfiler(cpu=False, cuda=True), _needs_cuda
    ),
    "proton": Profiler(
        lambda folder, _model: _Proton(folder), _needs_proton, is_blind_to_earlier_graphs=True
    ),
    "cupti-python": Profiler(lambda _folder, _model: _CuptiPython(), _needs_cupti_python),
    "nsys": Profiler(lambda _folder, _model: _Nothing(), _needs_nsys, _nsys),
}


def _cuda_is_there() -> bool:
    import torch

    return bool(torch.cuda.is_available())
