"""Type of a message, the check of its topic's type, and the queue of a message with a priority.

Follows TopicMessageType and SendMessageProcessor (RocketMQ 5.5.0). A kind is read from properties, the first that fits:

    TRAN_MSG=true                                                   TRANSACTION
    DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC or TIMER_DELAY_MS      DELAY
    __SHARDINGKEY                                                   FIFO
    _SYS_MSG_PRIORITY_                                              PRIORITY
    __LITE_TOPIC                                                    LITE
    none of them                                                    NORMAL

RocketMQ's broker takes any kind in any topic; its proxy compares the kind with the topic's attribute message.type
(enableTopicMessageTypeCheck): equal, or the topic is MIXED. Here the broker does the proxy's check for every client when
that key is set. A topic without the attribute takes NORMAL messages then, as at the proxy, and of a batch the outer
properties count, which makes it NORMAL.

A message with priority n goes to queue min(n, writeQueueNums - 1), independent of the sender's queue; a pop of a
PRIORITY topic reads the queues in descending order. On a message that is of another kind the priority means nothing and
is removed.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.errors import RemoteError
from aerobee.message import PRIORITY, PRIORITY_MAX, RETRY_PREFIX, SHARDING_KEY
from aerobee.property_names import DELAY, LITE_TOPIC, TIMER_DELAYS
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.protocol import TYPE_ATTRIBUTE

NORMAL = "NORMAL"
MIXED = "MIXED"
DELAY_PROPERTIES = (DELAY, *TIMER_DELAYS)
# Topic types whose plain messages the hot path may take while kinds are checked.
PLAIN_TYPES = frozenset({NORMAL, MIXED})


def type_of(properties: Mapping[str, str]) -> str:
    """The kind of a message with these properties."""
    if properties.get("TRAN_MSG", "").lower() == "true":
        return "TRANSACTION"
    if any(name in properties for name in DELAY_PROPERTIES):
        return "DELAY"
    if SHARDING_KEY in properties:
        return "FIFO"
    if PRIORITY in properties:
        return "PRIORITY"
    return "LITE" if LITE_TOPIC in properties else NORMAL


def check_type(topic: TopicConfig, properties: Mapping[str, str]) -> None:
    """Raise RemoteError unless the topic takes this kind of message. Retry topics take every kind."""
    expected = topic.attributes.get(TYPE_ATTRIBUTE, NORMAL)
    actual = type_of(properties)
    if expected in (actual, MIXED) or topic.topic_name.startswith(RETRY_PREFIX):
        return
    raise RemoteError(
        ResponseCode.MESSAGE_ILLEGAL,
        f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {actual}: topic "
        f"{topic.topic_name} has {TYPE_ATTRIBUTE} {expected}, and this broker checks it (enableTopicMessageTypeCheck)",
    )


def priority_queue(properties: dict[str, str], write_queue_nums: int) -> int | None:
    """The queue that a message's priority asks for, None when it has none. A priority without meaning is removed."""
    text = properties.get(PRIORITY)
    if text is None:
        return None
    digits = text.removeprefix("+")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 10 or int(digits) > PRIORITY_MAX:
        return None  # RocketMQ: not a number, or negative, is no priority, and the property stays
    if type_of(properties) != "PRIORITY":
        del properties[PRIORITY]
        return None
    return min(int(digits), max(1, write_queue_nums) - 1)
