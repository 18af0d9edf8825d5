"""Messages of dramatiq in messages of RocketMQ."""

from __future__ import annotations

from typing import Any

import pytest
from dramatiq import Message
from dramatiq.errors import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from aerobee.contrib.dramatiq import AerobeeBroker
from aerobee.contrib.dramatiq.actor_queue import ACTOR_PROPERTY, decoded, stored_message
from aerobee.errors import UsageError


def message(**options: Any) -> Message:
    return Message("default", "price", ("bell",), {"x": 1}, options, message_id="1-2", message_timestamp=5)


def test_message_survives_and_can_be_found() -> None:
    stored = stored_message("t", message(a=1), 0, 60)
    assert decoded(bytes(stored.body), "default") == message(a=1)
    assert (stored.keys, stored.properties) == (("1-2",), {ACTOR_PROPERTY: "price"})
    assert stored.deliver_at is None


def test_brokers_keep_a_message_until_its_eta_in_steps() -> None:
    assert stored_message("t", message(eta=9_000), 1_000, 60).deliver_at == 9
    assert stored_message("t", message(eta=9_000), 1_000, 4).deliver_at == 5
    assert stored_message("t", message(eta=9_000), 9_000, 4).deliver_at is None
    assert stored_message("t", message(eta="soon"), 0, 4).deliver_at is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("actor_name", ["a"]), ("message_id", 7), ("kwargs", []), ("options", None), ("queue_name", "other"),
     ("args", 5), ("surplus", 1)],
)  # fmt: skip
def test_messages_that_would_stop_a_worker_thread_are_refused(name: str, value: object) -> None:
    body = Message.encode(message())
    fields = message().asdict() | {name: value}
    broken = type("Broken", (), {"asdict": lambda self: fields, "encode": Message.encode})()
    assert decoded(body, "default") == message()
    with pytest.raises(DecodeError):
        decoded(broken.encode(), "default")


@given(st.binary())
def test_any_body_is_read_or_refused(body: bytes) -> None:
    with pytest.raises(DecodeError):
        decoded(body, "default")


def test_topics_of_queues() -> None:
    broker = AerobeeBroker(namespace="shop")
    assert broker.topic_of("default") == "shop-default"
    assert broker.topic_of("a.b") == "shop-a%2Eb"
    assert AerobeeBroker(namespace="").topic_of("jobs") == "jobs"
    with pytest.raises(UsageError):
        broker.topic_of("a/b")
