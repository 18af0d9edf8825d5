"""OpenTelemetry: one trace from the send to the handler, over a real broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
from collections import Counter
from datetime import UTC, datetime, timedelta
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from aerobee.client import (
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
    SimpleConsumerConfig,
)
from aerobee.errors import SendFailed
from aerobee.message import Message
from aerobee.testing import LocalCluster

pytest.importorskip("opentelemetry.sdk", reason="needs the extra opentelemetry and opentelemetry-sdk")

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aerobee.contrib.opentelemetry import AerobeeInstrumentor, OpenTelemetry
from aerobee.grpc.proto import messages as pb
from tests.integration.grpc.client import GrpcClient, message

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def providers(exporter: InMemorySpanExporter, reader: InMemoryMetricReader) -> dict[str, Any]:
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    return {"tracer_provider": tracers, "meter_provider": MeterProvider([reader])}


@pytest.fixture
def telemetry(providers: dict[str, Any]) -> OpenTelemetry:
    return OpenTelemetry(**providers)


def named(exporter: InMemorySpanExporter, name: str) -> list[Any]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """The data points of each metric."""
    data: Any = reader.get_metrics_data()
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def linked(span: Any) -> set[int]:
    return {link.context.span_id for link in span.links}


async def consume(cluster: LocalCluster, telemetry: OpenTelemetry, count: int, batch_size: int = 1):
    received: list[ReceivedMessage] = []
    current: list[int] = []
    done = asyncio.Event()

    async def handle(given) -> None:
        messages = given if isinstance(given, list) else [given]
        received.extend(messages)
        current.append(trace.get_current_span().get_span_context().span_id)
        if len(received) >= count:
            done.set()

    async with (
        asyncio.timeout(60),
        PushConsumer(
            cluster.nameserver_address,
            "readers",
            subscriptions={"observed": "*"},
            handler=handle,
            config=ConsumerConfig(consume_from=ConsumeFrom.FIRST, batch_size=batch_size, pull_batch_count=32),
            observers=[telemetry],
        ),
    ):
        await done.wait()
    return received, current


async def test_a_handler_continues_the_trace_of_its_send(
    exporter: InMemorySpanExporter, telemetry: OpenTelemetry
) -> None:
    async with LocalCluster() as cluster:
        async with Producer(cluster.nameserver_address, observers=[telemetry]) as producer:
            result = await producer.send(Message("observed", b"body", tag="t", keys=("k",)))
        received, current = await consume(cluster, telemetry, 1)
    sent, processed = exporter.get_finished_spans()
    assert (sent.name, sent.kind) == ("send observed", trace.SpanKind.PRODUCER)
    assert (processed.name, processed.kind) == ("process observed", trace.SpanKind.CONSUMER)
    assert sent.context is not None
    assert processed.context is not None
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    assert current == [processed.context.span_id], "the handler runs inside its span"
    assert (
        received[0]
        .properties["traceparent"]
        .startswith(f"00-{sent.context.trace_id:032x}-{sent.context.span_id:016x}-")
    )
    assert sent.attributes is not None
    assert sent.attributes["messaging.message.id"] == result.message_id
    assert sent.attributes["messaging.system"] == "rocketmq"
    assert processed.attributes is not None
    assert processed.attributes["messaging.consumer.group.name"] == "readers"


async def test_a_batch_has_a_span_for_each_message_and_one_for_the_send(
    exporter: InMemorySpanExporter, telemetry: OpenTelemetry
) -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("observed", 1)
        async with Producer(cluster.nameserver_address, observers=[telemetry]) as producer:
            await producer.send_batch([Message("observed", b"%d" % number) for number in range(3)])
        await consume(cluster, telemetry, 3, batch_size=8)
    created, (sent,) = named(exporter, "create observed"), named(exporter, "send observed")
    (processed,) = named(exporter, "process observed")
    assert [span.kind for span in created] == [trace.SpanKind.PRODUCER] * 3
    assert sent.kind is trace.SpanKind.CLIENT
    assert sent.attributes["messaging.batch.message_count"] == 3
    assert linked(sent) == linked(processed) == {span.context.span_id for span in created}
    assert "messaging.message.id" in created[0].attributes


async def test_a_send_that_fails_is_a_span_with_an_error(
    exporter: InMemorySpanExporter, telemetry: OpenTelemetry
) -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("observed", 1)
        async with Producer(cluster.nameserver_address, observers=[telemetry]) as producer:
            await producer.queues("observed")
            await cluster.stop_broker()
            with pytest.raises(SendFailed):
                await producer.send(Message("observed", b"lost"), timeout_s=0.5)
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "SendFailed"


async def test_attributes_say_kind_keys_group_and_delay(
    exporter: InMemorySpanExporter, telemetry: OpenTelemetry
) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    async with LocalCluster() as cluster:
        await cluster.create_topic("observed", 1)
        async with Producer(cluster.nameserver_address, observers=[telemetry]) as producer:
            await producer.send(Message("observed", b"12345", tag="t", keys=("a", "b")))
            await producer.send(Message("observed", b""), message_group="account-7")
            await producer.send(Message("observed", b"", delay_level=3))
            await producer.send(Message("observed", b"", deliver_at=at))
    plain, fifo, level, timer = (dict(span.attributes or {}) for span in exporter.get_finished_spans())
    prefix = "messaging.rocketmq.message."
    assert [each[prefix + "type"] for each in (plain, fifo, level, timer)] == [
        "normal",
        "fifo",
        "delay",
        "delay",
    ]
    assert (plain[prefix + "tag"], plain[prefix + "keys"]) == ("t", ("a", "b"))
    assert plain["messaging.message.body.size"] == 5
    assert plain["messaging.operation.type"] == plain["messaging.operation.name"] == "send"
    assert plain["server.address"] == "127.0.0.1"
    assert fifo[prefix + "group"] == "account-7"
    assert level[prefix + "delay_time_level"] == 3
    assert timer[prefix + "delivery_timestamp"] == int(at.timestamp() * 1000)


async def test_receives_and_acknowledgements_link_to_their_sends(
    exporter: InMemorySpanExporter, telemetry: OpenTelemetry
) -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("observed", 1)
        async with Producer(cluster.nameserver_address, observers=[telemetry]) as producer:
            await producer.send(Message("observed", b"x"))
        simple = SimpleConsumer(
            cluster.nameserver_address,
            "simple",
            ["observed"],
            config=SimpleConsumerConfig(from_begin=True),
            observers=[telemetry],
        )
        async with asyncio.timeout(60), simple:
            while not (messages := await simple.receive(wait_s=1.0)):
                pass
            with telemetry.processing("simple", messages[0]):
                pass
            await simple.ack(messages[0])
        pull = PullConsumer(
            cluster.nameserver_address,
            "pullers",
            config=PullConsumerConfig(consume_from=ConsumeFrom.FIRST),
            observers=[telemetry],
        )
        async with asyncio.timeout(60), pull:
            await pull.subscribe("observed")
            while not await pull.poll(1.0):
                pass
    (sent,) = named(exporter, "send observed")
    received = named(exporter, "receive observed")
    assert [span.attributes["messaging.consumer.group.name"] for span in received] == ["simple", "pullers"]
    (settled,), (processed,) = named(exporter, "ack observed"), named(exporter, "process observed")
    assert settled.attributes["messaging.operation.type"] == "settle"
    for span in (*received, settled, processed):
        assert linked(span) == {sent.context.span_id}
    assert processed.parent.span_id == sent.context.span_id


async def test_metrics_have_the_names_of_the_conventions(
    reader: InMemoryMetricReader, telemetry: OpenTelemetry
) -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("observed", 1)
        async with Producer(cluster.nameserver_address, observers=[telemetry]) as producer:
            await producer.send_batch([Message("observed", b"x") for _ in range(2)])
            await producer.send(Message("observed", b"x"))
            await consume(cluster, telemetry, 3)
            await cluster.stop_broker()
            with pytest.raises(SendFailed):
                await producer.send(Message("observed", b"lost"), timeout_s=0.5)
    found = points(reader)
    assert set(found) == {
        "messaging.client.sent.messages",
        "messaging.client.operation.duration",
        "messaging.client.consumed.messages",
        "messaging.process.duration",
    }
    sent = Counter[str | None]()
    for point in found["messaging.client.sent.messages"]:
        sent[point.attributes.get("error.type")] += point.value
    assert sent == {None: 3, "SendFailed": 1}
    (consumed,) = found["messaging.client.consumed.messages"]
    assert consumed.value == 3
    assert dict(consumed.attributes)["messaging.consumer.group.name"] == "readers"
    (processed,) = found["messaging.process.duration"]
    assert processed.count == 3
    assert processed.explicit_bounds[0] == 0.005
    durations = found["messaging.client.operation.duration"]
    assert {point.attributes["messaging.operation.type"] for point in durations} == {"send"}
    assert sum(point.count for point in durations) == 3


async def test_the_instrumentor_observes_clients_made_afterwards(
    exporter: InMemorySpanExporter, providers: dict[str, Any]
) -> None:
    instrumentor = AerobeeInstrumentor()
    async with LocalCluster() as cluster:
        await cluster.create_topic("observed", 1)
        instrumentor.instrument(**providers)
        try:
            async with cluster.producer(trace=True) as producer:
                await producer.send(Message("observed", b"seen"))
                instrumentor.uninstrument()
                await producer.send(Message("observed", b"unseen"))
        finally:
            instrumentor.uninstrument()
        async with cluster.producer() as other:
            await other.send(Message("observed", b"unseen"))
    assert [span.name for span in exporter.get_finished_spans()] == ["send observed"]


def test_the_entry_point_names_the_instrumentor() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    group = "opentelemetry_instrumentor"
    (value,) = project["entry-points"][group].values()
    assert EntryPoint("aerobee", value, group).load() is AerobeeInstrumentor


async def test_a_message_of_a_grpc_client_continues_its_trace(
    exporter: InMemorySpanExporter, telemetry: OpenTelemetry
) -> None:
    """By the user property of RocketMQ's instrumentations, and by the protocol's own field."""
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    parent = f"00-{trace_id}-{span_id}-01"
    async with LocalCluster() as cluster:
        await cluster.create_topic("observed", 1)
        async with GrpcClient(cluster.broker().address) as client:
            for number, name in enumerate(("traceparent", "trace_context")):
                sent = message("observed", message_id=f"id-{number}")
                if name == "traceparent":
                    sent.user_properties[name] = parent
                else:
                    sent.system_properties.trace_context = parent
                await client("SendMessage", pb.SendMessageRequest(messages=[sent]))
        await consume(cluster, telemetry, 2)
    processed = exporter.get_finished_spans()
    assert [f"{span.parent.span_id:016x}" for span in processed if span.parent is not None] == [span_id] * 2
    assert {f"{span.context.trace_id:032x}" for span in processed if span.context} == {trace_id}


async def test_a_damaged_context_is_no_parent(
    exporter: InMemorySpanExporter, telemetry: OpenTelemetry
) -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("observed", 1)
        async with cluster.producer() as producer:
            for text in ("00-zz-zz-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 1000):
                await producer.send(Message("observed", b"", properties={"traceparent": text}))
        await consume(cluster, telemetry, 3)
    assert [(span.parent, list(span.links)) for span in exporter.get_finished_spans()] == [(None, [])] * 3


def test_without_asking_for_it_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import sys, aerobee.client, aerobee.ops.commands.tree\n"
        "print([n for n in sys.modules if n.startswith(('opentelemetry', 'sqlalchemy', 'redis'))])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "[]"
