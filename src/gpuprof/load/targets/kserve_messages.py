# SPDX-License-Identifier: Apache-2.0
"""Messages of KServe's open inference protocol over gRPC, described with the field numbers of the standard.

Only the fields that a load needs are here; protobuf keeps and skips the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gpuprof.load.targets.client import load_package
from gpuprof.load.targets.tensors import TensorInput

INFER = "/inference.GRPCInferenceService/ModelInfer"
METADATA = "/inference.GRPCInferenceService/ModelMetadata"
_PACKAGE = "inference"
# Fields by number: name, type (another message is named), whether there are many.
_TENSOR = {1: ("name", "string", False), 2: ("datatype", "string", False), 3: ("shape", "int64", True)}
_MESSAGES: dict[str, dict[int, tuple[str, str, bool]]] = {
    "Tensor": _TENSOR,
    "ModelMetadataRequest": {1: ("name", "string", False), 2: ("version", "string", False)},
    "ModelMetadataResponse": {
        1: ("name", "string", False),
        2: ("versions", "string", True),
        3: ("platform", "string", False),
        4: ("inputs", "Tensor", True),
        5: ("outputs", "Tensor", True),
    },
    "ModelInferRequest": {
        1: ("model_name", "string", False),
        2: ("model_version", "string", False),
        3: ("id", "string", False),
        5: ("inputs", "Tensor", True),
        7: ("raw_input_contents", "bytes", True),
    },
    "ModelInferResponse": {
        1: ("model_name", "string", False),
        2: ("model_version", "string", False),
        3: ("id", "string", False),
        5: ("outputs", "Tensor", True),
        6: ("raw_output_contents", "bytes", True),
    },
}


@lru_cache(maxsize=1)
def _classes() -> dict[str, Any]:
    descriptors = load_package("google.protobuf.descriptor_pb2")
    pools = load_package("google.protobuf.descriptor_pool")
    factory = load_package("google.protobuf.message_factory")
    kinds = descriptors.FieldDescriptorProto
    types = {"string": kinds.TYPE_STRING, "int64": kinds.TYPE_INT64, "bytes": kinds.TYPE_BYTES}
    file = descriptors.FileDescriptorProto(name="gpuprof_kserve.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for number, (name, kind, is_repeated) in fields.items():
            label = kinds.LABEL_REPEATED if is_repeated else kinds.LABEL_OPTIONAL
            field = described.field.add(name=name, number=number, label=label)
            field.type = types.get(kind, kinds.TYPE_MESSAGE)
            if kind not in types:
                field.type_name = f".{_PACKAGE}.{kind}"
    pool = (
        pools.DescriptorPool()
    )  # of our own: another package may have described the standard in the default
    pool.Add(file)
    return {
        name: factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


def message_class(name: str) -> Any:
    """Return the class of a message of the standard."""
    return _classes()[name]


def infer_request(model: str, version: str, inputs: Sequence[TensorInput], seed: int) -> bytes:
    """Return a serialized ModelInferRequest with raw contents."""
    request = message_class("ModelInferRequest")(model_name=model, model_version=version)
    for place, each in enumerate(inputs):
        request.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        request.raw_input_contents.append(each.raw(seed + place))
    return bytes(request.SerializeToString())
