"""The real store on a disk that loses power, tears writes, fails fsync, fills up and flips bits.

Each seed is one run of a store (store_world.py): bursts of appends and flushes, then a crash, a power loss or a clean
stop, then the next start, several times over. Checked after each start: what was acknowledged is there, nothing was
invented, offsets have no holes, keys find their messages. AEROBEE_SEEDS sets how many seeds run, AEROBEE_SEED picks one;
tests/survival/power_loss.py runs as many as wanted.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from aerobee.errors import StoreError, StoreFull, StoreNotWritable
from aerobee.simulation.simulated_disk import PowerCut
from aerobee.store.recovery.log_end import LogEnd
from aerobee.store.recovery.recovery import Recovery
from tests.simulation.mutations import MUTATIONS, Mutation, first_to_notice
from tests.simulation.store_world import ROUNDS, SCENARIOS, World, run_seed

SEEDS = int(os.environ.get("AEROBEE_SEEDS", "1000"))
FIRST_SEED = int(os.environ.get("AEROBEE_SEED", "0"))
SEEDS_THAT_FOUND_FAULTS = (3_148, 9_459, 10_127, 11_710, 20_804, 26_908, 29_434)
FLIPPED_OFFSETS = (
    700,
    773,
)  # a record that says it is another message of its queue, ahead of it or before it
LOST_FILE_SEEDS = 100
MUTATION_SEEDS = 300  # tried when the seed that is known to notice a mutation notices it no more


def seeds(count: int) -> list[int]:
    return [FIRST_SEED] if FIRST_SEED else list(range(1, count + 1))


@contextmanager
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("kind", range(len(SCENARIOS)), ids=lambda kind: SCENARIOS[kind].__name__)
def test_acknowledged_messages_survive_or_the_store_says_what_is_bad(kind: int) -> None:
    with quiet():
        for seed in seeds(SEEDS):
            if seed % len(SCENARIOS) == kind:
                run_seed(seed)


@pytest.mark.parametrize("seed", SEEDS_THAT_FOUND_FAULTS)
def test_a_life_that_once_broke_holds(seed: int) -> None:
    with quiet():
        run_seed(seed)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_broken_promise_is_noticed(mutation: Callable[[], Mutation]) -> None:
    known = MUTATIONS[mutation]
    with quiet():
        run_seed(known)
        noticed = first_to_notice(mutation, (known, *range(1, MUTATION_SEEDS)))
    assert noticed is not None, f"no run notices that {mutation.__name__}"


def test_what_a_removed_directory_held_is_not_in_the_one_that_is_made_in_its_place() -> None:
    for seed in range(1, 50):
        disk = World(seed, sync=True).disk
        disk.make_dirs("/store/q")
        disk.replace_file("/store/q/old", b"of the first directory")
        disk.remove("/store/q/old")
        disk.remove("/store/q")
        disk.make_dirs("/store/q")
        disk.power_loss()
        assert not disk.exists("/store/q/old")


def test_a_first_start_that_could_not_sync_its_directories_leaves_nothing_undurable() -> None:
    world = World(1, sync=True)
    world.disk.fail = lambda call, path: errno.EIO if (call, path) == ("sync_dir", "/") else 0
    with pytest.raises(StoreError, match="cannot be used"):
        world.start()
    world.disk.fail = lambda call, path: 0
    world.disk.crash()
    world.start()
    world.append_some(10)
    world.store.flush_now()
    world.disk.power_loss()
    world.start()
    world.check(everything=True)


def test_a_log_file_that_gets_no_space_and_cannot_be_removed_is_store_full_until_it_can() -> None:
    world = World(1, sync=True)
    world.start()
    world.disk.fail = lambda call, path: (
        errno.EIO if call in ("reserve", "remove") and "commitlog" in path else 0
    )
    for _ in range(2):
        with pytest.raises(StoreFull, match="could not be made"):
            world.store.append(world.message("orders", 0))
    world.disk.fail = lambda call, path: 0
    assert world.store.append(world.message("orders", 0)).queue_offset == 0


@pytest.mark.parametrize("refused", ["create", "reserve"])
def test_without_space_for_a_log_file_the_refusal_says_so_and_what_to_do(refused: str) -> None:
    world = World(1, sync=True)
    world.start()
    world.disk.fail = lambda call, path: errno.ENOSPC if call == refused and "commitlog" in path else 0
    with pytest.raises(
        StoreFull, match=r"no disk space for the commit log file .*; free space, or let retention"
    ):
        world.store.append(world.message("orders", 0))
    world.disk.fail = lambda call, path: 0
    assert world.store.append(world.message("orders", 0)).queue_offset == 0


def test_a_rebuild_that_was_interrupted_starts_over() -> None:
    for calls in range(40, 140):
        world = World(2, sync=True)
        world.start()
        world.append_some(30)
        world.store.flush_now()
        world.store.flush_queues_now()
        world.disk.crash()
        # The last entry of a queue points behind the log: the queue is deleted and built again from the log.
        (topic, queue_id), queue = next(iter(world.store.queues.items()))
        base = (queue.max_offset - 1) * 20 // world.config.mapped_file_size_consume_queue
        base *= world.config.mapped_file_size_consume_queue
        path = f"/store/consumequeue/{topic}/{queue_id}/{base:020d}"
        world.disk.flip_bit(path, (queue.max_offset - 1) * 20 - base, 5)
        world.disk.cut_power_at(calls)
        try:
            world.start()
        except PowerCut:
            world.disk.power_loss()
            world.start()
        else:
            world.disk.cut_power_at(-1)
        world.check(everything=True)


def test_a_flipped_bit_in_a_synced_record_is_reported_and_never_cuts_silently() -> None:
    complaints: list[tuple[str, int, StoreError]] = []
    for seed in (*seeds(SEEDS // 5), *FLIPPED_OFFSETS):
        world = World(seed, sync=True)
        world.start()
        world.append_some(20)
        world.store.flush_now()
        if world.rng.random() < 0.5:
            world.store.flush_queues_now()
            world.append_some(world.rng.randint(1, 20))
            world.store.flush_now()
        synced = world.store.log.end
        start = world.store._files.checkpoints.current.queues_flushed
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
        # Not every bit has a checksum in this format: a flipped topic moves a message. But none is cut, and one that says it
        # is another message of its queue is named.
        kept = sum(queue.max_offset - queue.min_offset for queue in world.store.queues.values())
        named = sum("it is left out of its queue" in note for note in world.report.notes)
        assert kept + named >= sum(world.acked.values())
    assert complaints
    for path, target, error in complaints:
        # A flipped topic or queue offset is noticed at the queue's next record, all else at the record itself.
        assert error.path.startswith("/store/commitlog/")
        assert error.offset >= 0
        assert path in str(error) or error.offset > target


def lose_last_file(world: World, harm: str) -> None:
    """The last file of the log in which there is a flushed record goes, or what it holds."""
    last = world.store.log.end - 1
    path = f"/store/commitlog/{last - last % world.config.mapped_file_size_commit_log:020d}"
    if harm == "gone":
        world.disk.remove(path)
    else:
        file = world.disk.open_mapped(path)
        file.fill(0, file.size)


def starts_over_a_hole(harm: str) -> int | None:
    """The first seed whose store starts although it has lost flushed messages; None when each start is refused."""
    for seed in range(1, LOST_FILE_SEEDS + 1):
        world = World(seed, sync=True)
        world.start()
        world.append_some(world.rng.randint(10, 60))
        world.store.flush_now()
        world.store.flush_queues_now()
        world.disk.crash()
        lose_last_file(world, harm)
        try:
            world.start()
        except StoreError:
            continue
        return seed
    return None


@pytest.mark.parametrize("harm", ["gone", "zeroed"])
def test_no_store_starts_over_a_lost_last_log_file(harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with quiet():
        assert starts_over_a_hole(harm) is None
        # And it is noticed when what the checkpoint calls durable is not looked for.
        durable = property(lambda end: -1, lambda end, offset: None)
        monkeypatch.setattr(LogEnd, "durable", durable, raising=False)
        monkeypatch.setattr(Recovery, "_last_flushed_record", lambda recovery, offset: offset)
        assert starts_over_a_hole(harm) is not None


async def test_a_clean_stop_loses_nothing_and_the_next_start_reads_only_the_end() -> None:
    for seed in seeds(SEEDS // 50 or 1):
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


def test_an_entry_that_a_refused_start_has_cut_does_not_come_back_with_a_later_loss_of_power() -> None:
    """Its zeros were in the system's cache only: whoever found them there took them for what the disk holds."""
    for seed in range(1, 100):
        world = World(seed, sync=True)
        world.start()
        world.append_some(20)
        world.store.flush_now()
        world.store.flush_queues_now()
        world.append_some(3)
        world.store.flush_queues_now()  # entries are on the disk before their records
        world.disk.power_loss()
        world.disk.fail = lambda call, path: errno.EIO if call == "write" and "abort" in path else 0
        with pytest.raises(StoreError, match="cannot be used"):
            world.start()
        world.disk.crash()
        world.disk.fail = lambda call, path: 0
        world.start()
        world.check(everything=False)
        for _ in range(10):
            assert world.store.append(world.message("elsewhere", 0))
        world.store.flush_now()
        world.store.flush_queues_now()
        world.disk.power_loss()
        world.start()
        world.check(everything=False)
