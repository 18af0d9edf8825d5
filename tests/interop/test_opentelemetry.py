"""A trace goes from our producer through RocketMQ's Java consumer and producer to our consumer, at both kinds of cluster."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.client import ConsumeFrom, ConsumerConfig, Producer, PushConsumer, ReceivedMessage
from aerobee.message import Message
from tests.interop.java_topics import make_group, make_topic
from tests.interop.rocketmq import Cluster, Driver

pytest.importorskip("opentelemetry.sdk", reason="needs the extra opentelemetry and opentelemetry-sdk")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aerobee.contrib.opentelemetry import OpenTelemetry

CONTEXT = ("traceparent", "tracestate")


async def test_a_trace_passes_through_java_clients(cluster: Cluster, driver: Driver, topic: str) -> None:
    """The Java side does what OpenTelemetry's instrumentation of it does: it reads and writes the user properties."""
    there, back = f"{topic}_there", f"{topic}_back"
    make_topic(driver, cluster, there)
    make_topic(driver, cluster, back)
    make_group(driver, cluster, f"{topic}_readers")
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = OpenTelemetry(provider)
    async with Producer(cluster.namesrv, "PG_traced", observers=[telemetry]) as producer:
        await producer.send(Message(there, b"hello"))
    with driver.push(cluster.namesrv, there) as consumer:
        (received,) = await asyncio.to_thread(consumer.received, 1)
    context = {name: text for name, text in received["properties"].items() if name in CONTEXT}
    assert list(context) == ["traceparent"]
    with driver.producer(cluster.namesrv) as java:
        await asyncio.to_thread(java.send, [{"topic": back, "body": "hello", "properties": context}])
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        done.set()

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with (
        asyncio.timeout(120),
        PushConsumer(
            cluster.namesrv, f"{topic}_readers", [back], handle, config=config, observers=[telemetry]
        ),
    ):
        await done.wait()
    sent, processed = exporter.get_finished_spans()
    assert sent.context is not None
    assert processed.parent is not None
    assert (processed.parent.trace_id, processed.parent.span_id) == (
        sent.context.trace_id,
        sent.context.span_id,
    )
