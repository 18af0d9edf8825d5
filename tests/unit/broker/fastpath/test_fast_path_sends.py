"""The fast path: captured and made sends give RocketMQ's replies and records, and what is not ordinary is left alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.broker.fastpath.choice import NATIVE, PYTHON
from aerobee.broker.send.send_header import FAST_BATCH_ENTRIES_MAX
from aerobee.broker.state.config import BrokerConfig
from aerobee.message import tags_code
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.command import FLAG_ONEWAY, SerializeType
from aerobee.remoting.frame import HEADER_BYTES_MAX, decode_frame, encode_frame
from tests.captures import CapturedFrame, captured
from tests.fakes import FakePeer
from tests.unit.broker.sending import Sending, batch_body, send_frame, use_backend

BROKER_PROPERTIES = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
SEND_CODES = (10, 310, 320)


@pytest.fixture(params=(PYTHON, NATIVE), autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test holds both backends."""
    use_backend(request.param, monkeypatch)


@pytest.fixture
def sending(tmp_path: Path) -> Iterator[Sending]:
    sending = Sending(tmp_path)
    yield sending
    sending.close()


def sends_of(name: str) -> list[tuple[CapturedFrame, CapturedFrame | None]]:
    """The send requests of a capture with their replies."""
    frames = captured(name)
    pairs = []
    for frame in frames:
        if frame.is_reply or frame.request_code not in SEND_CODES or frame.direction != "request":
            continue
        reply = next(
            (
                other
                for other in frames
                if other.is_reply
                and other.request_code == frame.request_code
                and other.connection == frame.connection
                and other.tap == frame.tap
                and decode_frame(other.data).opaque == decode_frame(frame.data).opaque
            ),
            None,
        )
        pairs.append((frame, reply))
    return pairs


@pytest.mark.parametrize("name", ["java-produce-send", "java-produce-order", "java-produce-batch"])
def test_captured_java_sends_are_served_with_the_captured_reply_fields(sending: Sending, name: str) -> None:
    for request, reply in sends_of(name):
        connection = FakePeer()
        used = sending.fast_path.burst(connection, request.data, 0)  # type: ignore[arg-type]
        assert used == len(request.data)
        if reply is None:
            assert connection.written == []
            continue
        (ours,) = connection.replies()
        theirs = decode_frame(reply.data)
        assert ours.code == theirs.code == 0
        assert ours.opaque == theirs.opaque
        assert ours.is_response
        assert ours.ext is not None
        assert theirs.ext is not None
        assert ours.ext.keys() == theirs.ext.keys()
        for key in ("queueId", "transactionId", "TRACE_ON", "MSG_REGION"):
            assert ours.ext[key] == theirs.ext[key]
        assert len(ours.ext["msgId"].split(",")) == len(theirs.ext["msgId"].split(","))
        assert ours.ext["msgId"].startswith("7F000002000051AF")


def test_captured_sends_are_stored_with_every_field_of_the_request(sending: Sending) -> None:
    requests = [request for request, _ in sends_of("java-produce-send")]
    connection = FakePeer(("10.0.0.1", 55_396))
    data = b"".join(request.data for request in requests)
    assert sending.fast_path.burst(connection, data, 0) == len(data)  # type: ignore[arg-type]
    records = sending.stored()
    assert len(records) == len(requests)
    for record, request in zip(records, requests, strict=True):
        command = decode_frame(request.data)
        assert command.ext is not None
        sent = dict(pair.split("\x01") for pair in command.ext["i"].split("\x02") if pair)
        assert record.properties == {**sent, **BROKER_PROPERTIES}
        assert record.topic == command.ext["b"]
        assert record.queue_id == int(command.ext["e"])
        assert record.flag == int(command.ext["h"])
        assert record.born_timestamp == int(command.ext["g"])
        assert record.born_host == ("10.0.0.1", 55_396)
        assert record.store_host == ("127.0.0.2", 20_911)
        assert record.store_timestamp == sending.clock.now_ms()
        assert record.body == command.body
    assert len(connection.written) == 1, "replies of one read leave in one write"


def test_records_of_a_batch_keep_the_property_text_of_the_client(sending: Sending) -> None:
    ((request, _),) = sends_of("java-produce-batch")
    sending.fast_path.burst(FakePeer(), request.data, 0)  # type: ignore[arg-type]
    records = sending.stored()
    assert len(records) == 3
    assert [record.queue_offset for record in records] == [0, 1, 2]
    for record in records:
        assert not BROKER_PROPERTIES.keys() & record.properties.keys()
        assert record.unique_id is not None


@pytest.mark.parametrize("name", ["cpp-producer"])
def test_plain_cpp_sends_are_served_batches_and_delays_left(sending: Sending, name: str) -> None:
    served, left = [], []
    for request, _ in sends_of(name):
        connection = FakePeer()
        used = sending.fast_path.burst(connection, request.data, 0)  # type: ignore[arg-type]
        (served if used else left).append(decode_frame(request.data))
        if used and not request.is_oneway:
            assert connection.replies()[0].code == 0
    assert len(served) == 7
    for command in left:
        assert command.ext is not None
        assert command.ext["batch"] == "1" or "DELAY" in command.ext["properties"]


@pytest.mark.parametrize("name", ["java-binary-send", "java-binary-batch"])
def test_binary_headers_are_served_and_answered_in_binary(sending: Sending, name: str) -> None:
    pairs = sends_of(name)
    assert pairs
    for request, _ in pairs:
        command = decode_frame(request.data)
        assert command.serialize_type == SerializeType.ROCKETMQ
        assert command.ext is not None
        sending.topics.put(TopicConfig(command.ext["b"], 8, 8))
        connection = FakePeer()
        assert sending.fast_path.burst(connection, request.data, 0) == len(request.data)  # type: ignore[arg-type]
        if request.is_oneway:
            continue
        (reply,) = connection.replies()
        assert reply.serialize_type == SerializeType.ROCKETMQ
        assert reply.opaque == command.opaque
        assert reply.ext is not None
        assert reply.ext["queueId"] == command.ext["e"]


def test_fast_path_and_handler_store_the_same_message(tmp_path: Path) -> None:
    fast_path, handler = Sending(tmp_path / "fast_path"), Sending(tmp_path / "handler")
    frames = [request.data for request, _ in sends_of("java-produce-send") + sends_of("java-produce-batch")]
    replies = []
    for sending in (fast_path, handler):
        connection = FakePeer()
        for frame in frames:
            if sending is fast_path:
                assert sending.fast_path.burst(connection, frame, 0) == len(frame)  # type: ignore[arg-type]
            elif (reply := sending.handle(connection, frame)) is not None:
                connection.write(encode_frame(reply))
        replies.append([(reply.opaque, reply.ext) for reply in connection.replies()])
    assert replies[0] == replies[1]
    assert fast_path.stored() == handler.stored()
    for key, queue in fast_path.store.queues.items():
        other = handler.store.queues[key]
        assert queue.max_offset == other.max_offset
    for topic, key in (("TopicNormal", "key1"), ("TopicNormal", "键"), ("TopicBatch", "KEYS")):
        found = [sending.store.query(topic, key, count_max=32).count for sending in (fast_path, handler)]
        assert found[0] == found[1]
    tags = [
        sending.store.query("TopicNormal", "TagA", count_max=32, index_type="T").count
        for sending in (fast_path, handler)
    ]
    assert tags[0] == tags[1] > 0
    fast_path.close()
    handler.close()


def test_frames_may_be_cut_at_any_byte(sending: Sending) -> None:
    frames = b"".join(send_frame(opaque=n, properties=f"UNIQ_KEY\x01U{n}\x02") for n in range(3))
    connection = FakePeer()
    buffer = bytearray()
    for byte in frames:
        buffer.append(byte)
        used = sending.fast_path.burst(connection, buffer, 0)  # type: ignore[arg-type]
        del buffer[:used]
    assert not buffer
    assert [reply.opaque for reply in connection.replies()] == [0, 1, 2]
    assert len(sending.stored()) == 3


def test_a_burst_begins_at_its_position(sending: Sending) -> None:
    junk, frame = b"\xff" * 5, send_frame()
    assert sending.fast_path.burst(FakePeer(), junk + frame, 5) == 5 + len(frame)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "frame"),
    [
        ("another request", encode_frame(decode_frame(send_frame(code=310)).reply())),
        ("unknown topic", send_frame("TopicNowhere")),
        ("system topic", send_frame("SCHEDULE_TOPIC_XXXX")),
        ("retry topic", send_frame("%RETRY%group")),
        ("queue beyond the topic", send_frame(queue="4")),
        ("any queue", send_frame(queue="-1")),
        ("queue that is no number", send_frame(queue="x")),
        ("no queue", send_frame(e=None)),
        ("delay", send_frame(properties="UNIQ_KEY\x01U\x02DELAY\x013\x02")),
        ("timer", send_frame(properties="UNIQ_KEY\x01U\x02TIMER_DELAY_MS\x013\x02")),
        ("transaction", send_frame(properties="UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02", f="4")),
        ("transaction flag", send_frame(f="4")),
        ("LMQs", send_frame(properties="UNIQ_KEY\x01U\x02INNER_MULTI_DISPATCH\x01%LMQ%a\x02")),
        ("no unique key", send_frame(properties="WAIT\x01true\x02")),
        ("no properties", send_frame(i=None)),
        ("unique key with a quote", send_frame(properties='UNIQ_KEY\x01a"b\x02')),
        ("broken pairs", send_frame(properties="UNIQ_KEY\x01U\x02loose\x02")),
        ("born time beyond 64 bits", send_frame(g=str(1 << 70))),
        ("flag beyond 32 bits", send_frame(h=str(1 << 40))),
        ("body too large", send_frame(body=bytes(5_000))),
        ("properties too long", send_frame(properties="UNIQ_KEY\x01U\x02k\x01" + "v" * 32_700 + "\x02")),
        ("batch with delay", send_frame(code=320, body=batch_body((b"b", "")), i="UNIQ_KEY\x01U\x02DELAY\x011\x02")),
        ("empty batch", send_frame(code=320)),
        ("batch with a lying size", send_frame(code=320, body=b"\x7f" + batch_body((b"b", ""))[1:])),
    ],
)  # fmt: skip
def test_an_ineligible_send_is_left_and_changes_nothing(tmp_path: Path, what: str, frame: bytes) -> None:
    sending = Sending(tmp_path, max_message_size=4_096)
    connection = FakePeer()
    plain = send_frame()
    data = plain + frame + plain
    assert sending.fast_path.burst(connection, data, 0) == len(plain), what  # type: ignore[arg-type]
    assert len(sending.stored()) == 1
    assert len(connection.replies()) == 1
    sending.close()


def test_any_bytes_are_left_or_served_but_never_raise(sending: Sending) -> None:
    dice = random.Random(5)
    frames = [request.data for request, _ in sends_of("java-produce-send")]
    for _ in range(2_000):
        frame = bytearray(dice.choice(frames))
        for _ in range(dice.randrange(1, 4)):
            frame[dice.randrange(len(frame))] = dice.randrange(256)
        connection = FakePeer()
        used = sending.fast_path.burst(connection, bytes(frame), 0)  # type: ignore[arg-type]
        assert 0 <= used <= len(frame)
        connection.replies()
    sending.stored()


def test_names_that_no_topic_can_have_are_not_kept(sending: Sending) -> None:
    connection = FakePeer()
    for number in range(20):
        frame = send_frame(b="x" * 200_000 + str(number))
        assert sending.fast_path.burst(connection, frame, 0) == 0  # type: ignore[arg-type]
    assert sending.fast_path.burst(connection, send_frame(b="TopicUnknown"), 0) == 0  # type: ignore[arg-type]
    assert sending.fast_path._ineligible == {"TopicUnknown"}


def test_oneway_sends_are_stored_and_not_answered(sending: Sending) -> None:
    connection = FakePeer()
    sending.fast_path.burst(connection, send_frame(flag=FLAG_ONEWAY), 0)  # type: ignore[arg-type]
    assert connection.written == []
    assert len(sending.stored()) == 1


def test_a_sender_over_ipv6_is_recorded(sending: Sending) -> None:
    connection = FakePeer(("::1", 5_000))
    sending.fast_path.burst(connection, send_frame(), 0)  # type: ignore[arg-type]
    (record,) = sending.stored()
    assert record.born_host == ("::1", 5_000)
    assert record.sys_flag & 0x10


def test_a_message_fills_queues_files_and_segments_without_a_gap(sending: Sending) -> None:
    """Queue files of 200 entries, segments of 1 MiB: both roll inside bursts."""
    count, body = 1_500, bytes(900)
    connection = FakePeer()
    frames = [
        send_frame(body=body, opaque=n, properties=f"UNIQ_KEY\x01U{n}\x02", queue="0") for n in range(count)
    ]
    data = b"".join(frames)
    at = 0
    while at < len(data):
        used = sending.fast_path.burst(connection, data, at)  # type: ignore[arg-type]
        assert used > at
        at = used
    replies = connection.replies()
    assert [reply.ext["queueOffset"] for reply in replies if reply.ext] == [str(n) for n in range(count)]
    assert sending.store.max_offset("TopicNormal", 0) == count
    seen = 0
    while seen < count:
        result = sending.store.get_messages("TopicNormal", 0, seen, count_max=32)
        assert result.count
        seen = result.next_offset


def test_tags_and_keys_are_what_the_queue_and_the_index_hold(sending: Sending) -> None:
    properties = "KEYS\x01k1 k2\x02UNIQ_KEY\x01U9\x02TAGS\x01标签\x02"
    sending.fast_path.burst(FakePeer(), send_frame(properties=properties), 0)  # type: ignore[arg-type]
    entry = sending.store.queues["TopicNormal", 1].entry(0)  # type: ignore[union-attr]
    assert entry is not None
    assert entry[2] == tags_code("标签")
    for key, kind in (("k1", ""), ("k2", ""), ("U9", ""), ("标签", "T")):
        assert sending.store.query("TopicNormal", key, count_max=8, index_type=kind).count == 1


def test_a_deleted_topic_is_not_served_any_more(sending: Sending) -> None:
    frame = send_frame()
    assert sending.fast_path.burst(FakePeer(), frame, 0)  # type: ignore[arg-type]
    sending.topics.delete("TopicNormal")
    assert sending.fast_path.burst(FakePeer(), frame, 0) == 0  # type: ignore[arg-type]


def test_nothing_is_served_while_overloaded_or_as_a_slave(tmp_path: Path) -> None:
    sending = Sending(tmp_path / "master")
    sending.overload.observe(1_000, 0)
    sending.overload.observe(1_000, 0)
    assert sending.fast_path.burst(FakePeer(), send_frame(), 0) == 0  # type: ignore[arg-type]
    sending.overload.observe(0, 0)
    assert sending.fast_path.burst(FakePeer(), send_frame(), 0)  # type: ignore[arg-type]
    slave = Sending(tmp_path / "slave", BrokerConfig(broker_name="broker-a", broker_id=1))
    assert slave.fast_path.burst(FakePeer(), send_frame(), 0) == 0  # type: ignore[arg-type]
    sending.close()
    slave.close()


def test_statistics_count_messages_and_requests(sending: Sending) -> None:
    data = send_frame() * 3 + send_frame("TopicBatch", batch_body((b"a", ""), (b"b", "")), code=320)
    assert sending.fast_path.burst(FakePeer(), data, 0) == len(data)  # type: ignore[arg-type]
    counters = dict(sending.stats.counters("TOPIC_PUT_NUMS"))
    assert (counters["TopicNormal"].count, counters["TopicNormal"].times) == (3, 3)
    assert (counters["TopicBatch"].count, counters["TopicBatch"].times) == (2, 1)


def test_a_region_of_any_text_stays_json(tmp_path: Path) -> None:
    sending = Sending(tmp_path, BrokerConfig(broker_name="broker-a", region_id='r"é'))
    connection = FakePeer()
    sending.fast_path.burst(connection, send_frame(), 0)  # type: ignore[arg-type]
    (reply,) = connection.replies()
    assert reply.ext is not None
    assert reply.ext["MSG_REGION"] == 'r"é'
    sending.close()


def test_with_sync_flush_replies_wait_for_the_disk_but_those_that_asked_not_to(tmp_path: Path) -> None:
    sending = Sending(tmp_path, flush_disk_type="SYNC_FLUSH")
    connection = FakePeer()
    data = send_frame(opaque=1) + send_frame(opaque=2, properties="UNIQ_KEY\x01V\x02WAIT\x01false\x02")
    assert sending.fast_path.burst(connection, data, 0) == len(data)  # type: ignore[arg-type]
    assert [reply.opaque for reply in connection.replies()] == [2]
    assert sending.store.max_offset("TopicNormal", 1) == 0, "consumers see what is durable"
    sending.store.flush_now()
    assert [reply.opaque for reply in connection.replies()] == [2, 1]
    assert sending.store.max_offset("TopicNormal", 1) == 2
    sending.close()


def test_with_sync_flush_a_reply_that_waited_too_long_says_so_once(tmp_path: Path) -> None:
    sending = Sending(tmp_path, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=5_000)
    connection = FakePeer()
    sending.fast_path.burst(connection, send_frame(opaque=1) + send_frame(opaque=2), 0)  # type: ignore[arg-type]
    sending.clock.advance(4.9)
    assert connection.replies() == []
    sending.clock.advance(0.2)
    replies = connection.replies()
    assert [(reply.code, reply.opaque) for reply in replies] == [(10, 1), (10, 2)]
    assert all(reply.ext and reply.ext["msgId"] for reply in replies)
    sending.store.flush_now()
    assert len(connection.replies()) == 2
    sending.close()


def test_a_failed_sync_is_an_error_and_closes_the_fast_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = Sending(tmp_path, flush_disk_type="SYNC_FLUSH")
    connection = FakePeer()
    sending.fast_path.burst(connection, send_frame(), 0)  # type: ignore[arg-type]

    def fail(start: int, end: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(sending.store.log, "sync", fail)
        with pytest.raises(Exception, match="syncing the commit log"):
            sending.store.flush_now()
    (reply,) = connection.replies()
    assert reply.code == 1  # 14 would say that it is not stored
    assert reply.remark
    assert "sync to the disk failed" in reply.remark
    assert sending.fast_path.burst(connection, send_frame(), 0) == 0  # type: ignore[arg-type]
    refused = sending.handle(connection, send_frame())
    assert refused is not None
    assert refused.code == 14
    sending.close()


@pytest.mark.parametrize("serialize_type", [SerializeType.JSON, SerializeType.ROCKETMQ])
def test_a_header_beyond_its_bound_is_left_to_the_decoder(
    sending: Sending, serialize_type: SerializeType
) -> None:
    request = decode_frame(send_frame())
    request.serialize_type = serialize_type.value
    for extra, is_served in ((HEADER_BYTES_MAX - 1_000, True), (HEADER_BYTES_MAX, False)):
        request.ext = {**(request.ext or {}), "zz": "x" * extra}
        frame = encode_frame(request)
        used = sending.fast_path.burst(FakePeer(), frame, 0)  # type: ignore[arg-type]
        assert used == (len(frame) if is_served else 0)


def test_batches_are_taken_up_to_what_one_turn_of_the_event_loop_bears(tmp_path: Path) -> None:
    sending = Sending(tmp_path, mapped_file_size_consume_queue=20 * 20_000, max_index_num=80_000)
    key = "UNIQ_KEY\x01U1\x02"
    many_keys = key + "KEYS\x01" + "k " * 200 + "\x02"
    try:
        for text, count, taken in (
            (key, FAST_BATCH_ENTRIES_MAX, True),
            (key, FAST_BATCH_ENTRIES_MAX + 1, False),
            (many_keys, 100, True),
            (many_keys, 200, False),
        ):
            body = batch_body(*[(b"", text)] * count)
            frame = send_frame("TopicBatch", queue="1", code=320, body=body, i=key)
            used = sending.fast_path.burst(FakePeer(), frame, 0)  # type: ignore[arg-type]
            assert used == (len(frame) if taken else 0), (text[:40], count)
    finally:
        sending.close()
