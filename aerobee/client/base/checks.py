"""Checks of arguments at the client's public calls: the error states the given value, the expected one, and an
example.

They raise UsageError or ConfigError where Python itself would fail later and with a less helpful error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import operator
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from math import inf, isfinite
from typing import Any, TypeVar

from aerobee.errors import ConfigError, UsageError
from aerobee.message import Message, MessageQueue

C = TypeVar("C")
# Values that a field accepts, by its annotation; an int field refuses a bool.
_PLAIN: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}


def config_of(kind: type[C], value: C | None, name: str) -> C:
    """The given settings, or the default ones. Raises UsageError for anything but a `kind`."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]
        raise UsageError(
            f"{name} is a {kind.__name__}, this is {_a(value)}: write {name}={kind.__name__}({fields[0].name}=…)"
        )
    return value


def check_field_types(config: Any, part: str) -> None:
    """Raise ConfigError for a field of a settings dataclass whose value is of another type than it is declared."""
    for field in dataclasses.fields(config):
        wanted = str(field.type)
        value = getattr(config, field.name)
        kinds = _PLAIN.get(wanted)
        if kinds is None:
            kind = getattr(sys.modules[type(config).__module__], wanted, None)
            if isinstance(kind, type) and issubclass(kind, Enum) and not isinstance(value, kind):
                names = ", ".join(f"{wanted}.{member.name}" for member in kind)
                raise ConfigError(f"{part}.{field.name} is {value!r}: it must be one of {names}")
        elif not isinstance(value, kinds) or (isinstance(value, bool) and wanted != "bool"):
            expected = {"float": "a number", "int": "a whole number", "str": "text", "bool": "True or False"}[
                wanted
            ]
            raise ConfigError(f"{part}.{field.name} is {value!r}: it must be {expected}")
        elif isinstance(value, float) and not isfinite(value):
            raise ConfigError(f"{part}.{field.name} is {value!r}: it must be a finite number")


def subscription_map(subscriptions: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Topic -> expression. A list of topics, or one topic, subscribes to all of their messages. Raises UsageError."""
    if isinstance(subscriptions, str):
        subscriptions = [subscriptions]
    if isinstance(subscriptions, Mapping):
        wanted = dict(subscriptions)
    else:
        try:
            wanted = dict.fromkeys(subscriptions, "*")
        except TypeError:
            raise UsageError(
                f"subscriptions is {_a(subscriptions)}: write "
                'subscriptions={"orders": "paid || sent"}, or ["orders"] for all of their messages'
            ) from None
    if not wanted:
        raise UsageError('a consumer needs at least one topic: subscriptions={"topic": "*"}')
    for topic, expression in wanted.items():
        if not isinstance(topic, str) or not isinstance(expression, str):
            raise UsageError(
                f"subscriptions has {topic!r}: {expression!r}: a topic and its expression are text, "
                '{"orders": "*"}, {"orders": "paid || sent"} or {"orders": "sql:price > 5"}'
            )
    return wanted


_CALLS = {
    ("message",): "it is called with one argument, the message",
    ("message", "argument"): "it is called with the message and the argument of send_in_transaction()",
    (
        "queues",
        "message",
        "key",
    ): "it is called with the queues, the message and the key, and returns a queue",
}


def check_handler(handler: object, what: str = "handler", arguments: tuple[str, ...] = ("message",)) -> None:
    """Raise UsageError unless the value is None or can be called with these arguments. `arguments` is one of
    _CALLS."""
    if handler is None:
        return
    if not callable(handler):
        raise UsageError(f"{what} is {_a(handler)}: it must be a function that takes a message")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        # Calling a generator function runs none of its lines: every message would count as handled.
        raise UsageError(
            f"{what} has a yield in it: it must be a function that handles its message and returns"
        )
    try:
        # The signature of the wrapper counts, not that of the wrapped function, which may take more
        # arguments.
        signature = inspect.signature(handler, follow_wrapped=False)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise UsageError(f"{what} takes {signature}: {_CALLS[arguments]}") from None


def check_queues(queues: object) -> None:
    """Raise UsageError unless the value is a collection of queues."""
    if isinstance(queues, str) or not isinstance(queues, Iterable):
        raise UsageError(
            f"queues is {_a(queues)}: write await consumer.assign(await consumer.queues('topic')), or subscribe('topic')"
        )
    if isinstance(queues, Collection):
        for queue in queues:
            if not isinstance(queue, MessageQueue):
                raise UsageError(
                    f"queues has {_a(queue)}: it holds MessageQueue('topic', 'broker-a', 0) and the like"
                )


def check_seconds(value: object, name: str = "timeout_s") -> None:
    """Raise UsageError unless the value is a duration in seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < inf:
        raise UsageError(f"{name} is {_a(value)}: it must be a number of seconds")


def check_whole_number(value: Any, name: str, unit: str) -> int:
    """The value as an int, also of a number library's. Raises UsageError unless the value is a whole number.

    `unit` describes the number for the error message.
    """
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            return operator.index(value)
    raise UsageError(f"{name} is {_a(value)}: it must be {unit}")


def check_queue(queue: object) -> None:
    """Raise UsageError unless the value is a MessageQueue or None."""
    if queue is not None and not isinstance(queue, MessageQueue):
        raise UsageError(
            f"queue is {_a(queue)}: it must be one of await producer.queues('topic'), or MessageQueue(...)"
        )


def check_popped(message: object) -> None:
    """Raise UsageError for an object that is not a popped message."""
    if not hasattr(message, "pop_queue"):
        raise UsageError(
            f"a message to acknowledge is one that receive() gave, this is {_a(message)}; several: ack_all([...])"
        )


def check_message(message: object) -> None:
    """Raise UsageError unless the value is a Message."""
    if not isinstance(message, Message):
        raise UsageError(
            f'a producer sends a Message, this is {_a(message)}: write Message("topic", b"body")'
        )


def check_messages(messages: object, example: str = "send_batch([Message(...), Message(...)])") -> None:
    """Raise UsageError unless the value is a collection of messages."""
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Iterable):
        raise UsageError(f"messages is {_a(messages)}: write {example}")


def check_addresses(addresses: object) -> None:
    """Raise UsageError unless the value is text, or a sequence of texts."""
    if isinstance(addresses, str):
        return
    if isinstance(addresses, Sequence) and all(isinstance(each, str) for each in addresses):
        return
    raise UsageError(f'nameservers is {_a(addresses)}: write "host:9876", "a:9876;b:9876" or a list of such')


def _a(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
