"""A replica takes the kind of a queue from the records: the topic's settings come after the log, or are a deleted topic's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from aerobee.broker.send.batch_queue import as_inner_batch
from aerobee.message import INNER_BATCH, NEED_UNWRAP
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.queue.batch_consume_queue import BatchConsumeQueue
from tests.unit.broker.raw_copies import FILE_BYTES, HOST, Copy, cut, take

QUICK_SEEDS = 3


def seeds(count: int) -> list[Any]:
    """Seeds of random runs; `make quick` takes the first ones."""
    return [
        pytest.param(seed, marks=pytest.mark.slow if seed >= QUICK_SEEDS else ()) for seed in range(count)
    ]


BACKENDS = pytest.mark.parametrize("natively", [True, False], ids=["native", "python"])


def message(topic: str, queue_id: int = 0, body: bytes = b"one") -> StoredMessage:
    return StoredMessage(
        topic=topic, queue_id=queue_id, body=body, properties=b"KEYS\x01k\x02TAGS\x01t\x02", born_host=HOST
    )


class Master(Copy):
    """A store that takes messages and knows its topics."""

    def __init__(self) -> None:
        super().__init__(natively=False, role="ASYNC_MASTER")

    def create(self, topic: str, *, is_batch: bool) -> None:
        self.store.set_batch_topic(topic, is_batch)

    def delete(self, topic: str) -> None:
        asyncio.run(self.store.delete_topics([topic]))

    def send(self, topic: str, count: int = 1, *, queue_id: int = 0, body: bytes = b"one") -> None:
        record = message(topic, queue_id, body)
        if count > 1:
            first = self.store.next_offset(topic, queue_id)
            record = as_inner_batch(record, {"KEYS": "k"}, count=count, first_offset=first)
        self.store.append(record)

    def data(self) -> bytes:
        segments = self.store.log.segments
        return b"".join(bytes(segment.file.buffer) for segment in segments)[: self.store.log.end]


def changing(rng: random.Random) -> tuple[Master, dict[str, bool]]:
    """A master whose topics are deleted and created again, with other kinds; the kinds that they have at the end."""
    master = Master()
    kinds: dict[str, bool] = {}
    for _ in range(rng.randrange(30, 160)):
        topic = rng.choice(("a", "b"))
        if topic not in kinds:
            kinds[topic] = rng.random() < 0.6
            master.create(topic, is_batch=kinds[topic])
        elif rng.random() < 0.06:
            master.delete(topic)
            del kinds[topic]
            continue
        master.clock.advance(rng.choice((0, 0.5)))
        count = rng.choice((1, 1, 2, 5)) if kinds[topic] else 1
        master.send(topic, count, queue_id=rng.randrange(2), body=rng.randbytes(rng.choice((9, 400))))
    return master, kinds


def queues(copy: Copy) -> dict[tuple[str, int], Any]:
    """What readers find in each queue."""
    return {
        key: (
            queue.is_batch,
            queue.min_offset,
            queue.max_offset,
            queue.readable_max,
            [queue.entry(offset) for offset in range(queue.min_offset, queue.max_offset)],
            list(queue.all_entries()) if isinstance(queue, BatchConsumeQueue) else [],
        )
        for key, queue in copy.store.queues.items()
        if queue.max_offset
    }


def copied(master: Master, *, natively: bool, seed: int = 1, **settings: Any) -> Copy:
    copy = Copy(natively=natively, **settings)
    assert take(copy, cut(master.data(), random.Random(seed))) == []
    assert copy.store.log.end == master.store.log.end
    return copy


@BACKENDS
def test_batches_are_copied_before_their_topic_is_known(natively: bool) -> None:
    master = Master()
    master.create("batches", is_batch=True)
    for count in (3, 1, 4):
        master.send("batches", count)
    assert queues(copied(master, natively=natively)) == queues(master)


@BACKENDS
def test_single_messages_before_the_first_batch_keep_offsets(natively: bool) -> None:
    master = Master()
    master.create("batches", is_batch=True)
    for count in (1, 1, 1, 5, 1):
        master.clock.advance(3)
        master.send("batches", count)
    copy = copied(master, natively=natively)
    assert queues(copy) == queues(master)
    assert not copy.disk.is_dir("/store/consumequeue/batches")


@BACKENDS
def test_a_normal_topic_recreated_as_batch_topic(natively: bool) -> None:
    master = Master()
    for _ in range(5):
        master.send("topic")
    master.delete("topic")
    master.create("topic", is_batch=True)
    master.send("topic", 3)
    master.send("topic")
    assert queues(copied(master, natively=natively)) == queues(master)


@BACKENDS
@pytest.mark.parametrize("left", [1, 3])
def test_a_batch_for_a_normal_queue_that_a_deleted_topic_left(natively: bool, left: int) -> None:
    """As a slave of a RocketMQ master has it, which tells of no deletions, once it leads."""
    master = Master()
    for _ in range(left):
        master.send("topic")
    master.create("topic", is_batch=True)
    master.send("topic", 4)
    master.send("topic")
    (found,) = (queue for key, queue in master.store.queues.items() if key == ("topic", 0))
    assert isinstance(found, BatchConsumeQueue)
    assert [(each.base_offset, each.batch_size) for each in found.all_entries()] == [
        *((offset, 1) for offset in range(left)),
        (left, 4),
        (left + 4, 1),
    ]
    assert queues(copied(master, natively=natively)) == queues(master)


@BACKENDS
@pytest.mark.parametrize("holds", [False, True])
def test_a_batch_topic_recreated_as_normal_topic(natively: bool, holds: bool) -> None:
    master = Master()
    master.create("topic", is_batch=True)
    for _ in range(5):
        master.send("topic", 4)
    master.delete("topic")
    master.create("topic", is_batch=False)
    for _ in range(3):
        master.send("topic")
    copy = Copy(natively=natively)
    copy.store.visibility.holds = holds
    assert take(copy, cut(master.data(), random.Random(1))) == []
    copy.store.visibility.show_safe(copy.store.log.end)
    # Single messages do not say which kind their queue has, the topic's settings do.
    assert copy.store.max_offset("topic", 0) == 3
    settled = copy.store.settle_kinds(lambda topic: False, copy.store.log.end)
    assert settled == ["topic"]
    assert queues(copy) == queues(master)
    assert not copy.disk.is_dir("/store/batchconsumequeue/topic")


def test_queues_of_a_deleted_topic_of_another_kind_go() -> None:
    master = Master()
    master.create("topic", is_batch=True)
    master.create("ordinary", is_batch=True)
    master.send("topic", 4)
    copy = copied(master, natively=False)
    end = copy.store.log.end
    # The settings are older than the records: they are of a topic that was there before.
    assert copy.store.settle_kinds(lambda topic: False, end - 1) == []
    assert copy.store.settle_kinds(lambda topic: None, end) == []
    assert copy.store.settle_kinds(lambda topic: False, end) == ["topic"]
    assert copy.store.max_offset("topic", 0) == 0
    assert not copy.disk.is_dir("/store/batchconsumequeue/topic")


def test_batch_copies_in_retry_topics_have_normal_queues() -> None:
    master = Master()
    for number in range(3):
        retry = as_inner_batch(message("%RETRY%group"), {"KEYS": "k"}, count=4, first_offset=number)
        master.store.append(retry)
    copy = copied(master, natively=False)
    assert queues(copy) == queues(master)
    assert not copy.store.queues["%RETRY%group", 0].is_batch


def test_a_normal_queue_holds_no_batch_records() -> None:
    master = Master()
    forged = message("orders")
    forged.sys_flag |= INNER_BATCH | NEED_UNWRAP
    master.store.append(forged)
    master.send("orders")
    assert queues(copied(master, natively=False)) == queues(master)
    assert not master.store.queues["orders", 0].is_batch


def assert_as_master(copy: Copy, master: Master, kinds: dict[str, bool]) -> None:
    copy.store.settle_kinds(kinds.get, copy.store.log.end)
    expected, found = queues(master), queues(copy)
    # A queue without sends since its topic was recreated still belongs to the deleted topic.
    assert {key: found.get(key) for key in expected} == expected
    for (topic, _), queue in copy.store.queues.items():
        assert not queue.max_offset or queue.is_batch == kinds.get(topic, queue.is_batch)


def take_all(copy: Copy, master: Master, seed: int = 1) -> None:
    """Give a copy what it lacks of the master's log."""
    end = copy.store.log.end
    pieces = cut(master.data()[end:], random.Random(seed))
    assert take(copy, [(end + at, piece) for at, piece in pieces]) == []
    assert copy.store.log.end == master.store.log.end


def sent_and_deleted(copy: Copy, *, forget: Callable[[Copy], None]) -> Master:
    """A master that sent 60 messages, of which `forget` removes entries from the copy's queue, three more, and, after its topic
    was deleted and created again, another three; the copy has the first 63."""
    master = Master()
    for _ in range(60):
        master.send("topic", body=bytes(300))
    take_all(copy, master)
    forget(copy)
    for _ in range(3):
        master.send("topic")
    take_all(copy, master)
    queue = copy.store.queues["topic", 0]
    assert 0 < queue.min_offset < queue.max_offset == 63
    master.delete("topic")
    for _ in range(3):
        master.send("topic")
    return master


def delete_topic(copy: Copy) -> None:
    """As its former master, whose deletion the next master has not."""
    asyncio.run(copy.store.delete_topics(["topic"]))


def let_expire(copy: Copy) -> None:
    """Retention deletes the oldest half of the log."""
    queue = copy.store.queues["topic", 0]
    entry = queue.entry(45)
    assert isinstance(entry, tuple)
    assert queue.delete_before(entry[0]) > 0


LACKING = pytest.mark.parametrize("forget", [delete_topic, let_expire])


@BACKENDS
@LACKING
def test_a_queue_without_its_first_messages_begins_again(
    natively: bool, forget: Callable[[Copy], None]
) -> None:
    copy = Copy(natively=natively)
    master = sent_and_deleted(copy, forget=forget)
    take_all(copy, master)
    assert queues(copy) == queues(master)


@LACKING
def test_a_queue_that_began_again_keeps_its_messages_after_a_power_loss(
    forget: Callable[[Copy], None],
) -> None:
    disk = SimulatedDisk(random.Random(1), kept_parts=(0.0,))
    copy = Copy(natively=False, disk=disk)
    master = sent_and_deleted(copy, forget=forget)
    copy.store.flush_now()
    copy.store.flush_queues_now()
    take_all(copy, master)
    copy.store.flush_now()
    asyncio.run(copy.store.abandon())
    disk.power_loss()
    again = Copy(natively=False, disk=disk)
    assert again.store.log.end == master.store.log.end
    assert queues(again) == queues(master)


@pytest.mark.parametrize("seed", seeds(30))
def test_topics_of_changing_kinds_are_copied_alike(seed: int) -> None:
    master, kinds = changing(random.Random(seed))
    data = master.data()
    assert len(data) > FILE_BYTES // 4
    for number, natively in enumerate((True, False)):
        copy = Copy(natively=natively)
        assert take(copy, cut(data, random.Random(seed + 100 * number))) == []
        assert_as_master(copy, master, kinds)


@pytest.mark.parametrize("seed", seeds(40))
def test_a_power_loss_after_a_change_of_kind_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    master, kinds = changing(rng)
    data, disk = master.data(), SimulatedDisk(rng)
    copy = Copy(natively=bool(seed % 2), disk=disk)
    for number in range(4):
        end = copy.store.log.end
        pieces = cut(data[end : end + len(data) // 4 + number], rng)
        assert take(copy, [(end + at, piece) for at, piece in pieces]) == []
        copy.store.flush_now()
        if rng.random() < 0.7:
            copy.store.flush_queues_now()
        if rng.random() < 0.5:
            copy.store.settle_kinds(kinds.get, copy.store.log.end)
        asyncio.run(copy.store.abandon())
        disk.crash() if rng.random() < 0.3 else disk.power_loss()
        copy = Copy(natively=bool(seed % 2), disk=disk)
    end = copy.store.log.end
    assert take(copy, [(end + at, piece) for at, piece in cut(data[end:], rng)]) == []
    assert_as_master(copy, master, kinds)
