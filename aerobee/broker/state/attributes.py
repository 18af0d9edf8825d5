"""Attributes of topics and groups: validates an administrator's changes, and applies them to the stored attributes.

Source: AttributeUtil, TopicAttributes, SubscriptionGroupAttributes (RocketMQ). A change is written `+key=value` to set and
`-key` to remove, several separated by commas; stored keys have no sign. An immutable attribute is set when the topic
is created and never again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from aerobee.broker.state.ack_level import LEVELS
from aerobee.errors import UsageError
from aerobee.message import LEGAL_NAME
from aerobee.remoting.protocol import (
    ACK_LEVEL_ATTRIBUTE,
    LITE_BIND_TOPIC,
    LITE_EXCLUSIVE,
    LITE_EXPIRATION,
    LITE_MODEL,
    LITE_QUOTA,
    LITE_RESET_ON_EXCLUSION,
    LITE_RESET_ON_UNSUBSCRIBE,
    LITE_SHARED,
    LITE_WILDCARD,
    MESSAGE_TYPES,
    TYPE_ATTRIBUTE,
)

_NUMBER = re.compile(r"-?[0-9]{1,19}\Z")


@dataclass(frozen=True, slots=True)
class Attribute:
    """Allowed values of an attribute: one of `values`, a text that matches `pattern`, or without them a number from `low` to `high`."""

    values: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    low: int = 0
    high: int = 2**63 - 1
    changeable: bool = True

    def check(self, key: str, value: str) -> None:
        """Raise UsageError, with a sentence for operators, when the attribute cannot have this value."""
        if self.values:
            if value not in self.values:
                raise UsageError(f"attribute {key} is {value!r}, must be one of {', '.join(self.values)}")
            return
        if self.pattern is not None:
            if not self.pattern.match(value):
                raise UsageError(f"attribute {key} is {value!r}, must match {self.pattern.pattern}")
            return
        if not _NUMBER.match(value) or not self.low <= int(value) <= self.high:
            raise UsageError(f"attribute {key} is {value!r}, must be a number from {self.low} to {self.high}")


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(("BatchCQ", "SimpleCQ"), changeable=False),
    "cleanup.policy": Attribute(("DELETE", "COMPACTION"), changeable=False),
    TYPE_ATTRIBUTE: Attribute(MESSAGE_TYPES),
    "reserve.time": Attribute(low=-1),
    ACK_LEVEL_ATTRIBUTE: Attribute(tuple(LEVELS)),
    LITE_EXPIRATION: Attribute(low=-1),
}
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {
    "priority.factor": Attribute(low=0, high=100),
    LITE_BIND_TOPIC: Attribute(pattern=LEGAL_NAME),
    LITE_MODEL: Attribute((LITE_SHARED, LITE_EXCLUSIVE)),
    LITE_RESET_ON_EXCLUSION: Attribute(("true", "false")),
    LITE_RESET_ON_UNSUBSCRIBE: Attribute(("true", "false")),
    LITE_QUOTA: Attribute(low=-1),
    "lite.sub.client.max.event.cnt": Attribute(low=10),
    LITE_WILDCARD: Attribute(pattern=LEGAL_NAME),
}


def parse_changes(text: str) -> dict[str, str]:
    """Split `+message.type=FIFO,-reserve.time` into {signed key: value}. Raises UsageError."""
    changes: dict[str, str] = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        key, separator, value = piece.partition("=")
        if not (piece.startswith("+") and separator) and not (piece.startswith("-") and not separator):
            raise UsageError(f"attribute change {piece!r}: write +key=value to set and -key to remove")
        if key in changes:
            raise UsageError(f"attribute {key[1:]!r} is named twice")
        changes[key] = value
    return changes


def apply_changes(
    stored: Mapping[str, str], changes: Mapping[str, str], known: Mapping[str, Attribute], *, creating: bool
) -> dict[str, str]:
    """Return the stored attributes after the changes ({signed key: value}). Raises UsageError."""
    result = dict(stored)
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if sign not in ("+", "-") or not key:
            raise UsageError(f"attribute key {signed!r}: it begins with + to set and with - to remove")
        attribute = known.get(key)
        if attribute is None:
            raise UsageError(f"attribute {key!r} is not known; known are {', '.join(known)}")
        if creating and sign == "-":
            raise UsageError(f"attribute {key} cannot be removed from what is only being created")
        if not creating and not attribute.changeable and not (sign == "+" and result.get(key) == value):
            raise UsageError(f"attribute {key} is set when the topic is created and cannot be changed")
        if sign == "+":
            attribute.check(key, value)
            result[key] = value
        elif key not in result:
            raise UsageError(f"attribute {key} is not set, so it cannot be removed")
        else:
            del result[key]
    return result
