"""Bursts for the differential fuzz of the fast path: captured frames, made ones, and both mutated and cut."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from functools import cache
from typing import Any

from aerobee.broker.transaction.transaction_table import OpenTransaction
from aerobee.message import ACK_LEVELS
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.store.message_store import MessageStore
from tests.captures import capture_names, captured
from tests.unit.broker.sending import batch_body

TOPICS = ("TopicNormal", "TopicOrder", "TopicBatch", "TopicPull", "TopicConsume")
LEVELED_TOPICS = {
    "TopicStored": "stored",
    "TopicFlushed": "flushed",
    "TopicSafe": "flushed+replicated",
    "TopicOdd": "memory",
}
LMQS = ("%LMQ%a", "%LMQ%b", "%LMQ%c")  # those that exist
GROUPS = ("group", "CG_lite", "CG_pull", "closed", "CG é")
Transactions = Mapping[tuple[str, str], OpenTransaction]  # by producer group and unique key

FAST_PATH_CODES = (10, 11, 310, 320, 361)
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.0, 1.0, -0.0, 1e300, [], {}, [0], {"a": 1}, "", "0", "1", "-1", "-0", "01", "+1",
    " 1", "1 ", "1_0", "²", "٣", "x", "9" * 19, "9" * 20, "9" * 21, "-9223372036854775808", "-9223372036854775809",
    "0" * 20, "0" * 21, str(2**31), 2**31, str(-(2**31)), 2**63, 2**64, 2**64 - 1, -(2**63), "true", "false", "é", "🐝", '"',
    "\\", "\x00", "\x01", "\x02", "TAG", "SQL92", "TagA || TagB", "*",
)  # fmt: skip
PROPERTY_TEXTS = (
    "", "UNIQ_KEY", "KEYS", "TAGS", "WAIT", "DELAY", "TRAN_MSG", "TIMER_DELAY_MS", "CLUSTER", "MSG_REGION", "é", "🐝",
    "键", "a b  c", "false", "true", "TagA", "TagB", "标签", "0A0000013F9E4E0E2F2A670629EB002A", "U1", "k1", "k" * 200,
)  # fmt: skip

SQL = (
    "WAIT = 'true'", "TAGS IN ('TagA', '标签') OR KEYS IS NULL", "NOT (UNIQ_KEY CONTAINS 'U')", "KEYS STARTSWITH 'k'",
    "TAGS = 'TagA' AND WAIT IS NOT NULL", "a > 1", "(a > 1) = TRUE", "a >",
)  # fmt: skip


@cache
def corpus() -> tuple[bytes, ...]:
    """Captured requests that are for the fast path, and a few that are not."""
    frames = []
    for name in capture_names():
        for frame in captured(name):
            if frame.direction == "request" and not frame.is_reply and frame.request_code in FAST_PATH_CODES:
                frames.append(frame.data)
    return tuple(dict.fromkeys(frames))


@cache
def captured_topics() -> tuple[str, ...]:
    return _captured_names("topic", "b")


@cache
def captured_groups() -> tuple[str, ...]:
    return _captured_names("consumerGroup")


def _captured_names(*fields: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for data in corpus():
        ext = decode_frame(data).ext or {}
        found.update((ext[name], None) for name in fields if name in ext and "%" not in ext[name])
    return tuple(found)


def properties_text(rng: random.Random) -> str:
    if rng.random() < 0.7:
        pairs = [("UNIQ_KEY", rng.choice(("U1", "0A0000013F9E4E0E2F2A670629EB002A")))]
        if rng.random() < 0.6:
            pairs.append(
                ("KEYS", " ".join(rng.choices(("k1", "键", "k" * 130, "", "a\tb"), k=rng.randrange(1, 4))))
            )
        if rng.random() < 0.6:
            pairs.append(("TAGS", rng.choice(("TagA", "TagB", "标签", "🐝"))))
        if rng.random() < 0.5:
            pairs.append(("WAIT", rng.choice(("true", "false"))))
        rng.shuffle(pairs)
        text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
        return text[:-1] if rng.random() < 0.1 else text
    separators = ("\x01", "\x02", "")
    count = rng.randrange(0, 9)
    return "".join(rng.choice(PROPERTY_TEXTS) + rng.choice(separators) for _ in range(count))


def send_fields(rng: random.Random, code: int) -> dict[str, Any]:
    values: list[Any] = [
        "PG", rng.choice(TOPICS), "TBW102", "4", str(rng.randrange(-1, 5)), "0", "1700000000000", "0",
        properties_text(rng), "0", "false", "true" if code == 320 else "false",
    ]  # fmt: skip
    if code == 10:
        names = (
            "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
            "flag", "properties", "reconsumeTimes", "unitMode", "batch",
        )  # fmt: skip
    else:
        names = tuple("abcdefghijkm")
    return dict(zip(names, values, strict=True))


def pull_fields(rng: random.Random) -> dict[str, Any]:
    return {
        "consumerGroup": rng.choice(GROUPS), "topic": rng.choice((*TOPICS, "TopicWriteOnly")),
        "queueId": str(rng.randrange(0, 5)), "queueOffset": str(rng.choice((0, 1, 5, 30, rng.randrange(0, 300)))),
        "maxMsgNums": str(rng.choice((-1, 0, 1, 2, 32, 64, 2_000))), "sysFlag": str(rng.choice((0, 2, 4, 5, 6, 7, 22))),
        "commitOffset": str(rng.randrange(0, 9)), "suspendTimeoutMillis": "15000",
        "subscription": rng.choice(("*", "TagA", "TagA || TagB", "", "标签", *SQL)),
        "subVersion": str(rng.choice((0, 4, 5, 6))), "expressionType": rng.choice(("TAG", "TAG", "", "SQL92", "SQL92")),
    }  # fmt: skip


def made_frame(rng: random.Random) -> bytes:
    """A frame with fields that are right, but for a few."""
    code = rng.choice((310, 310, 310, 10, 320, 320, 11, 11, 361, 12))
    is_pull = code in (11, 361)
    ext = pull_fields(rng) if is_pull else send_fields(rng, code)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        name = rng.choice(tuple(ext))
        if rng.random() < 0.3:
            del ext[name]
        else:
            ext[name] = rng.choice(ODD_VALUES)
        if not ext:
            break
    body = b"" if is_pull else rng.randbytes(rng.choice((0, 1, 4, 128, 1_000)))
    if code == 320:
        messages = [
            (rng.randbytes(rng.randrange(0, 60)), properties_text(rng)) for _ in range(rng.randrange(0, 6))
        ]
        if (
            messages and rng.random() < 0.5
        ):  # as most are: of one size, with the same properties but for the key
            size, text = len(messages[0][0]), messages[0][1]
            keys = rng.choices(("U1", "U2", "0A", "u."), (9, 9, 9, 1), k=len(messages))
            messages = [(rng.randbytes(size), text.replace("U1", key)) for key in keys]
        body = batch_body(*messages)
        if rng.random() < 0.1 and body:
            body = mutated(rng, body)
    opaque = rng.choice((0, 7, 2**31 - 1, -(2**31), rng.randrange(1 << 20)))
    flag = rng.choice((0, 0, 0, 0, 2, 1))
    if rng.random() < 0.25:
        texts = {name: value for name, value in ext.items() if isinstance(value, str)}
        return encode_frame(RemotingCommand(code, texts, body, opaque=opaque, flag=flag, serialize_type=1))
    header: dict[str, Any] = {
        "code": code, "extFields": ext, "flag": flag, "language": "JAVA", "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON", "version": 513,
    }  # fmt: skip
    if rng.random() < 0.1:
        header[rng.choice(tuple(header))] = rng.choice(ODD_VALUES)
    text = json.dumps(
        header, ensure_ascii=rng.random() < 0.5, separators=rng.choice(((",", ":"), (" ,\n", "\t: ")))
    )
    return framed(text.encode(errors="surrogatepass"), body)


def long_poll(rng: random.Random, store: MessageStore) -> bytes:
    """A pull of the next message of a queue."""
    (topic, queue_id), queue = rng.choice(sorted(store.queues.items()))
    fields = pull_fields(rng) | {
        "topic": topic, "queueId": str(queue_id), "queueOffset": str(queue.readable_max),
        "sysFlag": str(rng.choice((2, 6, 6, 6, 7))), "suspendTimeoutMillis": rng.choice(("1000", "15000", "-1", "x")),
    }  # fmt: skip
    return encode_frame(
        RemotingCommand(11, fields, opaque=rng.randrange(1 << 20), serialize_type=rng.randrange(2))
    )


def send_back(rng: random.Random, store: MessageStore) -> bytes:
    """A message that a consumer sends back: one that is stored, or the next one to be stored, or something else."""
    (_, queue) = rng.choice(sorted(store.queues.items()))
    entry = queue.entry(rng.randrange(max(1, queue.max_offset)))
    offsets = (store.log.end, 0, 7, -1) if entry is None else (entry[0],) * 9 + (store.log.end, entry[0] + 1)
    fields: dict[str, Any] = {
        "offset": str(rng.choice(offsets)), "group": rng.choice(GROUPS), "delayLevel": rng.choice(("0", "0", "3", "18", "19", "-1")),
        "originMsgId": "", "originTopic": "T", "unitMode": "false", "maxReconsumeTimes": rng.choice(("16", "16", "1", "x")),
    }  # fmt: skip
    if rng.random() < 0.1:
        fields[rng.choice(tuple(fields))] = rng.choice(ODD_VALUES)
    header = {
        "code": 36,
        "extFields": fields,
        "flag": rng.choice((0, 0, 0, 2)),
        "language": "JAVA",
        "opaque": rng.randrange(99),
        "version": rng.choice((513, 513, 120)),
    }
    return framed(json.dumps(header, ensure_ascii=False).encode(errors="surrogatepass"), b"")


def delayed_or_half(rng: random.Random, transactions: Transactions | None) -> bytes:
    """A message with a delay or a time, a half message, or the end of one of the open transactions where there are such."""
    kind = rng.randrange(3 if transactions is None else 4)
    if kind == 3:
        open_ones = sorted((transactions or {}).items())
        (group, key), one = rng.choice(open_ones) if open_ones else (("PG", "U1"), None)
        fields: dict[str, Any] = {
            "producerGroup": group, "transactionId": key, "commitOrRollback": rng.choice(("8", "8", "12", "0", 8)),
            "tranStateTableOffset": str(one.queue_offset if one else 0),
            "commitLogOffset": str(one.physical_offset if one else rng.randrange(99)),
        }  # fmt: skip
        code, flag, body = 37, rng.choice((2, 2, 2, 0)), b""
    else:
        fields = send_fields(rng, 310)
        pairs = [
            ("UNIQ_KEY", f"U{rng.randrange(99)}"),
            ("WAIT", rng.choice(("true", "false", "TRUE", "falsework"))),
        ]
        if kind == 2:
            pairs += [("TRAN_MSG", rng.choice(("true", "true", "false"))), ("PGROUP", "PG")]
            fields["f"] = rng.choice(("4", "4", "4", "0", "12"))
        elif kind == 1:
            pairs.append(("DELAY", rng.choice(("1", "3", "18", "19", "0", "x"))))
        else:
            names = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
            pairs.append((rng.choice(names), rng.choice(("1", "1000", "5001", "259201", "x", "0"))))
        if rng.random() < 0.3:
            pairs += rng.sample(
                (("KEYS", "k1 k2"), ("TAGS", "TagA"), ("CHECK_IMMUNITY_TIME_IN_SECONDS", "5"), ("REAL_QID", "1"),
                 ("DO_NOT_WAIT", "falsework")), 2,
            )  # fmt: skip
        rng.shuffle(pairs)
        fields["i"] = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
        code, flag, body = 310, rng.choice((0, 0, 0, 2)), rng.randbytes(20)
    if rng.random() < 0.15:
        fields[rng.choice(tuple(fields))] = rng.choice(ODD_VALUES)
    header = {
        "code": code,
        "extFields": fields,
        "flag": flag,
        "language": "JAVA",
        "opaque": rng.randrange(99),
        "version": 1,
    }
    return framed(json.dumps(header, ensure_ascii=False).encode(errors="surrogatepass"), body)


def with_options(rng: random.Random) -> bytes:
    """A send with an ack level, a dedup key or a priority, or of a topic with a level, or with several of these."""
    fields = send_fields(rng, 310)
    pairs = [
        ("UNIQ_KEY", f"U{rng.randrange(99)}"),
        ("WAIT", rng.choice(("true", "true", "true", "false", "TRUE", "falsework"))),
    ]
    if rng.random() < 0.4:
        fields["b"] = rng.choice(tuple(LEVELED_TOPICS))
    options = (
        ("ACK_LEVEL", rng.choice((*ACK_LEVELS, *ACK_LEVELS, "memory", "Stored"))),
        (
            "DEDUP_KEY",
            rng.choice(
                (f"k{rng.randrange(30)}", f"k{rng.randrange(30)}", "schlüssel", "🐝" * 255, "🐝" * 256)
            ),
        ),
        (
            "_SYS_MSG_PRIORITY_",
            rng.choice(("0", "1", "2", "3", "7", "007", "+1", "-1", "999999999", "1000000000", "x")),
        ),
    )
    lmqs = ",".join(
        rng.choices((*LMQS, *LMQS, *LMQS, "%LMQ%new", "TopicNormal", ""), k=rng.choice((1, 1, 2, 3)))
    )
    options = (*options, ("INNER_MULTI_DISPATCH", lmqs), ("INNER_MULTI_DISPATCH", LMQS[0]))
    pairs += rng.sample(options, rng.choice((0, 1, 1, 1, 1, 2, 3)))
    if rng.random() < 0.3:
        pairs += rng.sample(
            (("KEYS", "k1 k2"), ("TAGS", "TagA"), ("__SHARDINGKEY", "s"), ("DELAY", "3"), ("CLUSTER", "c"), ("ACK_LEVEL", "stored")),
            2,
        )  # fmt: skip
    rng.shuffle(pairs)
    fields["i"] = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    if rng.random() < 0.15:
        fields[rng.choice(tuple(fields))] = rng.choice(ODD_VALUES)
    flag, opaque, body = rng.choice((0, 0, 0, 2)), rng.randrange(99), rng.randbytes(20)
    if rng.random() < 0.05:
        texts = {name: value for name, value in fields.items() if isinstance(value, str)}
        return encode_frame(RemotingCommand(310, texts, body, opaque=opaque, flag=flag, serialize_type=1))
    header = {
        "code": 310,
        "extFields": fields,
        "flag": flag,
        "language": "JAVA",
        "opaque": opaque,
        "version": 1,
    }
    return framed(json.dumps(header, ensure_ascii=False).encode(errors="surrogatepass"), body)


def framed(header: bytes, body: bytes, kind: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Change, insert, remove or repeat bytes at a few positions."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(changed):
            changed[at] = rng.randrange(256)
        elif kind == 1 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            changed[at:at] = rng.choice(
                (b'"', b"\\", b"{", b"}", b"[", b",", b"\\u0001", b"\\ud83d", b"\xed\xa0\x80", b" ")
            )
        elif kind == 3:
            del changed[at : at + rng.randrange(1, 5)]
        elif kind == 4:
            changed[at:at] = changed[at : at + rng.randrange(1, 40)]
        elif at < len(changed):
            changed[at] = rng.choice(b'"\\{}[]:,0123456789-.eE\x00\x01\x02\x1f\xff')
    return bytes(changed)


def one_frame(rng: random.Random) -> bytes:
    frame = rng.choice(corpus()) if rng.random() < 0.4 else made_frame(rng)
    chance = rng.random()
    if chance < 0.12:
        return mutated(rng, frame)
    if chance < 0.4:  # the header or the body changes, and the lengths with it
        header_bytes = int.from_bytes(frame[5:8], "big")
        header, body = frame[8 : 8 + header_bytes], frame[8 + header_bytes :]
        if rng.random() < 0.8:
            header = mutated(rng, header)
        else:
            body = mutated(rng, body)
        return framed(header, body, rng.choice((frame[4], frame[4], frame[4], frame[4], 1 - frame[4] % 2, 2)))
    return frame


def one_burst(rng: random.Random) -> bytes:
    frames = [one_frame(rng) for _ in range(rng.choice((1, 1, 2, 3, 8)))]
    data = b"".join(frames)
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.05 else data
