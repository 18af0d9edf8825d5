"""Properties of a message that a consumer sends back: the error, and in a dead-letter message its origin.

RocketMQ's brokers leave only RETRY_TOPIC and ORIGIN_MESSAGE_ID (the offset in the log of the first record) in a dead letter.
Here these come with it, so that dead letters can be read and sent again with any tool:

    DLQ_ORIGIN_TOPIC        the topic that it was sent to
    DLQ_ORIGIN_MESSAGE_ID   the id that its producer got (UNIQ_KEY, which it keeps, too)
    DLQ_REASON              why there is no further try
    DLQ_TRIES               how often it was handed to a consumer
    ORIGIN_POSITION         broker/queue@offset that it had in this topic; also while it is being retried
    LAST_ERROR              the text of the last error, when the consumer told it; also while it is being retried

A consumer says the last three in fields of its request that RocketMQ does not know. They are text of a peer: bounded, and
without the characters that separate properties.
"""

from __future__ import annotations

from aerobee.message import (
    DEAD_LETTER_REASON,
    DELIVERY_TRIES,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    LAST_ERROR,
    NAME_SEPARATOR,
    ORIGIN_POSITION,
    PROPERTIES_BYTES_MAX,
    PROPERTY_SEPARATOR,
    encode_properties,
)
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig

CAUSE_CHARS_MAX = 1024
TRIES_MAX = 1 << 31
_CLEAN = {ord(NAME_SEPARATOR): " ", ord(PROPERTY_SEPARATOR): " "}


def note_error(properties: dict[str, str], told: str) -> None:
    """Store the error that a consumer sends with the sent-back message; "" for none."""
    _set(properties, LAST_ERROR, _clean(told))


def note_position(properties: dict[str, str], broker_name: str, queue_id: int, queue_offset: int) -> None:
    """Keep where a message was before its first retry: its copies are named by it in logs."""
    _set(properties, ORIGIN_POSITION, f"{broker_name}/{queue_id}@{queue_offset}")


def note_death(
    properties: dict[str, str],
    *,
    topic: str,
    message_id: str,
    tries: int,
    reason: str,
    told_tries: str = "",
    told_reason: str = "",
) -> None:
    """Make `properties` those of a dead letter. `tries` and `reason` are what the broker knows, unless the consumer tells more."""
    told_tries, told_reason = _clean(told_tries), _clean(told_reason)
    if told_tries.isascii() and told_tries.isdigit():
        tries = min(int(told_tries[:12]), TRIES_MAX)
    _set(properties, DLQ_ORIGIN_TOPIC, topic)
    _set(properties, DLQ_ORIGIN_MESSAGE_ID, message_id)
    if DELIVERY_TRIES not in properties:
        _set(properties, DELIVERY_TRIES, str(tries))
    if told_reason or DEAD_LETTER_REASON not in properties:
        _set(properties, DEAD_LETTER_REASON, told_reason or reason)


def tries_bound(group: SubscriptionGroupConfig, requested: int | None) -> int:
    """The tries after which a message is dead: as the request says, else as the group is set (retryMaxTimes).

    -1 leaves it to the group in a request, and is "for ever" in the group: no message has been tried so often. RocketMQ's broker
    compares with the number itself, so that -1 makes each message dead at its first failure (apache/rocketmq 7842).
    """
    bound = group.retry_max_times if requested is None or requested < 0 else requested
    return bound if bound >= 0 else TRIES_MAX


def tries_failed(tries: int) -> str:
    """The cause of a dead letter in words: all tries failed."""
    return f"{tries} {'try' if tries == 1 else 'tries'} failed"


def _clean(told: str) -> str:
    """A consumer's text, cut to CAUSE_CHARS_MAX characters, with separators replaced by spaces."""
    return told[:CAUSE_CHARS_MAX].translate(_CLEAN).strip()


def _set(properties: dict[str, str], name: str, text: str) -> None:
    """Set a property when there is text and space for it; what a client sent is never pushed out."""
    if not text:
        return
    changed = properties | {name: text}
    if len(encode_properties(changed).encode(errors="surrogateescape")) <= PROPERTIES_BYTES_MAX:
        properties[name] = text
