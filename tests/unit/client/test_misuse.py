"""Wrong arguments of the client: what was given and what was expected, before anything is tried."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from typing import Any

import pytest

from aerobee.client.base.checks import (
    check_handler,
    check_messages,
    check_popped,
    check_queue,
    check_queues,
    check_seconds,
    check_whole_number,
)
from aerobee.client.producer.recall import parse_handle
from aerobee.client.producer.transaction_producer import TransactionProducer
from aerobee.errors import UsageError
from aerobee.message import Message, MessageQueue

QUEUE = MessageQueue("t", "broker-a", 0)


def yields(message: object) -> Iterator[object]:
    yield message


async def yields_values(message: object) -> AsyncIterator[object]:
    yield message


async def takes_one(message: object) -> None: ...
def takes_none() -> None: ...
def takes_two(message: object, context: object) -> None: ...


def with_a_context(handler: Callable[[object, object], object]) -> Callable[[object], object]:
    """A decorator as programs have them: it gives one argument more."""

    @wraps(handler)
    def call(message: object) -> object:
        return handler(message, 1)

    return call


def is_taken(check: Callable[[Any], object], value: object) -> bool:
    try:
        check(value)
    except UsageError:
        return False
    return True


@pytest.mark.parametrize(
    "handler",
    [
        None,
        takes_one,
        partial(takes_two, context=1),
        with_a_context(takes_two),
        print,
        [].append,
        lambda *a: a,
    ],
)
def test_what_can_be_called_with_a_message_is_a_handler(handler: object) -> None:
    assert is_taken(check_handler, handler)


@pytest.mark.parametrize(
    ("check", "value", "said"),
    [
        (check_handler, "x", "it must be a function that takes a message"),
        (check_handler, takes_none, "called with one argument"),
        (check_handler, takes_two, "called with one argument"),
        (check_handler, yields, "has a yield in it"),
        (check_handler, yields_values, "has a yield in it"),
        (partial(check_handler, arguments=("message", "argument")), takes_one, "and the argument of"),
        (partial(check_handler, arguments=("queues", "message", "key")), takes_one, "returns a queue"),
        (
            partial(check_whole_number, name="offset", unit="a number"),
            "3",
            "offset is str '3': it must be a number",
        ),
        (partial(check_whole_number, name="offset", unit="a number"), True, "offset is bool True"),
        (partial(check_whole_number, name="offset", unit="a number"), 3.0, "offset is float 3.0"),
        (check_messages, Message("t", b"x"), "write send_batch"),
        (check_messages, "text", "write send_batch"),
        (check_queues, "t", "subscribe"),
        (check_queues, QUEUE, "subscribe"),
        (check_queues, ["t"], "it holds MessageQueue"),
        (check_queue, 5, "it must be one of await producer.queues"),
        (check_queue, "broker-a/0", "it must be one of await producer.queues"),
        (check_popped, ["a"], r"several: ack_all"),
        (check_popped, Message("t", b"x"), "one that receive"),
        (check_seconds, "3", "number of seconds"),
        (check_seconds, -1, "number of seconds"),
        (check_seconds, float("nan"), "number of seconds"),
        (check_seconds, True, "number of seconds"),
        (parse_handle, None, "not text"),
        (parse_handle, "zzz", "URL-safe base64 of text"),
    ],
)
def test_wrong_arguments_are_named(check: Callable[[Any], object], value: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check(value)


class Indexed:
    """A whole number of another library's, as numpy.int64."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(("value", "number"), [(0, 0), (-3, -3), (Indexed(), 7)])
def test_whole_numbers_become_ints(value: object, number: int) -> None:
    found = check_whole_number(value, "offset", "a number")
    assert (type(found), found) == (int, number)


@pytest.mark.parametrize("tag", ["a||b", " a", "a "])
def test_a_message_takes_the_tags_that_rocketmq_takes(tag: str) -> None:
    """A copy of a topic has the tags of what was copied, also those that no subscription can name."""
    assert Message("t", b"x", tag=tag).tag == tag


def test_right_arguments_pass() -> None:
    assert is_taken(check_messages, (Message("t", b"x") for _ in range(2)))
    assert is_taken(check_queues, (QUEUE,))
    assert is_taken(check_queues, (queue for queue in [QUEUE]))
    assert is_taken(check_seconds, 0.5)
    assert not is_taken(check_seconds, -1)
    assert is_taken(check_queue, None)
    assert is_taken(check_queue, QUEUE)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"delay_level": "3"}, "delay_level is '3': it must be the number of a level"),
        ({"delay_level": -1}, "delay_level is -1: it must be the number of a level"),
        ({"priority": "1"}, "priority is '1': it must be a whole number"),
        ({"deliver_after": float("inf")}, "deliver_after is inf s: it must be a number of seconds"),
        ({"deliver_after": -1}, "deliver_after is -1 s: it must be a number of seconds, 0 or above"),
    ],
)
def test_a_wrong_field_of_a_message_is_named_by_itself(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Message("t", b"x", **fields)


def test_what_a_program_begins_with_is_in_the_first_package() -> None:
    from aerobee import SimpleConsumer, SimpleConsumerConfig, Sql

    assert (SimpleConsumer.__name__, SimpleConsumerConfig.__name__) == (
        "SimpleConsumer",
        "SimpleConsumerConfig",
    )
    assert Sql("a > 1") == "sql:a > 1"


def test_an_executor_takes_a_message_and_an_argument() -> None:
    for executor in (takes_one, "x"):
        with pytest.raises(UsageError, match="executor"):
            TransactionProducer("127.0.0.1:1", "g", checker=takes_one, executor=executor)  # type: ignore[arg-type]


@pytest.mark.parametrize("checker", [None, "x", takes_none])
def test_a_checker_must_be_one(checker: Any) -> None:
    with pytest.raises(UsageError, match="checker"):
        TransactionProducer("127.0.0.1:1", "g", checker=checker)
