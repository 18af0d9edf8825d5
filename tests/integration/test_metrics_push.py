"""metricsExporterType=OTLP_GRPC and LOG: numbers that are sent to a real gRPC receiver, held against the page of /metrics."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as service_grpc
from opentelemetry.proto.metrics.v1 import metrics_pb2
from prometheus_client.parser import text_string_to_metric_families

from aerobee import Message
from aerobee.broker.state.config import BrokerConfig
from aerobee.clock import ManualClock
from aerobee.errors import ConfigError
from aerobee.ha.controller.config import ControllerConfig
from aerobee.ha.controller.controller import Controller
from aerobee.monitoring.export import Export
from aerobee.monitoring.exposition import number_text
from aerobee.monitoring.health import Health
from aerobee.testing import LocalCluster
from tests.ports import free_port
from tests.waiting import wait_until

Series = tuple[str, frozenset[tuple[str, str]]]
CHANGING = (
    "latency",
    "page",
    "loop",
    "seconds",
    "ratio",
    "watermark",
    "reserve_time",
    "age",
    "behind",
    "storage_size",
)


class Receiver(service_grpc.MetricsServiceServicer):
    """Keeps what it gets, as Prometheus names it."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.reject = 0

    def Export(self, request: Any, context: Any) -> Any:
        self.headers.append(dict(context.invocation_metadata()))
        self.requests.append(request)
        partial = service.ExportMetricsPartialSuccess(
            rejected_data_points=self.reject, error_message="too many" if self.reject else ""
        )
        return service.ExportMetricsServiceResponse(partial_success=partial)

    @property
    def scopes(self) -> set[str]:
        return {
            each.scope.name for request in self.requests for each in request.resource_metrics[0].scope_metrics
        }

    def points(self, requests: list[Any] | None = None) -> Iterator[tuple[str, str, Any]]:
        for request in self.requests if requests is None else requests:
            for scoped in request.resource_metrics[0].scope_metrics:
                for metric in scoped.metrics:
                    kind = metric.WhichOneof("data")
                    for point in getattr(metric, kind).data_points:
                        yield metric.name, kind, point

    def series(self) -> dict[Series, float]:
        """The newest value of each series; a histogram as its lines in the text format."""
        found: dict[Series, float] = {}
        for name, kind, point in self.points():
            labels = frozenset((each.key, each.value.string_value) for each in point.attributes)
            if kind != "histogram":
                found[name, labels] = point.as_int if point.HasField("as_int") else point.as_double
                continue
            count = 0
            for end, more in zip([*point.explicit_bounds, float("inf")], point.bucket_counts, strict=True):
                count += more
                found[f"{name}_bucket", labels | {("le", number_text(end))}] = count
            found[f"{name}_count", labels], found[f"{name}_sum", labels] = point.count, point.sum
        return found

    def sum_of(self, name: str) -> int:
        return sum(point.as_int for each, _, point in self.points() if each == name)


@contextmanager
def receiving(receiver: Receiver, port: int = 0) -> Iterator[int]:
    server = grpc.server(ThreadPoolExecutor(2), options=(("grpc.so_reuseport", 0),))
    service_grpc.add_MetricsServiceServicer_to_server(receiver, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield bound
    finally:
        server.stop(None).wait()


def pushing(port: int, **more: Any) -> dict[str, Any]:
    return {
        "metrics_exporter_type": "PROM,OTLP_GRPC",
        "metrics_prom_exporter_host": "127.0.0.1",
        "metrics_prom_exporter_port": 0,
        "metrics_lag_interval_millis": 100,
        "metrics_label": "zone:a",
        "metrics_grpc_exporter_target": f"http://127.0.0.1:{port}",
        "metric_grpc_exporter_interval_in_mills": 100,
        **more,
    }


async def page(address: tuple[str, int]) -> dict[Series, float]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address[0]}:{address[1]}/metrics") as answer,
    ):
        text = await answer.text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def send(cluster: LocalCluster, count: int) -> None:
    async with cluster.producer() as producer:
        for number in range(count):
            await producer.send(Message("paid", b"%d" % number))


async def test_what_is_pushed_is_what_the_page_says() -> None:
    receiver = Receiver()
    with receiving(receiver) as port:
        config = pushing(
            port, metrics_export_batch_max_data_points=20, metrics_grpc_exporter_header="X-Key:k 1"
        )
        async with LocalCluster(broker_config=config) as cluster:
            await cluster.create_topic("paid", queues=1)
            await send(cluster, 5)
            exporter = cluster.broker().exporter
            assert exporter is not None

            async def same() -> bool:
                shown = await page(exporter.address)
                pushed = receiver.series()
                steady = {
                    key: value for key, value in shown.items() if not any(word in key[0] for word in CHANGING)
                }
                # What speaks of the page itself is only there.
                names = {name for name, _ in shown if not name.startswith("aerobee_page")}
                return names == {name for name, _ in pushed} and all(
                    pushed.get(key) == value for key, value in steady.items()
                )

            await wait_until(same)
            assert receiver.sum_of("rocketmq_messages_in_total") >= 5
    assert receiver.scopes == {"broker-meter"}
    assert all(headers["x-key"] == "k 1" for headers in receiver.headers)
    counts = [len(list(receiver.points([request]))) for request in receiver.requests]
    assert max(counts) == 20
    name, labels = next(key for key in receiver.series() if key[0] == "rocketmq_messages_in_total")
    assert {("zone", "a"), ("node_type", "broker"), ("topic", "paid")} <= labels, name
    for each, kind, _point in receiver.points():
        assert (kind == "sum") == each.endswith("_total") or kind == "histogram", each


async def test_differences_sum_to_what_was_sent_though_the_receiver_was_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver, port = Receiver(), free_port()
    with caplog.at_level(logging.WARNING, "aerobee.monitoring.push"):
        async with LocalCluster(broker_config=pushing(port, metrics_in_delta=True)) as cluster:
            await cluster.create_topic("paid", queues=1)
            await send(cluster, 3)
            await wait_until(lambda: bool(caplog.records))
            await send(cluster, 4)  # senders do not notice
            (why,) = [
                record.getMessage() for record in caplog.records if record.name == "aerobee.monitoring.push"
            ]
            assert why.startswith(f"numbers were not taken by http://127.0.0.1:{port}: UNAVAILABLE: ")
            with receiving(receiver, port):
                await wait_until(lambda: receiver.sum_of("rocketmq_messages_in_total") == 7)
                await send(cluster, 2)
                await wait_until(lambda: receiver.sum_of("rocketmq_messages_in_total") == 9)
                rounds = len(receiver.requests)
                await wait_until(lambda: len(receiver.requests) > rounds + 3)
            assert receiver.sum_of("rocketmq_messages_in_total") == 9
    temporality = {
        metric.sum.aggregation_temporality
        for request in receiver.requests
        for metric in request.resource_metrics[0].scope_metrics[0].metrics
        if metric.HasField("sum")
    }
    assert temporality == {metrics_pb2.AGGREGATION_TEMPORALITY_DELTA}
    labels = [labels for name, labels in receiver.series() if name == "rocketmq_messages_in_total"]
    assert all(("aggregation", "delta") in each for each in labels)


async def test_numbers_that_are_rejected_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver()
    receiver.reject = 2
    with receiving(receiver) as port, caplog.at_level(logging.WARNING, "aerobee.monitoring.push"):
        async with LocalCluster(broker_config=pushing(port)):
            await wait_until(lambda: len(receiver.requests) > 3)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [f"numbers were not taken by http://127.0.0.1:{port}: REJECTED: 2 numbers, too many"]


async def test_a_stop_sends_the_last_numbers() -> None:
    receiver = Receiver()
    with receiving(receiver) as port:
        config = pushing(port, metric_grpc_exporter_interval_in_mills=3_600_000)
        async with LocalCluster(broker_config=config) as cluster:
            await cluster.create_topic("paid", queues=1)
            await send(cluster, 3)
            assert receiver.requests == []
        assert receiver.sum_of("rocketmq_messages_in_total") == 3


async def test_a_receiver_that_never_answers_holds_no_stop() -> None:
    """It takes connections and says nothing; a request may take an hour, but a stop has a second for it."""
    connected = asyncio.Event()
    writers = []  # from Python 3.13 on a writer that is dropped closes its connection

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        connected.set()

    silent = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    config = pushing(port, metric_grpc_exporter_time_out_in_mills=3_600_000)
    async with asyncio.timeout(60):
        async with LocalCluster(broker_config=config) as cluster:
            await connected.wait()
            await cluster.create_topic("paid", queues=1)
            await send(cluster, 3)
            stored = cluster.broker().store.max_offset("paid", 0)
    assert stored == 3
    assert writers
    silent.close()


async def test_numbers_of_a_nameserver_and_a_controller(tmp_path: Path) -> None:
    at_nameserver, at_controller = Receiver(), Receiver()

    def pushed_to(port: int) -> dict[str, Any]:
        return {
            "metrics_exporter_type": "OTLP_GRPC",
            "metrics_grpc_exporter_target": f"http://127.0.0.1:{port}",
            "metric_grpc_exporter_interval_in_mills": 100,
        }

    with receiving(at_nameserver) as port, receiving(at_controller) as other:
        config = ControllerConfig(
            controller_d_leger_group="g",
            controller_d_leger_peers=f"n0-127.0.0.1:{free_port()}",
            controller_d_leger_self_id="n0",
            controller_store_path=str(tmp_path),
            bind_address="127.0.0.1",
            **pushed_to(other),
        )
        async with LocalCluster(nameserver_config=pushed_to(port)), Controller(config):
            await wait_until(lambda: bool(at_nameserver.requests) and bool(at_controller.requests))
    assert at_nameserver.scopes == {"nameserver"}
    assert at_controller.scopes == {"controller"}
    assert any(name == "aerobee_nameserver_brokers" for name, _ in at_nameserver.series())
    assert any(name == "aerobee_controller_voters" for name, _ in at_controller.series())


async def test_log_writes_a_line_for_each_number(caplog: pytest.LogCaptureFixture) -> None:
    config = {"metrics_exporter_type": "LOG", "metric_logging_exporter_interval_in_mills": 100}
    with caplog.at_level(logging.INFO, "aerobee.metrics"):
        async with LocalCluster(broker_config=config) as cluster:
            await cluster.create_topic("paid", queues=1)
            await send(cluster, 3)

            def is_there() -> bool:
                lines = [record.getMessage() for record in caplog.records if record.name == "aerobee.metrics"]
                return any(
                    line.startswith("rocketmq_messages_in_total{") and line.endswith(" 3") for line in lines
                )

            await wait_until(is_there)


def test_without_the_extra_a_start_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    config = BrokerConfig(
        metrics_exporter_type="OTLP_GRPC", metrics_grpc_exporter_target="http://127.0.0.1:4317"
    )
    with pytest.raises(
        ConfigError, match=r"metricsExporterType=OTLP_GRPC needs .* pip install 'aerobee\[otel\]'"
    ):
        Export(
            config, scope="broker-meter", health=Health("broker"), families=lambda: (), clock=ManualClock()
        )
