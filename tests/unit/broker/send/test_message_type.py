"""Kinds of message: how one is recognised, what a topic takes, and where a priority sends a message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.broker.send.message_type import priority_queue, type_of
from aerobee.broker.state.config import BrokerConfig
from aerobee.message import decode_record
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import ResponseCode
from tests.fakes import FakePeer
from tests.unit.broker.sending import Sending, batch_body, send_frame


@pytest.fixture
def checking(tmp_path: Path) -> Iterator[Sending]:
    """A broker that checks kinds, with a topic of each."""
    sending = Sending(tmp_path, BrokerConfig(broker_name="broker-a", enable_topic_message_type_check=True))
    for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"):
        sending.topics.put(TopicConfig(f"Topic{kind}", 4, 4, attributes={"message.type": kind}))
    yield sending
    sending.close()


@pytest.fixture
def sending(tmp_path: Path) -> Iterator[Sending]:
    sending = Sending(tmp_path)
    yield sending
    sending.close()


def send(sending: Sending, frame: bytes) -> dict[str, str | int]:
    """Through the fast path and, what it leaves, through the handler: code and queueId."""
    connection = FakePeer()
    used = sending.fast_path.burst(connection, frame, 0)  # type: ignore[arg-type]
    if used:
        (reply,) = connection.replies()
    else:
        answer = sending.handle(connection, frame)
        assert answer is not None
        reply = answer
    return {"code": reply.code, **(reply.ext or {}), "remark": reply.remark or ""}


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, "NORMAL"),
        ({"TAGS": "a"}, "NORMAL"),
        ({"TRAN_MSG": "true", "DELAY": "1"}, "TRANSACTION"),
        ({"TRAN_MSG": "false"}, "NORMAL"),
        ({"DELAY": "1", "__SHARDINGKEY": "k"}, "DELAY"),
        ({"TIMER_DELIVER_MS": "1"}, "DELAY"),
        ({"TIMER_DELAY_SEC": "1"}, "DELAY"),
        ({"TIMER_DELAY_MS": "1"}, "DELAY"),
        ({"__SHARDINGKEY": "k", "_SYS_MSG_PRIORITY_": "1"}, "FIFO"),
        ({"_SYS_MSG_PRIORITY_": "1"}, "PRIORITY"),
        ({"__LITE_TOPIC": "x"}, "LITE"),
    ],
)
def test_a_kind_is_read_from_the_properties(properties: dict[str, str], kind: str) -> None:
    assert type_of(properties) == kind


@pytest.mark.parametrize(
    ("text", "queue"), [("0", 0), ("3", 3), ("+2", 2), ("99", 3), ("2147483647", 3), ("-1", None), ("x", None), ("2147483648", None)]
)  # fmt: skip
def test_a_priority_is_a_queue_as_far_as_there_are_any(text: str, queue: int | None) -> None:
    properties = {"_SYS_MSG_PRIORITY_": text}
    assert priority_queue(properties, 4) == queue
    assert properties == {"_SYS_MSG_PRIORITY_": text}


def test_a_priority_on_another_kind_of_message_is_removed() -> None:
    properties = {"_SYS_MSG_PRIORITY_": "3", "DELAY": "1"}
    assert priority_queue(properties, 4) is None
    assert properties == {"DELAY": "1"}


def test_a_message_with_a_priority_goes_to_its_queue(sending: Sending) -> None:
    reply = send(sending, send_frame(queue="0", properties="UNIQ_KEY\x01U\x02_SYS_MSG_PRIORITY_\x012\x02"))
    assert (reply["code"], reply["queueId"]) == (0, "2")
    (record,) = sending.stored()
    assert record.queue_id == 2
    assert record.properties["_SYS_MSG_PRIORITY_"] == "2"


SENT = {
    "NORMAL": "UNIQ_KEY\x01U\x02",
    "FIFO": "UNIQ_KEY\x01U\x02__SHARDINGKEY\x01k\x02",
    "DELAY": "UNIQ_KEY\x01U\x02DELAY\x011\x02",
    "PRIORITY": "UNIQ_KEY\x01U\x02_SYS_MSG_PRIORITY_\x011\x02",
}


@pytest.mark.parametrize("kind", SENT)
@pytest.mark.parametrize("topic", ["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"])
def test_a_topic_takes_its_kind_only_when_kinds_are_checked(checking: Sending, topic: str, kind: str) -> None:
    reply = send(checking, send_frame(f"Topic{topic}", properties=SENT[kind]))
    if topic in (kind, "MIXED"):
        assert reply["code"] == 0
    else:
        assert reply["code"] == ResponseCode.MESSAGE_ILLEGAL
        assert str(reply["remark"]).startswith(
            f"TopicMessageType validate failed, the expected type is {topic}, but actual type is {kind}"
        )
        assert checking.stored() == []


def test_a_topic_without_a_kind_takes_normal_messages_when_kinds_are_checked(checking: Sending) -> None:
    assert send(checking, send_frame("TopicOrder"))["code"] == 0
    assert send(checking, send_frame("TopicOrder", properties=SENT["FIFO"]))["code"] != 0


def test_a_batch_counts_as_normal(checking: Sending) -> None:
    batch = batch_body((b"a", SENT["NORMAL"]), (b"b", SENT["NORMAL"]))
    assert send(checking, send_frame("TopicNORMAL", batch, code=320))["code"] == 0
    assert send(checking, send_frame("TopicMIXED", batch, code=320))["code"] == 0
    assert send(checking, send_frame("TopicFIFO", batch, code=320))["code"] == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("kind", SENT)
def test_any_topic_takes_any_kind_when_kinds_are_not_checked(sending: Sending, kind: str) -> None:
    sending.topics.put(TopicConfig("TopicFIFO", 4, 4, attributes={"message.type": "FIFO"}))
    assert send(sending, send_frame("TopicFIFO", properties=SENT[kind]))["code"] == 0


def test_a_plain_message_of_a_plain_topic_stays_on_the_hot_path_while_kinds_are_checked(
    checking: Sending,
) -> None:
    connection = FakePeer()
    frame = send_frame("TopicNORMAL")
    assert checking.fast_path.burst(connection, frame, 0) == len(frame)  # type: ignore[arg-type]
    record = checking.store.read_record(0)
    assert record is not None
    assert decode_record(record).topic == "TopicNORMAL"
