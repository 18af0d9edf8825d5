"""A differential fuzz of the fast path: both backends get the same bursts and must give the same answers and the same bytes,
and so must, in two stores of three, the ordinary handlers, which get each frame that the backends serve.

    python tests/fuzz/fastpath_differential.py [--bursts 1000000] [--seed 1] [--first-store 0]

Bursts are made of captured frames (tests/data/wire), of frames made here with numbers, escapes and properties of every
kind, and of both mutated, cut and put behind one another. After each burst the results are compared, the log's end and
what was appended; every CHECK_EVERY bursts every byte of log, queues and index, offsets and statistics. A disagreement
ends the run with the seed and the store, whose random numbers are its own: `--first-store N --bursts 1` runs it again, and a
run that was ended goes on with the store behind the last one. Between bursts settings, gates and topics change; listeners, the schedule and the
transaction table fail at times, in both alike: what is stored stays stored, once. Needs the native backend: `make native`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import random
import re
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aerobee.broker.config import BrokerConfig
from aerobee.broker.fastpath.choice import NATIVE, PYTHON, choose_backend
from aerobee.broker.fastpath.results import BurstFields
from aerobee.broker.fastpath.seam import (
    Authorization,
    LaterSettings,
    PullResult,
    Transaction,
    TransactionSettings,
)
from aerobee.broker.pull.held_pulls import HeldPull
from aerobee.broker.timer.timer_hook import TimerHook
from aerobee.broker.topic_table import HALF_TOPIC, SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC
from aerobee.broker.transaction.fast_path_hooks import LaterFastPath
from aerobee.broker.transaction.half_message import is_half, to_half
from aerobee.broker.transaction.transaction_table import OpenTransaction
from aerobee.errors import AerobeeError, WireError
from aerobee.message import decode_properties, encode_properties, pack_host
from aerobee.remoting.body.heartbeat import ConsumerData
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.peer import Peer
from aerobee.store.consume_queue import ConsumeQueue
from aerobee.store.message_store import MessageStore
from aerobee.store.queue_table import AnyQueue
from aerobee.store.stored_message import StoredMessage
from tests.captures import capture_names, captured
from tests.fakes import FakePeer
from tests.unit.broker.sending import Sending, batch_body

CHECK_EVERY = 500
MEMORY = "/dev/shm"  # a store there waits for no disk
SENDS = (10, 310, 320)
_UNREAD = {
    "defaultTopicQueueNums": "4",
    "d": "4",
    "unitMode": "false",
    "k": "false",
    "maxReconsumeTimes": "16",
    "l": "16",
}
UNREAD = {
    10: _UNREAD,
    310: _UNREAD,
    320: {**_UNREAD, "h": "0", "flag": "0"},
}  # fields that the fast path does not look at
NUMBERS_OF_PULLS = ("subVersion", "suspendTimeoutMillis", "commitOffset")
PLAIN_NUMBER = re.compile(r"-?[0-9]{1,18}\Z", re.ASCII)
LEFT_TO_HANDLERS = b"for the handler: "
LONG_POLL_SHARE = 0.2  # of the bursts begin with one
KINDS_SHARE = 0.3  # of the bursts begin with messages for later or of transactions
BURSTS_PER_STORE = 4_000
LANE_CODES = (10, 11, 310, 320, 361)
TOPICS = ("TopicNormal", "TopicOrder", "TopicBatch", "TopicPull", "TopicConsume")
GROUPS = ("group", "CG_lite", "CG_pull", "closed", "CG é")
HOSTS = (("10.0.0.1", 43_664), ("::1", 5_000))
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


class Disagreement(AssertionError):
    """The backends differ; the text says in what."""


class Twin(Sending):
    """The parts around one backend."""

    def __init__(self, path: Path, name: str, **store_settings: Any) -> None:
        config = BrokerConfig(broker_name="broker-a", enable_property_filter=True)
        super().__init__(path, config, choice=choose_backend(name), **store_settings)
        for topic in captured_topics():
            self.topics.put(TopicConfig(topic, 8, 8))
        for topic in TOPICS:
            self.topics.put(TopicConfig(topic, 4, 4))
        self.topics.put(TopicConfig("TopicWriteOnly", 4, 4, 2))
        for group in (*GROUPS, *captured_groups()):
            self.groups.find_or_create_all((group,))
        subscriptions = (SubscriptionData.parse("TopicNormal", "TagA", sub_version=5),)
        data = ConsumerData("group", subscription_data_set=subscriptions)
        member = FakePeer()
        member.is_open = False  # not to be told of others
        self.consumers.register(data, member, "c1", language=3, version=513)  # type: ignore[arg-type]
        self.connection = FakePeer()
        self.seen_end = 0
        self.told: list[Any] = []
        self.fails = False  # whoever is told of something, from time to time
        self.store.on_arrival(self._listen)
        self._open: dict[tuple[str, str], OpenTransaction] = {}
        self._serve_all_kinds()

    def resume(self, pull: HeldPull) -> None:
        self.connection.write(LEFT_TO_HANDLERS + pull.frame)
        self.pulls.resume(pull)

    # --- what the families ask and tell

    def _serve_all_kinds(self) -> None:
        """The fast path serves messages for later and transactions, too."""
        self.limits: tuple[int, int] | None = (1_000, 259_200_000)
        self.fast_path._later = LaterSettings(
            hooks=LaterFastPath(
                takes_later=lambda: True,
                appended=lambda *what: self._tell("level", *what),
                timer_appended=lambda: self._tell("timer"),
                timer_limits=lambda: self.limits,
            ),
            schedule_topic=TopicConfig(SCHEDULE_TOPIC, 18, 18),
            timer_topic=TopicConfig(WHEEL_TIMER_TOPIC, 1, 1),
            broker_name="broker-a",
            delays_ms=self.store.config.delay_levels_ms(),
        )
        self.fast_path._transactions = TransactionSettings(
            hooks=self, half_topic=TopicConfig(HALF_TOPIC, 1, 1)
        )
        self.fast_path._settings_changed()

    def _tell(self, *what: Any) -> None:
        self.told.append(what)
        if self.fails and len(self.told) % 2:
            raise KeyError("the listener's own fault")

    def _listen(self, topic: str, queue_id: int, end: int, code: int) -> None:
        if self.fails and end % 3 == 0:
            raise ValueError("the listener's own fault")

    def takes_halves(self) -> bool:
        return True

    def half_queue(self) -> AnyQueue:
        return self.store.queue(HALF_TOPIC, 0)

    def open_transactions(self) -> dict[tuple[str, str], OpenTransaction]:
        return self._open

    def began(
        self,
        group: str,
        key: str,
        topic: str,
        queue_offset: int,
        offset: int,
        size: int,
        stored_ms: int,
        *marks: str,
    ) -> None:
        transaction = OpenTransaction((group, key), topic, queue_offset, offset, stored_ms=stored_ms)
        transaction.size, transaction.marks = size, (marks[0], marks[1])
        self._open[group, key] = transaction
        self._tell("began", group, key, topic, queue_offset, offset, size, stored_ms, *marks)

    def committed(self, transaction: Transaction) -> None:
        self._decided("committed", transaction)

    def rolled_back(self, transaction: Transaction) -> None:
        self._decided("rolled back", transaction)

    def _decided(self, what: str, transaction: Transaction) -> None:
        self._open = {key: each for key, each in self._open.items() if each is not transaction}
        self._tell(what, transaction.queue_offset)

    def burst_done(self) -> None:
        self._tell("done")

    # --- a burst

    def burst(
        self,
        data: bytes | bytearray,
        position: int,
        born_host: bytes,
        gates: tuple[bool, bool] = (True, True),
    ) -> tuple[Any, ...]:
        """Serve through the shell's backend, and let the shell's accounts follow."""
        backend, (takes_sends, takes_pulls) = self.fast_path._backend, gates
        burst = backend.burst(
            data,
            position,
            born_host,
            self.store.store_time_now(),
            takes_sends=takes_sends,
            takes_pulls=takes_pulls,
        )
        result = BurstFields._make(burst)
        if result.appended:
            self.fast_path._count(result.appended)
        self.fast_path._note(result.pulled, self.connection)  # type: ignore[arg-type]
        self.run_soon()
        released, self.connection.written = self.connection.written, []
        pulled = [_fields(each) for each in result.pulled]
        told, self.told = self.told, []
        start, self.seen_end = self.seen_end, self.store.log.end
        written = b"" if start == self.seen_end else self.appended(start)
        fault = result.fault if result.fault is None else (type(result.fault), str(result.fault))
        return (
            result.replies, result.used, result.is_slow, result.held_replies, sorted(result.appended), pulled, fault, told,
            released, self.seen_end, written,
        )  # fmt: skip

    def appended(self, start: int) -> bytes:
        return b"".join(
            bytes(segment.file.buffer[max(0, start - segment.base) : max(0, self.seen_end - segment.base)])
            for segment in self.store.log.segments
            if segment.end > start
        )

    def everything(self, *, with_empty: bool = True) -> Iterator[tuple[str, object]]:
        """Every byte of the files and every number beside them; queues that have nothing only `with_empty`."""
        log, index = self.store.log, self.store.index
        # How far it is made ready ahead follows from the sizes of runs, which handlers append one by one.
        yield "log", (log.end, log.limit if with_empty else 0, log.base)
        for segment in log.segments:
            yield segment.path[-20:], bytes(segment.file.buffer[:])
        for key, queue in sorted(self.store.queues.items()):
            assert isinstance(queue, ConsumeQueue)
            if not (queue.max_offset or with_empty):
                continue
            numbers = (
                queue.min_offset,
                queue.max_offset,
                queue.readable_max,
                queue.room,
                queue.unsynced_from,
            )
            yield f"queue {key}", numbers
            for file in queue._files.files:
                yield f"queue {key} {file.base}", bytes(queue._pool.buffer(file)[:])
        for number, keys in enumerate(index.files):
            yield f"index {number}", (
                keys.begin_timestamp, keys.end_timestamp, keys.begin_physical_offset, keys.end_physical_offset,
                keys.used_slots, keys.count, keys.dirty_from,
            )  # fmt: skip
            yield f"index {number} bytes", bytes(keys.buffer[:])
        yield "unsynced", sorted((q.topic, q.queue_id) for q in self.store.pool.unsynced_queues)  # type: ignore[attr-defined]
        yield "offsets", self.offsets.to_dict()
        yield "last", (self.store.last_store_timestamp, self.store.last_record_offset)
        for name in ("TOPIC_PUT_NUMS", "GROUP_GET_NUMS"):
            yield name, sorted((k, c.count, c.size, c.times) for k, c in self.stats.counters(name))


class HandlerTwin(Twin):
    """The ordinary handlers around a store of their own. They get what the backends have served, frame by frame."""

    def __init__(self, path: Path, **store_settings: Any) -> None:
        super().__init__(path, PYTHON, **store_settings)
        self.waiting_for_disk: list[bytes] = []
        self.held.answer_first(lambda pulls: pulls)  # no fast path
        self.writer.add_hook(self._timer)
        self.writer.add_hook(
            lambda message, properties: to_half(message, properties) if is_half(message) else message
        )
        self.ack.answer = self._answer  # type: ignore[method-assign, assignment]
        self._handlers = {**self.sends.handlers(), **self.pulls.handlers()}
        self._timers = TimerHook(
            config=lambda: self.store.config, clock=self.clock, count_in_slot=lambda _: 0, chance=lambda: 1.0
        )

    def _timer(self, message: StoredMessage, properties: dict[str, str]) -> StoredMessage:
        return self._timers(message, properties)

    def _answer(
        self, peer: Peer, reply: RemotingCommand, end_offset: int, *, wants_to_wait: bool = True
    ) -> RemotingCommand | None:
        if not (wants_to_wait and self.store.holds_answers):
            return reply
        self.waiting_for_disk.append(encode_frame(reply))
        return None

    def resume(self, pull: HeldPull) -> None:
        self.pulls.resume(pull)

    def serve(
        self, frames: Sequence[bytes], host_port: tuple[str, int]
    ) -> tuple[list[bytes], list[bytes], list[bytes], bytes]:
        """Give frames to their handlers: replies, those that wait for the disk, those of polls, and what was written."""
        self.connection.host_port = host_port
        self.connection.burst_note = None
        replies: list[bytes] = []
        for frame in frames:
            request = without_unread(decode_frame(frame))
            try:
                reply: Any = self._handlers[request.code](self.connection, request)  # type: ignore[arg-type]
            except AerobeeError as error:  # as Connection answers it
                reply = request.reply(1, remark=str(error))
            assert reply is None or isinstance(reply, RemotingCommand), reply
            if reply is not None and not request.is_oneway:
                replies.append(encode_frame(reply))
        self.store.burst_done()
        self.run_soon()
        released, self.connection.written = self.connection.written, []
        held, self.waiting_for_disk = self.waiting_for_disk, []
        self.told.clear()
        start, self.seen_end = self.seen_end, self.store.log.end
        written = b"" if start == self.seen_end else self.appended(start)
        return replies, held, released, written


def _fields(result: PullResult) -> tuple[Any, ...]:
    authorization, *numbers, held = result
    told = tuple(
        getattr(authorization, name) for name in Authorization.__slots__ if name != "accept"
    )  # a function of each side
    return told, *numbers, held


# --- bursts


@cache
def corpus() -> tuple[bytes, ...]:
    """Captured requests that are for the lane, and a few that are not."""
    frames = []
    for name in capture_names():
        for frame in captured(name):
            if frame.direction == "request" and not frame.is_reply and frame.request_code in LANE_CODES:
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


def later_or_half(rng: random.Random, side: Twin, *, ends: bool) -> bytes:
    """A message with a delay or a time, a half message, or (`ends`) the end of a transaction."""
    kind = rng.randrange(4 if ends else 3)
    if kind == 3:
        open_ones = sorted(side.open_transactions().items())
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


def framed(header: bytes, body: bytes, kind: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Change, insert, remove or repeat bytes at a few places."""
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


# --- comparing


def compare(
    twins: Sequence[Twin],
    data: bytes,
    position: int,
    rng: random.Random,
    handlers: HandlerTwin | None = None,
) -> None:
    """Feed one burst to its end, over frames that are left to the handlers. Raises Disagreement."""
    host_port = rng.choice(HOSTS)
    born_host = pack_host(*host_port)
    in_place = rng.random() < 0.2
    gates = rng.choice(((True, True), (True, True), (True, True), (False, True), (True, False)))
    while True:
        results = [
            twin.burst(bytearray(data) if in_place else data, position, born_host, gates) for twin in twins
        ]
        if results[0] != results[1]:
            names = (
                "replies", "used", "slow", "held", "appended", "pulled", "fault", "told", "released", "end", "written",
            )  # fmt: skip
            differing = [
                f"{name}: {left!r:.3000} and {right!r:.3000}"
                for name, left, right in zip(names, *results, strict=True)
                if left != right
            ]
            raise Disagreement("; ".join(differing))
        used, slow = results[0][1:3]
        if handlers is not None:
            compare_handlers(handlers, list(cut_frames(data[position:used])), host_port, results[0])
        if results[0][6] is not None:
            return  # the connection ends
        if not slow:
            if used == position or used >= len(data):
                return
            position = used
            continue
        length = int.from_bytes(data[used : used + 4], "big")
        position = used + 4 + length
        if position >= len(data):
            return


def cut_frames(data: bytes) -> Iterator[bytes]:
    """The frames that stand one behind the other."""
    at = 0
    while at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        yield data[at:end]
        at = end


def compare_handlers(
    handlers: HandlerTwin, frames: list[bytes], host_port: tuple[str, int], result: tuple[Any, ...]
) -> None:
    """Give the handlers what the backends have served. Raises Disagreement."""
    replies, held, released, written = handlers.serve(frames, host_port)
    by_lane = b"".join(part for part in result[8] if not part.startswith(LEFT_TO_HANDLERS))
    pairs = (
        ("replies", [meaning(each) for each in cut_frames(result[0])], [meaning(each) for each in replies]),
        ("held", [meaning(each) for each in cut_frames(result[3])], [meaning(each) for each in held]),
        (
            "released",
            sorted(text for each in cut_frames(by_lane) if (text := meaning(each))),
            sorted(meaning(each) for part in released for each in cut_frames(part)),
        ),
        ("written", result[10], written),
    )  # fmt: skip
    if result[6] is not None:  # whoever is told of halves failed: the connection ends without an answer
        pairs = pairs[2:]
    differing = [
        f"{name}: {lane!r:.3000} and {handler!r:.3000}" for name, lane, handler in pairs if lane != handler
    ]
    if differing:
        raise Disagreement(f"the fast path and the handlers: {'; '.join(differing)}; frames {frames!r:.3000}")


def without_unread(request: RemotingCommand) -> RemotingCommand:
    """The request with plain values in the fields that the fast path does not read: handlers refuse a strange one there."""
    plain = UNREAD.get(request.code, {})
    request.ext = {name: plain.get(name, value) for name, value in (request.ext or {}).items()}
    return request


def suits_handlers(data: bytes, position: int) -> bool:
    """Whether handlers would understand each frame, and write each message's properties as they came: they leave out what has
    no name or no value, and all but the last of a name, which the fast path stores as it is."""
    for frame in cut_frames(data[position:]):
        try:
            request = decode_frame(frame)
        except WireError:
            return False  # the fast path does not look at all of a header
        ext = request.ext or {}
        if request.code not in SENDS:
            if not all(PLAIN_NUMBER.match(ext.get(name, "0")) for name in NUMBERS_OF_PULLS):
                return False  # not looked at where they say nothing
            continue
        text = ext.get("properties" if request.code == 10 else "i", "")
        plain = encode_properties(decode_properties(text))
        if plain not in (text, text + "\x02"):
            return False
    return True


def meaning(frame: bytes) -> str:
    """What a reply says, whatever the order of its fields."""
    reply = decode_frame(frame)
    said = (
        reply.code,
        reply.opaque,
        reply.flag,
        sorted((reply.ext or {}).items()),
        reply.remark or "",
        bytes(reply.body).hex(),
    )
    return repr(said)


def check_everything(twins: Sequence[Twin]) -> None:
    has_handlers = isinstance(twins[1], HandlerTwin)  # the fast path opens a queue before it has a message
    each = (twin.everything(with_empty=not has_handlers) for twin in twins)
    for (name, left), (_, right) in zip(*each, strict=True):
        if left != right:
            if isinstance(left, bytes) and isinstance(right, bytes):
                at = next(i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
                raise Disagreement(
                    f"{name} differs at byte {at}: {left[at : at + 40]!r} and {right[at : at + 40]!r}"
                )
            raise Disagreement(f"{name}: {left!r:.2000} and {right!r:.2000}")


def run(
    count: int, seed: int, note: Callable[[str], None] = lambda text: None, *, first_store: int = 0
) -> int:
    """Compare `count` bursts; return how many bytes each log took. Raises Disagreement with the seed and the burst."""
    stored, done, store_number = 0, 0, first_store
    started = time.monotonic()
    while done < count:
        directory = Path(
            tempfile.mkdtemp(prefix="lane-differential-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
        )
        rng = random.Random(f"{seed} {store_number}")
        settings: dict[str, Any] = {"flush_disk_type": "SYNC_FLUSH"} if store_number % 4 == 3 else {}
        if store_number % 5 == 4:
            settings["message_index_enable"] = False
        twins = [Twin(directory / name, name, **settings) for name in (PYTHON, NATIVE)]
        # Without the service of transactions handlers cannot end one: two stores of three are without ends.
        handlers = HandlerTwin(directory / "handlers", **settings) if store_number % 3 else None
        everybody = twins if handlers is None else [*twins, handlers]
        try:
            for number in range(min(BURSTS_PER_STORE, count - done)):
                data = one_burst(rng)
                if rng.random() < LONG_POLL_SHARE and twins[0].store.queues:
                    data = long_poll(rng, twins[0].store) + data
                if rng.random() < KINDS_SHARE:
                    data = (
                        b"".join(
                            [
                                later_or_half(rng, twins[0], ends=handlers is None)
                                for _ in range(rng.randrange(1, 4))
                            ]
                        )
                        + data
                    )
                if rng.random() < 0.02:
                    _change_settings(everybody, rng)
                position = rng.choice((0, 0, 0, 3))
                if handlers is not None and not suits_handlers(data, 0):
                    continue
                try:
                    compare(twins, bytes(position) + data, position, rng, handlers)
                    if number % CHECK_EVERY == CHECK_EVERY - 1:
                        check_everything(twins)
                        if handlers is not None:
                            check_everything([twins[0], handlers])
                        _change_something(everybody, rng)
                except Exception as error:
                    raise Disagreement(
                        f"seed {seed}, store {store_number}, burst {number}: {error}\nburst: {data.hex()}"
                    ) from error
                done += 1
            check_everything(twins)
            if handlers is not None:
                check_everything([twins[0], handlers])
            stored += twins[0].store.log.end
        finally:
            for twin in everybody:
                twin.close()
            shutil.rmtree(directory)
        store_number += 1
        note(
            f"{done:,} bursts to store {store_number - 1}, {stored / 1e6:.0f} MB stored alike, {done / (time.monotonic() - started):,.0f} a second"
        )
    return stored


def _change_something(twins: Sequence[Twin], rng: random.Random) -> None:
    """Time goes on, topics change, syncs happen, resets come."""
    kind = rng.randrange(5)
    seconds = rng.choice((0.001, 1.5, 100.0))
    queue_count = rng.randrange(1, 9)
    for twin in twins:
        twin.clock.advance(seconds)
        if kind == 0:
            twin.topics.put(TopicConfig("TopicOrder", queue_count, queue_count))
        elif kind == 1:
            twin.store.flush_now()
        elif kind == 2:
            twin.offsets.assign_reset("group", "TopicNormal", {1: 3})
        elif kind == 3:
            twin.offsets.take_reset("group", "TopicNormal", 1)
        elif kind == 4:
            twin.store.flush_queues_now()


def _change_settings(twins: Sequence[Twin], rng: random.Random) -> None:
    """What is set at run time, and whether those who are told fail."""
    kind, size, region = (
        rng.randrange(4),
        rng.choice((50, 900, 1 << 22, 1 << 22)),
        rng.choice(("r1", 'r"é', "DefaultRegion")),
    )
    fails = rng.random() < 0.5
    for twin in twins:
        if kind == 0:
            twin.store.reconfigure(dataclasses.replace(twin.store.config, max_message_size=size))
        elif kind == 1:
            twin.live.replace(region_id=region, long_polling_enable=size > 50)
        elif kind == 2:
            twin.limits = None if size == 50 else (1_000, 259_200_000)
        else:
            twin.fails = fails


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bursts", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--first-store", type=int, default=0, help="where an earlier run ended")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # listeners that fail, offsets that go back, names that are not legal
    print(f"seed {options.seed}")
    stored = run(
        options.bursts, options.seed, lambda text: print(text, flush=True), first_store=options.first_store
    )
    print(f"backends and handlers agree on {options.bursts:,} bursts, {stored:,} bytes of log")


if __name__ == "__main__":
    main()
