# SPDX-License-Identifier: Apache-2.0
"""Static quantization of an .onnx file with ONNX Runtime's own tool, in the QDQ form."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuprof.bench.failures import reason_of
from gpuprof.errors import BenchmarkError, UnavailableError


def quantize_file(path: Path, made: Path, batches: Sequence[Mapping[str, Any]], model: str) -> dict[str, str]:
    """Write `path` quantized to `made`; returns what to say of it. Raises BenchmarkError."""
    try:
        onnx: Any = importlib.import_module("onnx")
        tool: Any = importlib.import_module("onnxruntime.quantization")
        shapes: Any = importlib.import_module("onnxruntime.quantization.shape_inference")
    except ImportError as error:
        raise UnavailableError(
            f"--recipe onnx-int8 needs {error.name or 'onnx'}: pip install onnx onnxruntime"
        ) from error
    whole, prepared = made.with_name("model-whole.onnx"), made.with_name("model-prepared.onnx")
    try:
        # The tool does not find weights that lie beside the file.
        onnx.save(onnx.load(str(path)), str(whole))
        shapes.quant_pre_process(str(whole), str(prepared), skip_symbolic_shape=True)
        tool.quantize_static(
            str(prepared),
            str(made),
            _Reader(batches),
            quant_format=tool.QuantFormat.QDQ,
            activation_type=tool.QuantType.QUInt8,
            weight_type=tool.QuantType.QInt8,
            per_channel=True,
            # Sums of 16 bits overflow on processors without dot products of 8 bits.
            reduce_range=True,
        )
    except Exception as error:
        raise BenchmarkError(
            f"--recipe onnx-int8: {model} cannot be quantized ({reason_of(error)}): take the recipe onnx"
        ) from error
    finally:
        for file in (whole, prepared):
            file.unlink(missing_ok=True)
    return {"quantized_layers": _layers(made)}


class _Reader:
    """What the tool asks for batches; it knows it by its methods."""

    def __init__(self, batches: Sequence[Mapping[str, Any]]) -> None:
        self._batches: Iterator[Mapping[str, Any]] = iter(batches)

    def get_next(self) -> Mapping[str, Any] | None:
        """Return the next batch, None behind the last."""
        return next(self._batches, None)


def _layers(path: Path) -> str:
    """Say how many convolutions and matrix products read weights of 8 bits."""
    onnx: Any = importlib.import_module("onnx")
    nodes = onnx.load(str(path), load_external_data=False).graph.node
    from_8_bits = {name for node in nodes if node.op_type == "DequantizeLinear" for name in node.output}
    layers = [node for node in nodes if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    quantized = sum(all(name in from_8_bits for name in node.input[:2]) for node in layers)
    if not quantized:
        raise BenchmarkError(
            "--recipe onnx-int8: no layer of the file became one of 8 bits: take the recipe onnx"
        )
    return f"{quantized} of {len(layers)}"
