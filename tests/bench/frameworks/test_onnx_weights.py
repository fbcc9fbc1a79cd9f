# SPDX-License-Identifier: Apache-2.0
"""The types that an ONNX file holds, whatever its inputs are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.frameworks.onnx_weights import read_onnx_weights
from gpuprof.errors import BenchmarkError

pytest.importorskip("torch")  # the framework of ONNX exports modules too


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, as the encoding of protocol buffers defines it; shorter than 16 KiB."""
    size = len(content)
    varint = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + varint + content


def tensor(data_type: int, *dimensions: int) -> bytes:
    return field(1, bytes(dimensions)) + bytes([2 << 3, data_type])


def test_types_are_read_from_the_encoding_itself(tmp_path: Path) -> None:
    constant = field(4, b"Constant") + field(5, field(1, b"value") + field(5, tensor(1, 2)))
    graph = field(5, tensor(10, 6, 4)) + field(5, tensor(7, 100)) + field(1, constant)
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes([1 << 3, 10]) + field(7, graph))
    found = read_onnx_weights(path)
    # Whole numbers of 64 bits are shapes, not weights.
    assert dict(found.numbers) == {"float16": 24, "float32": 2}
    assert (found.coarsest_type, found.parameters) == ("float16", 26)
    path.write_bytes(field(7, field(1, field(4, b"QLinearConv"))))
    assert read_onnx_weights(path).coarsest_type == "int8"


@pytest.mark.parametrize("content", [b"", b"no protobuf", bytes([7 << 3 | 2, 100, 1])])
def test_a_damaged_file_is_one_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(BenchmarkError):
        read_onnx_weights(tmp_path / "model.onnx")


@pytest.mark.needs("onnxruntime", "onnx")
@pytest.mark.parametrize(
    ("kind", "expected"), [("FLOAT16", "float16"), ("FLOAT", None), ("BFLOAT16", "bfloat16")]
)
def test_a_file_that_takes_float32_is_judged_by_its_weights(
    tmp_path: Path, kind: str, expected: str | None
) -> None:
    path = tmp_path / "model.onnx"
    write_matrix(path, kind)
    system = make_system(SystemSpec(str(path)))
    # Without a session: ONNX Runtime has no product of bfloat16 on CPUs.
    system._file_dtype = "float32"  # type: ignore[attr-defined]
    assert (system.dtype, system.computes_in()) == ("float32", expected)
    if expected != "bfloat16":
        system.load()
        system.prepare(2)
        assert np.asarray(system.first_inference()[0]).dtype == np.float32
        assert system.describe().parameters == 6 * 4


def write_matrix(path: Path, kind: str) -> None:
    """A product with a matrix of one type between casts, from float32 to float32."""
    import onnx
    from onnx import TensorProto, helper

    inner: Any = getattr(TensorProto, kind)
    weights = helper.make_tensor("w", inner, [6, 4], np.ones(24, np.float32))
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=inner),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 6), ("y", 4))
    ]
    graph = helper.make_graph(nodes, "matrix", ends[:1], ends[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    onnx.save(model, str(path))
