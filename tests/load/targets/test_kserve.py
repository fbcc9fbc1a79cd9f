# SPDX-License-Identifier: Apache-2.0
"""KServe's protocol over HTTP and gRPC, against real servers that read what was sent."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kserve_server import INPUTS, grpc_server
from load_client import CheckedLog, send_all
from load_server import OK, LoadServer, hang, respond_with, serving
from refusals import refused

from gpuprof.errors import BenchmarkError
from gpuprof.load.driver import DriveSettings
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.address import ServerAddress, WireProtocol, parse_address
from gpuprof.load.targets.client_process import drive_server
from gpuprof.load.targets.http import HttpClient
from gpuprof.load.targets.kserve_grpc import KServeGrpcClient
from gpuprof.load.targets.kserve_http import KServeInputs, described_inputs, kserve_requests, model_path
from gpuprof.load.targets.server_target import server_target
from gpuprof.load.targets.tensors import TensorInput, split_model, tensor_input, tensor_inputs

grpc = pytest.importorskip("grpc")
S = RequestStatus
METADATA = {
    "name": "m",
    "versions": ["1"],
    "inputs": [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in INPUTS],
    "outputs": [],
}


def respond_json(value: object, code: int = 200) -> Any:
    body = json.dumps(value).encode()
    return respond_with(
        b"HTTP/1.1 %d Text\r\nContent-Length: %d\r\n\r\n" % (code, len(body)) + body, close=True
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/m", "/v2/models/m"),
        ("/v2/models/m", "/v2/models/m"),
        ("/v2/models/m/infer", "/v2/models/m"),
        ("/v2/models/m/versions/3/infer", "/v2/models/m/versions/3"),
        ("/m/versions/3", "/v2/models/m/versions/3"),
        ("/proxy/a/v2/models/m", "/proxy/a/v2/models/m"),
    ],
)
def test_the_path_of_a_model(path: str, expected: str) -> None:
    assert model_path(parse_address(f"kserve+http://127.0.0.1{path}")) == expected


@pytest.mark.parametrize("path", ["", "/", "/a/b", "/v2/models"])
@pytest.mark.parametrize("scheme", ["kserve+http", "kserve+grpcs"])
def test_an_address_without_a_model(path: str, scheme: str) -> None:
    with refused(BenchmarkError, "no_model_in_address"):
        split_model(parse_address(f"{scheme}://127.0.0.1:90{path}"))


@pytest.mark.texts
@pytest.mark.parametrize("scheme", ["kserve+http", "kserve+grpcs"])
def test_the_hint_of_an_address_without_a_model_is_of_its_scheme(scheme: str) -> None:
    with refused(BenchmarkError, "no_model_in_address", f"{scheme}://127.0.0.1:90/resnet50"):
        split_model(parse_address(f"{scheme}://127.0.0.1:90/"))


def requests_to(server: LoadServer, asked: KServeInputs) -> Any:
    address = server.address("/m", WireProtocol.KSERVE_HTTP)
    inputs = asyncio.run(described_inputs(address, asked, 30.0))
    return kserve_requests(address, inputs, asked)


@pytest.mark.parametrize("is_binary", [True, False])
def test_inference_over_http(is_binary: bool) -> None:
    pytest.importorskip("httptools")
    asked = KServeInputs(batch=2, is_binary=is_binary, seed=5)
    with serving({"/v2/models/m": respond_json(METADATA), "/v2/models/m/infer": respond_with(OK)}) as server:
        requests = requests_to(server, asked)
        server.requests.clear()
        log = send_all(
            lambda log, on_end: HttpClient(server.address(), requests.of, log, on_end=on_end),
            3,
            one_by_one=True,
        )
    assert log.statuses == [S.OK] * 3
    head, body = server.requests[0]
    expected = np.random.default_rng(5).random((2, 3, 4)).astype("<f4")
    if is_binary:
        length = int(head.lower().partition(b"inference-header-content-length: ")[2].split()[0])
        described = json.loads(body[:length])["inputs"]
        assert [each["parameters"]["binary_data_size"] for each in described] == [96, 16]
        assert body[length : length + 96] == expected.tobytes()
        assert len(body) == length + 96 + 16
    else:
        described = json.loads(body)["inputs"]
        assert np.array_equal(np.float32(described[0]["data"]), expected.ravel())
        assert len(described[1]["data"]) == 2
    assert [(each["name"], each["shape"], each["datatype"]) for each in described] == [
        ("image", [2, 3, 4], "FP32"),
        ("ids", [2], "INT64"),
    ]


@pytest.mark.parametrize(
    "responder",
    [
        respond_json({"error": "unknown model"}, 404),
        respond_json({"name": "m"}),
        respond_json({"inputs": [{"name": 5}]}),
        respond_with(b"HTTP/1.1 200 OK\r\n\r\n{", close=True),
        respond_with(b"", close=True),
        respond_with(b"SSH-2.0 x\r\n\r\n", close=True),
    ],
)
def test_a_server_that_does_not_describe_its_model(responder: Any) -> None:
    with serving({"/v2/models/m": responder}) as server, pytest.raises(BenchmarkError) as caught:
        requests_to(server, KServeInputs())
    assert caught.value.code == "no_metadata"


def test_a_server_that_keeps_the_connection_of_its_description_open() -> None:
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2]}]}'
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    with serving({"/v2/models/m": respond_with(head + body)}) as server:
        found = asyncio.run(
            described_inputs(server.address("/m", WireProtocol.KSERVE_HTTP), KServeInputs(), 5)
        )
    assert [each.name for each in found] == ["x"]


def test_a_server_that_never_describes_its_model() -> None:
    with serving({"/v2/models/m": hang}) as server, pytest.raises(BenchmarkError) as caught:
        asyncio.run(described_inputs(server.address("/m"), KServeInputs(), 0.05))
    assert caught.value.code == "no_metadata"


def test_tensors_of_each_type() -> None:
    sizes = {
        "BOOL": 1,
        "UINT8": 1,
        "INT16": 2,
        "FP16": 2,
        "BF16": 2,
        "INT32": 4,
        "FP32": 4,
        "FP64": 8,
        "UINT64": 8,
    }
    for datatype, size in sizes.items():
        tensor = TensorInput("x", datatype, (2, 3))
        assert len(tensor.raw()) == 6 * size
        assert len(tensor.as_json()) == 6
        assert tensor.raw(1) == tensor.raw(1)
    assert TensorInput("x", "BYTES", (2,)).raw() == b"\x04\0\0\0text" * 2
    high = np.frombuffer(TensorInput("x", "BF16", (4,)).raw(), "<u2").astype("<u4") << 16
    exact = np.random.default_rng(0).random(4).astype("<f4")
    assert np.all(np.abs(high.view("<f4") - exact) <= exact / 128)


@pytest.mark.parametrize(
    ("shape", "shapes", "code"),
    [
        ([-1, -1, 3], {}, "free_dimension"),
        ([1 << 20, 1 << 20], {}, "tensor_too_large"),
        ([-1, 5], {"x": [-1, -1]}, "free_dimension"),
    ],
)
def test_shapes_that_cannot_be_sent(shape: list[int], shapes: dict[str, list[int]], code: str) -> None:
    with pytest.raises(BenchmarkError) as caught:
        tensor_input("x", "FP32", shape, 1, shapes)
    assert caught.value.code == code
    assert tensor_input("x", "FP32", [-1, -1, 3], 4, {"x": [-1, 8, 3]}).shape == (4, 8, 3)


def test_a_shape_of_an_input_that_the_model_does_not_have_is_refused() -> None:
    described = [TensorInput("x", "FP32", (2,)), TensorInput("y", "FP32", (2,))]
    assert [each.shape for each in tensor_inputs(described, 1, {"y": [3]})] == [(2,), (3,)]
    with refused(BenchmarkError, "unknown_input", "'nope'", "'x', 'y'"):
        tensor_inputs(described, 1, {"y": [3], "nope": [1]})


# --- gRPC ------------------------------------------------------------------------------------------


def grpc_client(port: int, model: str = "m", **options: Any) -> Any:
    address = ServerAddress(WireProtocol.KSERVE_GRPC, "127.0.0.1", port, f"/{model}", resolved=("127.0.0.1",))
    return lambda log, on_end: KServeGrpcClient(
        address, KServeInputs(batch=2, seed=5), log, on_end=on_end, **{"timeout_s": 30.0, **options}
    )


def test_the_log_of_grpc_is_not_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving({}) as server:  # without encryption
        target = server_target(f"kserve+grpcs://localhost:{server.port}/m", timeout_s=0.5)
        with refused(BenchmarkError, "no_server"):
            drive_server(target, np.zeros(1, np.int64), tmp_path, DriveSettings())
    assert capfd.readouterr() == ("", "")


def test_inference_over_grpc() -> None:
    with grpc_server() as (port, servicer):
        log = send_all(grpc_client(port, concurrency=2), 20)
    assert log.statuses == [S.OK] * 20
    assert log.begun == list(range(20))
    assert servicer.most_running <= 2
    received = servicer.received[0]
    assert [(each.name, each.datatype, list(each.shape)) for each in received.inputs] == [
        ("image", "FP32", [2, 3, 4]),
        ("ids", "INT64", [2]),
    ]
    expected = np.random.default_rng(5).random((2, 3, 4)).astype("<f4")
    assert received.raw_input_contents[0] == expected.tobytes()
    assert len(received.raw_input_contents[1]) == 16


def test_inference_over_grpc_by_the_process_of_the_client(tmp_path: Path) -> None:
    with grpc_server() as (port, servicer):
        target = server_target(f"kserve+grpc://127.0.0.1:{port}/m", batch=2, seed=5, concurrency=4)
        load = drive_server(target, np.arange(20) * 1_000_000, tmp_path, DriveSettings())
    assert load.driven.rows["status"].tolist() == [S.OK] * 20
    assert list(servicer.received[0].inputs[0].shape) == [2, 3, 4]


def test_each_end_of_a_call_has_its_status() -> None:
    code = grpc.StatusCode
    planted = (
        (code.RESOURCE_EXHAUSTED, S.OVERLOADED),
        (code.INTERNAL, S.SERVER_ERROR),
        (code.UNKNOWN, S.SERVER_ERROR),
        (code.UNAVAILABLE, S.SERVER_ERROR),
        (code.INVALID_ARGUMENT, S.CLIENT_ERROR),
        (code.DEADLINE_EXCEEDED, S.TIMEOUT),
        (code.OK, S.OK),
    )
    with grpc_server(*(each for each, _ in planted)) as (port, _):
        log = send_all(grpc_client(port), len(planted), one_by_one=True)
    assert log.statuses == [status for _, status in planted]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("READY", S.SERVER_ERROR),
        ("IDLE", S.RESET),
        ("CONNECTING", S.REFUSED),
        ("TRANSIENT_FAILURE", S.REFUSED),
    ],
)
def test_what_unavailable_means_in_each_state_of_the_channel(state: str, expected: RequestStatus) -> None:
    class Channel:
        def get_state(self) -> Any:
            return grpc.ChannelConnectivity[state]

    client = grpc_client(1)(CheckedLog(), None)
    client._channel = Channel()
    assert client._status_of(grpc.StatusCode.UNAVAILABLE) is expected
    assert client._status_of(grpc.StatusCode.INTERNAL) is S.SERVER_ERROR


def test_a_call_to_a_server_that_has_ended_is_refused() -> None:
    log = CheckedLog()

    async def run() -> None:
        over = asyncio.Event()
        with grpc_server() as (port, _):
            client = grpc_client(port)(log, lambda index, status: over.set())
            await client.open()
        channel = client._channel
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        client.start(0)
        await over.wait()
        await client.close()

    asyncio.run(run())
    assert log.statuses == [S.REFUSED]


def test_a_hung_call_times_out() -> None:
    with grpc_server(None) as (port, _):
        assert send_all(grpc_client(port, timeout_s=0.5), 1).statuses == [S.TIMEOUT]


def test_a_step_of_the_wall_clock_ends_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    with grpc_server() as (port, _), monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() - 3600)
        assert send_all(grpc_client(port), 3).statuses == [S.OK] * 3


def test_abandoned_calls_never_vanish() -> None:
    log = CheckedLog()

    async def run(port: int) -> None:
        client = grpc_client(port, concurrency=2)(log, lambda index, status: None)
        await client.open()
        for index in range(5):
            client.start(index)
        client.abandon()
        await client.close()

    with grpc_server(*[None] * 5) as (port, _):
        asyncio.run(run(port))
    assert log.statuses == [S.TIMEOUT] * 2 + [S.NOT_SENT] * 3


def test_an_unknown_model_and_no_server() -> None:
    with grpc_server() as (port, _), pytest.raises(BenchmarkError) as caught:
        send_all(grpc_client(port, "other"))
    assert caught.value.code == "no_metadata"
    assert "--body" not in caught.value.hint
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        with pytest.raises(BenchmarkError) as caught:
            send_all(grpc_client(port, timeout_s=0.2))
    assert caught.value.code == "no_server"
