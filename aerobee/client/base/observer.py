"""Who watches what a client sends and consumes: message trace, OpenTelemetry, or code of the user's.

Follows SendMessageHook and ConsumeMessageHook (RocketMQ). An observer must not fail: what it raises is logged and
changes nothing, but what it returns is used. Without observers a send costs one look at an empty tuple.
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

# Called once when the send has ended: with its result, or with the failure.
SendEnded = Callable[[SendResult | None, BaseException | None], None]
# Called once when the handler has ended: with nothing, or with what it raised.
ConsumeEnded = Callable[[BaseException | None], None]


class SendObserver(Protocol):
    """Watches sends."""

    def sending(self, message: Message) -> tuple[Message, SendEnded]:
        """Return the message to send in place of this one (mostly itself), and whom to tell of the end."""
        ...


class ConsumeObserver(Protocol):
    """Watches handler calls."""

    def consuming(self, group: str, messages: Sequence[ReceivedMessage]) -> ConsumeEnded:
        """A handler is about to get these messages, in the task that calls this; return whom to tell of the end."""
        ...


def begin_send(observers: Sequence[SendObserver], message: Message) -> tuple[Message, SendEnded]:
    """Tell every observer of a send."""
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
    """Tell every observer of a handler call."""
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
    """The handler with observers around it; it gets, returns and raises what it did."""

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
