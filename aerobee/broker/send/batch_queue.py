"""Topics of `queue.type=BatchCQ`: a batch is stored as one record, and its queue has one entry for it (BatchConsumeQueue).

The record of a batch has the sysFlag bits INNER_BATCH and NEED_UNWRAP, the batch body as the client sent it, the queue
offset of its first message, and the properties INNER_NUM (how many), INNER_BASE (the offset again) and a separate
UNIQ_KEY. It is pulled as it is stored; clients unwrap it. A single message in such a topic is an ordinary record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from aerobee.broker.send.send_header import batch_pieces
from aerobee.broker.state.feature import Feature
from aerobee.broker.state.topic_table import TopicTable
from aerobee.message import INNER_BATCH, NEED_UNWRAP, Record, decode_properties, encode_properties
from aerobee.property_names import INNER_BASE, INNER_NUM
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.store.log.stored_message import StoredMessage


def as_inner_batch(
    message: StoredMessage, properties: dict[str, str], *, count: int, first_offset: int
) -> StoredMessage:
    """The one record of a batch. `message` has its body; `properties` are the outer ones with the broker's own."""
    properties[INNER_NUM] = str(count)
    properties[INNER_BASE] = str(first_offset)
    message.sys_flag |= INNER_BATCH | NEED_UNWRAP
    message.properties = encode_properties(properties).encode(errors="surrogateescape")
    message.parsed = properties
    return message


def message_of_batch(record: Record, unique_id: str) -> Record | None:
    """The message with this UNIQ_KEY of a record that is a batch; None when it has none. Raises MalformedRecord.

    The message has the physical offset of the batch's record, as a consumer sees it.
    """
    for piece in batch_pieces(record.body):
        for entry in piece:
            properties = decode_properties(entry.properties.decode(errors="surrogateescape"))
            if properties.get("UNIQ_KEY") == unique_id:
                return replace(
                    record,
                    body=entry.body,
                    properties=properties,
                    flag=entry.flag,
                    sys_flag=record.sys_flag & ~(INNER_BATCH | NEED_UNWRAP),
                )
    return None


class BatchQueues(Feature):
    """Tells the store which topics have batch queues."""

    name = "batch queues"

    def __init__(self, *, topics: TopicTable, set_kind: Callable[[str, bool], None]) -> None:
        """`set_kind(topic, is_batch)` sets the kind of the topic's new queues in the store."""
        self._set_kind = set_kind
        self._topics = topics
        topics.on_change(self._changed)

    def load(self) -> None:
        self._changed(self._topics.topics.values())

    def _changed(self, configs: Iterable[TopicConfig]) -> None:
        for config in configs:
            self._set_kind(config.topic_name, config.is_batch)
