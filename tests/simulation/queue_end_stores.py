"""Stores with one queue, whose ends tests compare."""

from __future__ import annotations

from aerobee.message import decode_records
from tests.simulation.store_world import World

KEY = ("orders", 0)


def queue_of(world: World) -> dict[int, bytes]:
    """Queue offset and body of each message that is read from the queue."""
    store, offset = world.store, world.store.min_offset(*KEY)
    found: dict[int, bytes] = {}
    while offset < store.max_offset(*KEY):
        result = store.get_messages(*KEY, offset, count_max=32)
        found.update((record.queue_offset, record.body) for record in decode_records(result.body))
        assert result.next_offset > offset
        offset = result.next_offset
    return found


def append(world: World, count: int = 1) -> list[bytes]:
    """Messages that are acknowledged as durable; their queue entries are not."""
    messages = [world.message(*KEY) for _ in range(count)]
    for message in messages:
        world.store.append(message)
    world.store.flush_now()
    return [bytes(message.body) for message in messages]
