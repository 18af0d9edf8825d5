"""The special kinds of messages in a simulated cluster, and how they are consumed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """A kind of message or of topic. The value is its name in reports."""

    PLAIN = "ordinary"
    ORDERED = "ordered by key"
    BATCH = "batch"
    BATCH_QUEUE = "batch queue"  # a topic with queue.type=BatchCQ
    STATIC = "static topic"
    LIGHT = "LMQ"
    DEDUP = "deduplicated"
    MESSAGE_LEVEL = "level of a message"  # ACK_LEVEL
    TOPIC_LEVEL = "level of a topic"  # ack.level


class Way(Enum):
    """Kind of consumption of a group. The value is its name in reports."""

    PUSH = "push"
    ORDERLY = "orderly push"
    POP = "pop push"  # the broker assigns the queues, in request mode POP
    SIMPLE = "simple"
    PULL = "pull"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class Traffic:
    """One stream: a separate topic, a producer, and a group that reads it."""

    kind: Kind
    way: Way

    @property
    def topic(self) -> str:
        return self.kind.value.replace(" ", "-")


PULLED = (Way.PUSH, Way.ORDERLY, Way.PULL, Way.BROADCAST)
# Batch queues and static topics are not popped, as in RocketMQ.
WAYS = {kind: tuple(Way) for kind in Kind} | {
    Kind.BATCH_QUEUE: PULLED,
    Kind.STATIC: PULLED,
    Kind.ORDERED: (Way.ORDERLY, Way.ORDERLY, Way.PULL, Way.PUSH),
}
