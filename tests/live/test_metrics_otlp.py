# SPDX-License-Identifier: Apache-2.0
"""Metrics that are pushed to a collector on loopback, which parses the protocol buffers."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from live_snapshots import device, process, snapshot
from refusals import refused, refused_command

from gpuprof.cli.main import execute
from gpuprof.errors import GpuprofError
from gpuprof.live.metrics.collector import MetricsCollector
from gpuprof.live.metrics.otlp import OtlpPusher, checked_endpoint
from gpuprof.live.snapshot import LiveLayerFigures

needs_otel = pytest.mark.needs("opentelemetry")


class StubCollector(HTTPServer):
    """Takes exports of metrics at /v1/metrics."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Take)
        self.got: list[Any] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Take(BaseHTTPRequestHandler):
    server: StubCollector

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        assert (self.path, self.headers["Content-Type"]) == ("/v1/metrics", "application/x-protobuf")
        self.server.got.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[StubCollector]:
    server = StubCollector()
    yield server
    server.shutdown()
    server.server_close()


def attributes(point: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in point.attributes}


@needs_otel
def test_a_collector_gets_every_value_with_its_unit_and_attributes(stub: StubCollector) -> None:
    collector = MetricsCollector("1.2")
    layers = (LiveLayerFigures("block", 3, 5_000_000),)
    whole = snapshot(
        [3_000_000, 100_000_000], layers=layers, devices=(device(),), processes=(process(7, cpu_s=4.5),)
    )
    collector.update("", whole)
    collector.update(
        "", snapshot([3_000_000], layers=layers, devices=(device(),), processes=(process(7, cpu_s=4.5),))
    )
    assert OtlpPusher(stub.url, collector, "1.2").push()
    ((request,),) = [stub.got]
    (resource,) = request.resource_metrics
    assert attributes(resource.resource)["service.name"] == "gpuprof"
    assert attributes(resource.resource)["service.version"] == "1.2"
    (scope,) = resource.scope_metrics
    metrics = {each.name: each for each in scope.metrics}

    layer = metrics["gpuprof.layer.time"]
    (point,) = layer.sum.data_points
    assert (layer.unit, layer.sum.is_monotonic, layer.sum.aggregation_temporality) == ("s", True, 2)
    assert (point.as_double, attributes(point)) == (0.01, {"gpuprof.run": "live", "gpuprof.layer": "block"})
    assert 0 < point.start_time_unix_nano < point.time_unix_nano

    steps = metrics["gpuprof.step.duration"]
    (histogram,) = steps.histogram.data_points
    assert (histogram.count, histogram.sum, steps.unit) == (3, 0.106, "s")
    assert len(histogram.bucket_counts) == len(histogram.explicit_bounds) + 1
    counted = dict(zip(histogram.explicit_bounds, histogram.bucket_counts, strict=False))
    assert {bound: count for bound, count in counted.items() if count} == {0.004: 2, 0.128: 1}
    assert not histogram.HasField("min")

    (cpu,) = metrics["process.cpu.time"].sum.data_points
    assert (cpu.as_double, attributes(cpu)) == (4.5, {"gpuprof.run": "live", "process.pid": "7"})
    (power,) = metrics["hw.gpu.power"].gauge.data_points
    assert (power.as_double, attributes(power)) == (350.5, {"hw.id": "0"})


@needs_otel
def test_the_machine_is_pushed_once(stub: StubCollector, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["metrics", "--once", "--otlp", stub.url]) == 0
    assert capsys.readouterr().out == ""
    (request,) = stub.got
    names = {each.name for each in request.resource_metrics[0].scope_metrics[0].metrics}
    assert {"system.cpu.time", "system.memory.usage"} <= names


@needs_otel
def test_a_collector_that_is_absent_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    refused_command(["metrics", "--once", "--otlp", f"http://127.0.0.1:{port}"], "not_pushed")


@pytest.mark.parametrize(
    "text", ["", "collector:4318", "ftp://x", "http://", "http://[::1", "http://x:99999"]
)
def test_a_wrong_endpoint_is_refused(text: str) -> None:
    with refused(GpuprofError, "bad_endpoint"):
        checked_endpoint(text)


def test_the_path_of_metrics_is_the_default() -> None:
    assert (
        checked_endpoint("http://c:4318") == checked_endpoint("http://c:4318/") == "http://c:4318/v1/metrics"
    )
    assert checked_endpoint("https://c/own/path") == "https://c/own/path"
