"""Kombu's envelope in a message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.contrib.celery.envelope import (
    TASK_PROPERTY,
    Due,
    decode,
    due,
    encode,
    eta_s,
    is_expired,
    priority_queue,
)
from aerobee.errors import MalformedRecord, UsageError

NOW_S = 1_700_000_000.0


def envelope(**headers: Any) -> dict[str, Any]:
    return {"body": "e30=", "headers": headers, "properties": {"delivery_info": {"exchange": "e"}}}


def test_envelope_survives_and_the_task_can_be_found() -> None:
    message = encode(envelope(id="1-2", task="shop.price"), "shop", tag="t")
    assert decode(bytes(message.body)) == envelope(id="1-2", task="shop.price")
    assert (message.keys, message.properties, message.tag) == (("1-2",), {TASK_PROPERTY: "shop.price"}, "t")


@pytest.mark.parametrize("task_id", ["a b", "a\x01b", "", "x" * 300, 7, None])
def test_an_id_that_cannot_be_a_key_is_none(task_id: object) -> None:
    assert encode(envelope(id=task_id), "shop").keys == ()


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"7", b"[]", b"{}", b'{"properties":[]}', b'{"properties":{"delivery_info":1}}',
     b'{"properties":{},"headers":[]}', b'{"properties":{},"body":{"__type__":"uuid","__value__":5}}',
     b'{"properties":{},"body":{"__type__":[],"__value__":5}}'],
)  # fmt: skip
def test_foreign_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedRecord):
        decode(body)


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 10**400])
def test_a_number_without_bounds_is_none(number: float) -> None:
    found = {"properties": {"priority": number, "expiration": number}}
    assert not is_expired(found, 0, 1)
    assert 0 <= priority_queue(found, 5) <= 4


@given(st.binary())
def test_any_body_is_read_or_refused(body: bytes) -> None:
    try:
        assert isinstance(decode(body)["properties"], dict)
    except MalformedRecord:
        pass


def test_illegal_topic_is_refused() -> None:
    with pytest.raises(UsageError):
        encode(envelope(), "a.b")


def test_eta_is_utc_without_a_zone() -> None:
    assert eta_s(envelope(eta="2023-11-14T22:13:20")) == NOW_S
    assert eta_s(envelope(eta="2023-11-14T23:13:20+01:00")) == NOW_S
    assert eta_s(envelope(eta="2023-11-14T22:13:20Z")) == NOW_S
    assert eta_s(envelope(eta="tomorrow")) is eta_s(envelope(eta=5)) is eta_s(envelope()) is None


def test_brokers_keep_a_task_until_its_eta_in_steps() -> None:
    task = envelope(eta="2023-11-14T22:13:30")  # in ten seconds
    assert due(task, NOW_S, 60) == Due(NOW_S + 10, True)
    assert due(task, NOW_S, 4) == Due(NOW_S + 4, False)
    assert due(task, NOW_S + 9.5, 60) is None, "the worker waits for less than a second"
    assert due(task, NOW_S + 100, 60) is None
    assert due(envelope(), NOW_S, 60) is None


def test_expiration_counts_from_storing() -> None:
    task = envelope()
    assert not is_expired(task, 0, 10**9)
    task["properties"]["expiration"] = "2000"
    assert not is_expired(task, 1_000, 3_000)
    assert is_expired(task, 1_000, 3_001)
    task["properties"]["expiration"] = "soon"
    assert not is_expired(task, 1_000, 10**9)


@pytest.mark.parametrize(
    ("priority", "queue_id"), [(None, 0), (0, 0), (3, 3), (9, 9), (40, 9), (-1, 0), ("x", 0)]
)
def test_priority_chooses_the_queue(priority: object, queue_id: int) -> None:
    task = envelope()
    task["properties"]["priority"] = priority
    assert priority_queue(task, 10) == queue_id
