"""A queue continues at an offset that only its entries, or an old checkpoint, contain.

Then the power fails, and the entries are gone: the message that was acknowledged there is still to be in its queue.
"""

from __future__ import annotations

import errno
import random

import pytest

from aerobee.errors import StoreError
from aerobee.simulation.simulated_disk import PowerCut
from tests.simulation.queue_end_stores import KEY, append, queue_of
from tests.simulation.store_world import World


class NothingStays(random.Random):
    """The chances of a power loss that keeps nothing that was not synced."""

    def random(self) -> float:
        return 0.99

    def randint(self, a: int, b: int) -> int:
        return a


def lose_entries(world: World) -> None:
    """A power loss that takes whatever was not synced."""
    world.disk.reseed(NothingStays())
    world.disk.power_loss()


def with_a_damaged_end(world: World) -> list[bytes]:
    """Three messages that the checkpoint knows of, which are returned, and two that only entries do: their records are damaged."""
    world.start()
    first = append(world, 3)
    world.store.flush_queues_now()
    end = world.store.log.end
    append(world, 2)
    world.disk.crash()
    for bit in range(8):
        world.disk.flip_bit(f"/store/commitlog/{0:020d}", end + 4, bit)
        world.disk.flip_bit(f"/store/commitlog/{0:020d}", world.store.log.end - 40, bit)
    return first


@pytest.mark.parametrize("written", range(6))
def test_offsets_that_a_cut_log_left_used_stay_used_when_the_disk_takes_no_checkpoint(written: int) -> None:
    world = World(1, sync=True, truncate_corrupt_log=True)
    first = with_a_damaged_end(world)
    writes = 0

    def fail(call: str, path: str) -> int:
        nonlocal writes
        is_checkpoint = call == "replace" and path.endswith("checkpoint")
        writes += is_checkpoint
        return errno.ENOSPC if is_checkpoint and writes > written else 0

    world.disk.fail = fail
    try:
        world.start()
    except StoreError:
        world.disk.fail = lambda call, path: 0
        world.start()
    assert world.store.queues[KEY].max_offset == 5
    (last,) = append(world)
    lose_entries(world)
    world.disk.fail = lambda call, path: 0
    world.start()
    assert queue_of(world) == {0: first[0], 1: first[1], 2: first[2], 5: last}


def test_offsets_that_a_cut_log_left_used_stay_used_when_the_start_that_cuts_it_dies() -> None:
    deaths = 0
    for calls in range(120):
        world = World(1, sync=True, truncate_corrupt_log=True)
        with_a_damaged_end(world)
        world.disk.cut_power_at(calls)
        try:
            world.start()
        except PowerCut:
            deaths += 1
        world.disk.cut_power_at(-1)
        world.disk.crash()
        world.start()
        assert world.store.queues[KEY].max_offset == 5, calls
    assert 20 < deaths < 120


def test_messages_behind_what_retention_took_are_in_their_queue_when_the_checkpoint_is_older() -> None:
    world = World(2, sync=True)
    world.start()
    append(world, 3)
    world.store.flush_queues_now()
    world.disk.fail = lambda call, path: (
        errno.ENOSPC if call == "replace" and path.endswith("checkpoint") else 0
    )
    while len(world.store.log.segments) < 4:
        append(world)
    end = world.store.queues[KEY].max_offset
    while len(world.store.log.segments) < 5:
        world.store.append(world.message("payments", 1))
    world.store.flush_now()
    (last,) = append(world)
    while len(world.store.log.segments) > 1:
        world.disk.remove(world.store.log.detach_first().path)
    world.disk.sync_dir("/store/commitlog")
    lose_entries(world)
    world.disk.fail = lambda call, path: 0
    world.start()
    assert queue_of(world) == {end: last}
