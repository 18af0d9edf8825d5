"""Strategies that allocate the queues of a topic to the members of a group. Pure.

Source: AllocateMessageQueueAveragely and its siblings. An Allocation is called as `allocation(own_id, queues, ids)`;
`queues` and `ids` are sorted, `own_id` is in `ids`, and it returns the queues of `own_id`. Every member computes the
allocation independently and must get the same result: a strategy depends only on its arguments, and all members of a
group use the same strategy.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from aerobee.errors import UsageError
from aerobee.message import MessageQueue

Allocation = Callable[[str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]

VIRTUAL_NODES = 10  # virtual nodes of each client, as AllocateMessageQueueConsistentHash


def average(own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> Sequence[MessageQueue]:
    """AVG, the default: contiguous blocks; the first members get one queue more when the division has a remainder."""
    index = ids.index(own_id)
    share, rest = divmod(len(queues), len(ids))
    start = index * share + min(index, rest)
    return queues[start : start + share + (1 if index < rest else 0)]


def average_by_circle(
    own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
) -> Sequence[MessageQueue]:
    """AVG_BY_CIRCLE: round robin, queue by queue."""
    return queues[ids.index(own_id) :: len(ids)]


def fixed(own_queues: Iterable[MessageQueue]) -> Allocation:
    """CONFIG: always these queues, independent of the other members."""
    chosen = tuple(own_queues)

    def allocate(
        _own_id: str, _queues: Sequence[MessageQueue], _ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        return chosen

    return allocate


def machine_room(rooms: Iterable[str]) -> Allocation:
    """MACHINE_ROOM: only queues whose broker is named `room@name` with a room of `rooms`."""
    wanted = frozenset(rooms)
    if not wanted:
        raise UsageError("machine_room needs the name of at least one room")

    def allocate(own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> Sequence[MessageQueue]:
        near = [queue for queue in queues if _room_of(queue.broker_name) in wanted]
        index = ids.index(own_id)
        share, rest = divmod(len(near), len(ids))
        mine = near[index * share : (index + 1) * share]
        if rest > index:
            mine.append(near[index + share * len(ids)])
        return mine

    return allocate


def _room_of(broker_name: str) -> str | None:
    room, separator, name = broker_name.partition("@")
    return room if separator and name and "@" not in name else None


def machine_room_nearby(
    room_of_broker: Callable[[str], str], room_of_client: Callable[[str], str], inner: Allocation = average
) -> Allocation:
    """MACHINE_ROOM_NEARBY: queues go to clients in the same room; the queues of a room without clients are shared by all clients."""

    def allocate(own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> Sequence[MessageQueue]:
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_of.setdefault(room_of_broker(queue.broker_name), []).append(queue)
        ids_of: dict[str, list[str]] = {}
        for client_id in ids:
            ids_of.setdefault(room_of_client(client_id), []).append(client_id)
        mine: list[MessageQueue] = []
        for room, near in queues_of.items():
            sharers = ids_of.get(room)
            if sharers is None:
                mine.extend(inner(own_id, near, ids))
            elif own_id in sharers:
                mine.extend(inner(own_id, near, sharers))
        return sorted(mine)

    return allocate


def consistent_hash(
    own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
) -> Sequence[MessageQueue]:
    """CONSISTENT_HASH: few queues move when a member joins or leaves. 10 virtual nodes each, first 4 bytes of MD5."""
    points, owners = _ring(tuple(ids))
    return [queue for queue in queues if owners[_ring_index(points, queue)] == own_id]


def _ring_index(points: Sequence[int], queue: MessageQueue) -> int:
    text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
    return bisect.bisect_left(points, ring_hash(text)) % len(points)


def ring_hash(text: str) -> int:
    """First four bytes of the MD5 as an unsigned big-endian number."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


@lru_cache(maxsize=16)
def _ring(ids: tuple[str, ...]) -> tuple[list[int], list[str]]:
    # A later client replaces an earlier one at the same point, as a Java TreeMap does.
    ring = {ring_hash(f"{client_id}-{n}"): client_id for client_id in ids for n in range(VIRTUAL_NODES)}
    points = sorted(ring)
    return points, [ring[point] for point in points]


BY_NAME: dict[str, Allocation] = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
    "CONSISTENT_HASH": consistent_hash,
}
