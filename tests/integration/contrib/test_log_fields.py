"""Log records of a handler have the fields of its message, in `logging` and in structlog."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from aerobee.client import (
    ConsumeFrom,
    ConsumerConfig,
    PullConsumerConfig,
    PushConsumer,
    ReceivedMessage,
)
from aerobee.contrib.log_fields import (
    FIELDS,
    LogFields,
    MessageFilter,
    add_message_fields,
    handling,
    message_fields,
)
from aerobee.message import Message
from aerobee.testing import LocalCluster

log = logging.getLogger("tests.log_fields")


@pytest.fixture
def records() -> Any:
    """Records of this module's logger, with the fields that the filter gave them."""
    kept: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record)

    handler = Keep()
    handler.addFilter(MessageFilter())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield kept
    log.removeHandler(handler)


async def consume(
    cluster: LocalCluster, handler: Callable[[Any], Any], done: asyncio.Event, **options: Any
) -> None:
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, **options)
    async with (
        asyncio.timeout(60),
        PushConsumer(
            cluster.nameserver_address, "readers", ["t"], handler, config=config, observers=[LogFields()]
        ),
    ):
        await done.wait()


@pytest.mark.parametrize("kind", ["async", "plain", "orderly"])
async def test_records_of_a_handler_have_its_message(records: list[logging.LogRecord], kind: str) -> None:
    done, loop = asyncio.Event(), asyncio.get_running_loop()

    def plain(message: ReceivedMessage) -> None:
        log.info("handled %s", message.body)
        loop.call_soon_threadsafe(done.set)

    async def handle(message: ReceivedMessage) -> None:
        await asyncio.create_task(asyncio.to_thread(plain, message))

    async with LocalCluster() as cluster:
        await cluster.create_topic("t", 1)
        async with cluster.producer() as producer:
            result = await producer.send(Message("t", b"x"))
        log.info("outside")
        await consume(cluster, plain if kind == "plain" else handle, done, orderly=kind == "orderly")
    outside, inside = records
    assert [getattr(outside, name) for name in FIELDS] == [None] * len(FIELDS)
    assert {name: getattr(inside, name) for name in FIELDS} == {
        "group": "readers",
        "topic": "t",
        "broker_name": result.queue.broker_name,
        "queue_id": 0,
        "queue_offset": 0,
        "message_id": result.message_id,
        "delivery_attempt": 1,
    }
    assert message_fields() == {}


async def test_a_batch_has_the_first_message_and_a_count() -> None:
    seen: list[dict[str, Any]] = []
    done = asyncio.Event()

    async def handle(messages: list[ReceivedMessage]) -> None:
        seen.append(dict(message_fields()))
        done.set()

    async with LocalCluster() as cluster:
        await cluster.create_topic("t", 1)
        async with cluster.producer() as producer:
            await producer.send_batch([Message("t", b"x") for _ in range(3)])
        await consume(cluster, handle, done, batch_size=8, pull_batch_count=32)
    assert (seen[0]["queue_offset"], seen[0]["message_count"]) == (0, 3)


async def test_the_fields_of_a_loop_are_those_of_its_message() -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("t", 1)
        async with cluster.producer() as producer:
            await producer.send_batch([Message("t", b"x") for _ in range(2)])
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
        seen = []
        async with (
            asyncio.timeout(60),
            PushConsumer(
                cluster.nameserver_address, "readers", ["t"], config=config, observers=[LogFields()]
            ) as consumer,
        ):
            async for message in consumer:
                seen.append(message_fields()["queue_offset"])
                await asyncio.create_task(acknowledged(message))  # in another context
                if len(seen) == 2:
                    break
    assert seen == [0, 1]


async def acknowledged(message: ReceivedMessage) -> None:
    message.ack()


async def test_a_polled_message_is_handled_in_a_block() -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("t", 1)
        async with cluster.producer() as producer:
            await producer.send(Message("t", b"x"))
        config = PullConsumerConfig(consume_from=ConsumeFrom.FIRST)
        async with asyncio.timeout(60), cluster.pull_consumer("pullers", config=config) as consumer:
            await consumer.subscribe("t")
            while not (messages := await consumer.poll(1.0)):
                pass
        with handling("pullers", messages[0]):
            assert message_fields()["group"] == "pullers"
    assert message_fields() == {}


async def test_structlog_adds_the_fields_to_each_event() -> None:
    structlog = pytest.importorskip("structlog", reason="needs structlog")
    events: list[dict[str, Any]] = []
    done = asyncio.Event()

    def keep(_logger: object, _name: str, event: dict[str, Any]) -> dict[str, Any]:
        events.append(dict(event))
        raise structlog.DropEvent

    logger = structlog.wrap_logger(None, processors=[add_message_fields, keep])

    async def handle(message: ReceivedMessage) -> None:
        logger.info("handled", topic="mine")
        done.set()

    async with LocalCluster() as cluster:
        await cluster.create_topic("t", 1)
        async with cluster.producer() as producer:
            await producer.send(Message("t", b"x"))
        logger.info("outside")
        await consume(cluster, handle, done)
    outside, inside = events
    assert outside == {"event": "outside"}
    assert (inside["group"], inside["queue_offset"], inside["topic"]) == ("readers", 0, "mine")
