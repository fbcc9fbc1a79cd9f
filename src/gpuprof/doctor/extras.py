# SPDX-License-Identifier: Apache-2.0
"""The extras: each installs the packages of one optional feature."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass

from gpuprof.doctor.check import Check
from gpuprof.doctor.own import DISTRIBUTION


@dataclass(frozen=True, slots=True)
class _Extra:
    """An extra: its purpose, and its packages with their import names."""

    name: str
    purpose: str
    packages: dict[str, str]


_EXTRAS = (
    _Extra("python", "gpuprof run --profiler pyinstrument", {"pyinstrument": "pyinstrument"}),
    _Extra("report", "HTML and PDF of gpuprof compare", {"jinja2": "jinja2", "plotly": "plotly"}),
    _Extra(
        "load",
        "gpuprof load of servers",
        {
            "msgspec": "msgspec",
            "httptools": "httptools",
            "grpcio": "grpc",
            "protobuf": "google.protobuf",
        },
    ),
    _Extra("gpu", "samples of NVIDIA devices", {"nvidia-ml-py": "pynvml"}),
    _Extra("serve", "gpuprof dashboard", {"starlette": "starlette", "uvicorn": "uvicorn"}),
    _Extra("bench", "gpuprof bench, compare, suite and gate", {"scipy": "scipy", "msgspec": "msgspec"}),
    _Extra("bench-data", "data sets of gpuprof compare", {"pandas": "pandas", "pillow": "PIL"}),
    _Extra(
        "bench-frameworks",
        "gpuprof bench of ONNX Runtime and JAX",
        {name: name for name in ("onnx", "onnxruntime", "onnxscript", "jax", "flax")},
    ),
    _Extra(
        "otel",
        "gpuprof metrics --otlp",
        {
            "opentelemetry-sdk": "opentelemetry.sdk",
            "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
        },
    ),
)


def extras() -> Iterator[Check]:
    """Check which packages of each extra are installed."""
    for extra in _EXTRAS:
        yield _look_at(extra)


def browser() -> Iterator[Check]:
    """Check whether reports can be printed as PDF."""
    from gpuprof.errors import GpuprofError

    try:
        # Unavailable where the packages of reports are not installed.
        from gpuprof.bench.report.pdf import find_chromium

        yield Check("Chromium", "ok", f"{find_chromium()}; prints gpuprof compare --report pdf")
    except GpuprofError as error:
        yield Check("Chromium", "missing", error.message, error.hint)


def _look_at(extra: _Extra) -> Check:
    found, lacking = [], []
    for package, module in extra.packages.items():
        if not _is_there(module):
            lacking.append(package)
        else:
            found.append(f"{package} {_version(package)}")
    name = f"extra {extra.name}"
    if not lacking:
        return Check(name, "ok", f"{', '.join(found)}; for {extra.purpose}")
    detail = f"{', '.join(lacking)} not installed, needed for {extra.purpose}"
    return Check(name, "missing", detail, f"pip install '{DISTRIBUTION}[{extra.name}]'")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"
