# SPDX-License-Identifier: Apache-2.0
"""TensorRT, from an engine or built from an .onnx file.

**Untested**: this is written against the documented API of TensorRT 10 and has run nowhere yet. PyTorch
allocates the buffers on the device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuprof.bench.frameworks.base import FrameworkSystem, Package, require
from gpuprof.bench.models.data import InputSpec
from gpuprof.bench.models.sources import ModelKind
from gpuprof.errors import BenchmarkError

UNTESTED = "written against TensorRT 10's documentation, never run"
_ALLOCATOR: Package = ("torch", "PyTorch, which allocates for TensorRT,", "torch")
_FLAGS = {"float16": "FP16", "int8": "INT8"}


class TensorRtSystem(FrameworkSystem):
    """An engine. From ONNX it is built for each batch size, in float32, float16 or int8 (from Q/DQ nodes)."""

    framework = "tensorrt"
    compiles = True
    package = ("tensorrt", "TensorRT", "tensorrt")
    kinds = ("tensorrt", "onnx")
    devices = ("cuda",)
    dtypes = ("float32", "float16", "int8")

    @classmethod
    def packages(cls, kind: ModelKind) -> tuple[Package, ...]:  # noqa: ARG003 - the same for all
        """Return TensorRT, and what allocates for it."""
        return cls.package, _ALLOCATOR

    def _load(self) -> None:
        self.trt = require(*self.package)
        self.torch = require(*_ALLOCATOR)
        self.device_type = self._choose_device()
        self._logger = self.trt.Logger(self.trt.Logger.ERROR)
        self._runtime = self.trt.Runtime(self._logger)
        self.details["tensorrt"] = self.trt.__version__
        self.details["untested"] = UNTESTED
        self._path = Path(str(self.source.path))
        self._engine: Any = None
        if self.source.kind == "tensorrt":
            self._engine = self._deserialized(self._path.read_bytes())

    def _has(self, device: str) -> bool:  # noqa: ARG002 - there is one
        return bool(self.torch.cuda.is_available())

    def _deserialized(self, plan: Any) -> Any:
        engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise BenchmarkError(
                "cannot_load",
                f"{self.source.text}: TensorRT cannot read it",
                hint="build it with this version of TensorRT, on this GPU",
            )
        return engine

    def _built(self, batch_size: int) -> Any:
        trt = self.trt
        builder = trt.Builder(self._logger)
        network = builder.create_network(0)
        parser = trt.OnnxParser(network, self._logger)
        if not parser.parse_from_file(str(self._path)):
            raise BenchmarkError(
                "cannot_load",
                f"{self.source.text}: TensorRT cannot parse it: {parser.get_error(0).desc()}",
                hint="export it with another opset, or use --framework onnxruntime",
            )
        config = builder.create_builder_config()
        if self.dtype in _FLAGS:
            config.set_flag(getattr(trt.BuilderFlag, _FLAGS[self.dtype]))
        profile = builder.create_optimization_profile()
        for index in range(network.num_inputs):
            tensor = network.get_input(index)
            shape = (batch_size, *(self._sample_shape(tuple(tensor.shape)[1:])))
            profile.set_shape(tensor.name, shape, shape, shape)
        config.add_optimization_profile(profile)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise BenchmarkError(
                "cannot_build",
                f"{self.source.text}: TensorRT cannot build an engine in {self.dtype}",
                hint="use another --dtype",
            )
        return self._deserialized(plan)

    def _sample_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if all(size > 0 for size in shape) else self._named_shape()

    def prepare(self, batch_size: int) -> None:
        """Build for this batch size where the source is ONNX, and place each tensor on the device."""
        if self.source.kind == "onnx":
            self._engine = self._built(batch_size)
        self._context = self._engine.create_execution_context()
        self._stream = self.torch.cuda.Stream()
        super().prepare(batch_size)

    def _names(self, *, inputs: bool) -> list[str]:
        engine, mode = self._engine, self.trt.TensorIOMode.INPUT
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        return [name for name in names if (engine.get_tensor_mode(name) == mode) is inputs]

    def _inputs(self) -> InputSpec:
        if self._engine is None:
            return InputSpec(self._named_shape())
        return InputSpec(
            self._sample_shape(tuple(self._engine.get_tensor_shape(self._names(inputs=True)[0]))[1:])
        )

    def _type_of(self, name: str) -> Any:
        import numpy as np

        return getattr(self.torch, np.dtype(self.trt.nptype(self._engine.get_tensor_dtype(name))).name)

    def _place(self, array: Any) -> Any:
        return self.torch.from_numpy(array).to("cuda", self._type_of(self._names(inputs=True)[0]))

    def _compile(self) -> None:
        for name, tensor in zip(self._names(inputs=True), self.arguments, strict=True):
            self._context.set_input_shape(name, tuple(tensor.shape))
            self._context.set_tensor_address(name, tensor.data_ptr())
        self._outputs = [self._output(name) for name in self._names(inputs=False)]
        # The inputs were made on PyTorch's stream, the engine runs on its own.
        self.torch.cuda.synchronize()

    def _output(self, name: str) -> Any:
        shape = tuple(self._context.get_tensor_shape(name))
        tensor = self.torch.empty(shape, device="cuda", dtype=self._type_of(name))
        self._context.set_tensor_address(name, tensor.data_ptr())
        return tensor

    def use(self, arguments: tuple[Any, ...]) -> None:
        """Take these inputs for the next calls, and give the engine their address."""
        super().use(arguments)
        self._compile()

    @property
    def fixed_batch_size(self) -> int | None:
        """The batch size of an engine's first input, where that is a number."""
        if self._engine is None:
            return None
        size, *_ = self._engine.get_tensor_shape(self._names(inputs=True)[0])
        return int(size) if size > 0 else None

    def _call(self, *_arguments: Any) -> object:
        if not self._context.execute_async_v3(self._stream.cuda_stream):
            raise RuntimeError("TensorRT refused to enqueue the engine")
        return self._outputs

    def synchronize(self) -> None:
        """Wait for the engine's stream."""
        self._stream.synchronize()

    def _device_name(self) -> str:
        return str(self.torch.cuda.get_device_name())

    def close(self) -> None:
        """Let go of the engine and its buffers."""
        super().close()
        self._context = self._engine = None
        self._outputs = []
