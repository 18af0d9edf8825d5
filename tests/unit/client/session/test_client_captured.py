"""What our client sends compared with the Java client 5.5.0: bytes captured between it and a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee.client.base.compression import decompress
from aerobee.client.base.received import decode_stored_messages
from aerobee.client.session.codec import choose_codec
from aerobee.client.session.send_header import (
    SendTemplate,
    decode_batch_reply,
    decode_send_reply,
    encode_batch_entry,
    properties_text,
)
from aerobee.errors import ConfigError, MalformedFrame, MalformedRecord, SystemBusy, UsageError
from aerobee.message import Message, MessageQueue, encode_record, pack_host
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame

DATA = Path(__file__).resolve().parents[3] / "data" / "client" / "java_requests.jsonl"
FRAMES = [
    (entry["file"], decode_frame(bytes.fromhex(entry["frame_hex"])))
    for entry in map(json.loads, DATA.read_text().splitlines())
]
SENDS = [(name, frame) for name, frame in FRAMES if frame.code in (310, 320)]


@pytest.fixture(params=["python", "native"])
def codec(request):
    try:
        return choose_codec(request.param)
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("name", "java"), SENDS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(SENDS)])
def test_send_header_equals_the_captured_one(name, java, codec):
    ext = java.ext
    definition = SendTemplate(
        code=java.code,
        group=ext["a"],
        queue=MessageQueue(ext["b"], ext["n"], 0),
        default_topic=ext["c"],
        default_queue_count=int(ext["d"]),
        reconsume_times=int(ext["j"]),
        reconsume_times_max=int(ext["l"]) if "l" in ext else None,
        oneway=java.is_oneway,
    )
    frame = codec.template(definition).frame(
        opaque=java.opaque,
        queue_id=int(ext["e"]),
        sys_flag=int(ext["f"]),
        born_timestamp_ms=int(ext["g"]),
        flag=int(ext["h"]),
        properties=ext["i"],
        body=java.body,
    )
    ours = decode_frame(frame)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert ours.ext == java.ext
    assert (ours.code, ours.flag, ours.opaque, ours.version) == (
        java.code,
        java.flag,
        java.opaque,
        java.version,
    )
    assert ours.body == java.body


def test_properties_come_in_the_order_of_the_captured_ones():
    java = next(frame for name, frame in SENDS if name == "java-produce-send")
    message = Message(
        java.ext["b"],
        java.body,
        tag="TagA",
        keys=("key1", "key2"),
        properties={"color": "red", "size": "10"},
        flag=7,
    )
    assert properties_text(message, "0A0000013F9E4E0E2F2A670542000000") == java.ext["i"]


def test_batch_body_equals_the_captured_one():
    java = next(frame for _, frame in SENDS if frame.code == 320)
    body = b""
    for n in range(3):
        message = Message(
            "TopicBatch",
            b"batch body %d" % n,
            tag="TagB",
            keys=(f"batch{n}",),
            flag=n,
        )
        # Java's example sets the user property n after the client's own ones, hence the tail.
        entry = encode_batch_entry(message, f"0A0000013F9E4E0E2F2A670560DB000{12 + n:X}")
        properties = f"n\x01{n}\x02".encode()
        size = int.from_bytes(entry[:4], "big")
        properties_at = 20 + len(message.body)
        properties_size = int.from_bytes(entry[properties_at : properties_at + 2], "big")
        body += (
            (size + len(properties)).to_bytes(4, "big")
            + entry[4:properties_at]
            + (properties_size + len(properties)).to_bytes(2, "big")
            + entry[properties_at + 2 :]
            + properties
        )
    assert body == java.body


def test_captured_compressed_bodies_are_read():
    bodies = [
        decompress(frame.body, int(frame.ext["f"]))
        for name, frame in SENDS
        if name == "java-produce-compressed"
    ]
    assert len(bodies) == 4
    assert {len(body) for body in bodies} == {5290}


def reply(code=0, **ext):
    return RemotingCommand(code, ext or None, flag=1, remark="why")


QUEUE = MessageQueue("t", "b", 1)


def test_send_answers_that_cannot_be_read_are_refused():
    for answer in (reply(), reply(msgId="x", queueId="a", queueOffset="1"), reply(msgId="x", queueId="1")):
        with pytest.raises(MalformedFrame):
            decode_send_reply(answer, QUEUE, "U", "h:1")
    with pytest.raises(SystemBusy, match=r"h:1.*why"):
        decode_send_reply(reply(2), QUEUE, "U", "h:1")


def test_a_batch_reply_gives_each_message_its_offset():
    answer = reply(msgId="A,B", queueId="3", queueOffset="10")
    results = decode_batch_reply(answer, QUEUE, ["U1", "U2"], "h:1")
    assert [(r.message_id, r.offset_message_id, r.queue.queue_id, r.queue_offset) for r in results] == [
        ("U1", "A", 3, 10),
        ("U2", "B", 3, 11),
    ]


def test_properties_that_cannot_be_stored_are_refused(codec):
    template = codec.template(
        SendTemplate(group="g", queue=QUEUE, default_topic="TBW102", default_queue_count=4)
    )
    rest = {"opaque": 1, "queue_id": 0, "sys_flag": 0, "born_timestamp_ms": 0, "flag": 0, "body": b""}
    with pytest.raises(UsageError, match="32767"):
        template.frame(properties="x" * 32_768, **rest)
    for text in ("\ud800", "\ud800" + "x" * 40_000):
        with pytest.raises(UsageError, match="Unicode"):
            template.frame(properties=text, **rest)


def record(topic="orders", host="10.0.0.1", properties="TAGS\x01a\x02UNIQ_KEY\x01U\x02", **fields):
    return encode_record(
        topic=topic.encode(),
        queue_id=1,
        queue_offset=5,
        physical_offset=1000,
        body=b"body",
        properties=properties.encode(),
        born_timestamp=11,
        born_host=pack_host(host, 50_000),
        store_timestamp=12,
        store_host=pack_host(host, 10_911),
        **fields,
    )


@pytest.mark.parametrize("host", ["10.0.0.1", "fe80::1"])
@pytest.mark.parametrize("topic", ["orders", "another"])
def test_records_are_read_by_the_short_way_and_by_the_long_one_alike(host, topic, codec):
    queue = MessageQueue("orders", "b", 1)
    (message,) = codec.decode_messages(record(topic, host, flag=3, reconsume_times=2), queue)
    assert message.topic == topic
    assert message.queue == queue
    assert (message.queue_offset, message.physical_offset, message.body) == (5, 1000, b"body")
    assert (message.tag, message.message_id, message.keys) == ("a", "U", ())
    assert (message.born_timestamp, message.store_timestamp) == (11, 12)
    assert message.born_host == (host, 50_000)
    assert message.store_host == (host, 10_911)
    assert (message.flag, message.reconsume_times) == (3, 2)
    with pytest.raises(UsageError, match="async for"):
        message.ack()


def test_records_back_to_back_and_of_several_topics(codec):
    data = record("a") + record("b")
    assert [m.topic for m in decode_stored_messages(data, "broker")] == ["a", "b"]
    assert [m.topic for m in codec.decode_messages(data, MessageQueue("a", "broker", 1))] == ["a", "b"]


def test_captured_inner_batches_come_as_single_messages(codec):
    answer = decode_frame(bytes.fromhex((DATA.parent / "java_batch_queue_pull.hex").read_text()))
    queue = MessageQueue("StoreBcq", "broker-a", 0)
    messages = codec.decode_messages(answer.body, queue)
    assert [message.queue_offset for message in messages] == list(range(8))
    assert [message.body for message in messages[2:4]] == [b"bcq batch 0 body 2", b"bcq batch 1 body 0"]
    assert [message.keys for message in messages] == [
        *(("bcq00",), ("bcq01",), ("bcq02",)),
        *(("bcq10",), ("bcq11",), ("bcq12",), ("bcq13",)),
        ("single",),
    ]
    assert messages[0].tag == "TagB"
    outer = answer.body
    start = outer.index(b"\x00\x00\x00q")
    for value in (b"\x00\x00\x00\x01", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"):
        for at in (start, start + 16):
            with pytest.raises(MalformedRecord):
                codec.decode_messages(outer[:at] + value + outer[at + 4 :], queue)


def test_any_cut_and_any_changed_byte_is_refused_or_read_but_never_an_accident(codec):
    whole = record()
    queue = MessageQueue("orders", "b", 1)
    for cut in range(1, len(whole)):
        with pytest.raises(MalformedRecord):
            codec.decode_messages(whole[:cut], queue)
    for at in range(len(whole)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            changed = whole[:at] + bytes([value]) + whole[at + 1 :]
            try:
                messages = codec.decode_messages(changed, queue)
            except MalformedRecord:
                continue
            assert len(messages) == 1
