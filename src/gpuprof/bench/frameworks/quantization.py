# SPDX-License-Identifier: Apache-2.0
"""Post-training quantization on CPUs, by PyTorch and by ONNX Runtime.

`torch.ao.quantization` is deprecated and is used until its successor, the package torchao, covers it.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuprof.bench.failures import reason_of
from gpuprof.bench.measure.outputs import named_arrays
from gpuprof.errors import BenchmarkError, UnavailableError

Batches = Sequence[tuple[Any, ...]]


class NotQuantizedError(Exception):
    """A way of quantizing that does not fit a model; another one may."""


def torch_quantization() -> Any:
    """Import `torch.ao.quantization` and check its kernels. Raises UnavailableError."""
    torch: Any = sys.modules["torch"]
    try:
        found = importlib.import_module("torch.ao.quantization")
    except ImportError as error:
        raise UnavailableError(
            f"PyTorch {torch.__version__} has no torch.ao.quantization any more: pip install 'torch<2.14', "
            "or take onnx-int8"
        ) from error
    if torch.backends.quantized.engine == "none":
        raise UnavailableError(
            "this build of PyTorch has no kernels for quantized layers on this processor: take onnx-int8"
        )
    return found


def quantize_dynamic(module: Any) -> tuple[Any, dict[str, str]]:
    """Replace linear and recurrent layers by ones that quantize their inputs at each call.

    Raises BenchmarkError where the module has none.
    """
    quantization = torch_quantization()
    torch: Any = sys.modules["torch"]
    nn, total = torch.nn, layer_count(module)
    kinds = _kinds(module)
    usual = quantization.default_dynamic_qconfig
    # A scale for each channel of the weights; the kernels for ARM take one a layer.
    is_arm = torch.backends.quantized.engine == "qnnpack"
    linear = usual if is_arm else quantization.per_channel_dynamic_qconfig
    wanted = {nn.Linear: linear, nn.LSTM: usual, nn.GRU: usual}
    changed = type(module) in wanted
    holder = nn.Sequential(module) if changed else module
    holder = quantization.quantize_dynamic(holder, wanted, dtype=torch.qint8, inplace=True)
    quantized = holder[0] if changed else holder
    count = quantized_count(quantized)
    if not count:
        hint = "take int8-static" if "Conv" in kinds else "leave the recipe out"
        raise BenchmarkError(f"no Linear, LSTM or GRU layer is in it (it has {kinds}): {hint}")
    return quantized, {"quantized_layers": f"{count} of {total}", **without_fast_path(quantized)}


def quantize_static(module: Any, batches: Batches) -> tuple[Any, dict[str, str]]:
    """Quantize convolutions and linear layers with scales that the batches give.

    The whole graph where it can be traced and holds no layer norms, else the layers with their batch norms
    folded in, else each layer by itself. Raises BenchmarkError where none of it works.
    """
    torch_quantization()
    torch: Any = sys.modules["torch"]
    total, kinds = layer_count(module), _kinds(module)
    failures = []
    for how, way in _WAYS.items():
        try:
            # A traced module prints where it failed; another way may do.
            with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
                quantized = way(copy.deepcopy(module), batches)
                told = without_fast_path(quantized)
                for batch in (batches[0], _first_sample(batches[0])):
                    _check_alike(module(*batch), quantized(*batch))
        except Exception as error:
            # Tracing and lowering fail in many ways, with every kind of exception.
            failures.append(f"{how}: {reason_of(error)}")
            continue
        count = quantized_count(quantized)
        if count:
            return quantized, {"quantized_layers": f"{count} of {total}", "quantized_by": how, **told}
        failures.append(f"{how}: no layer became one of 8 bits")
    raise BenchmarkError(f"no way to quantize it works (it has {kinds}; {failures[-1]}): take int8-dynamic")


def _whole_graph(module: Any, batches: Batches) -> Any:
    torch: Any = sys.modules["torch"]
    quantization = torch_quantization()
    if any(isinstance(each, torch.nn.LayerNorm) for each in module.modules()):
        raise NotQuantizedError("layer norms and attention lose too much in 8 bits")
    mapping = quantization.get_default_qconfig_mapping(torch.backends.quantized.engine)
    return _traced(module, mapping, batches)


def _layers_in_graph(module: Any, batches: Batches) -> Any:
    """Fold batch norms and activations into the layers.

    What is between them stays in floats, but for what PyTorch lowers where both its neighbours are in 8 bits.
    """
    torch: Any = sys.modules["torch"]
    quantization = torch_quantization()
    config = quantization.get_default_qconfig(torch.backends.quantized.engine)
    mapping = quantization.QConfigMapping()
    for kind in (*_quantized_kinds(torch.nn), *_folded_kinds(torch.nn)):
        mapping = mapping.set_object_type(kind, config)
    return _traced(module, mapping, batches)


def _traced(module: Any, mapping: Any, batches: Batches) -> Any:
    graph = importlib.import_module("torch.ao.quantization.quantize_fx")
    prepared = graph.prepare_fx(module, mapping, batches[0])
    for batch in batches:
        prepared(*batch)
    return graph.convert_fx(prepared)


def _quantized_kinds(nn: Any) -> tuple[Any, ...]:
    return nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d


def _folded_kinds(nn: Any) -> tuple[Any, ...]:
    return nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.ReLU


def _each_layer(module: Any, batches: Batches) -> Any:
    torch: Any = sys.modules["torch"]
    quantization = torch_quantization()
    config = quantization.get_default_qconfig(torch.backends.quantized.engine)
    kinds = _quantized_kinds(torch.nn)

    def wrapped(layer: Any) -> Any:
        wrapper = quantization.QuantWrapper(layer)
        wrapper.qconfig = config
        return wrapper

    module = _replaced(module, lambda layer: type(layer) in kinds, wrapped)
    # Calibrating goes through the layers, which the fast path of attention passes by.
    without_fast_path(module)
    quantization.prepare(module, inplace=True)
    for batch in batches:
        module(*batch)
    return quantization.convert(module, inplace=True)


_WAYS: dict[str, Callable[[Any, Batches], Any]] = {
    "whole graph": _whole_graph,
    "layers, batch norms folded in": _layers_in_graph,
    "each layer": _each_layer,
}


def _replaced(module: Any, is_meant: Callable[[Any], bool], make: Callable[[Any], Any]) -> Any:
    if is_meant(module):
        return make(module)
    for name, child in module.named_children():
        replaced = _replaced(child, is_meant, make)
        if replaced is not child:
            setattr(module, name, replaced)
    return module


def _first_sample(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a batch of one: some kernels take larger ones alone."""
    return tuple(each[:1] if getattr(each, "ndim", 0) else each for each in batch)


def _check_alike(expected: Any, found: Any) -> None:
    old, new = named_arrays(expected).shapes, named_arrays(found).shapes
    if not old or old != new:
        raise NotQuantizedError(f"it returns {new} instead of {old}")


def without_fast_path(module: Any) -> dict[str, str]:
    """Switch off the fused encoder layer, which reads weights that quantized layers do not have."""
    torch: Any = sys.modules["torch"]
    if not any(isinstance(each, torch.nn.TransformerEncoderLayer) for each in module.modules()):
        return {}
    torch.backends.mha.set_fastpath_enabled(False)
    return {"encoder_fast_path": "off: it has no quantized form"}


def layer_count(module: Any) -> int:
    """Return how many layers with weights to multiply by there are."""
    nn: Any = sys.modules["torch"].nn
    kinds = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase)
    return sum(isinstance(each, kinds) for each in module.modules())


def quantized_count(module: Any) -> int:
    """Return how many layers hold weights of 8 bits."""
    return sum(map(_is_quantized, module.modules()))


def _is_quantized(layer: Any) -> bool:
    name = type(layer).__name__
    is_there = ".quantized." in type(layer).__module__ and name != "LinearPackedParams"
    return is_there and (hasattr(type(layer), "_weight_bias") or name in ("LSTM", "GRU"))


def _kinds(module: Any) -> str:
    """Return the kinds of layers that hold parameters, as Conv2d x 3."""
    counts = Counter(type(each).__name__ for each in module.modules() if [*each.parameters(recurse=False)])
    return ", ".join(f"{name} x {count}" for name, count in counts.most_common(5)) or "no layers"


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
            _CalibrationReader(batches),
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


class _CalibrationReader:
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
