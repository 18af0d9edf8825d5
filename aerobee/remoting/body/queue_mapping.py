"""The queues of static topics: which broker has which part of a logical queue. Core.

A static topic has a fixed number of logical queues over all brokers, numbered from 0. Each is made of one or more
physical queues that follow each other, the last of which takes the sends: its broker leads the logical queue.

    logical queue 3     item gen 0: broker-a, queue 1, logical offsets from 0
                        item gen 1: broker-b, queue 0, logical offsets from 20000     leader

    TopicQueueMappingInfo    {"bname":"broker-a","currIdMap":{0:0,1:1},"dirty":false,"epoch":1700000000000,
                              "scope":"__global__","topic":"T","totalQueues":8}       told to nameservers
    TopicQueueMappingDetail  the same with "hostedQueues":{0:[LogicQueueMappingItem, ...]}   kept by the broker

`logicOffset` -1: the first offset of the item is not decided yet; the queue accepts sends, but consumers cannot read it.
Source: TopicQueueMappingInfo, TopicQueueMappingDetail, LogicQueueMappingItem, ClientMetadata (RocketMQ).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aerobee.errors import MalformedFrame
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.protocol import QUEUES_MAX

EPOCH_AHEAD_MS_MAX = 366 * 86_400_000  # an epoch is a time in ms; clocks of tools may be wrong
GLOBAL_SCOPE = "__global__"
LOGICAL_BROKER_PREFIX = "__syslo__"
LOGICAL_BROKER_NONE = "__syslo__none__"  # broker name of a queue without a leader
UNDECIDED = -1
ITEMS_MAX = 1_024  # maximum number of items of one logical queue; each remapping adds one


@dataclass(frozen=True, slots=True)
class QueueMappingItem:
    """One physical queue in a logical queue. Its physical `start_offset` is the logical `logic_offset`."""

    gen: int
    queue_id: int
    broker_name: str
    logic_offset: int
    start_offset: int = 0
    end_offset: int = UNDECIDED
    time_of_start: int = -1
    time_of_end: int = -1

    @property
    def is_decided(self) -> bool:
        """Whether its first logical offset is known."""
        return self.logic_offset >= 0

    @property
    def has_end(self) -> bool:
        return self.end_offset > self.start_offset

    @property
    def offset_delta(self) -> int:
        """Difference between the logical and the physical offset."""
        return self.logic_offset - self.start_offset

    @property
    def logic_end(self) -> int:
        """Logical end offset according to the item; its begin when the item has no end."""
        return self.logic_offset + max(0, self.end_offset - self.start_offset)

    def logical(self, offset: int) -> int:
        """The logical offset of a physical one, never before the item's begin."""
        return self.logic_offset + max(0, offset - self.start_offset)

    def loosely_logical(self, offset: int) -> int:
        """As logical(), but at most the end of the item, and -1 while its begin is undecided."""
        if not self.is_decided:
            return UNDECIDED
        if self.end_offset >= self.start_offset:
            offset = min(offset, self.end_offset)
        return self.logical(offset)

    def physical(self, logic_offset: int) -> int:
        """The physical offset of a logical one; below `start_offset` for an offset before the item."""
        return logic_offset - self.offset_delta

    def to_dict(self) -> dict[str, Any]:
        return {
            "bname": self.broker_name,
            "endOffset": self.end_offset,
            "gen": self.gen,
            "logicOffset": self.logic_offset,
            "queueId": self.queue_id,
            "startOffset": self.start_offset,
            "timeOfEnd": self.time_of_end,
            "timeOfStart": self.time_of_start,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> QueueMappingItem:
        """Raises MalformedFrame."""
        return cls(
            json_fields.integer(fields, "gen"),
            json_fields.integer(fields, "queueId"),
            json_fields.text(fields, "bname"),
            json_fields.integer(fields, "logicOffset"),
            json_fields.integer(fields, "startOffset"),
            json_fields.integer(fields, "endOffset", UNDECIDED),
            json_fields.integer(fields, "timeOfStart", -1),
            json_fields.integer(fields, "timeOfEnd", -1),
        )


Items = tuple[QueueMappingItem, ...]


@dataclass(frozen=True, slots=True)
class QueueMapping:
    """The mapping of one topic as one broker has it. `hosted`: logical queue id -> its items, oldest first."""

    topic: str
    total_queues: int
    broker_name: str
    epoch: int
    scope: str = GLOBAL_SCOPE
    dirty: bool = False
    hosted: Mapping[int, Items] = field(default_factory=dict)

    def led(self) -> dict[int, int]:
        """The logical queues that this broker leads, each with its physical queue."""
        return {
            queue_id: items[-1].queue_id
            for queue_id, items in sorted(self.hosted.items())
            if items and items[-1].broker_name == self.broker_name
        }

    def with_hosted(self, hosted: Mapping[int, Items]) -> QueueMapping:
        return replace(self, hosted=dict(hosted))

    def to_info(self) -> dict[str, Any]:
        """The mapping as advertised to NameServers and clients."""
        return _head(self.topic, self.total_queues, self.broker_name, self.epoch, self.scope, self.dirty) | {
            "currIdMap": self.led()
        }

    def to_dict(self) -> dict[str, Any]:
        """The whole mapping, as it is stored and as tools read it."""
        return _head(self.topic, self.total_queues, self.broker_name, self.epoch, self.scope, self.dirty) | {
            "currIdMap": {},
            "hostedQueues": {
                queue_id: [item.to_dict() for item in items]
                for queue_id, items in sorted(self.hosted.items())
            },
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> QueueMapping:
        """Raises MalformedFrame."""
        hosted = {}
        for key, items in json_fields.mapping(fields, "hostedQueues").items():
            queue_id = _queue_id(key)
            if not isinstance(items, list) or not 0 < len(items) <= ITEMS_MAX:
                raise MalformedFrame(f"logical queue {queue_id} must have 1 to {ITEMS_MAX} items")
            hosted[queue_id] = tuple(
                QueueMappingItem.from_dict(json_fields.as_object(item, "a mapping item")) for item in items
            )
        return cls(
            json_fields.text(fields, "topic"),
            _total(fields),
            json_fields.text(fields, "bname"),
            json_fields.integer(fields, "epoch"),
            json_fields.text(fields, "scope", GLOBAL_SCOPE),
            json_fields.boolean(fields, "dirty"),
            hosted,
        )

    @classmethod
    def decode(cls, body: bytes) -> QueueMapping:
        """Raises MalformedFrame."""
        return cls.from_dict(
            fastjson.loads_object(body, "TopicQueueMappingDetail", fastjson.REQUEST_DIALECT_BYTES_MAX * 8)
        )


@dataclass(frozen=True, slots=True)
class QueueMappingInfo:
    """One broker's registration of a static topic: the logical queues that it leads."""

    topic: str
    total_queues: int
    broker_name: str
    epoch: int
    scope: str = GLOBAL_SCOPE
    dirty: bool = False
    led: Mapping[int, int] = field(default_factory=dict)  # logical queue id -> physical queue id

    def to_dict(self) -> dict[str, Any]:
        return _head(self.topic, self.total_queues, self.broker_name, self.epoch, self.scope, self.dirty) | {
            "currIdMap": dict(sorted(self.led.items()))
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> QueueMappingInfo:
        """Raises MalformedFrame."""
        led = json_fields.mapping(fields, "currIdMap")
        return cls(
            json_fields.text(fields, "topic"),
            _total(fields),
            json_fields.text(fields, "bname"),
            json_fields.integer(fields, "epoch"),
            json_fields.text(fields, "scope", GLOBAL_SCOPE),
            json_fields.boolean(fields, "dirty"),
            {_queue_id(key): json_fields.as_integer(value, "a queue id") for key, value in led.items()},
        )


def logical_broker(scope: str) -> str:
    """The broker name of logical queues: `__syslo__global__` for the global scope."""
    return LOGICAL_BROKER_PREFIX + (scope[2:] if scope == GLOBAL_SCOPE else scope)


def logical_queues(topic: str, infos: Iterable[QueueMappingInfo]) -> dict[MessageQueue, str]:
    """The logical queues of a topic, each with the name of the broker that leads it.

    If two brokers claim to lead a queue, the later epoch counts; without a leader, LOGICAL_BROKER_NONE.
    """
    found: dict[MessageQueue, str] = {}
    by_scope: dict[str, list[QueueMappingInfo]] = {}
    for info in infos:
        by_scope.setdefault(info.scope, []).append(info)
    for scope, members in by_scope.items():
        members.sort(key=lambda info: info.epoch)
        broker = logical_broker(scope)
        leaders = {queue_id: info.broker_name for info in members for queue_id in info.led}
        for queue_id in range(max(info.total_queues for info in members if info.epoch == members[-1].epoch)):
            found[MessageQueue(topic, broker, queue_id)] = leaders.get(queue_id, LOGICAL_BROKER_NONE)
    return found


def find_item(items: Items, logic_offset: int) -> QueueMappingItem | None:
    """The item that contains a logical offset; the oldest item for an earlier offset. None when no begin is decided."""
    decided = [item for item in items if item.is_decided]
    for item in reversed(decided):
        if logic_offset >= item.logic_offset:
            return item
    return decided[0] if decided else None


def next_item(items: Items, item: QueueMappingItem) -> QueueMappingItem | None:
    """The item after this one; None without one, or while its begin is undecided."""
    at = next(at for at, other in enumerate(items) if other.gen == item.gen) + 1
    return items[at] if at < len(items) and items[at].is_decided else None


def _head(topic: str, total: int, broker: str, epoch: int, scope: str, dirty: bool) -> dict[str, Any]:
    return {
        "bname": broker,
        "dirty": dirty,
        "epoch": epoch,
        "scope": scope,
        "topic": topic,
        "totalQueues": total,
    }


def _total(fields: json_fields.Fields) -> int:
    total = json_fields.integer(fields, "totalQueues")
    if not 0 <= total <= QUEUES_MAX:
        raise MalformedFrame(f"totalQueues is {total}, a topic has 0 to {QUEUES_MAX} logical queues")
    return total


def _queue_id(key: str) -> int:
    queue_id = json_fields.as_integer(key, "a logical queue id")
    if not 0 <= queue_id < QUEUES_MAX:
        raise MalformedFrame(f"logical queue id {queue_id}: allowed are 0 to {QUEUES_MAX - 1}")
    return queue_id
