"""Common mistakes at the edge of the client end in a sentence that says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aerobee.client import (
    Admin,
    ClientConfig,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)
from aerobee.client.base.checks import check_message, check_seconds, subscription_map
from aerobee.errors import AerobeeError, ConfigError, UsageError
from aerobee.message import Message

AT = "127.0.0.1:1"
T: Any = "t"


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda: Producer(AT, config={"send_timeout_s": 3}), "config is a ProducerConfig, this is dict"),  # type: ignore[arg-type]
        (lambda: Admin(AT, client={"tls": True}), "client is a ClientConfig"),  # type: ignore[arg-type]
        (lambda: PullConsumer(AT, "g", config=ConsumerConfig()), "config is a PullConsumerConfig"),  # type: ignore[arg-type]
        (lambda: Producer(9876), "nameservers is int 9876: write"),  # type: ignore[arg-type]
        (lambda: Producer(AT, None), "a group's name is text, this is NoneType None"),  # type: ignore[arg-type]
        (lambda: PushConsumer(AT, "g", subscriptions={"t": "*"}, handler="f"), "handler is str 'f'"),  # type: ignore[arg-type]
        (lambda: PushConsumer(AT, "g", subscriptions=5), "subscriptions is int 5: write"),  # type: ignore[arg-type]
        (lambda: PushConsumer(AT, "g", subscriptions=[]), "at least one topic"),
        (lambda: SimpleConsumer(AT, "g", subscriptions={"t": None}), "'t': None"),  # type: ignore[dict-item]
        (lambda: ProducerConfig(send_timeout_s="3"), "send_timeout_s is '3': it must be a number"),  # type: ignore[arg-type]
        (lambda: ProducerConfig(in_flight_max=1.5), "in_flight_max is 1.5: it must be a whole number"),  # type: ignore[arg-type]
        (lambda: ProducerConfig(compression="zlib"), "it must be one of Compression.NONE, Compression.ZLIB"),  # type: ignore[arg-type]
        (lambda: ConsumerConfig(orderly=1), "orderly is 1: it must be True or False"),  # type: ignore[arg-type]
        (lambda: ConsumerConfig(concurrency=True), "concurrency is True: it must be a whole number"),
        (lambda: ClientConfig(instance=7), "instance is 7: it must be text"),  # type: ignore[arg-type]
        (lambda: check_message("text"), "a producer sends a Message, this is str 'text'"),
        (lambda: Message(None, b"x"), "a topic's name is text, this is NoneType None"),  # type: ignore[arg-type]
        (lambda: Message(["t"], b"x"), "a topic's name is text, this is list"),  # type: ignore[arg-type]
        (lambda: Message(T, "x"), "a message body is bytes, this one is str"),  # type: ignore[arg-type]
        (
            lambda: Message(T, b"x", properties={"a": 1}),
            "property 'a'=1: names, values, keys and the tag are text: '1'",
        ),  # type: ignore[dict-item]
        (lambda: Message(T, b"x", properties=["a"]), r"properties is \['a'\]: it maps names to values"),  # type: ignore[arg-type]
        (lambda: Message(T, b"x", tag=5), "property 'TAGS'=5"),  # type: ignore[arg-type]
        (lambda: Message(T, b"x", keys=(1,)), "message key 1 is int: write '1'"),  # type: ignore[arg-type]
        (lambda: Message(T, b"x", keys=5), "keys is 5: it must be a tuple of strings"),  # type: ignore[arg-type]
        (lambda: Message(T, b"x", delay_level="3"), "delay_level is '3'"),  # type: ignore[arg-type]
        (lambda: Message(T, b"x", deliver_at="now"), "deliver_at is 'now': it takes a datetime"),  # type: ignore[arg-type]
        (lambda: Message(T, b"x", deliver_after="3s"), "deliver_after is '3s': it takes a timedelta"),  # type: ignore[arg-type]
    ],
)
def test_mistake_is_explained(mistake: Callable[[], object], said: str) -> None:
    with pytest.raises(AerobeeError, match=said):
        mistake()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"a": "x || y"}, {"a": "x || y"}),
        (["a", "b"], {"a": "*", "b": "*"}),
        (("a",), {"a": "*"}),
        ("a", {"a": "*"}),
    ],
)
def test_topics_may_be_given_as_others_take_them(given: Any, wanted: dict[str, str]) -> None:
    assert subscription_map(given) == wanted


async def test_producer_refuses_what_is_no_message() -> None:
    async with Producer(AT, client=ClientConfig(require_nameserver=False)) as producer:
        for send in (producer.send, producer.send_oneway):
            with pytest.raises(AerobeeError, match="sends a Message"):
                await send("text")  # type: ignore[operator]
        with pytest.raises(AerobeeError, match="sends a Message"):
            await producer.send_batch(["text"])  # type: ignore[list-item]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_times_without_an_end_are_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="it must be a finite number"):
        ProducerConfig(send_timeout_s=value)
    with pytest.raises(UsageError, match="it must be a number of seconds"):
        check_seconds(value)
