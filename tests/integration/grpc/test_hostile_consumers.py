"""Calls of consumers with every field at its worst: each is refused by a status, and the broker serves on."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from aerobee.grpc.proto import messages as pb
from aerobee.message import Message
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient

INTERNAL = "internal error, see the broker's log"
NUMBERS = (0, -1, 1, 63, 64, 999, 1 << 31, (1 << 53) - 1, 1 << 53, 1 << 63, -(1 << 63), 10**40)
NAMES = (
    "orders",
    "workers",
    "",
    " ",
    "%RETRY%workers",
    "%DLQ%workers",
    "a b",
    "x" * 300,
    "CID_RMQ_SYS_x",
    "TBW102",
    "\u0000",
    "日本",
)
EXPRESSIONS = (
    "",
    "*",
    "A || B",
    "||",
    "a >",
    "a > 1",
    "(" * 500,
    "'",
    "x" * 20_000,
    "a IN ('" + "b','" * 50 + "')",
)
DURATIONS = (0, -1, 1, 10, 43_200, 43_201, 1 << 40, (1 << 63) - 1, -(1 << 63))


def handle(rng: random.Random, real: str) -> str:
    """A receipt handle that is garbage, forged, or a real one with a word replaced."""
    match rng.randrange(4):
        case 0:
            return rng.choice(("", " ", "a", "0 " * 8, "1 2 3 4 5 6 7 8 9", "\u0000" * 9, "9" * 3_000))
        case 1:
            return " ".join(str(rng.choice(NUMBERS)) for _ in range(rng.randrange(6, 11)))
        case _:
            words = real.split(" ")
            words[rng.randrange(len(words))] = str(rng.choice((*NUMBERS, "broker-z", "x", "")))
            return " ".join(words)


def resource(rng: random.Random, usual: str) -> Any:
    return pb.Resource(name=usual if rng.random() < 0.7 else rng.choice(NAMES))


def duration(rng: random.Random, target: Any) -> None:
    target.seconds = rng.choice(DURATIONS)
    target.nanos = rng.choice((0, -1, 999_999_999, -(1 << 31), (1 << 31) - 1))


async def call(client: GrpcClient, rng: random.Random, real: str) -> Any:
    """The status of one call."""
    group, topic = resource(rng, "workers"), resource(rng, "orders")
    match rng.randrange(4):
        case 0:
            entries = [
                pb.AckMessageEntry(receipt_handle=handle(rng, real))
                for _ in range(rng.choice((0, 1, 2, 1_001)))
            ]
            answer = await client(
                "AckMessage", pb.AckMessageRequest(group=group, topic=topic, entries=entries)
            )
            assert all(INTERNAL not in entry.status.message for entry in answer.entries)
            return answer.status
        case 1:
            change = pb.ChangeInvisibleDurationRequest(
                group=group, topic=topic, receipt_handle=handle(rng, real), suspend=rng.random() < 0.5
            )
            duration(rng, change.invisible_duration)
            answer = await client("ChangeInvisibleDuration", change)
            assert answer.receipt_handle or not change.receipt_handle
            return answer.status
        case 2:
            forward = pb.ForwardMessageToDeadLetterQueueRequest(
                group=group,
                topic=topic,
                receipt_handle=handle(rng, real),
                delivery_attempt=rng.choice((0, -1, (1 << 31) - 1)),
            )
            return (await client("ForwardMessageToDeadLetterQueue", forward)).status
        case _:
            receive = pb.ReceiveMessageRequest(
                group=group,
                message_queue=pb.MessageQueue(topic=topic, id=rng.choice((0, -1, 1 << 30))),
                filter_expression=pb.FilterExpression(
                    type=rng.choice((0, 1, 2)), expression=rng.choice(EXPRESSIONS)
                ),
                batch_size=rng.choice((0, -1, 1, 33, (1 << 31) - 1)),
                auto_renew=rng.random() < 0.3,
                attempt_id=rng.choice(("", "a", "x" * 5_000)),
            )
            duration(rng, receive.invisible_duration)
            receive.long_polling_timeout.seconds = rng.choice((0, -1, -(1 << 63)))
            frames = await client.stream("ReceiveMessage", receive)
            assert frames[0].WhichOneof("content") == "status"
            return frames[0].status


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("in_order", [False, True], ids=["any order", "in order"])
async def test_calls_with_impossible_fields_are_refused(
    seed: int, in_order: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    async with LocalCluster(broker_config={"enable_property_filter": True}) as cluster:
        await cluster.create_topic("orders", queues=2)
        broker = cluster.broker()
        broker.groups.put(SubscriptionGroupConfig("workers", consume_message_orderly=in_order))
        async with GrpcClient(broker.address) as client, cluster.producer() as producer:
            for number in range(4):
                await producer.send(Message("orders", str(number).encode(), tag="A"))
            request = pb.ReceiveMessageRequest(
                group=pb.Resource(name="workers"),
                message_queue=pb.MessageQueue(topic=pb.Resource(name="orders")),
                batch_size=1,
            )
            request.invisible_duration.seconds = 600
            frames = await client.stream("ReceiveMessage", request)
            real = frames[1].message.system_properties.receipt_handle
            codes = set()
            for _ in range(150):
                status = await call(client, rng, real)
                assert INTERNAL not in status.message, status
                codes.add(status.code)
            assert len(codes) >= 5, "not every call ends at its first check"
            await producer.send(Message("orders", b"last"))
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
