"""Cuts the messages of one send_batch() into requests. A core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aerobee.client.session.send_header import Ids, encode_batch_entry
from aerobee.errors import UsageError
from aerobee.message import PRIORITY, RETRY_PREFIX, Message
from aerobee.property_names import ACK_LEVEL, DEDUP_KEY, LITE_TOPIC, TIMER_REQUESTS, TRAN_MSG

# Brokers look at these properties outside of batches only.
NOT_IN_BATCHES = frozenset(
    {
        DEDUP_KEY,
        ACK_LEVEL,
        LITE_TOPIC,
        "INNER_MULTI_DISPATCH",
        PRIORITY,
        TRAN_MSG,
        *TIMER_REQUESTS,
    }
)


class BatchRequest(NamedTuple):
    """Messages of one topic: their positions in the list, their ids, and their entries back to back."""

    topic: str
    indices: list[int]
    unique_ids: list[str]
    body: bytes


def split(
    messages: Sequence[Message], check: Callable[[Message], None], ids: Ids, now_ms: int, bytes_max: int
) -> list[BatchRequest]:
    """Cut a list of messages into requests of at most `bytes_max` bytes. `check` raises UsageError for a message that
    can never be stored. Raises UsageError for an empty list, and for a message that no batch can have."""
    if not messages:
        raise UsageError("the batch is empty: give at least one message")
    open_requests: dict[str, tuple[list[int], list[str], list[bytes]]] = {}
    sizes: dict[str, int] = {}
    requests: list[BatchRequest] = []

    def finish(topic: str) -> None:
        indices, unique_ids, parts = open_requests.pop(topic)
        requests.append(BatchRequest(topic, indices, unique_ids, b"".join(parts)))

    for index, message in enumerate(messages):
        check(message)
        _check_batched(index, message)
        unique_id = ids.next_id(now_ms)
        entry = encode_batch_entry(message, unique_id)
        if message.topic in open_requests and sizes[message.topic] + len(entry) > bytes_max:
            finish(message.topic)
        indices, unique_ids, parts = open_requests.setdefault(message.topic, ([], [], []))
        sizes[message.topic] = (sizes[message.topic] if parts else 0) + len(entry)
        indices.append(index)
        unique_ids.append(unique_id)
        parts.append(entry)
    for topic in tuple(open_requests):
        finish(topic)
    return requests


def _check_batched(index: int, message: Message) -> None:
    """Raise UsageError for a message that no batch can have."""
    if message.is_delayed or message.topic.startswith(RETRY_PREFIX):
        raise UsageError(f"message {index} of the batch is delayed or for a retry topic: send it on its own")
    if message.ack is not None:
        raise UsageError(
            f"message {index} of the batch has ack={message.ack!r}; a batch has the level of its topic: send it on its own"
        )
    unseen = sorted(NOT_IN_BATCHES & message.properties.keys())
    if message.priority >= 0:
        unseen.append(PRIORITY)
    if unseen:
        raise UsageError(
            f"message {index} of the batch has the property {unseen[0]}, which brokers see outside of batches only: send it on its own"
        )
