"""The queue of a message group: messages of one group go to one queue, in order (SelectMessageQueueByHash). Core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aerobee.errors import UsageError
from aerobee.message import SHARDING_KEY, Message, MessageQueue, java_hash

Selector = Callable[[Sequence[MessageQueue], Message, object], MessageQueue]


def by_message_group(
    queues: Sequence[MessageQueue], _message: Message, message_group: object
) -> MessageQueue:
    """The selector behind `send(message, message_group=...)`: one queue per group while the queues stay the same.

    Text is hashed as SelectMessageQueueByHash does, so a Java producer with the same sharding key picks the same queue.
    """
    return queues[abs(java_hash(str(message_group))) % len(queues)]


def with_message_group(message: Message, message_group: object) -> Message:
    """The message with its group in __SHARDINGKEY, as FIFO messages have it, unless it has one already."""
    if message.priority >= 0:
        raise UsageError("priority excludes a message group: a message of a group has no priority")
    if SHARDING_KEY in message.properties or not str(message_group):
        return message
    return replace(message, properties={**message.properties, SHARDING_KEY: str(message_group)})
