"""A received message as parsers and handlers of FastStream see it, `message.raw_message`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Protocol

from aerobee.client.base.received import ReceivedMessage
from aerobee.message import SHARDING_KEY, Message
from aerobee.property_names import CORRELATION_ID, REPLY_TO_CLIENT, SYSTEM_PROPERTIES, UNIQUE_KEY

# Properties that carry what FastStream adds to a message, named as in its broker for Kafka.
CONTENT_TYPE, CORRELATION, REPLY_TO = "content-type", "correlation_id", "reply_to"
# RocketMQ's brokers refuse an empty body: it is sent as one zero byte, with this property.
EMPTY, EMPTY_BODY = "empty-body", b"\0"
# `reply_to` of a message that was sent with request(): its reply goes to the client, not over a topic.
TO_CLIENT = "client:"
REJECTED = "rejected by the handler"


class Settler(Protocol):
    """Receives the verdict on one delivery. Later verdicts on the same delivery have no effect."""

    def ack(self) -> None:
        """Consumed."""
        ...

    def nack(self, after_s: float | None) -> None:
        """Redeliver after `after_s` seconds, None: the delay of the next try."""
        ...

    def reject(self, reason: str) -> None:
        """Dead-letter the message."""
        ...


class Incoming:
    """One delivery. `record` is None in memory (TestAerobeeBroker) and for a reply no broker has stored."""

    __slots__ = ("body", "properties", "record", "settler", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes,
        properties: Mapping[str, str],
        record: ReceivedMessage | None = None,
        settler: Settler | None = None,
    ) -> None:
        """`properties`: all of the message, the system's included. Without a `settler` verdicts have no effect."""
        self.topic = topic
        self.body = b"" if EMPTY in properties and body == EMPTY_BODY else body
        self.properties = properties
        self.record = record
        self.settler = settler

    @classmethod
    def of(cls, record: ReceivedMessage, settler: Settler | None = None) -> Incoming:
        """The delivery of a record. Raises MessageDamaged for a body that does not match its CRC."""
        return cls(record.topic, record.body, record.properties, record, settler)

    @classmethod
    def of_sent(cls, message: Message, message_group: object = None) -> Incoming:
        """What a consumer would receive of a message that is not sent."""
        properties = {**message.properties, UNIQUE_KEY: uuid.uuid4().hex.upper()}
        if message.tag is not None:
            properties["TAGS"] = message.tag
        if message.keys:
            properties["KEYS"] = " ".join(message.keys)
        if message_group is not None:
            properties[SHARDING_KEY] = str(message_group)
        return cls(message.topic, bytes(message.body), properties)

    @property
    def tag(self) -> str | None:
        """Tag of the message. None: it has none."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> tuple[str, ...]:
        """Index keys of the message."""
        return tuple(self.properties.get("KEYS", "").split())

    @property
    def message_group(self) -> str | None:
        """Message group by which the producer ordered the message. None: none."""
        return self.properties.get(SHARDING_KEY)

    @property
    def message_id(self) -> str:
        """The id that the producer's send() returned."""
        return self.record.message_id if self.record is not None else self.properties.get(UNIQUE_KEY, "")

    @property
    def reconsume_times(self) -> int:
        """Number of earlier deliveries to the group."""
        return self.record.reconsume_times if self.record is not None else 0

    @property
    def headers(self) -> dict[str, str]:
        """The user properties, FastStream's own included."""
        return {
            name: value
            for name, value in self.properties.items()
            if name not in SYSTEM_PROPERTIES and name != SHARDING_KEY and name != EMPTY
        }

    @property
    def reply_to(self) -> str:
        """Where a reply is expected: a topic, TO_CLIENT for a request, "" for no reply."""
        if REPLY_TO_CLIENT in self.properties:
            return TO_CLIENT
        return self.properties.get(REPLY_TO, "")

    @property
    def correlation_id(self) -> str | None:
        """The sender's correlation id; of a client without FastStream the one of its request."""
        return self.properties.get(CORRELATION) or self.properties.get(CORRELATION_ID)

    def ack(self) -> None:
        """Acknowledge this message of a batch, whatever becomes of the others."""
        if self.settler is not None:
            self.settler.ack()

    def nack(self, delay: float | None = None) -> None:
        """Redeliver this message of a batch after `delay` seconds, None: `retry_delays_s` of the subscriber."""
        if self.settler is not None:
            self.settler.nack(delay)

    def reject(self, reason: str = REJECTED) -> None:
        """Dead-letter this message of a batch with `reason`."""
        if self.settler is not None:
            self.settler.reject(reason)

    def __repr__(self) -> str:
        return f"Incoming({self.record or f'{self.topic} {self.message_id}'})"
