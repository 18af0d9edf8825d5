"""One run of a store on a simulated disk, from a seed: what is written, what fails, what must hold afterwards.

`World` is a store, its disk, and what a producer knows about its messages. A scenario is a function of a seed; it
raises AssertionError when a promise of the store is broken:

- every message acknowledged as durable is read back, in order, without a hole, and nothing that was not sent;
- otherwise the store refuses to start, and names the file and the bytes.

A scenario costs some milliseconds, so that thousands run in a minute (tests/survival/power_loss.py).
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from aerobee.clock import ManualClock
from aerobee.errors import MalformedRecord, StoreError, StoreFull, StoreNotWritable
from aerobee.message import decode_records, encode_properties
from aerobee.simulation.simulated_disk import PowerCut, SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.stored_message import GetStatus, StoredMessage
from aerobee.store.message_store import MessageStore

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
ROUNDS = 5
QUERIES_PER_QUEUE = 8
NO_ZEROS = bytes((1, *range(1, 256)))  # a body without zeros is never taken for a sector that was lost
Key = tuple[str, int]


class InlineExecutor(Executor):
    """Runs its work immediately, so that a seed decides everything."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class World:
    """One store, its disk, and what a producer knows about its messages."""

    def __init__(self, seed: int, *, sync: bool, **config: int | bool) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.disk = SimulatedDisk(self.rng, now_ms=lambda: self.clock.now_ms())
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
        self.sent: dict[Key, list[bytes]] = {}
        self.acked: dict[Key, int] = {}  # queue: messages [0, n) are acknowledged as durable
        self.begins: dict[Key, int] = {}  # queue: its first offset, where that is not 0
        self.unindexed: set[bytes] = set()  # stored while the key index had no space
        self.number = 0
        self.store = self.new_store()

    def new_store(self) -> MessageStore:
        return MessageStore(
            self.config, disk=self.disk, clock=self.clock, executor=InlineExecutor(), store_host=lambda: HOST
        )

    def start(self) -> None:
        self.clock = ManualClock(self.clock.now_ms())  # timers of a run that ended are gone with it
        self.store = self.new_store()
        self.report = self.store.load()

    def message(self, topic: str, queue_id: int) -> StoredMessage:
        self.number += 1
        size = self.rng.choice((0, 20, 100, 600, 1500))
        body = b"%d:" % self.number + self.rng.randbytes(size).translate(NO_ZEROS)
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
        """Append messages; each is acknowledged when the store says so to whoever waits for the disk."""
        for _ in range(count):
            self.clock.advance(self.rng.choice((0, 0, 0.001, 0.3)))
            key = (self.rng.choice(("orders", "payments")), self.rng.randrange(2))
            batch = [self.message(*key) for _ in range(self.rng.choice((1, 1, 1, 3)))]
            try:
                result = self.store.append(batch[0]) if len(batch) == 1 else self.store.append_batch(batch)
            except (StoreFull, StoreNotWritable):
                continue
            queue = self.sent.setdefault(key, [])
            assert result.queue_offset == self.begins.get(key, 0) + len(queue)
            queue.extend(bytes(message.body) for message in batch)
            if self.store.index.fault:  # without space the index takes no entries until the next start
                self.unindexed.update(bytes(message.body) for message in batch)
            self._wait_for(key, result.end, len(queue))

    def _wait_for(self, key: Key, end: int, count: int) -> None:
        def answered(is_durable: bool) -> None:
            if is_durable:
                self.acked[key] = max(self.acked.get(key, 0), count)

        # With async flush an acknowledgement promises nothing about power; what was flushed must survive even so.
        if self.config.is_sync_flush:
            self.store.wait_durable(end, answered)
        else:
            self.store.flushed.when(end, answered)

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
        entries = [
            q.entry(at) for q in self.store.queues.values() for at in range(q.min_offset, q.max_offset)
        ]
        return [entry[0] for entry in entries if entry is not None]

    def check(self, *, everything: bool) -> None:
        """After a start. `everything`: also what was not durable must be there (no power was lost)."""
        if self.store.index.fault:
            self.unindexed.update(*self.sent.values())
        for key, sent in self.sent.items():
            found = self.bodies(*key)
            wanted = len(sent) if everything else self.acked.get(key, 0)
            if (begin := self.store.min_offset(*key)) != self.begins.get(key, 0):
                # It lost all its messages, none of them acknowledged, and continues at its offset: no offset is given a second time.
                assert not found
                assert not wanted, (
                    f"{key}: {wanted} acknowledged messages are before its first offset {begin}"
                )
                assert begin > self.begins.get(key, 0)
                self.begins[key] = begin
            assert found == sent[: len(found)], f"{key}: something else than was sent"
            assert len(found) >= wanted, f"{key}: {len(found)} of {wanted} acknowledged messages"
            for body in self.rng.sample(found, min(QUERIES_PER_QUEUE, len(found))):
                if body in self.unindexed:
                    continue
                number = body.split(b":")[0].decode()
                answer = self.store.query(key[0], f"K{number}", count_max=32)
                assert body in [record.body for record in decode_records(answer.body)], (key, number)
            del sent[len(found) :]
            self.acked[key] = len(found)

    def die(self) -> bool:
        """kill -9 or a power loss. Whether everything written must still be there."""
        if self.rng.random() < 0.3:
            self.disk.crash()
            return True
        self.disk.power_loss()
        return False


# -- scenarios


def power_losses(seed: int) -> None:
    """Any subset of unsynced pages lost, writes torn at 512 bytes, names not yet durable; crashes in between."""
    world = World(seed, sync=bool(seed % 3))
    everything = False
    for _ in range(ROUNDS):
        world.start()
        world.check(everything=everything)
        world.work()
        everything = world.die()


def failing_syncs(seed: int) -> None:
    """fsync fails, and the next one succeeds without having written what the first one should have."""
    world = World(seed, sync=True)
    is_failing = False

    def fail(call: str, path: str) -> int:
        return errno.EIO if is_failing and call == "sync" and world.rng.random() < 0.2 else 0

    world.disk.fail = fail
    for _ in range(ROUNDS):
        is_failing = False
        world.start()
        world.check(everything=False)
        is_failing = True
        world.work()
        world.die()


def bad_disk(seed: int) -> None:
    """Little space, and ENOSPC or EIO out of any call, in one round of three already at the start."""
    world = World(seed, sync=True)
    rng = world.rng
    world.disk.total_bytes = rng.choice((60_000, 200_000, 400_000))
    rate = 0.0

    def fail(call: str, path: str) -> int:
        return rng.choice((errno.ENOSPC, errno.EIO)) if rng.random() < rate else 0

    world.disk.fail = fail
    for _ in range(ROUNDS):
        rate = rng.choice((0.0, 0.0, 0.1))
        try:
            world.start()
        except StoreError:
            rate = 0.0
            world.die()
            try:
                world.start()
            except StoreError as error:
                # Recovery itself needs a little space for queues that it builds again.
                if "No space left" not in str(error):
                    raise
                world.disk.total_bytes += 400_000
                world.disk.crash()
                world.start()
        rate = 0.0
        world.check(everything=False)
        rate = 0.1
        world.work()
        world.disk.power_loss()


def power_cut_inside_a_call(seed: int) -> None:
    """The machine dies inside any call of the disk: in recovery, in the background tasks, in a clean stop."""
    world = World(seed, sync=bool(seed % 4), flush_interval_consume_queue=700)
    for _ in range(ROUNDS):
        is_clean = asyncio.run(_live_until_cut(world))
        world.disk.cut_power_at(-1)
        if not is_clean:
            world.disk.power_loss()
    world.start()
    world.check(everything=False)


async def _live_until_cut(world: World) -> bool:
    """One start with its background tasks, cut somewhere or stopped in order. Whether it was the latter."""
    rng, store = world.rng, world.store
    cut = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: _note_cut(context, cut))
    if rng.random() < 0.8:
        world.disk.cut_power_at(int(2 ** rng.uniform(0, 9)))
    try:
        world.start()
        store = world.store
        world.check(everything=False)
        await store.start()
        for _ in range(rng.randint(1, 12)):
            world.append_some(rng.randint(0, 8))
            for _ in range(rng.randint(0, 5)):
                await asyncio.sleep(0)
            if cut.is_set():
                return False
        await store.stop()
    except PowerCut:
        return False
    finally:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
    return not cut.is_set() and not world.disk.is_cut


def _note_cut(context: dict[str, Any], cut: asyncio.Event) -> None:
    if not isinstance(context.get("exception"), PowerCut):
        raise AssertionError(f"an unhandled error: {context}")
    cut.set()


FLIPPED = ("commitlog", "consumequeue", "index", "checkpoint", "abort")


def flipped_bit(seed: int) -> None:
    """One bit of one file changes while the store is closed: nothing is lost in silence.

    A message whose own bytes changed is refused by its reader (CRC), or the start or the read names file and offset.
    """
    world = World(seed, sync=True)
    rng = world.rng
    world.start()
    for _ in range(rng.randint(1, 3)):
        world.append_some(rng.randint(5, 20))
        world.store.flush_now()
        if rng.random() < 0.6:
            world.store.flush_queues_now()
    if rng.random() < 0.5:
        asyncio.run(world.store.stop())
    else:
        world.disk.power_loss()
    kind = FLIPPED[seed % len(FLIPPED)]
    paths = [path for path in world.disk.paths() if path.startswith(f"/store/{kind}")]
    paths = [path for path in paths if any(world.disk.content(path))]
    if not paths:
        return
    path = rng.choice(paths)
    content = world.disk.content(path)
    used = len(content.rstrip(b"\0"))
    at = rng.randrange(used)
    world.disk.flip_bit(path, at, rng.randrange(8))
    try:
        if rng.random() < 0.3:
            _start_and_lose_power(world)
        world.start()
    except StoreError as error:
        if not error.path.startswith("/store/") or (
            error.offset >= 0 and str(error.offset) not in str(error)
        ):
            raise
        return
    _check_flipped(world, path, at, content)


def _start_and_lose_power(world: World) -> None:
    """A start that is cut inside a call of the disk, most likely while it mends something."""
    world.disk.cut_power_at(world.rng.randrange(20, 80))
    try:
        world.start()
    except PowerCut:
        world.disk.power_loss()
    else:
        world.disk.cut_power_at(-1)
        world.disk.crash()


def _check_flipped(world: World, path: str, at: int, content: bytes) -> None:
    """Each acknowledged message is read whole, or the read says what is wrong; those next to the bit at most."""
    unread = 0
    for key, count in world.acked.items():
        for offset in range(count):
            body = world.sent[key][offset]
            try:
                result = world.store.get_messages(*key, offset, count_max=1)
                found = [record.body for record in decode_records(result.body)]
            except (StoreError, MalformedRecord):
                unread += 1
                continue
            if found != [body]:
                # No checksum covers all of a record (RocketMQ's format): then it is the record with the bit.
                assert path.startswith("/store/commitlog/"), (
                    f"{key} {offset} is lost in silence, {path} byte {at}"
                )
                unread += 1
            number = body.split(b":")[0].decode()
            try:
                world.store.query(key[0], f"K{number}", count_max=32)
            except (StoreError, MalformedRecord):
                assert not path.startswith("/store/checkpoint")
    assert unread <= 1, f"{unread} messages cannot be read for one bit at byte {at} of {path}"


SCENARIOS: tuple[Callable[[int], None], ...] = (
    power_losses,
    power_cut_inside_a_call,
    failing_syncs,
    bad_disk,
    flipped_bit,
)


def run_seed(seed: int) -> None:
    """One run: the scenario is the seed's. Raises AssertionError naming scenario and seed."""
    scenario = SCENARIOS[seed % len(SCENARIOS)]
    try:
        # Within a scenario everything hangs on the quotient, so that neighbouring seeds differ in kind only.
        scenario(seed // len(SCENARIOS))
    except Exception as error:
        raise AssertionError(f"seed {seed} ({scenario.__name__}): {type(error).__name__}: {error}") from error
