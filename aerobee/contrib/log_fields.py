"""Fields of the message in each log record of a handler: for `logging` and for structlog, without a further package.

    PushConsumer(..., observers=[LogFields()])      # or install(LogFields()) for all consumers that are made afterwards
    handler.addFilter(MessageFilter())              # of `logging`: record.topic, record.message_id, …
    structlog.configure(processors=[add_message_fields, ...])

While a handler runs, a context variable has the fields, so tasks that the handler starts and threads of plain handlers have them,
too. Outside of handlers a log record has none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from aerobee.client.base.observer import ConsumeEnded
from aerobee.client.base.received import ReceivedMessage

FIELDS = ("group", "topic", "broker_name", "queue_id", "queue_offset", "message_id", "delivery_attempt")
NOTHING: Mapping[str, str | int] = MappingProxyType({})

_fields: ContextVar[Mapping[str, str | int]] = ContextVar("aerobee_message_fields", default=NOTHING)


def message_fields() -> Mapping[str, str | int]:
    """The fields of the message that is being handled; empty outside of a handler.

    `group`, `topic`, `broker_name`, `queue_id`, `queue_offset`, `message_id`, `delivery_attempt` (1 for the first delivery). A handler
    call with several messages has the fields of the first one and `message_count`.
    """
    return _fields.get()


class LogFields:
    """An observer of handler calls, which sets the fields of message_fields()."""

    def consuming(self, group: str, messages: Sequence[ReceivedMessage]) -> ConsumeEnded:
        """A handler call begins."""
        before, fields = _fields.get(), _fields_of(group, messages)
        _fields.set(fields)

        def ended(_error: BaseException | None) -> None:
            # The message of an `async for` may be acknowledged in another task, whose fields stay.
            if _fields.get() is fields:
                _fields.set(before)

        return ended


@contextmanager
def handling(group: str, message: ReceivedMessage) -> Iterator[None]:
    """A block in which the application handles a message of poll() or receive(): its log records have the fields."""
    token = _fields.set(_fields_of(group, [message]))
    try:
        yield
    finally:
        _fields.reset(token)


class MessageFilter(logging.Filter):
    """Adds the fields as attributes to each log record: None outside of handlers, so that a format string may name them."""

    def __init__(self, prefix: str = "") -> None:
        """`prefix` goes in front of the names of the attributes, for example "mq_"."""
        super().__init__()
        self._prefix = prefix

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass every record on."""
        fields = _fields.get()
        for name in FIELDS:
            setattr(record, self._prefix + name, fields.get(name))
        return True


def add_message_fields(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A processor of structlog, which adds the fields that the event does not have itself."""
    for name, value in _fields.get().items():
        event.setdefault(name, value)
    return event


def _fields_of(group: str, messages: Sequence[ReceivedMessage]) -> Mapping[str, str | int]:
    first = messages[0]
    found: dict[str, str | int] = {
        "group": group,
        "topic": first.topic,
        "broker_name": first.queue.broker_name,
        "queue_id": first.queue.queue_id,
        "queue_offset": first.queue_offset,
        "message_id": first.message_id,
        "delivery_attempt": first.reconsume_times + 1,
    }
    if len(messages) > 1:
        found["message_count"] = len(messages)
    return found
