"""Pushes metrics to an OpenTelemetry receiver: OTLP over gRPC, `metricsExporterType=OTLP_GRPC`. Needs the extra `otel`.

Names and labels are those of /metrics. Requests have no resource; their scope has the name of RocketMQ's
meters. A call runs in gRPC's threads; the event loop only fills the request and is notified of the end.

Source: opentelemetry/proto/metrics/v1/metrics.proto; BrokerMetricsManager, ControllerMetricsManager (RocketMQ).
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from aerobee.errors import ConfigError
from aerobee.metrics_config import MetricsConfig
from aerobee.monitoring.deltas import Point
from aerobee.monitoring.exposition import COUNTER, HISTOGRAM, Histogram, Value, label_values

RECONNECT_MS_MAX = 10_000  # maximum pause between connection attempts; gRPC's default is two minutes


def target_of(text: str) -> tuple[str, bool]:
    """(host:port of metricsGrpcExporterTarget, whether to use TLS). Without http:// it uses TLS, as RocketMQ does."""
    scheme, _, address = text.strip().rpartition("://")
    return address.rstrip("/"), scheme.lower() != "http"


class Taken(NamedTuple):
    """Result of a request. Rejected points of an accepted request must not be sent again (OTLP, partial success)."""

    has_arrived: bool
    trouble: str = ""  # without secrets


class OtlpReceiver:
    """Target of metrics. Call send() with the result of request(), and close() at the end."""

    def __init__(self, config: MetricsConfig, *, scope: str) -> None:
        """Raises ConfigError when the extra `otel` is not installed."""
        try:
            self._grpc = importlib.import_module("grpc")
            proto = "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2"
            self._service = importlib.import_module(proto)
            stub = importlib.import_module(proto + "_grpc").MetricsServiceStub
            self._metrics = importlib.import_module("opentelemetry.proto.metrics.v1.metrics_pb2")
        except ImportError as missing:
            raise ConfigError(
                "metricsExporterType=OTLP_GRPC needs packages that are not installed: pip install 'aerobee[otel]'"
            ) from missing
        self.name = config.metrics_grpc_exporter_target
        self._scope = scope
        self._headers = config.otlp_headers
        self._timeout_s = config.metric_grpc_exporter_time_out_in_mills / 1000
        delta, cumulative = (
            self._metrics.AGGREGATION_TEMPORALITY_DELTA,
            self._metrics.AGGREGATION_TEMPORALITY_CUMULATIVE,
        )
        self._temporality = delta if config.metrics_in_delta else cumulative
        address, by_tls = target_of(self.name)
        options = (("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),)
        self._channel = (
            self._grpc.secure_channel(address, self._grpc.ssl_channel_credentials(), options)
            if by_tls
            else self._grpc.insecure_channel(address, options)
        )
        self._stub = stub(self._channel)

    def request(self, at_ns: int) -> OtlpRequest:
        """An empty request for values of this time."""
        return OtlpRequest(self._service.ExportMetricsServiceRequest(), self._scope, self._temporality, at_ns)

    async def send(self, request: OtlpRequest) -> Taken:
        """Send a request; returns after the reply or the time-out."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        call = self._stub.Export.future(request.message, timeout=self._timeout_s, metadata=self._headers)

        def tell(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(over.set)

        call.add_done_callback(tell)
        try:
            await over.wait()
        except asyncio.CancelledError:
            call.cancel()
            raise
        try:
            partial = call.result().partial_success
        except self._grpc.RpcError as error:
            return Taken(False, f"{error.code().name}: {error.details()}")
        if partial.rejected_data_points:
            return Taken(True, f"REJECTED: {partial.rejected_data_points} numbers, {partial.error_message}")
        return Taken(True)

    def close(self) -> None:
        """Cancel calls in flight, and close the channel."""
        self._channel.close()


class OtlpRequest:
    """An ExportMetricsServiceRequest that is filled point by point; points of one family must be consecutive."""

    def __init__(self, message: Any, scope: str, temporality: int, at_ns: int) -> None:
        self.message = message
        self.count = 0  # of points
        scoped = message.resource_metrics.add().scope_metrics.add()
        scoped.scope.name = scope
        self._metrics = scoped.metrics
        self._temporality = temporality
        self._at_ns = at_ns
        self._name: str | None = None
        self._points: Any = None

    def add(self, point: Point, help_text: str) -> None:
        """One more."""
        if point.name != self._name:
            self._name, self._points = point.name, self._family(point, help_text)
        entry = self._points.add(time_unix_nano=self._at_ns, start_time_unix_nano=point.begin_ns)
        for name, value in label_values(point.labels).items():
            label = entry.attributes.add()
            label.key = name
            label.value.string_value = value
        _fill(entry, point.value)
        self.count += 1

    def _family(self, point: Point, help_text: str) -> Any:
        metric = self._metrics.add(name=point.name, description=help_text)
        if point.kind == COUNTER:
            metric.sum.aggregation_temporality = self._temporality
            metric.sum.is_monotonic = True
            return metric.sum.data_points
        if point.kind == HISTOGRAM:
            metric.histogram.aggregation_temporality = self._temporality
            return metric.histogram.data_points
        return metric.gauge.data_points


def _fill(entry: Any, value: Value) -> None:
    if isinstance(value, Histogram):
        entry.count, entry.sum = value.count, value.sum
        entry.explicit_bounds.extend(end for end, _ in value.buckets)
        entry.bucket_counts.extend(_apart([*(count for _, count in value.buckets), value.count]))
    elif isinstance(value, int):
        entry.as_int = int(value)
    else:
        entry.as_double = value


def _apart(counts: Iterable[int]) -> list[int]:
    """Counts per bucket from cumulative counts: Prometheus counts up to each bound, OTLP between two bounds."""
    apart, before = [], 0
    for count in counts:
        apart.append(count - before)
        before = count
    return apart
