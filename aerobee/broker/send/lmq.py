"""LMQs: one stored message that is read from several queues, by one entry in each.

Follows MultiDispatch and the LMQ parts of ConsumeQueueStore of RocketMQ. With enableLmq and enableMultiDispatch a message
with the property INNER_MULTI_DISPATCH = `%LMQ%a,%LMQ%b` is stored once in its own topic; the broker adds
INNER_MULTI_QUEUE_OFFSET, its offsets in these queues (`7,0`), and writes their entries, which point to the same record.
An LMQ is queue 0 of a topic of its name, which needs no creation and stands in no route: clients address the broker.

A message that waits (a level, a time, a half message) enters them when it is delivered or committed; a retry never does.

Invariant: an entry of an LMQ is written in the same step as the message's own, and recovery writes both again from the
two properties (store/queue/queue_table.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.broker.state.feature import Feature
from aerobee.errors import RemoteError
from aerobee.lite_topic import LITE_PREFIX, lite_queue, lite_topic_fault, split_lite_queue
from aerobee.message import (
    DLQ_PREFIX,
    LEGAL_NAME,
    RETRY_PREFIX,
    TOPIC_BYTES_MAX,
    decode_properties,
    encode_properties,
)
from aerobee.property_names import LITE_TOPIC
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import ResponseCode
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.consume_queue import ConsumeQueue
from aerobee.store.queue.queue_table import LMQ_QUEUE_ID, MULTI_DISPATCH, MULTI_OFFSET
from aerobee.system_names import LMQ_PREFIX, SYSTEM_PREFIX

QUEUES_OF_A_MESSAGE_MAX = 1_000


class LmqEntries:
    """Selects the LMQs of a message (LmqDispatch, used by MessageWriter)."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def count(self) -> int:
        """Number of LMQs."""
        return sum(1 for topic, _ in self._store.queues if topic.startswith(LMQ_PREFIX))

    def prepare(self, message: StoredMessage) -> tuple[StoredMessage, list[ConsumeQueue]]:
        """The message with its offsets in LMQs, and these queues. Raises RemoteError.

        A message that was sent to an LMQ itself is in that queue already.
        """
        properties = decode_properties(message.properties.decode(errors="surrogateescape"))
        names = [name for name in self.check(properties) if name != message.topic]
        queues = []
        for name in names:
            queue = self._store.queue(name, LMQ_QUEUE_ID)
            assert isinstance(queue, ConsumeQueue)
            queues.append(queue)
        properties[MULTI_DISPATCH] = ",".join(names)
        properties[MULTI_OFFSET] = ",".join(str(queue.max_offset) for queue in queues)
        message.properties = encode_properties(properties).encode(errors="surrogateescape")
        return message, queues

    def check(self, properties: Mapping[str, str]) -> list[str]:
        """The names of a message's LMQs. Raises RemoteError when it cannot enter them."""
        names = [name for name in dict.fromkeys(properties.get(MULTI_DISPATCH, "").split(",")) if name]
        if len(names) > QUEUES_OF_A_MESSAGE_MAX:
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{MULTI_DISPATCH} names {len(names)} queues, at most {QUEUES_OF_A_MESSAGE_MAX} are allowed",
            )
        for name in names:
            if lmq_topic(name) is None:
                raise RemoteError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"{MULTI_DISPATCH} names {name[:80]!r}: write {LMQ_PREFIX}NAME, "
                    f"letters, digits, _, -, % and |, at most {TOPIC_BYTES_MAX} characters",
                )
        new = sum(1 for name in names if (name, LMQ_QUEUE_ID) not in self._store.queues)
        limit = self._store.config.max_lmq_consume_queue_num
        if new and self.count() + new > limit:
            raise RemoteError(
                ResponseCode.LMQ_QUOTA_EXCEEDED,
                f"there are {self.count()} LMQs, maxLmqConsumeQueueNum allows {limit}",
            )
        return names


class LmqFeature(Feature):
    """Reports the number of LMQs in the broker's runtime info (28)."""

    name = "LMQs"

    def __init__(self, entries: LmqEntries | None) -> None:
        """None: this broker has none."""
        self._entries = entries

    def runtime_info(self) -> Mapping[str, str]:
        return {} if self._entries is None else {"lmqNum": str(self._entries.count())}


def names_lmqs(topic: str, properties: Mapping[str, str]) -> bool:
    """Whether a message of this topic enters the LMQs that it names (MultiDispatchUtils.isNeedHandleMultiDispatch)."""
    if MULTI_DISPATCH not in properties or topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)):
        return False
    # A dead letter of a lite topic would be delivered by it again.
    return not (topic.startswith(DLQ_PREFIX) and LITE_TOPIC in properties)


def add_lite_queue(topic: str, properties: dict[str, str]) -> None:
    """Name the LMQ of a message's lite topic in its properties (SendMessageProcessor). A message on its way to a retry or dead-letter topic
    keeps the lite topic that it came from, and enters no LMQ. Raises RemoteError for a name that no lite topic can have.
    """
    lite_topic = properties.get(LITE_TOPIC, "")
    if not lite_topic or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return
    if fault := lite_topic_fault(lite_topic):
        raise RemoteError(ResponseCode.MESSAGE_ILLEGAL, f"{LITE_TOPIC} {lite_topic[:80]!r}: {fault}")
    properties[MULTI_DISPATCH] = lite_queue(topic, lite_topic)


def lmq_entries(store: MessageStore) -> LmqEntries | None:
    """The LmqDispatch of this store's broker; None where it has none."""
    return LmqEntries(store) if store.config.dispatches_lmqs else None


def lmq_topic(name: str) -> TopicConfig | None:
    """The settings that every LMQ has as a topic; None for other names. That of a lite topic may be longer than a topic."""
    if name.startswith(LITE_PREFIX):
        found = split_lite_queue(name)
        is_lite = found is not None and len(found[0]) <= TOPIC_BYTES_MAX and LEGAL_NAME.match(found[0])
        return TopicConfig(name, 1, 1) if is_lite else None
    is_legal = len(LMQ_PREFIX) < len(name) <= TOPIC_BYTES_MAX and LEGAL_NAME.match(name)
    return TopicConfig(name, 1, 1) if is_legal and name.startswith(LMQ_PREFIX) else None
