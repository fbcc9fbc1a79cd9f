# SPDX-License-Identifier: Apache-2.0
"""A gRPC server of KServe's protocol, whose responses are planted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from gpuprof.load.targets.kserve_messages import message_class

grpc = pytest.importorskip("grpc")
INPUTS = (("image", "FP32", [-1, 3, 4]), ("ids", "INT64", [2]))


class Servicer:
    """Responds as planted: the codes of the first calls, None to hang, then success."""

    def __init__(self, codes: list[Any]) -> None:
        self.received: list[Any] = []
        self.over = threading.Event()
        self._codes = codes
        self._running = 0
        self.most_running = 0
        self._lock = threading.Lock()

    def metadata(self, request: Any, context: Any) -> Any:
        if request.name != "m":
            context.abort(grpc.StatusCode.NOT_FOUND, "unknown model")
        response = message_class("ModelMetadataResponse")(name=request.name)
        for name, datatype, shape in INPUTS:
            response.inputs.add(name=name, datatype=datatype, shape=shape)
        return response

    def infer(self, request: Any, context: Any) -> Any:
        with self._lock:
            self.received.append(request)
            self._running += 1
            self.most_running = max(self.most_running, self._running)
            code = self._codes.pop(0) if self._codes else grpc.StatusCode.OK
        if code is None:
            self.over.wait()
        with self._lock:
            self._running -= 1
        if code not in (None, grpc.StatusCode.OK):
            context.abort(code, "planted")
        return message_class("ModelInferResponse")(model_name=request.model_name)


@contextmanager
def grpc_server(*codes: Any, credentials: Any = None) -> Iterator[tuple[int, Servicer]]:
    """Serve a model `m` until the block ends; with `credentials` over TLS."""
    servicer = Servicer(list(codes))

    def handler(method: Any, request: str) -> Any:
        read = message_class(request).FromString
        return grpc.unary_unary_rpc_method_handler(method, read, lambda each: each.SerializeToString())

    handlers = {
        "ModelInfer": handler(servicer.infer, "ModelInferRequest"),
        "ModelMetadata": handler(servicer.metadata, "ModelMetadataRequest"),
    }
    server = grpc.server(ThreadPoolExecutor(8))
    generic = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
    server.add_generic_rpc_handlers((generic,))
    place = "127.0.0.1:0"
    port = (
        server.add_insecure_port(place) if credentials is None else server.add_secure_port(place, credentials)
    )
    server.start()
    try:
        yield port, servicer
    finally:
        servicer.over.set()
        server.stop(None).wait()
