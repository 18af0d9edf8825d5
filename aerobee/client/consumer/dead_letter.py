"""A dead-letter message: its origin, its reason, and its properties after a redrive. Pure.

RocketMQ's brokers store RETRY_TOPIC and ORIGIN_MESSAGE_ID in a dead-letter message, Aerobee's brokers also
DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, DLQ_REASON, DLQ_TRIES and LAST_ERROR (broker/send/dead_letter.py). Both kinds
are supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aerobee.client.base.received import ReceivedMessage
from aerobee.message import (
    DEAD_LETTER_REASON,
    DELIVERY_TRIES,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    DLQ_PREFIX,
    LAST_ERROR,
    ORIGIN_POSITION,
    RETRY_PREFIX,
)
from aerobee.remoting.body.pop_handle import topic_before_retry

REDRIVEN_FROM = "REDRIVEN_FROM"  # offset message id of the redriven dead-letter message
REDRIVE_COUNT = "REDRIVE_COUNT"
# Properties of the previous deliveries: a redrive removes them, brokers and consumers set them again.
_DELIVERY_PROPERTIES = frozenset(
    {
        DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, DEAD_LETTER_REASON, DELIVERY_TRIES, LAST_ERROR, ORIGIN_POSITION, "RETRY_TOPIC",
        "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "REAL_TOPIC", "REAL_QID", "DELAY", "MIN_OFFSET",
        "MAX_OFFSET", "CONSUME_START_TIME", "MSG_REGION", "TRACE_ON", "CLUSTER", "POP_CK", "POP_CK_OFFSET",
        "1ST_POP_TIME", "ORIGIN_GROUP", "TRAN_MSG", "PGROUP", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS",
        "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "DEDUP_KEY",
    }
)  # fmt: skip


COUNT_CHARS_MAX = 9  # a producer may have written any text


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message of %DLQ%group."""

    group: str
    """Consumer group that did not consume the message."""
    message: ReceivedMessage
    """The stored dead-letter message."""

    @property
    def topic(self) -> str:
        """The original topic; empty if the message does not name it."""
        properties = self.message.properties
        topic = properties.get(DLQ_ORIGIN_TOPIC) or properties.get("RETRY_TOPIC", "")
        topic = topic_before_retry(topic, self.group)  # RocketMQ's brokers name POP's retry topic
        return "" if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else topic

    @property
    def message_id(self) -> str:
        """The message id that the producer received."""
        properties = self.message.properties
        return properties.get(DLQ_ORIGIN_MESSAGE_ID) or self.message.message_id

    @property
    def reason(self) -> str:
        """The reason of the dead-lettering; empty in messages of RocketMQ's brokers."""
        return self.message.properties.get(DEAD_LETTER_REASON, "")

    @property
    def error(self) -> str:
        """The text of the last error; empty if the consumer did not report it."""
        return self.message.properties.get(LAST_ERROR, "")

    @property
    def tries(self) -> int:
        """Number of deliveries to a consumer."""
        text = self.message.properties.get(DELIVERY_TRIES, "")
        return _count(text, self.message.reconsume_times)

    @property
    def died_ms(self) -> int:
        """When the message was dead-lettered, ms since the epoch."""
        return self.message.store_timestamp

    def redriven_properties(self) -> dict[str, str]:
        """The properties of the redriven message: the user's properties, its id, REDRIVEN_FROM and REDRIVE_COUNT."""
        old = self.message.properties
        properties = {name: value for name, value in old.items() if name not in _DELIVERY_PROPERTIES}
        properties.setdefault("UNIQ_KEY", self.message_id)
        properties[REDRIVEN_FROM] = self.message.offset_message_id
        properties[REDRIVE_COUNT] = str(_count(old.get(REDRIVE_COUNT, ""), 0) + 1)
        return properties


def _count(text: str, otherwise: int) -> int:
    is_count = len(text) <= COUNT_CHARS_MAX and text.isascii() and text.isdigit()
    return int(text) if is_count else otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Selects dead-letter messages; an empty field matches all. `error` and `reason` match substrings, ignoring case."""

    topic: str = ""
    tag: str = ""
    keys: tuple[str, ...] = ()
    message_ids: frozenset[str] = frozenset()
    error: str = ""
    reason: str = ""
    since_ms: int = 0
    until_ms: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if the filter matches every message."""
        return self == DeadLetterFilter()

    def matches(self, dead: DeadLetter) -> bool:
        message = dead.message
        ids = {dead.message_id, message.message_id, message.offset_message_id}
        return (
            self.topic in ("", dead.topic)
            and self.tag in ("", message.tag or "")
            and all(key in message.keys for key in self.keys)
            and (not self.message_ids or not self.message_ids.isdisjoint(ids))
            and self.error.casefold() in dead.error.casefold()
            and self.reason.casefold() in dead.reason.casefold()
            and self.since_ms <= dead.died_ms
            and (not self.until_ms or dead.died_ms < self.until_ms)
            and all(message.properties.get(name) == value for name, value in self.properties.items())
        )
