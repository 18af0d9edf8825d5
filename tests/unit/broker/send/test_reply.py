"""Replies of request-reply at the broker, held to the frames that RocketMQ exchanged, and every refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.broker.send.request_reply import RequestReply
from aerobee.broker.state.config import BrokerConfig
from aerobee.broker.state.producer_registry import ProducerRegistry
from aerobee.clock import ManualClock
from aerobee.errors import RequestTimeout
from aerobee.message import decode_properties
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame
from tests.captures import captured
from tests.unit.broker.sending import Sending


class Requester:
    """The connection of a client that waits for a reply."""

    def __init__(self) -> None:
        self.is_open = True
        self.principal = ""
        self.pushed: list[RemotingCommand] = []
        self.answer: RemotingCommand | Exception = RemotingCommand(0)
        self.closed: list[Any] = []

    def on_close(self, callback: Any) -> None:
        self.closed.append(callback)

    async def invoke(self, command: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        self.pushed.append(command)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Replying:
    """The feature, its parts, and one requester that is known."""

    def __init__(self, path: Path, config: BrokerConfig | None = None) -> None:
        self.sending = Sending(path, config)
        self.producers = ProducerRegistry(clock=self.sending.clock, call_soon=lambda run: run())
        self.requester = Requester()
        connection: Any = self.requester
        self.producers.register("PG_req", connection, "10.0.0.1@PG_req", language=0, version=513)
        self.feature = RequestReply(
            store=self.sending.store,
            writer=self.sending.writer,
            topics=self.sending.topics,
            producers=self.producers,
            stats=self.sending.stats,
            live=self.sending.live,
            identity=self.sending.identity,
            role=self.sending.role,
            clock=self.sending.clock,
        )

    async def reply(self, request: RemotingCommand) -> RemotingCommand:
        replier: Any = SimpleNamespace(address="127.0.0.1:60006", host_port=("127.0.0.1", 60006))
        answer = await self.feature.reply(replier, request)
        assert answer is not None
        return answer


@pytest.fixture
def replying(tmp_path: Path) -> Iterator[Replying]:
    replying = Replying(tmp_path)
    yield replying
    replying.sending.close()


def frame_of(code: int) -> RemotingCommand:
    return next(
        decode_frame(frame.data)
        for frame in captured("java-produce-request")
        if frame.request_code == code and not frame.is_reply
    )


def reply_request(**changes: str | None) -> RemotingCommand:
    request = frame_of(RequestCode.SEND_REPLY_MESSAGE_V2)
    assert request.ext is not None
    for name, value in changes.items():
        if value is None:
            del request.ext[name]
        else:
            request.ext[name] = value
    return request


async def test_the_push_has_the_fields_of_rocketmqs(replying: Replying) -> None:
    answer = await replying.reply(reply_request())
    assert answer.code == ResponseCode.SUCCESS
    (push,) = replying.requester.pushed
    expected = frame_of(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    assert (push.code, push.body) == (expected.code, expected.body)
    assert push.ext is not None
    assert expected.ext is not None
    assert push.ext.keys() == expected.ext.keys()
    for name in push.ext.keys() - {"properties", "storeTimestamp"}:
        assert push.ext[name] == expected.ext[name], name
    ours, theirs = (decode_properties(each.text("properties")) for each in (push, expected))
    assert ours.keys() == theirs.keys()
    assert {**ours, "PUSH_REPLY_TIME": ""} == {**theirs, "PUSH_REPLY_TIME": ""}


@pytest.mark.parametrize("bits", ["4", "8", "12"])
async def test_a_reply_is_part_of_no_transaction_whatever_its_flags_say(
    replying: Replying, bits: str
) -> None:
    answer = await replying.reply(reply_request(f=bits))
    assert answer.code == ResponseCode.SUCCESS
    (record,) = replying.sending.stored()
    assert (record.topic, record.sys_flag & 12) == ("DefaultCluster_REPLY_TOPIC", 0)


async def test_the_long_names_of_324_say_the_same(replying: Replying) -> None:
    request = reply_request()
    assert request.ext is not None
    names = {
        "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
        "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
        "m": "batch",
    }  # fmt: skip
    ext = {names[short_name]: value for short_name, value in request.ext.items() if short_name in names}
    answer = await replying.reply(
        RemotingCommand(RequestCode.SEND_REPLY_MESSAGE.value, ext, request.body, opaque=1)
    )
    assert answer.code == ResponseCode.SUCCESS
    assert replying.requester.pushed[0].body == b"reply to ping"


async def test_the_response_names_the_offset_of_a_stored_reply_only(
    tmp_path: Path,
) -> None:
    replying = Replying(tmp_path)
    answer = await replying.reply(reply_request())
    assert answer.ext is not None
    (record,) = replying.sending.stored()
    assert (record.topic, record.body) == ("DefaultCluster_REPLY_TOPIC", b"reply to ping")
    assert answer.ext["msgId"] == record.offset_message_id
    replying.sending.live.replace(store_reply_message_enable=False)
    answer = await replying.reply(reply_request())
    assert answer.ext == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": "0",
        "queueId": "0",
        "queueOffset": "0",
    }
    assert len(replying.sending.stored()) == 1
    await replying.sending.store.stop()


async def test_a_requester_that_is_gone_refuses_or_is_silent_is_code_1_with_the_reason(
    replying: Replying,
) -> None:
    replying.requester.answer = RequestTimeout("no answer within 3.0 s")
    answer = await replying.reply(reply_request())
    assert (answer.code, len(replying.sending.stored())) == (ResponseCode.SYSTEM_ERROR, 1)
    assert "no answer within 3.0 s" in (answer.remark or "")
    replying.requester.answer = RemotingCommand(1, remark="busy")
    assert "answered code 1: busy" in ((await replying.reply(reply_request())).remark or "")
    replying.requester.is_open = False
    answer = await replying.reply(reply_request())
    assert "no producer with client id 10.0.0.1@PG_req is connected" in (answer.remark or "")
    assert replying.feature.runtime_info() == {"repliesPushed": "0", "repliesNotPushed": "3"}


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"b": "NoSuchTopic"}, ResponseCode.TOPIC_NOT_EXIST, "DefaultCluster_REPLY_TOPIC"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "the broker's own"),
        ({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION, "the broker's own"),
        ({"e": "7"}, ResponseCode.INVALID_PARAMETER, "takes 0 to 0"),
        ({"i": "CORRELATION_ID\x01c\x02"}, ResponseCode.SYSTEM_ERROR, "REPLY_TO_CLIENT is empty"),
    ],
)
async def test_what_cannot_be_delivered_is_refused(
    replying: Replying, changes: dict[str, str], code: ResponseCode, words: str
) -> None:
    answer = await replying.reply(reply_request(**changes))
    assert answer.code == code
    assert words in (answer.remark or "")
    assert not replying.requester.pushed


async def test_a_body_beyond_the_limit_and_a_slave_are_refused(tmp_path: Path) -> None:
    replying = Replying(tmp_path / "master")
    request = reply_request()
    request.body = b"x" * (replying.sending.store_config.max_message_size + 1)
    assert (await replying.reply(request)).code == ResponseCode.MESSAGE_ILLEGAL
    await replying.sending.store.stop()
    slave = Replying(tmp_path / "slave", BrokerConfig(broker_name="broker-a", broker_id=1))
    answer = await slave.reply(reply_request())
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    await slave.sending.store.stop()


def test_a_connection_has_an_id_for_as_long_as_a_group_of_it_has() -> None:
    registry = ProducerRegistry(clock=ManualClock(), call_soon=lambda run: run())
    peer: Any = Requester()
    for group, client_id in (("a", "one"), ("b", "one"), ("c", "two"), ("b", "three"), ("d", "four")):
        registry.register(group, peer, client_id, language=0, version=1)
    assert registry.connection_of("one") is peer  # group a has it still
    registry.unregister("a", peer)
    assert [registry.connection_of(each) for each in ("one", "two", "three")] == [None, peer, peer]
    registry.connection_closed(peer)
    assert not registry._client_ids
    assert not registry._channel_counts


def test_a_client_is_found_by_its_last_heartbeat_and_forgotten_with_its_last_group() -> None:
    registry = ProducerRegistry(clock=ManualClock(), call_soon=lambda run: run())
    old, new = Requester(), Requester()
    first: Any = old
    second: Any = new
    registry.register("a", first, "client", language=0, version=1)
    registry.register("b", first, "client", language=0, version=1)
    registry.register("a", second, "client", language=0, version=1)
    assert registry.connection_of("client") is second
    registry.connection_closed(first)
    assert registry.connection_of("client") is second
    registry.unregister("a", second)
    assert registry.connection_of("client") is None
    registry.register("a", second, "client", language=0, version=1)
    new.is_open = False
    assert registry.connection_of("client") is None
