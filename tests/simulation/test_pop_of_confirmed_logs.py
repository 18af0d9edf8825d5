"""POP at a broker with controllers that was killed: its next run first reads what was confirmed, and all of its log when it leads."""

from __future__ import annotations

import asyncio
import functools

import pytest

from aerobee.store.message_store import MessageStore
from tests.simulation import pop_world
from tests.simulation.pop_world import GROUP, PLAIN, World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose consumers see what is confirmed, without a merge buffer."""
    monkeypatch.setattr(pop_world, "MessageStore", functools.partial(MessageStore, needs_confirmation=True))
    seed = next(seed for seed in range(100) if not World(seed).uses_buffer)
    return World(seed)


def confirm(world: World) -> None:
    world.flush()
    world.store.durability.confirm(world.store.log.end)
    world.run_soon()


def acknowledged(world: World) -> World:
    """Messages are popped and acknowledged, and the process is killed before a checkpoint says what was confirmed."""
    world.start(0)
    while not any(known.topic == PLAIN for known in world.known.values()):
        world.send()
    confirm(world)
    for _ in range(20):
        world.pop(PLAIN, count=32)
        world.run_soon()
    confirm(world)
    held = [known.held for known in world.known.values() if known.held is not None]
    assert held
    for each in held:
        world.ack(each)
        world.run_soon()
    confirm(world)
    assert all(world.known[each.number].done for each in held)
    world.died(power=False)
    return world


def test_what_is_confirmed_after_the_start_is_read_when_the_broker_leads(world: World) -> None:
    acknowledged(world).start(0)
    feature, store = world.pop_feature, world.store
    assert store.readable_offset < store.log.end
    assert not feature.engine.in_flight.entries()
    feature.stop()
    store.durability.confirm(store.log.end)
    asyncio.run(feature.take_over())
    entries = feature.engine.in_flight.entries()
    assert entries
    assert all(entry.point.is_acked for entry in entries)
    for entry in entries:
        point = entry.point
        offset = world.offsets.query(GROUP, point.topic, point.queue_id)
        assert offset == store.max_offset(point.topic, point.queue_id), "popped again immediately"
    world.let_go()


def test_a_log_that_was_read_at_the_start_is_not_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged(world)
    monkeypatch.setattr(pop_world, "MessageStore", MessageStore)
    world.start(0)
    feature = world.pop_feature
    before = feature.engine.in_flight.entries()
    assert before
    asyncio.run(feature.take_over())
    assert all(one is other for one, other in zip(before, feature.engine.in_flight.entries(), strict=True))
    world.let_go()
