"""What makes a request and a reply, held to the frames that RocketMQ's client and broker exchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee.client.base.config import ProducerConfig
from aerobee.client.base.received import ReceivedMessage, decode_messages
from aerobee.client.base.results import SendResult
from aerobee.client.producer.publish_info import PublishInfo, Target
from aerobee.client.producer.request_reply import (
    PendingRequests,
    decode_reply,
    is_request,
    reply_message,
    request_properties,
)
from aerobee.client.producer.request_reply_calls import RequestReplyCalls
from aerobee.clock import SystemClock
from aerobee.errors import ConnectFailed, MalformedFrame, SendFailed, UsageError
from aerobee.message import Message, MessageQueue, decode_properties, encode_record, pack_host
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.remoting.frame import decode_frame
from tests.captures import captured


def captured_request(code: int) -> RemotingCommand:
    frame = next(
        frame
        for frame in captured("java-produce-request")
        if frame.request_code == code and not frame.is_reply
    )
    return decode_frame(frame.data)


def received(properties: str) -> ReceivedMessage:
    record = encode_record(
        topic=b"TopicReq",
        queue_id=1,
        queue_offset=0,
        physical_offset=0,
        body=b"ping",
        properties=properties.encode(),
        born_host=pack_host("127.0.0.1", 1),
        store_host=pack_host("127.0.0.1", 2),
    )
    return decode_messages(record, MessageQueue("TopicReq", "broker-a", 1))[0]


def test_a_request_carries_the_properties_that_rocketmqs_carries() -> None:
    java = decode_properties(captured_request(310).text("i"))
    ours = request_properties(java["CORRELATION_ID"], java["REPLY_TO_CLIENT"], 10.0)
    assert ours.items() <= java.items()


def test_a_reply_has_topic_and_properties_of_rocketmqs() -> None:
    request = received(captured_request(310).text("i") + "CLUSTER\x01DefaultCluster\x02")
    assert is_request(request)
    java = captured_request(325)
    reply = reply_message(request, b"reply to ping")
    assert reply.topic == java.text("b")
    expected = decode_properties(java.text("i"))
    del expected["UNIQ_KEY"]
    assert dict(reply.properties) == expected


def test_a_normal_message_has_no_reply() -> None:
    with pytest.raises(UsageError, match="no client waits"):
        reply_message(received("UNIQ_KEY\x01A\x02CLUSTER\x01C\x02"), b"answer")


def test_a_pushed_reply_of_rocketmqs_is_decoded() -> None:
    reply = decode_reply(captured_request(326))
    assert reply.body == b"reply to ping"
    assert reply.topic == "DefaultCluster_REPLY_TOPIC"
    assert reply.born_host == ("127.0.0.1", 60006)
    assert reply.store_host == ("127.0.0.2", 20911)
    assert reply.properties["CORRELATION_ID"] == "c1f07ef0-cbac-4e31-bbc0-233554d1c35b"
    assert reply.born_timestamp == 1795219647374


@pytest.mark.parametrize("host", ["", "nowhere", "127.0.0.1", "127.0.0.1:x", "1.2.3.4.5:6"])
def test_a_pushed_reply_with_an_unreadable_host_is_refused(host: str) -> None:
    push = captured_request(326)
    assert push.ext is not None
    push.ext["bornHost"] = host
    with pytest.raises(MalformedFrame, match="host"):
        decode_reply(push)


async def test_a_reply_reaches_the_request_that_it_answers_and_late_ones_are_dropped() -> None:
    pending = PendingRequests(clock=SystemClock(), random=Random(1), count_max=2)
    first, second = await pending.open(), await pending.open()
    waiting = asyncio.ensure_future(pending.open())
    connection: Any = None

    def push(correlation_id: str, body: bytes) -> RemotingCommand | None:
        command = captured_request(326)
        assert command.ext is not None
        command.ext["properties"] = f"CORRELATION_ID\x01{correlation_id}\x02"
        command.body = body
        return pending.arrived(connection, command)

    answer = push(second[0], b"two")
    assert answer is not None
    assert answer.code == 0
    assert (await second[1]).body == b"two"
    assert not first[1].done()
    await asyncio.sleep(0)
    assert not waiting.done(), "at most two requests wait at a time"
    pending.close(second[0])
    third = await waiting
    push(second[0], b"again")
    assert pending.unmatched_count == 1
    pending.close(first[0])
    pending.close(third[0])
    assert len(pending) == 0


class Replier(RequestReplyCalls):
    """Whoever replies; to none of the brokers a connection comes. `asked`: names, and whether it was the last chance."""

    def __init__(self, brokers: Sequence[str]) -> None:
        self.config = ProducerConfig()
        self.group = "repliers"
        self.asked: list[tuple[str, bool]] = []
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._clock = SystemClock()
        self._ids = cast(Any, SimpleNamespace(next_id=lambda now_ms: "0" * 32))
        self._session = cast(Any, SimpleNamespace(is_open=True))
        topic = "DefaultCluster_REPLY_TOPIC"
        targets = {name: Target(name, f"{name}:10911", *(cast(Any, None),) * 3) for name in brokers}
        info = PublishInfo([MessageQueue(topic, name, 0) for name in brokers], targets, first_turn=-1)
        self._publish = {topic: info}

    @property
    def client_id(self) -> str:
        return "replier"

    async def send(self, message: Message, **how: Any) -> SendResult:
        raise NotImplementedError

    def _refuse_closed(self) -> None:
        raise NotImplementedError

    def _prepare(self, message: Message) -> tuple[bytes, int]:
        return message.body, 0

    async def _connection(
        self, target: Target, deadline: float, request: str, *, is_only_try: bool
    ) -> Connection:
        self.asked.append((target.broker_name, is_only_try))
        raise ConnectFailed("connection refused", address=target.address)


@pytest.mark.parametrize(
    ("brokers", "asked"),
    [
        (["broker-a"], [("broker-a", True)]),
        (["broker-b", "broker-a"], [("broker-a", False), ("broker-b", True)]),
    ],
)
async def test_a_reply_gives_the_last_broker_all_the_time_that_is_left(
    brokers: list[str], asked: list[tuple[str, bool]]
) -> None:
    request = received(captured_request(310).text("i") + "CLUSTER\x01DefaultCluster\x02")
    replier = Replier(brokers)
    with pytest.raises(SendFailed):
        await replier.reply_to(request, b"pong")
    assert replier.asked == asked
