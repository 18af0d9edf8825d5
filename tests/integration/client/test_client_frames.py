"""Each request that our client makes has the fields of the one that the Java client 5.5.0 makes."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest

from aerobee.client import ConsumeFrom, ConsumerConfig, MessageModel, Producer, PullConsumer, PushConsumer
from aerobee.message import Message
from aerobee.remoting.frame import decode_frame
from tests.waiting import wait_until

DATA = Path(__file__).resolve().parents[2] / "data" / "client" / "java_requests.jsonl"
FRAMES = [
    (entry["file"], decode_frame(bytes.fromhex(entry["frame_hex"])))
    for entry in map(json.loads, DATA.read_text().splitlines())
]
FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)

# Fields of RocketMQ's own headers that its Java consumers leave out. setZeroIfNotFound: last means last.
OURS = {14: {"setZeroIfNotFound"}}


def java(code, file):
    return [frame for name, frame in FRAMES if name == file and frame.code == code]


def field_sets(frames):
    return {frozenset(frame.ext) if frame.ext is not None else None for frame in frames}


def shape(value):
    """The structure of a JSON value: keys and types."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


async def test_producer(broker):
    async with Producer(broker.address, "PG") as producer:
        await producer.send(Message("orders", b"x", tag="a"))
        await producer.send_oneway(Message("orders", b"x"))
        await producer.send_batch([Message("orders", b"x"), Message("orders", b"y")])
        await wait_until(lambda: broker.seen(34) and len(broker.seen(310)) == 2)
    for code, file in ((105, "java-produce-send"), (310, "java-produce-send"), (320, "java-produce-batch")):
        assert field_sets(broker.seen(code)) <= field_sets(java(code, file)), code
    assert {frame.flag for frame in broker.seen(310)} == {0, 2}
    goodbye = [set(frame.ext) for frame in java(35, "java-produce-send")]
    assert all(set(frame.ext) in goodbye for frame in broker.seen(35))
    ours, theirs = orjson.loads(broker.seen(34)[0].body), orjson.loads(java(34, "java-produce-send")[0].body)
    assert shape(ours) == shape(theirs)
    assert broker.seen(34)[0].ext == {}


@pytest.mark.parametrize(
    ("model", "file"),
    [
        (MessageModel.CLUSTERING, "java-consume-cluster"),
        (MessageModel.BROADCASTING, "java-consume-broadcast"),
    ],
)
async def test_push_consumer(broker, tmp_path, model, file):
    broker.store("orders", 0, b"x", "UNIQ_KEY\x01U\x02")
    config = ConsumerConfig(
        consume_from=ConsumeFrom.FIRST, model=model, local_offsets_directory=str(tmp_path)
    )
    seen = []
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=seen.append, config=config
    ):
        await wait_until(lambda: seen and len(broker.parked) >= 4)
    codes = {11, 34, 35}
    codes |= {14, 15, 38} if model is MessageModel.CLUSTERING else set()
    for code in codes & {code for code in codes if java(code, file)}:
        ours = {fields - OURS.get(code, set()) for fields in field_sets(broker.seen(code))}
        assert ours <= field_sets(java(code, file)) | field_sets(java(code, "java-produce-send")), code
    ours = orjson.loads(broker.seen(34)[0].body)
    theirs = orjson.loads(java(34, file)[-1].body)
    if theirs["consumerDataSet"]:
        assert shape(ours) == shape(theirs)
    pull = next(frame for frame in broker.seen(11) if frame.text("topic") == "orders")
    captured = java(11, file)[0]
    fixed = ("maxMsgNums", "maxMsgBytes", "suspendTimeoutMillis", "expressionType", "sysFlag", "commitOffset")
    assert {name: pull.ext[name] for name in fixed} == {name: captured.ext[name] for name in fixed}


async def test_send_back(broker):
    broker.store("orders", 0, b"x", "UNIQ_KEY\x01U\x02")

    def handle(message):
        raise ValueError("not now")

    async with PushConsumer(broker.address, "G", subscriptions={"orders": "*"}, handler=handle, config=FIRST):
        await wait_until(lambda: broker.sent_back)
    own = {"lastError"}  # Aerobee's brokers keep it, RocketMQ's ignore it
    # Java names a bound always; here the group's setting counts, which the broker has.
    bound = {"maxReconsumeTimes"}
    assert {fields - own | bound for fields in field_sets(broker.seen(36))} == field_sets(
        java(36, "java-consume-retry")
    )
    assert "maxReconsumeTimes" not in broker.seen(36)[0].ext


async def test_pull_consumer(broker):
    broker.store("orders", 0, b"x", "UNIQ_KEY\x01U\x02")
    async with PullConsumer(broker.address, "G") as consumer:
        queues = await consumer.queues("orders")
        await consumer.assign(queues)
        await consumer.seek_to_begin(queues[0])
        assert await consumer.poll(5.0)
        await consumer.commit()
    captured = java(361, "java-consume-lite")[0]
    assert field_sets(broker.seen(361)) == field_sets([captured])
    pull = broker.seen(361)[0]
    for name in (
        "sysFlag",
        "subscription",
        "suspendTimeoutMillis",
        "maxMsgBytes",
        "subVersion",
        "commitOffset",
    ):
        assert pull.ext[name] == captured.ext[name]
    for code in (14, 30, 31):
        frames = java(code, "java-consume-lite") or java(code, "java-consume-cluster")
        ours = {fields - {"ReqT"} - OURS.get(code, set()) for fields in field_sets(broker.seen(code))}
        theirs = {frozenset(fields - {"ReqT"}) for fields in field_sets(frames)}
        assert ours <= theirs, code
