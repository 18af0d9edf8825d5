"""OpenTelemetry: one trace from the send to the handler, over a real broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from aerobee.client import ConsumeFrom, ConsumerConfig, Producer, PushConsumer, ReceivedMessage
from aerobee.errors import SendFailed
from aerobee.message import Message
from aerobee.testing import LocalCluster

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel and opentelemetry-sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aerobee.client.tracing.otel import OpenTelemetry


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def telemetry(exporter: InMemorySpanExporter) -> OpenTelemetry:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OpenTelemetry(provider.get_tracer("test"))


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


async def test_one_call_for_several_messages_links_to_each(
    exporter: InMemorySpanExporter, telemetry: OpenTelemetry
) -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("observed", 1)
        async with Producer(cluster.nameserver_address, observers=[telemetry]) as producer:
            await producer.send_batch([Message("observed", b"%d" % number) for number in range(3)])
        await consume(cluster, telemetry, 3, batch_size=8)
    *sent, processed = exporter.get_finished_spans()
    assert len(sent) == 3
    assert {link.context.span_id for link in processed.links} == {
        span.context.span_id for span in sent if span.context is not None
    }


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


def test_without_asking_for_it_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import sys, aerobee.client, aerobee.ops.commands.tree\n"
        "print([n for n in sys.modules if n.startswith(('opentelemetry', 'sqlalchemy', 'redis'))])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "[]"
