# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: an .onnx file, or a PyTorch model that is exported first.

On CUDA inputs and outputs are bound to the device; **that path has not run on a GPU yet**.
"""

from __future__ import annotations

import dataclasses
import importlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.bench.failures import explain_run, reason_of
from gpuprof.bench.frameworks.base import FrameworkSystem, Package, require
from gpuprof.bench.frameworks.onnx_weights import OnnxWeights, read_onnx_weights
from gpuprof.bench.frameworks.torch import MOST_SAMPLES, TorchSystem, quiet
from gpuprof.bench.models.data import InputSpec
from gpuprof.errors import BenchmarkError, UnavailableError

if TYPE_CHECKING:
    from gpuprof.bench.models.recipes import RecipeChoice
    from gpuprof.bench.models.sources import ModelKind


_DTYPE_OF_TYPE = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(double)": "float64",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}
_WEIGHTS_BESIDE = (".data", "_data")
TOKENS = 1_000  # whole numbers are drawn below this where a file has no vocabulary
_QUIET_LOG = 3  # errors and worse


_EXPORTERS: tuple[Package, ...] = tuple(
    (module, f"{module}, which exports PyTorch models,", "onnx onnxscript")
    for module in ("onnx", "onnxscript")
)


class OnnxRuntimeSystem(FrameworkSystem):
    """A session on one provider, in the order of work that the runtime's defaults give."""

    framework = "onnxruntime"
    package = ("onnxruntime", "ONNX Runtime", "onnxruntime")
    kinds = ("onnx", *TorchSystem.kinds)
    devices = ("cuda", "cpu")
    dtypes = ("float32", "float16", "float64", "int8", "int32", "int64")
    session: Any = None
    _binding: Any = None
    _folder: tempfile.TemporaryDirectory[str] | None = None
    _file_dtype: str | None = None
    _weights: OnnxWeights | None = None
    # Of a module that was exported: its input and type, and parameters and bytes, of what was quantized too.
    _inputs_of_module: InputSpec | None = None
    _dtype_of_module: str | None = None
    _counts: tuple[int | None, int | None] = (None, None)

    def _load(self) -> None:
        self.runtime = require(*self.package)
        self.device_type = self._choose_device()
        self._feeds: dict[str, Any] = {}
        path = Path(str(self.source.path)) if self.source.kind == "onnx" else self._exported()
        self._open(path)
        if self.source.kind == "onnx" and self.spec.dtype not in (None, self._file_dtype):
            raise BenchmarkError(
                "unsupported_dtype",
                f"--dtype {self.spec.dtype}: {self.source.text} takes {self._file_dtype}",
                hint="omit --dtype",
            )
        choice = self.choice
        if choice is not None and "quantize-onnx" in choice.recipe.changes:
            self._open(self._quantized(path, choice))
        self.details["onnxruntime"] = self.runtime.__version__
        self.details["provider"] = self.session.get_providers()[0]

    def _has(self, device: str) -> bool:
        return device == "cpu" or "CUDAExecutionProvider" in self.runtime.get_available_providers()

    @classmethod
    def packages(cls, kind: ModelKind) -> tuple[Package, ...]:
        """Return the runtime, and for models of PyTorch what exports them."""
        exported = () if kind == "onnx" else (TorchSystem.package, *_EXPORTERS)
        return (cls.package, *exported)

    def save(self, path: Path) -> None:
        """Write the session's file, with its weights inside."""
        onnx: Any = require("onnx", "onnx, which writes models,", "onnx")
        onnx.save(onnx.load(str(self._path)), str(path))

    def _open(self, path: Path) -> None:
        self._path = path
        self.session = self._session(str(path))
        self._input = self.session.get_inputs()[0]
        self._file_dtype = _DTYPE_OF_TYPE.get(self._input.type, self._input.type)

    def _quantized(self, path: Path, choice: RecipeChoice) -> Path:
        """Write the file quantized, for as long as this system lives."""
        names = [each.name for each in self.session.get_inputs()]
        batches = [dict(zip(names, map(_as_array, batch), strict=True)) for batch in self.calibration(choice)]
        made = self._in_folder("model-int8.onnx")
        self.details |= _quantize_file(path, made, batches, self.source.text)
        self._counts = self._counts[0], made.stat().st_size
        return made

    def _session(self, path: str) -> Any:
        options = self.runtime.SessionOptions()
        options.log_severity_level = _QUIET_LOG
        provider = "CUDAExecutionProvider" if self.device_type == "cuda" else "CPUExecutionProvider"
        try:
            return self.runtime.InferenceSession(path, options, providers=[provider])
        except Exception as error:
            if self.source.kind == "onnx":
                raise BenchmarkError(
                    "cannot_load",
                    f"{self.source.text}: ONNX Runtime cannot run it on {self.device_type} "
                    f"({reason_of(error)})",
                    hint="check the file, or use another --device",
                ) from error
            raise explain_run(
                error,
                what=f"{self.source.name} in ONNX Runtime",
                batch_size=1,
                shape="its own shape",
                dtype=self.dtype,
            ) from error

    def _in_folder(self, name: str) -> Path:
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="gpuprof-onnx-")
        return Path(self._folder.name, name)

    # --- from PyTorch ---

    def _exported(self) -> Path:
        """Write the model as ONNX with a free batch size, for as long as this system lives."""
        for package in _EXPORTERS:
            require(*package)
        spec = dataclasses.replace(self.spec, device="cpu", framework="pytorch")
        system = TorchSystem(spec, self.source, model=self.model)
        system._make_inputs = self._make_inputs
        system.load()
        self.details |= {f"exported_{key}": value for key, value in system.details.items()}
        path = self._in_folder("model.onnx")
        self._export(system, path)
        # What a table shows is the module's; its weights are not needed any more.
        self._counts = system._parameters(), system._model_bytes()
        self._inputs_of_module, self._dtype_of_module = system._inputs(), system.dtype
        system.close()
        self.model = None
        return path

    def _export(self, system: TorchSystem, path: Path) -> None:
        system.prepare(2)  # two, since one is taken for a constant
        torch = system.torch
        batch = torch.export.Dim("batch", min=1, max=MOST_SAMPLES)
        shapes = tuple({0: batch} for _ in system.arguments)
        try:
            with quiet(), torch.no_grad():
                torch.onnx.export(
                    system.model,
                    system.arguments,
                    str(path),
                    dynamo=True,
                    dynamic_shapes=shapes,
                    verbose=False,
                )
        except ImportError as error:
            raise UnavailableError(
                "not_installed", f"exporting to ONNX needs {error.name}", hint="pip install onnx onnxscript"
            ) from error
        except Exception as error:
            raise BenchmarkError(
                "cannot_export",
                f"{self.source.text} cannot be exported to ONNX ({reason_of(error)})",
                hint="specify an .onnx file",
            ) from error

    # --- the protocol ---

    @property
    def dtype(self) -> str:
        """The type of the first input, or of the exported module."""
        return self._dtype_of_module or self._file_dtype or super().dtype

    def _inputs(self) -> InputSpec:
        if self._inputs_of_module is not None:
            return self._inputs_of_module
        values = TOKENS if "int" in self.dtype else None
        shape = self._input.shape[1:]
        if self.spec.input_shape is None and all(isinstance(size, int) and size > 0 for size in shape):
            return InputSpec(tuple(shape), values)
        return InputSpec(self._named_shape(), values)

    def _place(self, array: Any) -> Any:
        return array.astype(self._file_dtype)

    def _compile(self) -> None:
        inputs = self.session.get_inputs()
        if len(inputs) != len(self.arguments):
            raise BenchmarkError(
                "number_of_inputs",
                f"{self.source.text} takes {len(inputs)} inputs ({', '.join(each.name for each in inputs)}) "
                "and gpuprof makes one",
                hint="name a factory that returns a callable and a function of inputs, as in file.py:build",
            )
        self.arguments = tuple(map(_as_array, self.arguments))
        self._feeds = {each.name: array for each, array in zip(inputs, self.arguments, strict=True)}
        self._binding = self._bind() if self.device_type == "cuda" else None

    def _bind(self) -> Any:
        binding = self.session.io_binding()
        for name, array in self._feeds.items():
            binding.bind_ortvalue_input(name, self.runtime.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
        for output in self.session.get_outputs():
            binding.bind_output(output.name, "cuda", 0)
        return binding

    def _call(self, *_arguments: Any) -> object:
        if self._binding is None:
            return self.session.run(None, self._feeds)
        self.session.run_with_iobinding(self._binding)
        return self._binding.get_outputs()

    def use(self, arguments: tuple[Any, ...]) -> None:
        """Take these inputs for the next calls, bound as the prepared ones were."""
        super().use(arguments)
        self._compile()

    def computes_in(self) -> str | None:
        """Look at the weights and operators of the file too, which its inputs do not show."""
        found = super().computes_in()
        if found is None and self.source.kind == "onnx":
            held = self._file_weights().coarsest_type
            found = held if held != self.dtype else None
        return found

    def _file_weights(self) -> OnnxWeights:
        self._weights = self._weights or read_onnx_weights(Path(str(self.source.path)))
        return self._weights

    @property
    def fixed_batch_size(self) -> int | None:
        """The batch size of the file's first input, where that is a number."""
        size = self._input.shape[0] if self._input.shape else None
        return size if isinstance(size, int) and size > 0 else None

    def synchronize(self) -> None:
        """Wait for the bound outputs."""
        if self._binding is not None:
            self._binding.synchronize_outputs()

    def close(self) -> None:
        """Let go of the session and of the exported file."""
        super().close()
        self.session = self._binding = None
        self._feeds = {}
        if self._folder is not None:
            self._folder.cleanup()

    def _parameters(self) -> int | None:
        if self._counts[0] is not None or self.source.kind != "onnx":
            return self._counts[0]
        return self._file_weights().parameters

    def _model_bytes(self) -> int | None:
        if self._counts[1] is not None or self.source.path is None or self.source.kind != "onnx":
            return self._counts[1]
        # Exporters put the weights of larger models next to the file.
        beside = (Path(f"{self.source.path}{ending}") for ending in _WEIGHTS_BESIDE)
        files = [self.source.path, *(each for each in beside if each.is_file())]
        return sum(each.stat().st_size for each in files)


def _as_array(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


# --- quantization --------------------------------------------------------------------------------


def _quantize_file(
    path: Path, made: Path, batches: Sequence[Mapping[str, Any]], model: str
) -> dict[str, str]:
    """Write `path` quantized to `made`; returns a description of it. Raises BenchmarkError."""
    try:
        onnx: Any = importlib.import_module("onnx")
        tool: Any = importlib.import_module("onnxruntime.quantization")
        shapes: Any = importlib.import_module("onnxruntime.quantization.shape_inference")
    except ImportError as error:
        raise UnavailableError(
            "not_installed",
            f"--recipe onnx-int8 needs {error.name or 'onnx'}",
            hint="pip install onnx onnxruntime",
        ) from error
    whole, prepared = made.with_name("model-whole.onnx"), made.with_name("model-prepared.onnx")
    try:
        # The tool does not find weights that are next to the file.
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
            "cannot_quantize",
            f"--recipe onnx-int8: {model} cannot be quantized ({reason_of(error)})",
            hint="use the recipe onnx",
        ) from error
    finally:
        for file in (whole, prepared):
            file.unlink(missing_ok=True)
    return {"quantized_layers": _layers(made)}


class _CalibrationReader:
    """What the tool asks for batches; it knows it by its methods."""

    def __init__(self, batches: Sequence[Mapping[str, Any]]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> Mapping[str, Any] | None:
        return next(self._batches, None)


def _layers(path: Path) -> str:
    """Return how many convolutions and matrix products read weights of 8 bits, as text."""
    onnx: Any = importlib.import_module("onnx")
    nodes = onnx.load(str(path), load_external_data=False).graph.node
    from_8_bits = {name for node in nodes if node.op_type == "DequantizeLinear" for name in node.output}
    layers = [node for node in nodes if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    quantized = sum(all(name in from_8_bits for name in node.input[:2]) for node in layers)
    if not quantized:
        raise BenchmarkError(
            "cannot_quantize",
            "--recipe onnx-int8: no layer of the file could be quantized",
            hint="use the recipe onnx",
        )
    return f"{quantized} of {len(layers)}"
