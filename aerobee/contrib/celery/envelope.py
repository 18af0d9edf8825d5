"""Kombu's messages in messages of RocketMQ. Core.

The body is Kombu's own envelope as JSON, which its transports for Redis and SQS write too: body, content type and
encoding, headers, properties. The task id becomes the index key, so that `aerobee message key` finds the task, and the
name of the task the property `celery_task`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kombu.utils.json import dumps, loads

from aerobee.errors import MalformedRecord
from aerobee.message import Message, check_topic_name

TASK_PROPERTY = "celery_task"
_TEXT_CHARS_MAX = 200
# A timer of RocketMQ is up to a second early (timerPrecisionMs); the worker waits for the rest.
EARLY_S = 1.0
Envelope = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Due:
    """Time at which a broker is to deliver, in seconds since the epoch. `is_final`: it is the ETA itself."""

    at_s: float
    is_final: bool


def encode(envelope: Envelope, topic: str, *, tag: str | None = None, priority: int = -1) -> Message:
    """A message of the topic. Raises UsageError for an illegal topic, TypeError for content that JSON cannot hold."""
    check_topic_name(topic)
    headers = envelope.get("headers") or {}
    task_id, name = _index_text(headers.get("id")), _index_text(headers.get("task"))
    return Message(
        topic,
        dumps(envelope).encode(),
        tag=tag,
        keys=(task_id,) if task_id and " " not in task_id else (),
        properties={TASK_PROPERTY: name} if name else {},
        priority=priority,
    )


def decode(body: bytes) -> Envelope:
    """The envelope of a body. Raises MalformedRecord when Kombu did not write it."""
    try:
        envelope = loads(body)
    except Exception as error:  # Kombu calls decoders by names in the body, with any value
        raise MalformedRecord(f"the body is not JSON of Kombu: {error!r}") from error
    if not isinstance(envelope, dict) or not isinstance(envelope.get("properties"), dict):
        raise MalformedRecord("the body is not a message of Kombu: an object with `properties` was expected")
    if not isinstance(envelope["properties"].setdefault("delivery_info", {}), dict):
        raise MalformedRecord("the body is not a message of Kombu: delivery_info is no object")
    headers = envelope.setdefault("headers", {})
    if not isinstance(headers, dict):
        raise MalformedRecord("the body is not a message of Kombu: headers is no object")
    return envelope


def eta_s(envelope: Envelope) -> float | None:
    """The ETA of a task in seconds since the epoch, None without one. An ETA without a time zone is UTC."""
    text = (envelope.get("headers") or {}).get("eta")
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None  # the worker reports it: Celery acknowledges the task as invalid


def due(envelope: Envelope, now_s: float, delay_max_s: float) -> Due | None:
    """When a broker should deliver the task; None: now. An ETA beyond the maximum delay takes several steps."""
    at_s = eta_s(envelope)
    if at_s is None or at_s - now_s <= EARLY_S:
        return None
    last_s = now_s + delay_max_s
    return Due(at_s, True) if at_s <= last_s else Due(last_s, False)


def is_expired(envelope: Envelope, stored_ms: int, now_ms: int) -> bool:
    """Whether the publisher's `expiration` (ms, text) has passed since the broker stored the message."""
    text = envelope["properties"].get("expiration")
    if text is None:
        return False
    try:
        return now_ms - stored_ms > float(text)
    except (TypeError, ValueError, OverflowError):
        return False


def priority_queue(envelope: Envelope, queue_count: int) -> int:
    """The queue id of the message's priority in a topic of `queue_count` queues: higher is more urgent."""
    try:
        wanted = int(envelope["properties"].get("priority") or 0)
    except (TypeError, ValueError, OverflowError):
        wanted = 0
    return max(0, min(wanted, queue_count - 1))


def _index_text(value: Any) -> str:
    """`value` when it can be a key or a property, else an empty text."""
    if not isinstance(value, str) or len(value) > _TEXT_CHARS_MAX or not value.isprintable():
        return ""
    return value
