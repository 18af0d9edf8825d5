"""Cutting the log's end off: a kill or a loss of power at each call of the disk, and a caller that is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.errors import StoreError
from aerobee.simulation.simulated_disk import PowerCut
from aerobee.store.files.checkpoint import decode_checkpoint
from tests.simulation.queue_end_stores import KEY, append, queue_of
from tests.simulation.store_world import World

CALLS = 60  # of the disk, that a cut makes at most


def begun() -> tuple[World, int, int]:
    """A store with eight durable messages, where the sixth begins, and its log's end."""
    world = World(3, sync=True)
    world.start()
    append(world, 5)
    start = world.store.log.end
    append(world, 3)
    world.store.flush_queues_now()
    return world, start, world.store.log.end


async def cut(world: World, start: int) -> None:
    await world.store.start()
    await world.store.cut_to(start)


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_cut_that_ends_anywhere_is_finished_by_the_next_start(loses_power: bool) -> None:
    ends: set[tuple[int, bool]] = set()
    for calls in range(CALLS):
        world, start, end = begun()
        before = queue_of(world)
        world.disk.cut_power_at(calls)
        try:
            asyncio.run(cut(world, start))
            break
        except PowerCut:
            if loses_power:
                world.disk.power_loss()
            else:
                world.disk.cut_power_at(-1)
                world.disk.crash()
        world.start()
        is_pending = world.store.pending_cut is not None
        assert world.store.log.end == (start if is_pending else end)
        assert world.store.pending_cut in (None, start)
        assert queue_of(world) == {at: body for at, body in before.items() if at < 5 or not is_pending}
        if is_pending:
            kept = [path for path in world.disk.paths() if path.startswith(f"/store/cut/{start:020d}-")]
            assert kept, "what was cut is kept"
        ends.add((world.store.log.end, is_pending))
        # The new master's messages, and another crash: the cut is not made a second time.
        new = append(world, 2)
        world.disk.crash()
        world.start()
        assert list(queue_of(world).values())[-2:] == new
        world.store.cut_finished()
        world.disk.crash()
        world.start()
        assert world.store.pending_cut is None
        assert list(queue_of(world).values())[-2:] == new
    else:
        pytest.fail(f"a cut makes more than {CALLS} calls")
    assert ends == {(start, True), (end, False)}


def test_a_cut_is_pending_until_what_belongs_to_it_is_done() -> None:
    world, start, _ = begun()
    asyncio.run(cut(world, start))
    assert world.store.pending_cut == start
    world.disk.crash()
    world.start()
    assert world.store.pending_cut == start
    world.store.cut_finished()
    world.disk.power_loss()
    world.start()
    assert world.store.pending_cut is None


@pytest.mark.parametrize("loses_power", [False, True])
def test_queues_end_at_the_cut_after_a_crash(loses_power: bool) -> None:
    """The checkpoint knew where the queues ended before, and a later end waited for a flush of the log."""
    world, start, _ = begun()
    world.store.flush_now()
    world.store.flush_queues_now()
    store = world.store
    store.append(world.message(*KEY))
    store.flush_queues_now()
    assert store.unflushed_bytes
    asyncio.run(cut(world, start))
    world.disk.power_loss() if loses_power else world.disk.crash()
    world.start()
    queue = world.store.queues[KEY]
    assert (world.store.log.end, queue.max_offset) == (start, 5)
    new = append(world, 2)
    assert list(queue_of(world).values())[-2:] == new


def test_a_log_that_another_program_wrote_to_is_not_cut() -> None:
    world, start, _ = begun()
    world.store._files.cut_intent.begin(start, world.store.log)
    world.disk.crash()
    data = bytearray(world.disk.content("/store/cut/unfinished"))
    world.start()
    assert world.store.log.end == start
    append(world, 3)
    world.disk.crash()
    world.disk.replace_file("/store/cut/unfinished", bytes(data))  # of the same offset, of other bytes
    grown = world.store.log.end
    world.start()
    assert world.store.log.end == grown
    world.disk.crash()
    world.disk.replace_file("/store/cut/unfinished", b"damaged")
    world.start()
    assert world.store.pending_cut == world.store.log.end == grown


def test_a_failed_cut_takes_nothing_more() -> None:
    world, start, _ = begun()
    world.disk.fail = lambda call, path: 5 if call == "sync" and path.endswith("unfinished.tmp") else 0
    with pytest.raises(StoreError, match="could not be cut"):
        asyncio.run(cut(world, start))
    assert not world.store.is_writable


async def test_a_cancelled_cut_leaves_flush_and_checkpoint_running() -> None:
    """A change of role during a sync: this broker leads next, with the log that it has."""
    world, start, end = begun()
    store = world.store
    await store.start()
    await asyncio.sleep(0)
    cutting = asyncio.create_task(store.cut_to(start))
    await asyncio.sleep(0)
    cutting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cutting
    assert store.log.end == end
    assert store.pending_cut is None
    store.append(world.message(*KEY))
    for _ in range(200):
        world.clock.advance(1.0)
        await asyncio.sleep(0)
        if decode_checkpoint(world.disk.content("/store/checkpoint")).log_flushed == store.log.end:
            break
    else:
        pytest.fail("no checkpoint follows the log any more")
    await store.stop()
