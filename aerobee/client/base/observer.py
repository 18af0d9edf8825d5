"""Observers of sends and handler calls: message trace, OpenTelemetry, or user code.

Follows SendMessageHook and ConsumeMessageHook (RocketMQ). An exception of an observer is logged and has no effect; its
return value is used. Without observers a send only checks an empty tuple.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from aerobee.client.base.received import ReceivedMessage
from aerobee.client.base.results import SendResult
from aerobee.message import Message

log = logging.getLogger(__name__)

# Called once when the send has ended, with its result or its exception.
SendEnded = Callable[[SendResult | None, BaseException | None], None]
# Called once when the handler has ended, with None or the exception it raised.
ConsumeEnded = Callable[[BaseException | None], None]


class SendObserver(Protocol):
    """Observer of sends."""

    def sending(self, message: Message) -> tuple[Message, SendEnded]:
        """Return the message to send instead (usually the same one), and a callback for the end of the send."""
        ...


class ConsumeObserver(Protocol):
    """Observer of handler calls."""

    def consuming(self, group: str, messages: Sequence[ReceivedMessage]) -> ConsumeEnded:
        """Called in the handler's task before the handler receives these messages; return a callback for the end of the
        call."""
        ...


def begin_send(observers: Sequence[SendObserver], message: Message) -> tuple[Message, SendEnded]:
    """Notify every observer of a send."""
    ends: list[SendEnded] = []
    for observer in observers:
        try:
            message, ended = observer.sending(message)
        except Exception:
            log.exception("an observer of sends failed: %r", observer)
            continue
        ends.append(ended)

    def all_ended(result: SendResult | None, error: BaseException | None) -> None:
        for ended in reversed(ends):
            try:
                ended(result, error)
            except Exception:
                log.exception("an observer of sends failed")

    return message, all_ended


def begin_consume(
    observers: Sequence[ConsumeObserver], group: str, messages: Sequence[ReceivedMessage]
) -> ConsumeEnded:
    """Notify every observer of a handler call."""
    ends: list[ConsumeEnded] = []
    for observer in observers:
        try:
            ends.append(observer.consuming(group, messages))
        except Exception:
            log.exception("an observer of handlers failed: %r", observer)

    def all_ended(error: BaseException | None) -> None:
        for ended in reversed(ends):
            try:
                ended(error)
            except Exception:
                log.exception("an observer of handlers failed")

    return all_ended


def observed(
    handler: Callable[[Any], Any], observers: Sequence[ConsumeObserver], group: str
) -> Callable[[Any], Any]:
    """The handler wrapped by observers; arguments, result and exceptions are unchanged."""

    async def handle(messages: Any) -> Any:
        ended = begin_consume(observers, group, messages if isinstance(messages, list) else [messages])
        try:
            returned = handler(messages)
            if inspect.isawaitable(returned):
                returned = await returned
        except BaseException as error:
            ended(error)
            raise
        ended(None)
        return returned

    return handle
