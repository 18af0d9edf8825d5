"""A row of a DataFrame as a message, and its deduplication key. Core."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aerobee.errors import AerobeeError, UsageError
from aerobee.message import Message
from aerobee.property_names import DEDUP_KEY
from aerobee.quick_init import quick_init


class SinkError(AerobeeError):
    """A row could not be sent. The text has the row's number in its task, its topic, and the cause."""


@quick_init
@dataclass(frozen=True, slots=True)
class OutgoingRow:
    """A row to send. `number` counts rows of the task from 0. Empty keys: none."""

    number: int
    message: Message
    message_group: str
    dedup_key: str

    @property
    def is_plain(self) -> bool:
        """Whether the row may be in one request with other rows."""
        message = self.message
        return not self.message_group and not self.dedup_key and message.deliver_at is None


def outgoing_rows(
    columns: Mapping[str, Sequence[Any]],
    numbers: Sequence[int],
    *,
    topic: str,
    dedup_prefix: str | None = None,
) -> Iterator[OutgoingRow]:
    """The rows of columns, each as long as `numbers`; otherwise as outgoing_row()."""
    if topic and dedup_prefix is None and columns.keys() == {"value"}:
        for number, value in zip(numbers, columns["value"], strict=True):
            if type(value) is bytes:  # nothing to check: the fast path of the most common rows
                yield OutgoingRow(number, Message(topic, value), "", "")
            else:
                yield outgoing_row(number, {"value": value}, topic=topic)
        return
    for number, values in zip(numbers, zip(*columns.values(), strict=True), strict=True):
        row = dict(zip(columns, values, strict=True))
        yield outgoing_row(number, row, topic=topic, dedup_prefix=dedup_prefix)


def outgoing_row(
    number: int, row: Mapping[str, Any], *, topic: str, dedup_prefix: str | None = None
) -> OutgoingRow:
    """Check a row and create its message. `topic`: from the options, takes precedence over the column.

    `dedup_prefix`: prefix of the generated dedup key of rows without one; None: without deduplication.
    Raises SinkError.
    """
    name = topic or row.get("topic") or ""
    try:
        if not name:
            raise UsageError("its topic is null, and the option topic is not set")
        value = row.get("value")
        if value is None:
            raise UsageError("its value is null: RocketMQ has no empty message; leave such rows out")
        body = value.encode() if isinstance(value, str) else bytes(value)
        properties = dict(row.get("properties") or ())
        message_group, dedup_key = row.get("message_group") or "", row.get("dedup_key") or ""
        if dedup_prefix is not None and not dedup_key:
            dedup_key = f"{dedup_prefix}/{number}/{_digest(name, body, row)}"
        if dedup_key:
            properties[DEDUP_KEY] = dedup_key
        key = row.get("key")
        message = Message(
            name,
            body,
            tag=row.get("tags") or None,
            keys=tuple(key.split()) if key else (),
            properties=properties,
            deliver_at=row.get("deliver_at"),
        )
    except UsageError as error:
        raise SinkError(f"row {number} of the task, for topic {name or 'unknown'}: {error}") from error
    return OutgoingRow(number, message, message_group, dedup_key)


def _digest(topic: str, body: bytes, row: Mapping[str, Any]) -> str:
    """Sixteen hex digits of the content: if a repeated task has its rows in another order, they are sent
    again rather than lost.
    """
    content = hashlib.blake2b(body, digest_size=8)
    rest = (
        topic,
        row.get("key"),
        row.get("tags"),
        row.get("properties"),
        row.get("deliver_at"),
        row.get("message_group"),
    )
    content.update(repr(rest).encode())
    return content.hexdigest()
