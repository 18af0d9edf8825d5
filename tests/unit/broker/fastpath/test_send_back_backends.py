"""Messages that consumers send back: both backends store the bytes of the handler, and leave the same ones to it."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.admission.record_access import RecordAccess
from aerobee.broker.fastpath.choice import NATIVE, PYTHON, choose_backend
from aerobee.broker.fastpath.exclusions import LEVEL_MAX, SEND_BACK_RECORD_BYTES_MAX
from aerobee.broker.send.send_back import SendBackCalls
from aerobee.broker.send.send_back_service import SendBackService
from aerobee.errors import AerobeeError
from aerobee.message import BORN_HOST_V6, pack_host
from aerobee.record_head import RECORD_BYTES_MIN
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.store.log.stored_message import StoredMessage
from tests.fuzz.fastpath_bursts import ODD_VALUES, framed, mutated
from tests.fuzz.fastpath_counterparts import Counterpart
from tests.unit.broker.sending import send_frame

BURSTS = int(os.environ.get("AEROBEE_SEND_BACK_BURSTS", "1200"))
BACKENDS = [PYTHON] + ([NATIVE] if choose_backend().name == NATIVE else [])
CONSUMER = pack_host("10.0.0.9", 4_000)
PRODUCER, PRODUCER_V6 = pack_host("10.0.0.1", 43_664), pack_host("fd00::1", 43_664)
GROUPS = ("group", "group-of-3", "group-without-retries", "group-for-ever", "group-unknown")
OTHERS = (
    ("KEYS", "k1  k2"), ("KEYS", "键"), ("TAGS", "TagA"), ("TAGS", "标签"), ("WAIT", "true"), ("WAIT", "false"), ("colour", "grün"),
    ("DELAY", "2"), ("DELAY", "x"), ("RETRY_TOPIC", "TopicFirst"), ("RETRY_TOPIC", "a b"), ("RETRY_TOPIC", "x" * 128),
    ("ORIGIN_MESSAGE_ID", "7F0000010000"), ("ORIGIN_POSITION", "b/1@2"), ("REAL_TOPIC", "%RETRY%group"), ("REAL_QID", "0"),
    ("TIMER_DELAY_MS", "5000"), ("TRAN_MSG", "true"), ("INNER_NUM", "2"), ("__LITE_TOPIC", "x"), ("colour", ""), ("", "x"),
    ("long", "x" * 32_500), ("UNIQ_KEY", "a b"), ("LAST_ERROR", "it failed"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def message(
    topic: str, body: bytes, properties: bytes, born_host: bytes = PRODUCER, **more: Any
) -> StoredMessage:
    return StoredMessage(
        topic=topic, queue_id=0, body=body, properties=properties, born_host=born_host, **more
    )


class World(Counterpart):
    """The parts around a backend, and the handler of messages that are sent back."""

    def __init__(self, path: Path, name: str, **settings: Any) -> None:
        super().__init__(path, name, **settings)
        for group, queues, tries in zip(GROUPS, (1, 3, 0, 1), (16, 3, 16, -1), strict=False):
            self.groups.put(SubscriptionGroupConfig(group, retry_queue_nums=queues, retry_max_times=tries))
            if queues:
                self.topics.put(TopicConfig(f"%RETRY%{group}", queues, queues))
        service = SendBackService(
            store=self.store,
            writer=self.writer,
            topics=self.topics,
            groups=self.groups,
            stats=self.stats,
            live=self.live,
            identity=self.identity,
            role=self.role,
            pick_queue=lambda count: count - 1,
        )
        self.calls = SendBackCalls(service=service, ack=self.ack, records=RecordAccess(gate=None))

    def fill(self, rng: random.Random, count: int) -> list[int]:
        """Store messages; return their physical offsets."""
        found = []
        for _ in range(count):
            topic = rng.choice(("TopicNormal", "TopicNormal", "TopicOrder", "%RETRY%group", "%DLQ%group"))
            pairs = [
                ("UNIQ_KEY", f"U{rng.randrange(99)}"),
                *rng.sample(OTHERS, rng.choice((0,) * 9 + (1, 2, 3))),
            ]
            if topic.startswith("%") and rng.random() < 0.8:
                pairs.append(("RETRY_TOPIC", "TopicNormal"))
            rng.shuffle(pairs)
            text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
            if rng.random() < 0.1:
                text = text[: rng.choice((-1, 0, len(text)))]
            host = rng.choice((PRODUCER,) * 9 + (PRODUCER_V6,))
            result = self.store.append(
                message(
                    topic,
                    rng.randbytes(rng.choice((0, 1, 128))),
                    text.encode(errors="surrogateescape")[:32_767],
                    host,
                    flag=rng.choice((0, 7)),
                    sys_flag=rng.choice((0,) * 9 + (1, 2, 8)) | (BORN_HOST_V6 if host == PRODUCER_V6 else 0),
                    born_timestamp=rng.choice((0, 1_700_000_000_000)),
                    reconsume_times=rng.choice((0, 0, 0, 1, 2, 3, 15, 16, (1 << 31) - 1)),
                )
            )
            found.append(result.physical_offset)
        self.store.burst_done()
        self.store.flush_now()
        self.seen_end = self.store.log.end
        return found

    def handle(self, frame: bytes) -> bytes:
        """What the handler answers."""
        request = decode_frame(frame)
        try:
            reply: Any = self.calls.send_back(self.connection, request)  # type: ignore[arg-type]
        except AerobeeError as error:
            reply = request.reply(1, remark=str(error))
        self.store.burst_done()
        self.run_soon()
        self.seen_end = self.store.log.end
        return b"" if reply is None or request.is_oneway else encode_frame(reply)

    def kept(self) -> dict[str, object]:
        """Everything that is stored, and what is counted."""
        found = {
            what: value
            for what, value in self.everything(with_empty=False)
            if what not in ("TOPIC_PUT_NUMS", "log", "unsynced")
        }
        found["counts"] = sorted((k, c.count, c.size) for k, c in self.stats.counters("TOPIC_PUT_NUMS"))
        found["sent back"] = sorted((k, c.count) for k, c in self.stats.counters("SNDBCK_PUT_NUMS"))
        return found


def frame(rng: random.Random, offsets: list[int]) -> bytes:
    """A request, of which seven in ten are as clients make them."""
    is_plain = rng.random() < 0.7
    ext: dict[str, Any] = {
        "offset": str(rng.choice(offsets)), "group": rng.choice(GROUPS[:2] if is_plain else GROUPS), "delayLevel": rng.choice(("0", "3", "18")),
        "originMsgId": "", "originTopic": "T", "unitMode": "false", "maxReconsumeTimes": "16",
    }  # fmt: skip
    header: dict[str, Any] = {
        "code": 36, "extFields": ext, "flag": rng.choice((0, 0, 0, FLAG_ONEWAY)), "language": "JAVA", "opaque": rng.randrange(1 << 20),
        "serializeTypeCurrentRPC": "JSON", "version": 513,
    }  # fmt: skip
    odd = 0 if is_plain else rng.choice(range(9))
    if odd == 1:
        ext["offset"] = str(rng.choice(offsets) + rng.choice((1, -1, 1 << 30, 1 << 62)))
    elif odd == 2:
        ext["delayLevel"] = rng.choice(("19", "-1", "9" * 9, "9" * 10, "", "128"))
    elif odd == 3:
        ext["maxReconsumeTimes"] = rng.choice(("2", "0", "-1", "", "x", "9" * 12))
    elif odd == 4:
        ext[rng.choice(("delayMillis", "lastError", "deliveryTries", "deadLetterReason", "bname"))] = "5"
    elif odd == 5:
        ext[rng.choice(tuple(ext))] = rng.choice(ODD_VALUES)
    elif odd == 6:
        del ext[rng.choice(tuple(ext))]
    elif odd == 7:
        header["version"] = rng.choice((120, "513", None, 1 << 40))
        if rng.random() < 0.3:
            del header["version"]
    raw = json.dumps(header, ensure_ascii=rng.random() < 0.5, separators=(",", ":")).encode()
    return framed(mutated(rng, raw) if odd == 8 else raw, b"")


def test_backends_store_what_the_handler_stores_of_messages_sent_back(tmp_path: Path) -> None:
    rng = random.Random(os.environ.get("AEROBEE_SEND_BACK_SEED", "7"))
    done = served = 0
    while done < BURSTS:
        settings: dict[str, Any] = {"flush_disk_type": "SYNC_FLUSH"} if done % 600 else {}
        worlds = [World(tmp_path / f"{done}{name}", name, **settings) for name in BACKENDS]
        reference = World(tmp_path / f"{done}handler", PYTHON, **settings)
        seed = rng.randrange(1 << 30)
        filled = [world.fill(random.Random(seed), 60) for world in (*worlds, reference)]
        offsets = filled[0]
        for _ in range(min(300, BURSTS - done)):
            done += 1
            data = b"".join(frame(rng, offsets) for _ in range(rng.choice((1, 2, 8))))
            while data:
                answers = [world.burst(data, 0, CONSUMER) for world in worlds]
                assert all(answer == answers[0] for answer in answers), data
                replies, used, _, held = answers[0][:4]
                parts, at = [], 0
                while at < used:
                    size = 4 + int.from_bytes(data[at : at + 4], "big")
                    parts.append(reference.handle(data[at : at + size]))
                    at += size
                served += len(parts)
                assert b"".join(parts) in (replies, b"" if settings else replies)
                assert not (replies if settings else held)
                size = 4 + int.from_bytes(data[used : used + 4], "big")
                data = data[used + size :]  # the next one is left out
            if rng.random() < 0.02:
                for world in (*worlds, reference):
                    world.clock.advance(0.7)
        kept = [world.kept() for world in (*worlds, reference)]
        for each in kept[1:]:
            assert each.keys() == kept[0].keys()
            for what, value in each.items():
                assert value == kept[0][what], what
        for world in (*worlds, reference):
            world.close()
    assert served > BURSTS


@pytest.mark.parametrize("name", BACKENDS)
def test_a_message_of_the_same_burst_is_taken_back(tmp_path: Path, name: str) -> None:
    """Its queue entry is written, but was not in the queue's numbers before the end of the burst."""
    world = World(tmp_path, name)
    send = send_frame(properties="UNIQ_KEY\x01U1\x02")
    assert world.burst(send, 0, CONSUMER)[1] == len(send)
    ext = {"offset": str(world.store.log.end), "group": "group", "delayLevel": "3"}
    data = send + encode_frame(RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext))
    answer = world.burst(data, 0, CONSUMER)
    assert (answer[1], answer[13]) == (len(data), 2)
    world.close()


@pytest.mark.parametrize("name", BACKENDS)
def test_groups_that_change_are_looked_up_again(tmp_path: Path, name: str) -> None:
    world = World(tmp_path, name)
    result = world.store.append(message("TopicNormal", b"b", b"UNIQ_KEY\x01U\x02"))
    world.store.burst_done()
    ext = {
        "offset": str(result.physical_offset),
        "group": "group",
        "delayLevel": "3",
        "maxReconsumeTimes": "16",
    }
    data = encode_frame(RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext))
    assert world.burst(data, 0, CONSUMER)[1] == len(data)
    world.groups.put(SubscriptionGroupConfig("group", retry_queue_nums=0))
    assert world.burst(data, 0, CONSUMER)[1] == 0
    world.groups.put(SubscriptionGroupConfig("group", retry_queue_nums=2))
    assert world.burst(data, 0, CONSUMER)[1] == 0  # its retry topic has one queue
    world.topics.put(TopicConfig("%RETRY%group", 2, 2))
    assert world.burst(data, 0, CONSUMER)[1] == len(data)
    world.close()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_group_that_is_looked_up_again_is_kept_once(tmp_path: Path, name: str) -> None:
    """Each change of a consumer of any group has all groups looked up again."""
    world = World(tmp_path, name)
    result = world.store.append(message("TopicNormal", b"b", b"UNIQ_KEY\x01U\x02"))
    world.store.burst_done()
    ext = {"offset": str(result.physical_offset), "group": "group", "delayLevel": "3"}
    data = encode_frame(RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext))
    topic = world.topics.get("%RETRY%group")
    assert topic is not None
    counts = []
    for _ in range(40):
        world.fast_path._backend.forget_authorizations()
        assert world.burst(data, 0, CONSUMER)[1] == len(data)
        counts.append(sys.getrefcount(topic.topic_name))
    assert counts[-1] <= counts[0] + 2
    world.close()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_queue_file_that_cannot_be_opened_is_the_handlers(tmp_path: Path, name: str) -> None:
    """Descriptors may be used up for a moment: the consumer gets an error, and keeps its connection."""
    world = World(tmp_path, name)
    result = world.store.append(message("TopicNormal", b"b", b"UNIQ_KEY\x01U\x02"))
    world.store.burst_done()
    queue: Any = world.store.queues["TopicNormal", 0]

    def entry(offset: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    queue.entry = entry
    ext = {"offset": str(result.physical_offset), "group": "group", "delayLevel": "3"}
    data = encode_frame(RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext))
    assert world.burst(data, 0, CONSUMER)[1] == 0
    del queue.entry
    assert world.burst(data, 0, CONSUMER)[1] == len(data)
    world.close()


@pytest.mark.parametrize("name", BACKENDS)
def test_no_message_is_taken_back_while_none_may_be_delayed(tmp_path: Path, name: str) -> None:
    world = World(tmp_path, name)
    result = world.store.append(message("TopicNormal", b"b", b"UNIQ_KEY\x01U\x02"))
    world.store.burst_done()
    ext = {
        "offset": str(result.physical_offset),
        "group": "group",
        "delayLevel": "3",
        "maxReconsumeTimes": "16",
    }
    data = encode_frame(RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext))
    hooks: Any = world.fast_path._delayed.hooks  # type: ignore[union-attr]
    hooks.takes_delayed = lambda: False
    assert world.burst(data, 0, CONSUMER)[1] == 0
    world.close()


@pytest.mark.parametrize("name", BACKENDS)
def test_levels_beyond_those_of_the_fast_path_are_the_handlers(tmp_path: Path, name: str) -> None:
    world = World(tmp_path, name, message_delay_level=" ".join(["1s"] * (LEVEL_MAX + 2)))
    result = world.store.append(message("TopicNormal", b"b", b"UNIQ_KEY\x01U\x02"))
    world.store.burst_done()
    for level in (LEVEL_MAX, LEVEL_MAX + 1, LEVEL_MAX + 2):
        ext = {"offset": str(result.physical_offset), "group": "group", "delayLevel": str(level)}
        data = encode_frame(RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext))
        assert world.burst(data, 0, CONSUMER)[1] == (len(data) if level == LEVEL_MAX else 0)
    world.close()


@pytest.mark.parametrize("name", BACKENDS)
def test_large_records_are_the_handlers(tmp_path: Path, name: str) -> None:
    """A burst has a thousand requests of 130 bytes, each of which stores the record again."""
    world = World(tmp_path, name)
    for excess in (0, 1):
        empty = RECORD_BYTES_MIN + len("TopicNormal") + len("UNIQ_KEY\x01U\x02")
        body = bytes(SEND_BACK_RECORD_BYTES_MAX - empty + excess)
        result = world.store.append(message("TopicNormal", body, b"UNIQ_KEY\x01U\x02"))
        assert result.size == SEND_BACK_RECORD_BYTES_MAX + excess
        world.store.burst_done()
        ext = {"offset": str(result.physical_offset), "group": "group", "delayLevel": "3"}
        data = encode_frame(RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext))
        assert world.burst(data, 0, CONSUMER)[1] == (0 if excess else len(data))
    world.close()
