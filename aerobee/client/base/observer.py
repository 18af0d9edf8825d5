"""Observers of sends, receives and handler calls: message trace, OpenTelemetry, log fields, or user code.

Follows SendMessageHook and ConsumeMessageHook (RocketMQ). An exception of an observer is logged and has no effect; its
return value is used. Without observers a send only checks an empty tuple. A client calls an observer for what the observer has
methods for. install() adds one to all clients that are made afterwards, without a change of the code that makes them.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Protocol, runtime_checkable

from aerobee.client.base.received import ReceivedMessage
from aerobee.client.base.results import SendResult
from aerobee.client.base.trace_record import TRACE_GROUP
from aerobee.message import Message

log = logging.getLogger(__name__)

# Called once when the send has ended, with its result or its exception.
SendEnded = Callable[[SendResult | None, BaseException | None], None]
# Called once when the handler has ended, with None or the exception it raised.
ConsumeEnded = Callable[[BaseException | None], None]


# Called once when a batch has ended, with the result of each message, None for one that is not confirmed, and the error of the send.
SendBatchEnded = Callable[[Sequence[SendResult | None], BaseException | None], None]
# Called once with what a receive returned, empty after an exception.
ReceiveEnded = Callable[[Sequence[ReceivedMessage], BaseException | None], None]


@runtime_checkable
class SendObserver(Protocol):
    """Observer of sends. One without `sending_batch` is called for each message of a batch."""

    def sending(self, message: Message) -> tuple[Message, SendEnded]:
        """Return the message to send instead (usually the same one), and a callback for the end of the send."""
        ...


@runtime_checkable
class BatchObserver(Protocol):
    """A SendObserver that is called once for all messages of send_batch().

    A protocol of its methods only: aerobee.contrib.opentelemetry and applications have such observers.
    """

    def sending_batch(self, messages: Sequence[Message]) -> tuple[Sequence[Message], SendBatchEnded]:
        """Return the messages to send instead, in their order, and a callback for the end of the send."""
        ...


@runtime_checkable
class ReceiveObserver(Protocol):
    """Observer of PullConsumer.poll(), SimpleConsumer.receive() and the calls that settle received messages.

    A protocol of its methods only: aerobee.contrib.opentelemetry and applications have such observers.
    A ConsumeObserver without these methods is called as for a handler call that has ended when poll() or receive() returns.
    """

    def receiving(self, group: str) -> ReceiveEnded:
        """A receive begins; return a callback for its end. The callback is not called for a receive without messages that
        ends in time."""
        ...

    def settling(self, group: str, operation: str, messages: Sequence[ReceivedMessage]) -> ConsumeEnded:
        """A call begins that settles messages: `operation` is ack, change_invisible or dead_letter; return a callback for its
        end."""
        ...


@runtime_checkable
class ConsumeObserver(Protocol):
    """Observer of handler calls."""

    def consuming(self, group: str, messages: Sequence[ReceivedMessage]) -> ConsumeEnded:
        """Called in the handler's task before the handler receives these messages; return a callback for the end of the
        call."""
        ...


Observer = SendObserver | ConsumeObserver | ReceiveObserver
_installed: list[Observer] = []


def install(observer: Observer) -> None:
    """Let the clients that are made from now on call `observer`, before the observers that they are given."""
    if observer not in _installed:
        _installed.append(observer)


def uninstall(observer: Observer) -> None:
    """Undo install() for the clients that are made from now on."""
    if observer in _installed:
        _installed.remove(observer)


def _of_group(observers: Sequence[Observer], tracer: Observer | None, group: str) -> tuple[Observer, ...]:
    """The installed observers, those of one client, and its tracer. The sender of trace records has none."""
    if group.startswith(TRACE_GROUP):
        return ()
    found = {id(each): each for each in chain(_installed, observers)}
    return (*found.values(), *(() if tracer is None else (tracer,)))


def chosen_send_observers(
    observers: Sequence[SendObserver], tracer: SendObserver | None, group: str
) -> tuple[SendObserver, ...]:
    """The observers of a producer."""
    return tuple(each for each in _of_group(observers, tracer, group) if isinstance(each, SendObserver))


def chosen_consume_observers(
    observers: Sequence[ConsumeObserver], tracer: ConsumeObserver | None, group: str
) -> tuple[ConsumeObserver, ...]:
    """The observers of a consumer with handler calls."""
    return tuple(each for each in _of_group(observers, tracer, group) if isinstance(each, ConsumeObserver))


def chosen_observers(
    observers: Sequence[ConsumeObserver | ReceiveObserver], tracer: ConsumeObserver | None, group: str
) -> tuple[ConsumeObserver | ReceiveObserver, ...]:
    """The observers of a consumer whose application receives."""
    return tuple(
        each
        for each in _of_group(observers, tracer, group)
        if isinstance(each, (ReceiveObserver, ConsumeObserver))
    )


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


def begin_send_batch(
    observers: Sequence[SendObserver], batch: list[Message]
) -> tuple[list[Message], SendBatchEnded]:
    """Notify every observer of the send of a batch."""
    ends: list[SendBatchEnded] = []
    for observer in observers:
        try:
            if isinstance(observer, BatchObserver):
                messages, ended = observer.sending_batch(batch)
            else:
                messages, ended = _one_by_one(observer, batch)
        except Exception:
            log.exception("an observer of sends failed: %r", observer)
            continue
        batch = list(messages)
        ends.append(ended)

    def all_ended(results: Sequence[SendResult | None], error: BaseException | None) -> None:
        for ended in reversed(ends):
            try:
                ended(results, error)
            except Exception:
                log.exception("an observer of sends failed")

    return batch, all_ended


def _one_by_one(observer: SendObserver, batch: Sequence[Message]) -> tuple[Sequence[Message], SendBatchEnded]:
    begun = [observer.sending(message) for message in batch]

    def ended(results: Sequence[SendResult | None], error: BaseException | None) -> None:
        for (_, end), result in zip(begun, results, strict=True):
            end(result, error if result is None else None)

    return [message for message, _ in begun], ended


def begin_receive(observers: Sequence[ConsumeObserver | ReceiveObserver], group: str) -> ReceiveEnded:
    """Notify every observer of a receive."""
    ends: list[ReceiveEnded] = []
    for observer in observers:
        try:
            if isinstance(observer, ReceiveObserver):
                ends.append(observer.receiving(group))
        except Exception:
            log.exception("an observer of receives failed: %r", observer)

    def all_ended(messages: Sequence[ReceivedMessage], error: BaseException | None) -> None:
        if not messages and error is None:
            return
        for ended in reversed(ends):
            try:
                ended(messages, error)
            except Exception:
                log.exception("an observer of receives failed")
        others = [each for each in observers if not isinstance(each, ReceiveObserver)]
        if messages and others:
            # The consumer only knows that the messages were returned to the caller.
            begin_consume(others, group, messages)(None)

    return all_ended


def begin_settle(
    observers: Sequence[ConsumeObserver | ReceiveObserver],
    group: str,
    operation: str,
    messages: Sequence[ReceivedMessage],
) -> ConsumeEnded:
    """Notify every ReceiveObserver of a call that settles messages."""
    ends: list[ConsumeEnded] = []
    for observer in observers:
        try:
            if isinstance(observer, ReceiveObserver):
                ends.append(observer.settling(group, operation, messages))
        except Exception:
            log.exception("an observer of receives failed: %r", observer)
    return _all_ended(ends, "an observer of receives failed")


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

    return _all_ended(ends, "an observer of handlers failed")


def _all_ended(ends: Sequence[ConsumeEnded], trouble: str) -> ConsumeEnded:
    def all_ended(error: BaseException | None) -> None:
        for ended in reversed(ends):
            try:
                ended(error)
            except Exception:
                log.exception(trouble)

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
