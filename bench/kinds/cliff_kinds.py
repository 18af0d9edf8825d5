"""The kinds of requests that cliffs.py measures: what each one sends, and what has to be there before. Standard library only."""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, cycle

from bench.load import wire
from bench.load.wire import Link, encode_frame, escape

GROUP, CLIENT = "bench-cliffs", "bench-cliffs-client"
QUEUES = 4
OPAQUE = 1_000_000_000  # of every request: replies are counted, not told apart
SEND, BATCH, REPLY, SEND_BACK, LOCK, HEARTBEAT, POP = 310, 320, 325, 36, 41, 34, 200050
SUBSCRIPTION, SUSPEND = 4, 2
COMPRESSED = 1
BODY = b"0123456789abcdef" * 8
_UNIQ = "FEDCBA9876543210"  # becomes a number of 16 digits that no other message has
_unique = count(int(time.time()) << 24)
Frames = Iterator[bytes]


@dataclass(frozen=True)
class Kind:
    """One row. `frames` prepares what it needs through a link, and returns requests of `messages` messages each."""

    name: str
    base: str  # the row it is compared with; its own name for that row itself
    frames: Callable[[Link], Frames]
    messages: int = 1
    in_flight: int = 64
    own: bool = False  # Aerobee's alone: RocketMQ has no such kind
    setup: str = ""  # how the servers are started (cliff_setups.py)
    connect: Callable[[int], Link] = lambda port: Link(("127.0.0.1", port))


def properties(uniq: str = _UNIQ, **more: str) -> str:
    pairs = {"UNIQ_KEY": f"7F00000100002A9F{uniq}", "WAIT": "true", **more}
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def templates(frames: list[bytes]) -> Frames:
    """The frames in turn for ever, each time with another number where the sample stands."""
    ready = [escape(frame).replace(_UNIQ.encode(), b"%(n)016X") for frame in frames]
    for number, template in zip(_unique, cycle(ready)):
        yield template % {b"n": number}


def create_topic(
    link: Link, topic: str, queues: int = QUEUES, attributes: str = "", order: bool = False
) -> None:
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": str(order).lower(),
    }  # fmt: skip
    if attributes:
        ext["attributes"] = attributes
    link.call(wire.UPDATE_AND_CREATE_TOPIC, ext)


def send_fields(topic: str, queue: int, text: str, sys_flag: int, batch: bool) -> dict[str, str]:
    return {
        "a": GROUP, "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": str(sys_flag), "g": str(int(time.time() * 1000)),
        "h": "0", "i": text, "j": "0", "k": "false", "l": "0", "m": str(batch).lower(), "n": "broker-a",
    }  # fmt: skip


def sends(
    topic: str,
    *,
    attributes: str = "",
    body: bytes = BODY,
    sys_flag: int = 0,
    code: int = SEND,
    more: tuple[dict[str, str], ...] = ({},),
    queues: int = QUEUES,
) -> Callable[[Link], Frames]:
    """Sends of one message over the queues in turn; `more` are properties, in turn, too."""

    def prepare(link: Link) -> Frames:
        if attributes or not topic.startswith(("%", "RMQ_SYS")):
            create_topic(link, topic, attributes=attributes)
        return templates(
            [
                encode_frame(code, send_fields(topic, each % queues, properties(**more[each % len(more)]), sys_flag, False), body, opaque=OPAQUE)
                for each in range(queues * len(more))
            ]
        )  # fmt: skip

    return prepare


def entry(text: bytes, body: bytes) -> bytes:
    return (
        struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, 0, len(body))
        + body
        + struct.pack(">h", len(text))
        + text
    )


def batch_frame(topic: str, queue: int, size: int, **more: str) -> bytes:
    each = entry(properties(**more).encode(), BODY)
    ext = send_fields(topic, queue, properties(), 0, True)
    return encode_frame(BATCH, ext, each * size, opaque=OPAQUE)


def batches(topic: str, size: int, queues: int = QUEUES, attributes: str = "") -> Callable[[Link], Frames]:
    def prepare(link: Link) -> Frames:
        create_topic(link, topic, attributes=attributes)
        return templates([batch_frame(topic, queue, size) for queue in range(queues)])

    return prepare


def new_topics(link: Link) -> Frames:
    """A topic that does not exist yet with every send; the broker creates it."""
    frame = encode_frame(SEND, send_fields(f"new-{_UNIQ}", 0, properties(), 0, False), BODY, opaque=OPAQUE)
    return templates([frame])


def fill(
    link: Link, topic: str, requests: int, *more: dict[str, str], attributes: str = "", queues: int = QUEUES
) -> None:
    """Store `requests` batches of 32, each with properties of `more` in turn."""
    create_topic(link, topic, queues, attributes=attributes)
    entries = [
        entry(properties(**(more[each % len(more)] if more else {})).encode(), BODY) for each in range(32)
    ]
    frames = templates(
        [
            encode_frame(
                BATCH, send_fields(topic, queue, properties(), 0, True), b"".join(entries), opaque=OPAQUE
            )
            for queue in range(queues)
        ]
    )
    drive(link, frames, 8, requests=requests)


def fill_singly(link: Link, frames: Frames, messages: int) -> None:
    drive(link, frames, 64, requests=messages)


STORED_REQUESTS = 256  # batches of 32 that pulls find, over the queues


def pull_frame(
    topic: str, queue: int, offset: int, expression: str, kind: str, sys_flag: int, messages: int
) -> bytes:
    ext = {
        "consumerGroup": GROUP, "topic": topic, "queueId": str(queue), "queueOffset": str(offset), "maxMsgNums": str(messages),
        "sysFlag": str(sys_flag), "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": expression,
        "subVersion": "0", "expressionType": kind, "maxMsgBytes": "4194304",
    }  # fmt: skip
    return encode_frame(wire.PULL_MESSAGE, ext, opaque=OPAQUE)


def pulls(
    topic: str,
    *more: dict[str, str],
    expression: str = "*",
    kind: str = "TAG",
    messages: int = 32,
    stride: int = 32,
    store: Callable[[Link], None] | None = None,
    queues: int = QUEUES,
) -> Callable[[Link], Frames]:
    def prepare(link: Link) -> Frames:
        if store is None:
            fill(link, topic, STORED_REQUESTS, *more, queues=queues)
        else:
            store(link)
        end = int(link.call(wire.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})[1]["offset"])
        offsets = range(0, max(1, end - stride * 10), stride)
        return cycle(
            [
                pull_frame(topic, queue, offset, expression, kind, SUBSCRIPTION, messages)
                for offset in offsets
                for queue in range(queues)
            ]
        )

    return prepare


def pops(
    topic: str, *more: dict[str, str], expression: str = "*", kind: str = "TAG"
) -> Callable[[Link], Frames]:
    def prepare(link: Link) -> Frames:
        fill(link, topic, 4_096, *more, queues=8)
        ext = {
            "consumerGroup": GROUP, "topic": topic, "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "60000", "pollTime": "0",
            "bornTime": wire.BORN_SAMPLE, "initMode": "0", "expType": kind, "exp": expression,
            "order": "false",
        }  # fmt: skip
        frame = encode_frame(POP, ext, opaque=OPAQUE)
        # A pop that is older than its poll time is not served.
        return (frame.replace(wire.BORN_SAMPLE.encode(), b"%d" % (time.time() * 1000)) for _ in count())

    return prepare


def lmq_sends(link: Link) -> Frames:
    return sends("cliffs-lmq", more=({"INNER_MULTI_DISPATCH": "%LMQ%cliffs-1,%LMQ%cliffs-2"},))(link)


def lmq_fill(link: Link) -> None:
    fill_singly(link, lmq_sends(link), 8_192)


def big_fill(link: Link) -> None:
    fill_singly(link, sends("cliffs-pull-64k", body=BODY * 512)(link), 512)


def batch_queue_fill(link: Link) -> None:
    fill(link, "cliffs-pull-bcq", STORED_REQUESTS, attributes="+queue.type=BatchCQ")


def heartbeat(link: Link) -> None:
    body = {"clientID": CLIENT, "producerDataSet": [{"groupName": GROUP}], "consumerDataSet": []}
    link.call(HEARTBEAT, {}, json.dumps(body).encode())


def replies(link: Link) -> Frames:
    """Replies to this very connection, which takes them as the requester."""
    heartbeat(link)
    text = properties(MSG_TYPE="reply", REPLY_TO_CLIENT=CLIENT, CORRELATION_ID=_UNIQ, TTL="3000")
    fields = send_fields("DefaultCluster_REPLY_TOPIC", 0, text, 0, False)
    return templates([encode_frame(REPLY, fields, BODY, opaque=OPAQUE)])


def requests(link: Link) -> Frames:
    heartbeat(link)
    more = {"CORRELATION_ID": _UNIQ, "REPLY_TO_CLIENT": CLIENT, "TTL": "3000"}
    return sends("cliffs-request", more=(more,))(link)


def send_backs(link: Link) -> Frames:
    """Messages that a consumer gives back at level 3 (10 s), each its first time."""
    fill(link, "cliffs-back", STORED_REQUESTS)
    _, _, body = link.call(
        wire.PULL_MESSAGE,
        {"consumerGroup": GROUP, "topic": "cliffs-back", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
         "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
         "expressionType": "TAG"},
    )  # fmt: skip
    offsets = []
    at = 0
    while at < len(body):
        head = wire.RECORD_HEAD.unpack_from(body, at)
        offsets.append(head[6])
        at += head[0]
    return cycle(
        [
            encode_frame(
                SEND_BACK,
                {"offset": str(offset), "group": GROUP, "delayLevel": "3", "originMsgId": "", "originTopic": "cliffs-back",
                 "unitMode": "false", "maxReconsumeTimes": "16"},
                opaque=OPAQUE,
            )
            for offset in offsets
        ]
    )  # fmt: skip


def locks(link: Link) -> Frames:
    create_topic(link, "cliffs-lock", 8)
    queues = [{"brokerName": "broker-a", "queueId": queue, "topic": "cliffs-lock"} for queue in range(8)]
    body = json.dumps({"clientId": CLIENT, "consumerGroup": GROUP, "mqSet": queues}).encode()
    return cycle([encode_frame(LOCK, {}, body, opaque=OPAQUE)])


def broadcast_pulls(link: Link) -> Frames:
    data = {
        "groupName": f"{GROUP}-all", "consumeType": "CONSUME_PASSIVELY", "messageModel": "BROADCASTING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
        "subscriptionDataSet": [{"topic": "cliffs-broadcast", "subString": "*", "subVersion": 0, "tagsSet": [], "codeSet": [], "expressionType": "TAG"}],
    }  # fmt: skip
    body = {"clientID": CLIENT, "producerDataSet": [], "consumerDataSet": [data]}
    link.call(HEARTBEAT, {}, json.dumps(body).encode())
    frames = pulls("cliffs-broadcast")(link)
    return (frame.replace(f'"{GROUP}"'.encode(), f'"{GROUP[:-4]}-all"'.encode()) for frame in frames)


def traced(link: Link) -> Frames:
    """What a client with message trace sends: ten traces of sends in one message."""
    line = (
        "Pub\x01%d\x01DefaultRegion\x01producers\x01orders\x01"
        + "7F" * 16
        + "\x01\x01k\x01127.0.0.1:10911\x01128\x013\x010\x01"
        + "7F" * 16
        + "\x01true\x01127.0.0.1\x02"
    )
    body = (line % int(time.time() * 1000) * 10).encode()
    return sends("RMQ_SYS_TRACE_TOPIC", body=body, more=({"KEYS": " ".join("7F" * 15 + f"{each:02d}" for each in range(10))},), queues=1)(link)  # fmt: skip


_TAGS = ({"TAGS": "Odd"}, {"TAGS": "Even"}, {"TAGS": "Odd"}, {"TAGS": "Rare"})
_SQL = tuple({"price": str(each)} for each in range(4))
_LIMITS = {
    "enablePropertyFilter": "true", "enableLmq": "true", "enableMultiDispatch": "true", "maxMessageSize": str(8 << 20),
    "traceTopicEnable": "true", "waitTimeMillsInSendQueue": "10000", "waitTimeMillsInPullQueue": "10000",
    "dedupWindowMillis": "60000",
}  # fmt: skip
KINDS = (
    Kind("send", "send", sends("cliffs-send")),
    Kind("send with a tag and keys", "send", sends("cliffs-keys", more=({"TAGS": "Odd", "KEYS": f"k{_UNIQ}"},))),
    Kind("ack level of the message", "send", sends("cliffs-ack", more=({"ACK_LEVEL": "stored"},)), own=True),
    Kind("ack level of the topic", "send", sends("cliffs-ack-topic", attributes="+ack.level=stored"), own=True),
    Kind("ack level flushed of the message", "send", sends("cliffs-ackf", more=({"ACK_LEVEL": "flushed"},)), own=True),
    Kind("dedup key", "send", sends("cliffs-dedup", more=({"DEDUP_KEY": f"order-{_UNIQ}"},)), own=True),
    Kind("LMQ: a send to two", "send", lmq_sends),
    Kind("priority", "send", sends("cliffs-priority", attributes="+message.type=PRIORITY", more=({"_SYS_MSG_PRIORITY_": "2"},))),
    Kind("compressed", "send", sends("cliffs-zip", body=zlib.compress(BODY * 64), sys_flag=COMPRESSED)),
    Kind("64 KiB", "64 KiB", sends("cliffs-64k", body=BODY * 512), in_flight=8),
    Kind("4 MiB", "4 MiB", sends("cliffs-4m", body=BODY * 32768), in_flight=2),
    Kind("request", "send", requests),
    Kind("reply", "send", replies),
    Kind("send-back", "send", send_backs),
    Kind("message of a trace", "send", traced),
    Kind("send to a new topic", "send to a new topic", new_topics),
    Kind("lock of 8 queues", "lock of 8 queues", locks),
    Kind("batch of 64 over queues", "batch of 64 over queues", batches("cliffs-batch", 64), messages=64, in_flight=8),
    Kind("batch of 64 to one queue", "batch of 64 over queues", batches("cliffs-batch-1", 64, 1), messages=64, in_flight=8),
    Kind("batch of 64 to a batch queue", "batch of 64 over queues", batches("cliffs-bcq", 64, attributes="+queue.type=BatchCQ"), messages=64, in_flight=8),
    Kind("pull of 32", "pull of 32", pulls("cliffs-pull"), messages=32, in_flight=8),
    Kind("pull by tags, all", "pull of 32", pulls("cliffs-tags", *_TAGS, expression="Odd || Even || Rare"), messages=32, in_flight=8),
    Kind("pull by a tag, half", "pull of 32", pulls("cliffs-tags-2", *_TAGS, expression="Odd"), messages=32, in_flight=8),
    Kind("pull by a tag, a quarter", "pull of 32", pulls("cliffs-tags-4", *_TAGS, expression="Rare"), messages=32, in_flight=8),
    Kind("pull by SQL92, half", "pull of 32", pulls("cliffs-sql", *_SQL, expression="price > 1", kind="SQL92"), messages=32, in_flight=8),
    Kind("pull from an LMQ", "pull of 32", pulls("%LMQ%cliffs-1", store=lmq_fill, queues=1), messages=32, in_flight=8),
    Kind("pull from a batch queue", "pull of 32", pulls("cliffs-pull-bcq", store=batch_queue_fill), messages=32, in_flight=8),
    Kind("pull of a broadcast group", "pull of 32", broadcast_pulls, messages=32, in_flight=8),
    Kind("pull of 64 KiB", "pull of 64 KiB", pulls("cliffs-pull-64k", messages=8, stride=8, store=big_fill), messages=8, in_flight=2),
    Kind("pop of 32", "pop of 32", pops("cliffs-pop"), messages=32, in_flight=8),
    Kind("pop by a tag, half", "pop of 32", pops("cliffs-pop-tag", *_TAGS, expression="Odd"), messages=32, in_flight=8),
    Kind("pop by SQL92, half", "pop of 32", pops("cliffs-pop-sql", *_SQL, expression="price > 1", kind="SQL92"), messages=32, in_flight=8),
)  # fmt: skip
SETTINGS = _LIMITS


@dataclass
class Driven:
    """What drive() saw."""

    requests: int = 0
    messages: int = 0  # in replies that have records
    refused: dict[int, int] = field(default_factory=dict)  # replies by code, other than 0


def drive(
    link: Link,
    frames: Frames,
    in_flight: int,
    *,
    requests: int = 0,
    until: float = 0.0,
    records: bool = False,
) -> Driven:
    """Keep `in_flight` requests outstanding until the time or the count; return when all are answered."""
    driven, outstanding, sent = Driven(), 0, 0
    link.sock.setblocking(True)
    link.sock.settimeout(wire.REPLY_TIMEOUT_S)
    try:
        while True:
            room = in_flight - outstanding
            if requests:
                room = min(room, requests - sent)
            elif time.monotonic() >= until:
                room = 0
            if room:
                link.sock.sendall(b"".join([next(frames) for _ in range(room)]))
                outstanding += room
                sent += room
            if not outstanding:
                return driven
            for kind, header, body in link.read():
                if kind == 0 and b'"flag":0' in header:  # a reply that the broker hands to its requester
                    opaque = wire.OPAQUE_PATTERN.search(header)
                    assert opaque is not None
                    text = b'{"code":0,"flag":1,"language":"JAVA","opaque":%b,"version":%d}' % (
                        opaque[1],
                        wire.CLIENT_VERSION,
                    )
                    link.sock.sendall(wire.WORDS.pack(4 + len(text), len(text)) + text)
                    continue
                code = wire.reply_code(kind, header)
                outstanding -= 1
                driven.requests += 1
                if code:
                    driven.refused[code] = driven.refused.get(code, 0) + 1
                elif records:
                    driven.messages += count_records(body)
    finally:
        link.sock.setblocking(False)


def count_records(body: bytes) -> int:
    """How many messages the body of a pull or pop holds; one record of a batch queue holds several."""
    found, at = 0, 0
    while at + 4 <= len(body):
        (size,) = struct.unpack_from(">I", body, at)
        number = body.rfind(b"INNER_NUM\x01", at, at + size)
        found += int(body[number + 10 : body.index(b"\x02", number)]) if number >= 0 else 1
        at += size
    return found
