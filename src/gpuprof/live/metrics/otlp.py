# SPDX-License-Identifier: Apache-2.0
"""Pushes the metrics to an OpenTelemetry collector, by OTLP over HTTP with OpenTelemetry's own exporter.

Environment variables such as OTEL_EXPORTER_OTLP_HEADERS apply. A collector that hangs delays no scrape.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from gpuprof.errors import GpuprofError, UnavailableError
from gpuprof.live.metrics.collector import MetricsCollector
from gpuprof.live.metrics.definitions import TARGET, MetricDefinition, MetricKind, attribute_of
from gpuprof.live.metrics.families import Family, HistogramSeries, Labels, MetricSeries

TIMEOUT_S = 5.0
PATH = "/v1/metrics"
_EXPORTER = "opentelemetry.exporter.otlp.proto.http.metric_exporter"


class OtlpPusher:
    """Pushes metrics in a thread of its own; raises UnavailableError without the extra `otel`."""

    def __init__(self, endpoint: str, collector: MetricsCollector, version: str) -> None:
        self.endpoint = checked_endpoint(endpoint)
        self._sdk = _load("opentelemetry.sdk.metrics.export")
        resources = _load("opentelemetry.sdk.resources")
        scope = _load("opentelemetry.sdk.util.instrumentation")
        self._collector = collector
        self._resource = resources.Resource(_resource(collector, version))
        self._scope = scope.InstrumentationScope("gpuprof", version)
        self._exporter = _load(_EXPORTER).OTLPMetricExporter(endpoint=self.endpoint, timeout=TIMEOUT_S)
        # Its retries are not of interest: a push that fails is reported by its result.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        logging.getLogger("opentelemetry").propagate = False
        self._end = threading.Event()

    def push(self) -> bool:
        """Send all metrics now; returns whether the collector took them."""
        done = self._exporter.export(self._data(), timeout_millis=TIMEOUT_S * 1e3)
        return bool(done is self._sdk.MetricExportResult.SUCCESS)

    def start(self, interval_s: float, report: Callable[[bool], None]) -> None:
        """Push in each interval; `report` gets whether it worked, once for each change."""
        threading.Thread(target=self._run, args=(interval_s, report), daemon=True).start()

    def stop(self) -> None:
        """End the pushes."""
        self._end.set()

    def _run(self, interval_s: float, report: Callable[[bool], None]) -> None:
        worked: bool | None = None
        while not self._end.wait(interval_s):
            now = self.push()
            if now != worked:
                report(now)
            worked = now

    def _data(self) -> Any:
        now_ns = time.time_ns()
        lock, families = self._collector.locked_families()
        with lock:
            metrics = [
                self._metric(each, now_ns)
                for each in families
                if each.definition.otel and (each.series or each.histograms)
            ]
        sdk = self._sdk
        scoped = sdk.ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        whole = sdk.ResourceMetrics(resource=self._resource, scope_metrics=[scoped], schema_url="")
        return sdk.MetricsData(resource_metrics=[whole])

    def _metric(self, family: Family, now_ns: int) -> Any:
        sdk, definition = self._sdk, family.definition
        cumulative = sdk.AggregationTemporality.CUMULATIVE
        if definition.kind is MetricKind.HISTOGRAM:
            points = [
                self._histogram(definition, labels, each, now_ns)
                for labels, each in family.histograms.items()
            ]
            data = sdk.Histogram(data_points=points, aggregation_temporality=cumulative)
        else:
            points = [
                self._number(definition, labels, each, now_ns) for labels, each in family.series.items()
            ]
            data = sdk.Gauge(data_points=points)
            if definition.kind is MetricKind.COUNTER:
                data = sdk.Sum(data_points=points, aggregation_temporality=cumulative, is_monotonic=True)
        return sdk.Metric(
            name=definition.otel, description=definition.help, unit=definition.otel_unit, data=data
        )

    def _number(self, definition: MetricDefinition, labels: Labels, series: MetricSeries, now_ns: int) -> Any:
        return self._sdk.NumberDataPoint(
            attributes=_attributes(definition, labels),
            start_time_unix_nano=series.begin_unix_ns,
            time_unix_nano=now_ns,
            value=series.value,
        )

    def _histogram(
        self, definition: MetricDefinition, labels: Labels, series: HistogramSeries, now_ns: int
    ) -> Any:
        return self._sdk.HistogramDataPoint(
            attributes=_attributes(definition, labels),
            start_time_unix_nano=series.begin_unix_ns,
            time_unix_nano=now_ns,
            count=series.count,
            sum=series.sum_ns / 1e9,
            bucket_counts=list(series.counts),
            explicit_bounds=[bound / 1e9 for bound in series.bounds_ns],
            min=None,  # unknown, and optional in the protocol
            max=None,
        )


def checked_endpoint(text: str) -> str:
    """Return the address of a collector, with the path of metrics if it has none. Raises GpuprofError."""
    try:
        parts = urlsplit(text)
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_sound = False
    if not is_sound:
        raise GpuprofError(
            "bad_endpoint",
            f"--otlp {text!r} is no address of a collector",
            hint="give one such as http://127.0.0.1:4318",
        )
    return text if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}{PATH}"


def _attributes(definition: MetricDefinition, labels: Labels) -> dict[str, str]:
    pairs = zip(definition.labels, labels, strict=True)
    return {attribute_of(name): value for name, value in pairs if value}


def _resource(collector: MetricsCollector, version: str) -> dict[str, str]:
    lock, families = collector.locked_families()
    with lock:
        (target,) = (each for each in families if each.definition is TARGET)
        (labels,) = target.series
    return {**_attributes(TARGET, labels), "service.version": version}


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(
            "not_installed",
            "--otlp needs opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http",
            hint="pip install 'gpuprof-native[otel]'",
        ) from error
