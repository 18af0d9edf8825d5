"""Runs of deliveries, in both backends, leave the bytes that Redelivery leaves message by message, and both look alike."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.delay.deliveries import Deliveries
from aerobee.broker.delay.delivery_runs import Stamp
from aerobee.broker.delay.redelivery import Redelivery, WaitingMessage
from aerobee.broker.fastpath.choice import NATIVE, PYTHON, choose_backend
from aerobee.broker.fastpath.results import AppendedFields
from aerobee.errors import MalformedRecord, RecordInvalid, UsageError
from aerobee.message import pack_host
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.store.log.stored_message import StoredMessage
from tests.fuzz.fastpath_counterparts import Counterpart

BACKENDS = [PYTHON] + ([NATIVE] if choose_backend().name == NATIVE else [])
SEEDS = int(os.environ.get("AEROBEE_DELIVERY_SEEDS", "16"))
TOPICS = (
    "TopicNormal",
    "TopicOrder",
    "%RETRY%group",
    "gone",
    "rmq_sys_REVIVE_LOG_c",
    "SELF_TEST_TOPIC",
    "a b",
    "é",
    "",
)
VALUES = (
    "",
    "1",
    "0",
    "01",
    "-1",
    "7",
    "99",
    "x",
    "k1",
    "k1  k2",
    "标签",
    "🐝",
    "a\x01b",
    "INNER_NUM",
    "9" * 18,
    "9" * 19,
)
NAMES = (
    "TAGS",
    "KEYS",
    "UNIQ_KEY",
    "WAIT",
    "DELAY",
    "colour",
    "INNER_NUM",
    "REAL_QID",
    "REAL_TOPIC",
    "",
    "é",
)
TIMES = (
    "0",
    "1000",
    "1999",
    "2000",
    "2001",
    "5000",
    "-5",
    "x",
    "",
    "9" * 18,
    "1700000002000",
    "1700000003000",
)
TIMER_NAMES = (
    "TIMER_OUT_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS",
    "TIMER_ROLL_TIMES",
    "TIMER_DEL_UNIQKEY",
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def properties(rng: random.Random) -> bytes:
    pairs = [("UNIQ_KEY", f"U{rng.randrange(100)}"), ("WAIT", "true")]
    if rng.random() < 0.5:
        pairs.append(("TAGS", rng.choice(("TagA", "标签"))))
    if rng.random() < 0.5:
        pairs.append(("KEYS", rng.choice(("k1", "k1 k2", "键"))))
    pairs += [(rng.choice(NAMES), rng.choice(VALUES)) for _ in range(rng.choice((0, 0, 0, 1, 3)))]
    pairs += [(rng.choice(TIMER_NAMES), rng.choice(TIMES)) for _ in range(rng.choice((0, 0, 1, 3)))]
    pairs.append(("TIMER_OUT_MS", "1700000001000"))
    usual = rng.random() < 0.8
    pairs.append(("REAL_TOPIC", TOPICS[rng.randrange(3)] if usual else rng.choice(TOPICS)))
    pairs.append(("REAL_QID", str(rng.randrange(4)) if usual else rng.choice(VALUES)))
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    if rng.random() < 0.1:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(("", "\x01", "\x02", "x")) + text[at + 1 :]
    raw = text.encode()
    if rng.random() < 0.05:
        raw += b"bytes\x01\xff\x02"
    if rng.random() < 0.03:
        raw += b"long\x01" + b"x" * (32_767 - len(raw) - 6 - rng.randrange(120)) + b"\x02"
    return raw[:-1] if rng.random() < 0.1 else raw


def waiting(rng: random.Random) -> StoredMessage:
    return StoredMessage(
        topic=rng.choice(("rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX")),
        queue_id=0,
        body=rng.randbytes(rng.choice((0, 1, 128, 3000))),
        properties=properties(rng),
        born_host=rng.choice((pack_host("10.0.0.1", 4), pack_host("10.0.0.2", 65535), pack_host("::1", 5))),
        flag=rng.choice((0, 7, -1)),
        sys_flag=rng.choice((0, 1, 8)),
        born_timestamp=rng.randrange(1 << 40),
        reconsume_times=rng.randrange(3),
    )


class World(Counterpart):
    """One broker's parts around a fast path of this name, with what waits in it."""

    def __init__(self, path: Path, name: str, seed: int, **settings: Any) -> None:
        super().__init__(path, name, **settings)
        rng = random.Random(seed)
        self.clock.advance(1_700_000_000 - self.clock.now_ms() / 1000)
        self.topics.put(TopicConfig("%RETRY%group", 1, 1))
        self.deliveries = Deliveries(
            store=self.store,
            topics=self.topics,
            stats=self.stats,
            waiting=self.pending_pulls.by_queue,
            choice=choose_backend(name),
        )
        self.redelivery = Redelivery(self.store, existing_queue=self.topics.existing_queue)
        self.told: list[tuple[Any, ...]] = []
        self.sources = [self.store.append(waiting(rng)).physical_offset for _ in range(60)]
        if rng.random() < 0.3:
            # One that damage has changed: it keeps the check sum that it had.
            at = rng.choice(self.sources) + 90
            self.store.log.segments[0].file.buffer[at] ^= 1
        self.store.flush_now()
        self.pending_pulls.by_queue[("TopicNormal", 1)] = []  # announced, without a taker
        self.store.on_arrival(lambda topic, queue, end, code: self.told.append((topic, queue, end, code)))
        self.clock.advance(2.5)

    def deliver_all(self, stamp: Stamp | None, *, in_runs: bool) -> int:
        """Deliver everything, what the runs leave one by one; returns how many went by runs."""
        at = by_run = 0
        while at < len(self.sources):
            count = 0
            if in_runs:
                run = self.deliveries.run(self.sources[at : at + 7], stamp)
                count, appended, fault = run.delivered_count, run.appended, run.fault
                assert fault is None
                assert sum(AppendedFields._make(each).message_count for each in appended) == count
            at, by_run = at + count, by_run + count
            if not count:
                self.deliver_one(self.sources[at], stamp)
                at += 1
        self.store.flush_now()
        return by_run

    def deliver_one(self, source: int, stamp: Stamp | None) -> None:
        data = self.store.read_record(source)
        assert data is not None
        added = b""
        try:
            message = WaitingMessage(data)
            if stamp is not None:
                precision_ms, now_ms = stamp
                enqueued = message.store_timestamp - message.store_timestamp % precision_ms
                added = f"TIMER_ENQUEUE_MS\x01{enqueued}\x02TIMER_DEQUEUE_MS\x01{now_ms}\x02".encode()
            topic, size = self.redelivery.deliver(message, added)
        except (MalformedRecord, ValueError, UsageError, RecordInvalid):
            return
        self.stats.topic_put(topic, 1, size)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_runs_leave_the_bytes_that_single_deliveries_leave(flush: str, tmp_path: Path) -> None:
    by_run = 0
    for seed in range(SEEDS):
        stamp = (1_000, 1_700_000_002_500) if seed & 1 else None
        worlds = [
            World(tmp_path / f"{seed}{number}", name, seed, flush_disk_type=flush)
            for number, name in enumerate([PYTHON, *BACKENDS])
        ]
        counts = [world.deliver_all(stamp, in_runs=number > 0) for number, world in enumerate(worlds)]
        assert len(set(counts[1:])) == 1, f"seed {seed}: the backends differ in what is ordinary: {counts}"
        by_run += counts[1]
        alone = dict(worlds[0].everything())
        for world in worlds[1:]:
            for what, value in world.everything():
                assert value == alone[what], f"seed {seed}: {what} differs"
            assert set(world.told) <= set(worlds[0].told)
            if flush == "SYNC_FLUSH":
                assert world.told == worlds[0].told
            else:
                watched = [told for told in worlds[0].told if told[:2] == ("TopicNormal", 1)]
                assert [told for told in world.told if told[:2] == ("TopicNormal", 1)] == watched
        for world in worlds:
            world.close()
    assert by_run > SEEDS * 15


def test_both_backends_agree_on_timer_messages(tmp_path: Path) -> None:
    found = 0
    for seed in range(SEEDS):
        worlds = [World(tmp_path / f"{seed}{name}", name, seed) for name in BACKENDS]
        for source in worlds[0].sources:
            looks = [world.deliveries.look([source], 1_000) for world in worlds]
            assert all(look == looks[0] for look in looks), f"seed {seed}: {looks}"
            found += len(looks[0])
        whole = [world.deliveries.look(world.sources, 1_000) for world in worlds]
        assert all(look == whole[0] for look in whole)
        for world in worlds:
            world.close()
    assert found > SEEDS * 20


@pytest.mark.parametrize("name", BACKENDS)
def test_a_run_ends_where_a_message_is_not_readable_yet(name: str, tmp_path: Path) -> None:
    world = World(tmp_path, name, 1, flush_disk_type="SYNC_FLUSH")
    message = StoredMessage(
        topic="SCHEDULE_TOPIC_XXXX",
        queue_id=0,
        body=b"x",
        properties=b"REAL_TOPIC\x01TopicNormal\x02REAL_QID\x010\x02",
        born_host=pack_host("10.0.0.1", 4),
    )
    offsets = [world.store.append(message).physical_offset for _ in range(3)]
    assert world.deliveries.run(offsets).delivered_count == 0
    world.store.flush_now()
    assert world.deliveries.run(offsets).delivered_count == 3
    world.close()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_run_takes_old_records_and_goes_into_new_files(name: str, tmp_path: Path) -> None:
    world = World(
        tmp_path, name, 1, mapped_file_size_commit_log=65_536, mapped_file_size_consume_queue=20 * 16
    )
    message = StoredMessage(
        topic="SCHEDULE_TOPIC_XXXX",
        queue_id=0,
        body=b"x" * 700,
        properties=b"REAL_TOPIC\x01TopicNormal\x02REAL_QID\x010\x02",
        born_host=pack_host("10.0.0.1", 4),
    )
    offsets = [world.store.append(message).physical_offset for _ in range(100)]
    run = world.deliveries.run(offsets)
    count, appended, fault = run.delivered_count, run.appended, run.fault
    assert (count, fault) == (100, None)
    assert appended[0][:2] == ("TopicNormal", 100)
    assert world.store.max_offset("TopicNormal", 0) == 100
    result = world.store.get_messages("TopicNormal", 0, 0, count_max=32)
    assert result.count > 0
    world.close()


def four_for(world: World, topics: tuple[str, ...]) -> list[int]:
    """Messages that waited, one for each topic's queues 0, 2, 1, 0. A request waits at queue 1 of TopicNormal."""
    text = b"REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02"
    return [
        world.store.append(
            StoredMessage(
                topic="SCHEDULE_TOPIC_XXXX",
                queue_id=0,
                body=b"x",
                properties=text % (topic.encode(), queue_id),
                born_host=pack_host("10.0.0.1", 4),
            )
        ).physical_offset
        for topic, queue_id in zip(topics, (0, 2, 1, 0), strict=True)
    ]


@pytest.mark.parametrize("name", BACKENDS)
def test_what_was_delivered_before_a_fault_is_told_with_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, name, 1)
    offsets = four_for(world, ("TopicNormal", "TopicNormal", "TopicOrder", "TopicNormal"))
    find = world.topics.get

    def fail(topic: str) -> TopicConfig | None:
        if topic == "TopicOrder":
            raise RuntimeError("a bug")
        return find(topic)

    monkeypatch.setattr(world.topics, "get", fail)
    run = world.deliveries.run(offsets)
    count, appended, fault = run.delivered_count, run.appended, run.fault
    assert isinstance(fault, RuntimeError)
    assert count == 2
    assert world.store.next_offset("TopicNormal", 0) == world.store.next_offset("TopicNormal", 2) == 1
    assert AppendedFields._make(appended[0]).topic == "TopicNormal"
    world.close()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_listener_that_fails_stops_no_delivery(name: str, tmp_path: Path) -> None:
    world = World(tmp_path, name, 1)
    offsets = four_for(world, ("TopicNormal",) * 4)

    def fail(topic: str, queue_id: int, end: int, code: int) -> None:
        raise ValueError("a listener's own fault")

    world.store.on_arrival(fail)
    run = world.deliveries.run(offsets)
    count, appended, fault = run.delivered_count, run.appended, run.fault
    assert (count, fault) == (4, None)
    assert AppendedFields._make(appended[0]).message_count == 4
    world.close()
