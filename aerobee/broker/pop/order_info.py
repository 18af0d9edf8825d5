"""Ordered POP: the delivered block of each queue and group, and its acknowledgements (ConsumerOrderInfoManager).

There is one block per queue and group. While one of its messages is neither acknowledged nor visible again, the queue
delivers nothing to the group, except to the same attempt (a client that repeats a request whose reply was lost gets the
same block). The group's offset passes only messages that are acknowledged from the block's start on; others are popped
again before later ones, so order is kept. config/consumerOrderInfo.json:

    {"orderInfoCount":n,"orderedConsumptionLevel":"QUEUE",
     "table":{"topic@group":{queue id:{
        "popTime", "i": invisible ms, "o": [first offset, then distances from it],
        "ot": {offset: next visible time}, "oc": {offset: times consumed before}, "l": last consume time,
        "cm": acknowledged bits, "a": attempt id}}}}

Core: time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aerobee.broker.consumer.consumer_offsets import SEPARATOR
from aerobee.broker.pop.check_point import CLOCK_SLACK_MS
from aerobee.errors import MalformedFrame
from aerobee.remoting.body import json_fields

BLOCK_MAX = 63  # messages of one block: the bits of `cm`, a Java long that stays positive

NOT_OURS = -2  # the block was replaced
UNKNOWN = -1  # the block does not hold that offset


@dataclass(slots=True)
class Block:
    """Messages of one queue that one group holds in order. Times in ms."""

    pop_time: int
    invisible_ms: int
    offsets: tuple[int, ...]
    attempt_id: str = ""
    acked: int = 0
    next_visible: dict[int, int] = field(default_factory=dict)  # offset -> time, where it was changed
    # Offset -> number of earlier deliveries, if above 0.
    consumed: dict[int, int] = field(default_factory=dict)
    last_consume_ms: int = 0
    set_back_ms: int = 0  # known amount by which the clock was set back since the pop; not in the file

    def visible_at(self) -> int | None:
        """Time at which all unacknowledged messages are visible again, which frees the queue; None: all are
        acknowledged."""
        ends = [
            self.next_visible.get(offset, self.pop_time + self.invisible_ms) - self.set_back_ms
            for i, offset in enumerate(self.offsets)
            if not self.acked >> i & 1
        ]
        return max(ends) if ends else None

    def next_offset(self) -> int:
        """The first offset that is not acknowledged, or the one behind the block."""
        for i, offset in enumerate(self.offsets):
            if not self.acked >> i & 1:
                return offset
        return self.offsets[-1] + 1


class OrderInfo:
    """The blocks of all groups. Belongs to the event loop."""

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], dict[int, Block]] = {}
        self.dirty = False

    def forget_all(self) -> None:
        """Drop everything: another broker delivers messages from now on."""
        self.dirty = self.dirty or bool(self._table)
        self._table.clear()

    def block(self, topic: str, group: str, queue_id: int) -> Block | None:
        """The group's block that blocks this queue; None when nothing blocks it."""
        return self._table.get((topic, group), {}).get(queue_id)

    def blocks(self) -> list[tuple[str, str, int, Block]]:
        """(topic, group, queue id, block) of all present and former blocks."""
        return [
            (topic, group, queue_id, block)
            for (topic, group), queues in self._table.items()
            for queue_id, block in queues.items()
        ]

    def blocked_until(self, topic: str, group: str, queue_id: int, attempt_id: str, now_ms: int) -> int:
        """Time until which the queue is blocked for the group, ms; 0 when it is free."""
        block = self.block(topic, group, queue_id)
        if block is None or (block.attempt_id and block.attempt_id == attempt_id):
            return 0
        if block.pop_time - block.set_back_ms > now_ms + CLOCK_SLACK_MS:
            block.set_back_ms = block.pop_time - now_ms  # its pop time is in the future
        end = block.visible_at()
        return end if end is not None and end > now_ms else 0

    def popped(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: tuple[int, ...],
        *,
        pop_time: int,
        invisible_ms: int,
        attempt_id: str = "",
    ) -> dict[int, int]:
        """Record the delivery of a block. Returns {offset: number of earlier deliveries}, those above 0."""
        if not 0 < len(offsets) <= BLOCK_MAX:
            raise ValueError(f"a block of {len(offsets)} messages, 1 to {BLOCK_MAX} are possible")
        before = self.block(topic, group, queue_id)
        consumed: dict[int, int] = {}
        if before is not None:
            again = 0 if before.attempt_id and before.attempt_id == attempt_id else 1
            had = set(before.offsets)
            consumed = {
                offset: before.consumed.get(offset, 0) + again
                for offset in offsets
                if offset in had and before.consumed.get(offset, 0) + again
            }
        self._table.setdefault((topic, group), {})[queue_id] = Block(
            pop_time, invisible_ms, offsets, attempt_id, consumed=consumed, last_consume_ms=pop_time
        )
        self.dirty = True
        return consumed

    def ack(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int) -> int:
        """Record an acknowledgement; return the offset to commit, NOT_OURS or UNKNOWN."""
        block = self.block(topic, group, queue_id)
        if block is None:
            return offset + 1
        if block.pop_time != pop_time:
            return NOT_OURS
        if offset not in block.offsets:
            return UNKNOWN
        block.acked |= 1 << block.offsets.index(offset)
        self.dirty = True
        return block.next_offset()

    def change_visible(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, visible_ms: int
    ) -> bool:
        """Change the time at which one message of the block becomes visible. False: the block was replaced."""
        block = self.block(topic, group, queue_id)
        if block is None or block.pop_time != pop_time or offset not in block.offsets:
            return False
        block.next_visible[offset] = visible_ms + block.set_back_ms
        self.dirty = True
        return True

    def suspend(self, topic: str, group: str, queue_id: int, pop_time: int, visible_ms: int) -> None:
        """Change the time at which each unacknowledged message of the block becomes visible; nothing when the block was replaced."""
        block = self.block(topic, group, queue_id)
        if block is not None and block.pop_time == pop_time:
            block.next_visible = dict.fromkeys(block.offsets, visible_ms + block.set_back_ms)
            self.dirty = True

    def clear(self, topic: str, group: str, queue_id: int | None = None) -> None:
        """Remove a group's blocks: its offsets were reset, or its group or topic was deleted."""
        queues = self._table.get((topic, group))
        if queues is None:
            return
        if queue_id is None:
            del self._table[(topic, group)]
        else:
            queues.pop(queue_id, None)
            if not queues:
                del self._table[(topic, group)]
        self.dirty = True

    # --- the file

    def to_dict(self) -> dict[str, Any]:
        """The content of consumerOrderInfo.json."""
        return {
            "orderInfoCount": sum(len(queues) for queues in self._table.values()),
            "orderedConsumptionLevel": "QUEUE",
            "table": {
                f"{topic}{SEPARATOR}{group}": {
                    queue_id: _block_dict(block) for queue_id, block in queues.items()
                }
                for (topic, group), queues in self._table.items()
            },
        }

    def load(self, tree: Mapping[str, Any]) -> None:
        """Load the file's content. Raises MalformedFrame."""
        table: dict[tuple[str, str], dict[int, Block]] = {}
        for key, value in json_fields.mapping(tree, "table").items():
            topic, separator, group = key.rpartition(SEPARATOR)
            if not separator:
                raise MalformedFrame(f"entry {key[:80]!r} is not topic@group")
            queues = json_fields.as_object(value, f"entry {key[:80]!r}")
            table[(topic, group)] = {
                json_fields.as_integer(queue_id, "a queue id"): _parse_block(
                    json_fields.as_object(block, f"a block of {key[:80]!r}")
                )
                for queue_id, block in queues.items()
            }
        self._table = table
        self.dirty = False


def _block_dict(block: Block) -> dict[str, Any]:
    first = block.offsets[0]
    tree: dict[str, Any] = {
        "cm": block.acked,
        "i": block.invisible_ms,
        "l": block.last_consume_ms,
        "o": [first, *(offset - first for offset in block.offsets[1:])],
        "popTime": block.pop_time,
    }
    if block.attempt_id:
        tree["a"] = block.attempt_id
    if block.next_visible:
        tree["ot"] = dict(block.next_visible)
    if block.consumed:
        tree["oc"] = dict(block.consumed)
    return tree


def _parse_block(fields: Mapping[str, Any]) -> Block:
    tree = dict(fields)
    stored = [json_fields.as_integer(value, "an offset") for value in json_fields.items(tree, "o")]
    if not 0 < len(stored) <= BLOCK_MAX:
        raise MalformedFrame(f"a block has {len(stored)} offsets, 1 to {BLOCK_MAX} are possible")
    return Block(
        pop_time=json_fields.integer(tree, "popTime"),
        invisible_ms=json_fields.integer(tree, "i"),
        offsets=(stored[0], *(stored[0] + distance for distance in stored[1:])),
        attempt_id=json_fields.optional_text(tree, "a") or "",
        acked=json_fields.integer(tree, "cm") & ((1 << BLOCK_MAX) - 1),
        next_visible=_integer_map(tree, "ot"),
        consumed=_integer_map(tree, "oc"),
        last_consume_ms=json_fields.integer(tree, "l"),
    )


def _integer_map(tree: dict[str, Any], name: str) -> dict[int, int]:
    return {
        json_fields.as_integer(key, f"a key of {name}"): json_fields.as_integer(value, f"a value of {name}")
        for key, value in json_fields.mapping(tree, name).items()
    }
