"""The real store on a disk that loses power, tears writes, fails fsync, fills up and flips bits.

Each seed is one life of a store: bursts of appends and flushes, then a crash, a power loss or a clean stop, then the next
start, several times over. Checked after each start: what was acknowledged is there, nothing was invented, offsets
have no holes, keys find their messages. AEROBEE_SEEDS sets how many seeds run, AEROBEE_SEED picks one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from aerobee.clock import ManualClock
from aerobee.errors import StoreError, StoreFull, StoreNotWritable
from aerobee.message import decode_records, encode_properties
from aerobee.store.config import StoreConfig
from aerobee.store.message_store import MessageStore
from aerobee.store.stored_message import GetStatus, StoredMessage
from aerobee.testing.simulated_disk import SimulatedDisk

SEEDS = int(os.environ.get("AEROBEE_SEEDS", "200"))
FIRST_SEED = int(os.environ.get("AEROBEE_SEED", "0"))
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
EXECUTOR = ThreadPoolExecutor(1)
ROUNDS = 5


class World:
    """One store, its disk, and what a producer knows about its messages."""

    def __init__(self, seed: int, *, sync: bool, **config: int | bool) -> None:
        print(f"seed {seed}")
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.disk = SimulatedDisk(self.rng, now_ms=self.clock.now_ms)
        self.config = StoreConfig(
            store_path_root_dir="/store",
            mapped_file_size_commit_log=self.rng.choice((8192, 16384, 65536)),
            mapped_file_size_consume_queue=self.rng.choice((400, 2000, 8000)),
            max_hash_slot_num=16,
            max_index_num=self.rng.choice((32, 128, 1024)),
            commit_log_reserve_bytes=self.rng.choice((4096, 16384)),
            flush_disk_type="SYNC_FLUSH" if sync else "ASYNC_FLUSH",
            **config,
        )
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        self.acked: dict[tuple[str, int], int] = {}  # queue: messages [0, n) are acknowledged as durable
        self.number = 0
        self.store = self.new_store()

    def new_store(self) -> MessageStore:
        return MessageStore(self.config, disk=self.disk, clock=self.clock, executor=EXECUTOR, store_host=HOST)

    def start(self) -> None:
        self.store = self.new_store()
        self.report = self.store.load()

    def message(self, topic: str, queue_id: int) -> StoredMessage:
        self.number += 1
        size = self.rng.choice((0, 20, 100, 600, 1500))
        body = f"{self.number}:".encode() + bytes(self.rng.randrange(1, 256) for _ in range(size))
        properties = encode_properties({"UNIQ_KEY": f"K{self.number}", "TAGS": self.rng.choice("AB")})
        return StoredMessage(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=properties.encode(),
            born_host=HOST,
            born_timestamp=self.clock.now_ms(),
        )

    def append_some(self, count: int) -> None:
        for _ in range(count):
            self.clock.advance(self.rng.choice((0, 0, 0.001, 0.3)))
            key = (self.rng.choice(("orders", "payments")), self.rng.randrange(2))
            batch = [self.message(*key) for _ in range(self.rng.choice((1, 1, 1, 3)))]
            try:
                result = self.store.append(batch[0]) if len(batch) == 1 else self.store.append_batch(batch)
            except (StoreFull, StoreNotWritable):
                continue
            queue = self.sent.setdefault(key, [])
            assert result.queue_offset == len(queue)
            queue.extend(bytes(message.body) for message in batch)
            count_then = len(queue)
            self.store.flushed.when(
                result.end, lambda ok, key=key, n=count_then: self.acknowledge(key, n) if ok else None
            )

    def acknowledge(self, key: tuple[str, int], count: int) -> None:
        self.acked[key] = max(self.acked.get(key, 0), count)

    def work(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            self.append_some(self.rng.randint(1, 15))
            try:
                if self.rng.random() < 0.5:
                    self.store.flush_now()
                if self.rng.random() < 0.4:
                    self.store.flush_queues_now()
            except StoreError:
                assert not self.store.is_writable

    def bodies(self, topic: str, queue_id: int) -> list[bytes]:
        store, offset = self.store, self.store.min_offset(topic, queue_id)
        found: list[bytes] = []
        while True:
            result = store.get_messages(topic, queue_id, offset, count_max=32)
            if result.status is not GetStatus.FOUND:
                assert result.status in (
                    GetStatus.OFFSET_OVERFLOW_ONE,
                    GetStatus.NO_MATCHED_LOGIC_QUEUE,
                    GetStatus.NO_MESSAGE_IN_QUEUE,
                ), result
                return found
            for record in decode_records(result.body):
                assert record.queue_offset == offset
                offset += 1
                found.append(record.body)
            assert offset == result.next_offset

    def places(self) -> list[int]:
        """Where the records of the log begin."""
        entries = [q.entry(at) for q in self.store.queues.values() for at in range(q.max_offset)]
        return [entry[0] for entry in entries if entry is not None]

    def check(self, *, everything: bool) -> None:
        """After a start. `everything`: also what was not durable must be there (no power was lost)."""
        for key, sent in self.sent.items():
            found = self.bodies(*key)
            assert self.store.min_offset(*key) == 0
            assert found == sent[: len(found)], f"{key}: something else than was sent"
            wanted = len(sent) if everything else self.acked.get(key, 0)
            assert len(found) >= wanted, f"{key}: {len(found)} of {wanted} acknowledged messages"
            for offset, body in enumerate(found):
                number = body.split(b":")[0].decode()
                answer = self.store.query(key[0], f"K{number}", count_max=32)
                assert body in [record.body for record in decode_records(answer.body)], (key, offset, number)
            del sent[len(found) :]
            self.acked[key] = len(found)


def seeds(count: int) -> list[int]:
    return [FIRST_SEED] if FIRST_SEED else list(range(1, count + 1))


@pytest.mark.parametrize("sync", [True, False])
def test_acknowledged_messages_survive_power_loss(sync: bool) -> None:
    for seed in seeds(SEEDS // 2 or 1):
        world = World(seed, sync=sync)
        everything = False
        for _ in range(ROUNDS):
            world.start()
            world.check(everything=everything)
            world.work()
            if world.rng.random() < 0.3:
                world.disk.crash()
                everything = True
            else:
                world.disk.power_loss()
                everything = False


def test_a_failed_sync_is_never_followed_by_an_acknowledgement_that_power_loss_takes_back() -> None:
    for seed in seeds(SEEDS // 4 or 1):
        world = World(seed, sync=True)
        failing = [False]
        world.disk.fail = lambda call, path, world=world, failing=failing: (
            errno.EIO if call == "sync" and failing[0] and world.rng.random() < 0.2 else 0
        )
        for _ in range(ROUNDS):
            failing[0] = False
            world.start()
            world.check(everything=False)
            failing[0] = True
            world.work()
            if world.rng.random() < 0.5:
                world.disk.crash()
            else:
                world.disk.power_loss()


def test_a_full_or_broken_disk_refuses_messages_and_keeps_those_it_took() -> None:
    for seed in seeds(SEEDS // 4 or 1):
        world = World(seed, sync=True)
        world.disk.total_bytes = world.rng.choice((60_000, 200_000, 400_000))
        rate = [0.0]
        world.disk.fail = lambda call, path, world=world, rate=rate: (
            world.rng.choice((errno.ENOSPC, errno.EIO))
            if call in ("reserve", "create", "make_dirs", "sync_dir", "replace")
            and world.rng.random() < rate[0]
            else 0
        )
        for _ in range(ROUNDS):
            rate[0] = 0.0
            try:
                world.start()
            except StoreError as error:
                # Recovery itself needs a little space for queues that it builds again.
                if "No space left" not in str(error):
                    raise
                world.disk.total_bytes += 400_000
                world.disk.crash()
                world.start()
            world.check(everything=False)
            rate[0] = 0.1
            world.work()
            world.disk.power_loss()


def test_a_flipped_bit_in_a_synced_record_is_reported_and_never_cuts_silently() -> None:
    complaints: list[tuple[str, int, StoreError]] = []
    for seed in seeds(SEEDS):
        world = World(seed, sync=True)
        world.start()
        world.append_some(20)
        world.store.flush_now()
        if world.rng.random() < 0.5:
            world.store.flush_queues_now()
            world.append_some(world.rng.randint(1, 20))
            world.store.flush_now()
        synced = world.store.log.end
        start = world.store._checkpoints.current.queues_flushed
        if start >= synced:
            continue
        world.append_some(world.rng.randint(0, 5))
        places = world.places()
        world.disk.power_loss()
        target = world.rng.randrange(start, synced)
        record_start = max(place for place in places if place <= target)
        if record_start % 512 > 508:
            continue  # zeros of its size field look like a sector that was never written: benefit of the doubt
        segment_base = target - target % world.config.mapped_file_size_commit_log
        path = f"/store/commitlog/{segment_base:020d}"
        world.disk.flip_bit(path, target - segment_base, world.rng.randrange(8))
        try:
            world.start()
        except StoreError as error:
            complaints.append((path, target, error))
            continue
        # Not every bit has a checksum in this format: a flipped topic moves a message. But none is cut.
        kept = sum(queue.max_offset - queue.min_offset for queue in world.store.queues.values())
        assert kept >= sum(world.acked.values())
    assert complaints
    for path, target, error in complaints:
        # A flipped topic or queue offset is noticed at the queue's next record, all else at the record itself.
        assert error.path.startswith("/store/commitlog/")
        assert error.offset >= 0
        assert path in str(error) or error.offset > target


async def test_a_clean_stop_loses_nothing_and_the_next_start_reads_only_the_end() -> None:
    for seed in seeds(SEEDS // 10 or 1):
        world = World(seed, sync=bool(seed % 2))
        for number in range(ROUNDS):
            world.start()
            world.check(everything=True)
            assert world.report.was_clean
            if number:
                assert world.report.records_scanned <= 3
            await world.store.start()
            world.append_some(30)
            await world.store.stop()
            assert not world.disk.exists("/store/abort")


async def test_one_sync_releases_everybody_who_waited() -> None:
    world = World(1, sync=True)
    syncs: list[str] = []
    world.disk.fail = lambda call, path: (
        syncs.append(path) or 0 if call == "sync" and "commitlog" in path else 0
    )
    world.start()
    await world.store.start()
    syncs.clear()
    released: list[int] = []
    done = asyncio.Event()
    for number in range(20):
        result = world.store.append(world.message("orders", 0))
        world.store.wait_durable(result.end, lambda ok, number=number: released.append(number))
    world.store.wait_durable(result.end, lambda ok: done.set())
    assert world.store.max_offset("orders", 0) == 0, "consumers must not see what power loss could take back"
    await done.wait()
    assert released == list(range(20))
    assert world.store.max_offset("orders", 0) == 20
    assert len(syncs) <= len(world.store.log.segments) + 1
    await world.store.stop()


async def test_after_a_failed_sync_every_waiter_is_told_and_no_message_is_taken() -> None:
    world = World(1, sync=True)
    world.start()
    await world.store.start()
    world.disk.fail = lambda call, path: errno.EIO if call == "sync" else 0
    outcomes: list[bool] = []
    done = asyncio.Event()
    result = world.store.append(world.message("orders", 0))
    world.store.wait_durable(result.end, outcomes.append)
    world.store.wait_durable(result.end, lambda ok: done.set())
    await done.wait()
    world.disk.fail = lambda call, path: 0
    assert outcomes == [False]
    with pytest.raises(StoreNotWritable, match="restart the broker"):
        world.store.append(world.message("orders", 0))
    assert world.store.max_offset("orders", 0) == 0
    await world.store.stop()
    assert world.disk.exists("/store/abort")
