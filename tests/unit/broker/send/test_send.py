"""The send handler: what the fast path leaves, with RocketMQ's codes and remarks that say what is allowed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.broker.admission.ack import LEASE_IS_OVER, Shortage
from aerobee.broker.delay.redelivery import WaitingMessage
from aerobee.broker.send.send_header import ENTRIES_PER_TURN, batch_pieces
from aerobee.broker.state.config import BrokerConfig
from aerobee.client.producer.send_tries import may_be_stored
from aerobee.errors import RemoteError, remote_error
from aerobee.message import MessageQueue, decode_record
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.remoting.frame import decode_frame
from tests.captures import captured
from tests.fakes import FakePeer
from tests.unit.broker.sending import Sending, batch_body, send_frame


@pytest.fixture
def sending(tmp_path: Path) -> Iterator[Sending]:
    sending = Sending(tmp_path)
    yield sending
    sending.close()


def answer(sending: Sending, frame: bytes) -> RemotingCommand:
    reply = sending.handle(FakePeer(), frame)
    assert reply is not None
    assert reply.ext is not None
    assert reply.ext["MSG_REGION"] == "DefaultRegion"
    assert reply.ext["TRACE_ON"] == "true"
    return reply


def test_unknown_topic_is_created_from_the_template_and_told(sending: Sending) -> None:
    told: list[str] = []
    sending.topics.on_change(lambda configs: told.extend(config.topic_name for config in configs))
    before = sending.topics.data_version.counter
    reply = answer(sending, send_frame("TopicNew", d="3"))
    assert reply.code == 0
    config = sending.topics.get("TopicNew")
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 3, 6)
    assert told == ["TopicNew"]
    assert sending.topics.data_version.counter == before + 1
    assert sending.topics.data_version.timestamp == sending.clock.now_ms()


def test_the_template_limits_the_requested_queue_count(sending: Sending) -> None:
    answer(sending, send_frame("TopicNew", d="300"))
    config = sending.topics.get("TopicNew")
    assert config is not None
    assert config.write_queue_nums == 8


@pytest.mark.parametrize("template", ["TemplateUnknown", "TopicNormal", ""])
def test_without_a_template_to_inherit_from_the_topic_does_not_exist(sending: Sending, template: str) -> None:
    reply = answer(sending, send_frame("TopicNew", c=template))
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert reply.remark
    assert "topic[TopicNew] not exist" in reply.remark


def test_automatic_creation_can_be_off(tmp_path: Path) -> None:
    sending = Sending(tmp_path, BrokerConfig(broker_name="broker-a", auto_create_topic_enable=False))
    assert answer(sending, send_frame("TopicNew")).code == ResponseCode.TOPIC_NOT_EXIST
    sending.close()


@pytest.mark.parametrize(
    ("frame", "code", "words"),
    [
        (send_frame(queue="99"), ResponseCode.INVALID_PARAMETER, "request queueId[99] is illegal"),
        (send_frame("bad topic"), ResponseCode.INVALID_PARAMETER, "letters, digits"),
        (send_frame("t" * 128), ResponseCode.INVALID_PARAMETER, "at most 127"),
        (send_frame("SELF_TEST_TOPIC"), ResponseCode.NO_PERMISSION, "forbidden"),
        (send_frame(body=bytes(5_000)), ResponseCode.MESSAGE_ILLEGAL, "at most 4096"),
        (
            send_frame(properties="k\x01" + "v" * 32_760 + "\x02"),
            ResponseCode.MESSAGE_ILLEGAL,
            "at most 32767",
        ),
        (send_frame(properties="a\x01b\x02", f="4"), ResponseCode.MESSAGE_ILLEGAL, "TRAN_MSG"),
        (send_frame(code=320, body=b"\0\0\0\x40"), ResponseCode.MESSAGE_ILLEGAL, "batch"),
        (
            send_frame("%RETRY%g", queue="0", code=320, body=batch_body((b"a", ""))),
            ResponseCode.MESSAGE_ILLEGAL,
            "retry",
        ),
        (
            send_frame(code=320, body=batch_body((b"a", "")), i="DELAY\x011\x02"),
            ResponseCode.MESSAGE_ILLEGAL,
            "delay",
        ),
    ],
)
def test_refusals_carry_rocketmqs_code_and_say_what_is_allowed(
    tmp_path: Path, frame: bytes, code: int, words: str
) -> None:
    sending = Sending(tmp_path, max_message_size=4_096)
    reply = answer(sending, frame)
    assert reply.code == code
    assert reply.remark
    assert words in reply.remark
    assert sending.store.log.end == 0
    sending.close()


def test_captured_errors_get_the_captured_codes(sending: Sending) -> None:
    frames = captured("java-produce-errors")
    replies = {(frame.connection, frame.header["opaque"]): frame for frame in frames if frame.is_reply}
    for frame in frames:
        if frame.is_reply or frame.request_code not in (310, 320) or frame.tap != "broker":
            continue
        theirs = decode_frame(replies[frame.connection, frame.header["opaque"]].data)
        ours = answer(sending, frame.data)
        assert ours.code == theirs.code, frame.header["extFields"]


def test_a_slave_sends_senders_to_its_master(tmp_path: Path) -> None:
    sending = Sending(tmp_path, BrokerConfig(broker_name="broker-a", broker_id=1))
    reply = answer(sending, send_frame())
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert reply.remark
    assert "slave" in reply.remark
    sending.close()


def test_nothing_is_taken_before_the_time_set_for_it(tmp_path: Path) -> None:
    opens = Sending(tmp_path / "probe").clock.now_ms() + 10_000
    sending = Sending(
        tmp_path / "store", BrokerConfig(broker_name="broker-a", start_accept_send_request_time_stamp=opens)
    )
    frame = send_frame()
    assert sending.fast_path.burst(FakePeer(), frame, 0) == 0  # type: ignore[arg-type]
    assert answer(sending, frame).code == ResponseCode.SYSTEM_ERROR
    sending.clock.advance(10)
    assert sending.fast_path.burst(FakePeer(), frame, 0)  # type: ignore[arg-type]
    assert answer(sending, frame).code == 0
    sending.close()


def test_overload_is_answered_with_reason_and_measured_wait(sending: Sending) -> None:
    sending.overload.observe(1_234, 0)
    assert answer(sending, send_frame()).code == 0, "one late moment is not overload"
    sending.overload.observe(1_234, 0)
    reply = answer(sending, send_frame())
    assert reply.code == ResponseCode.SYSTEM_BUSY
    assert reply.remark
    assert "1234 ms" in reply.remark
    assert sending.overload.refused_count == 1
    sending.overload.observe(0, 2 << 20)
    reply = answer(sending, send_frame())
    assert reply.remark
    assert reply.remark.startswith("[REJECTREQUEST]")
    sending.overload.observe(0, 0)
    assert answer(sending, send_frame()).code == 0


def test_a_message_without_unique_key_gets_one(sending: Sending) -> None:
    replies = [answer(sending, send_frame(properties="")) for _ in range(3)]
    keys = [reply.ext["transactionId"] for reply in replies if reply.ext]
    assert len(set(keys)) == 3
    assert all(len(key) == 32 and key == key.upper() for key in keys)
    assert [record.unique_id for record in sending.stored()] == keys


def test_any_queue_is_chosen_by_the_broker(sending: Sending) -> None:
    reply = answer(sending, send_frame(queue="-1"))
    assert reply.ext
    assert reply.ext["queueId"] == "0"


def test_a_delay_level_goes_to_the_schedule_topic_and_back(sending: Sending) -> None:
    reply = answer(
        sending, send_frame("TopicDelay", queue="2", properties="UNIQ_KEY\x01U\x02DELAY\x0199\x02")
    )
    assert reply.code == 0
    assert reply.ext
    assert reply.ext["queueId"] == "2"
    (record,) = sending.stored()
    assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", 17)
    assert record.properties["DELAY"] == "18"
    assert record.properties["REAL_TOPIC"] == "TopicDelay"
    assert record.properties["REAL_QID"] == "2"
    entry = sending.store.queues["SCHEDULE_TOPIC_XXXX", 17].entry(0)  # type: ignore[union-attr]
    assert entry is not None
    assert entry[2] == record.store_timestamp + 7_200_000
    data = sending.store.read_record(entry[0])
    assert data is not None
    message = WaitingMessage(data).restored()
    assert MessageQueue(message.topic, "", message.queue_id) == MessageQueue("TopicDelay", "", 2)


def test_a_batch_is_stored_in_order_with_one_reply(sending: Sending) -> None:
    body = batch_body((b"a", "UNIQ_KEY\x01A\x02"), (b"b", "UNIQ_KEY\x01B\x02TAGS\x01t\x02"))
    reply = answer(sending, send_frame(code=320, body=body))
    assert reply.ext
    assert len(reply.ext["msgId"].split(",")) == 2
    assert reply.ext["queueOffset"] == "0"
    assert [record.body for record in sending.stored()] == [b"a", b"b"]
    assert [record.unique_id for record in sending.stored()] == ["A", "B"]


async def test_a_batch_of_many_messages_is_stored_in_turns(sending: Sending) -> None:
    count = 3 * ENTRIES_PER_TURN + 7
    body = batch_body(*[(b"%d" % number, "KEYS\x01ab c\x02") for number in range(count)])
    request = decode_frame(send_frame("TopicBatch", queue="1", code=320, body=body))
    serving = sending.sends.send(FakePeer(), request)
    assert inspect.iscoroutine(serving), "a request in one go blocks all other requests"
    served = asyncio.ensure_future(serving)
    seen = {0}
    while not served.done():
        await asyncio.sleep(0)
        seen.add(sending.store.max_offset("TopicBatch", 1))
    reply = served.result()
    assert isinstance(reply, RemotingCommand)
    assert (reply.code, len((reply.ext or {})["msgId"].split(","))) == (0, count)
    assert sorted(seen) == [0, ENTRIES_PER_TURN, 2 * ENTRIES_PER_TURN, 3 * ENTRIES_PER_TURN, count]
    assert [record.body for record in sending.stored()] == [b"%d" % number for number in range(count)]


async def test_a_batch_that_is_refused_after_a_part_of_it_is_stored_may_be_stored(
    sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client takes SERVICE_NOT_AVAILABLE as the word that nothing is stored."""

    def is_stored() -> Shortage | None:
        return LEASE_IS_OVER if sending.store.max_offset("TopicBatch", 1) else None

    monkeypatch.setattr(sending.sends._service, "_shortage", is_stored)
    body = batch_body(*[(b"a", "")] * (2 * ENTRIES_PER_TURN))
    request = decode_frame(send_frame("TopicBatch", queue="1", code=320, body=body))
    serving = sending.sends.send(FakePeer(), request)
    assert inspect.iscoroutine(serving)
    with pytest.raises(
        RemoteError, match="512 messages of the batch are stored, then: service not available"
    ) as refused:
        await serving
    assert (refused.value.code, len(sending.stored())) == (ResponseCode.SYSTEM_ERROR, ENTRIES_PER_TURN)
    assert may_be_stored(remote_error(refused.value.code, refused.value.remark))


async def test_a_large_batch_that_cannot_be_cut_is_refused_before_any_of_it_is_stored(
    sending: Sending,
) -> None:
    body = batch_body(*[(b"a", "")] * (2 * ENTRIES_PER_TURN)) + b"\0\0\0\x40"
    serving = sending.sends.send(FakePeer(), decode_frame(send_frame("TopicBatch", code=320, body=body)))
    assert inspect.iscoroutine(serving)
    with pytest.raises(RemoteError, match="entry 1024 of the batch has 4 bytes only"):
        await serving
    assert sending.stored() == []


def test_keys_count_as_work_of_a_batch(sending: Sending) -> None:
    keys = "KEYS\x01" + "k " * 16_000 + "\x02"
    pieces = batch_pieces(batch_body(*[(b"a", keys)] * 6))
    assert [len(piece) for piece in pieces] == [2, 2, 2]


def test_a_batch_of_the_cpp_client_is_stored_as_its_messages(sending: Sending) -> None:
    frame = next(
        f
        for f in captured("cpp-producer")
        if f.request_code == 10 and f.header["extFields"].get("batch") == "1"
    )
    assert answer(sending, frame.data).code == 0
    assert len(sending.stored()) > 1


def test_oneway_errors_and_successes_are_not_answered(sending: Sending) -> None:
    assert sending.handle(FakePeer(), send_frame(flag=FLAG_ONEWAY, queue="-1")) is None
    assert len(sending.stored()) == 1


def test_a_retry_beyond_its_tries_becomes_a_dead_letter(sending: Sending) -> None:
    frame = send_frame("%RETRY%group", queue="0", j="3", l="3")
    assert answer(sending, frame).code == 0
    assert answer(sending, send_frame("%RETRY%group", queue="0", j="4", l="3")).code == 0
    first, second = sending.stored()
    assert first.topic == "%RETRY%group"
    assert first.reconsume_times == 3
    assert second.topic == "%DLQ%group"
    assert second.properties["DELAY"] == "-1"
    dead_letters = sending.topics.get("%DLQ%group")
    assert dead_letters is not None
    assert dead_letters.perm == 6
    assert sending.groups.get("group") is not None


def test_a_retry_of_an_orderly_group_that_holds_locks_is_a_dead_letter(sending: Sending) -> None:
    sending.locks.lock("group", "client", [MessageQueue("TopicNormal", "broker-a", 0)])
    answer(sending, send_frame("%RETRY%group", queue="0", j="1"))
    assert sending.stored()[0].topic == "%DLQ%group"


def test_a_retry_of_an_unknown_group_is_refused_when_groups_are_not_created(tmp_path: Path) -> None:
    sending = Sending(tmp_path, BrokerConfig(broker_name="broker-a", auto_create_subscription_group=False))
    reply = answer(sending, send_frame("%RETRY%absent", queue="0"))
    assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    sending.close()


def test_a_message_id_holds_the_records_offset(sending: Sending) -> None:
    for _ in range(3):
        reply = answer(sending, send_frame(queue="-1"))
        assert reply.ext
        offset = int(reply.ext["msgId"][16:], 16)
        data = sending.store.read_record(offset)
        assert data is not None
        assert decode_record(data).offset_message_id == reply.ext["msgId"]
