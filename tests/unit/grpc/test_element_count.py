"""Fields are counted before a request is parsed."""

from __future__ import annotations

import random

import pytest

from aerobee.broker.grpc.endpoint import NESTED_IN_SEND
from aerobee.grpc.element_count import has_more_fields
from aerobee.grpc.proto import messages as pb


def a_send() -> bytes:
    """One message: topic, 2 user properties, system properties with 3 keys and an id, body."""
    system = pb.SystemProperties(message_id="m", keys=["a", "b", "c"])
    message = pb.Message(
        topic=pb.Resource(name="orders"),
        user_properties={"x": "1", "y": "2"},
        system_properties=system,
        body=bytes(300),
    )
    return bytes(pb.SendMessageRequest(messages=[message]).SerializeToString())


def test_fields_of_messages_and_of_their_system_properties_count() -> None:
    data = a_send()
    fields = 1 + (1 + 2 + 1 + 1) + (1 + 3)
    assert not has_more_fields(data, fields, NESTED_IN_SEND)
    assert has_more_fields(data, fields - 1, NESTED_IN_SEND)
    assert has_more_fields(data * 100, 100 * fields - 1, NESTED_IN_SEND)
    assert not has_more_fields(data, 1, {})


@pytest.mark.parametrize("data", [b"\x0a\x00" * 11, b"\x0a\x16" + b"\x1a\x00" * 11, b"\x0b" * 11])
def test_small_fields_are_counted(data: bytes) -> None:
    assert has_more_fields(data, 10, NESTED_IN_SEND)


def test_damaged_bytes_end_the_count() -> None:
    rng = random.Random(1)
    for _ in range(2_000):
        data = bytearray(a_send())
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        has_more_fields(bytes(data[: rng.randint(0, len(data))]), 50, NESTED_IN_SEND)
    assert not has_more_fields(b"\xff" * 100, 10, NESTED_IN_SEND)
    assert not has_more_fields(b"\x0a\xff\xff\xff\xff\x0f", 10, NESTED_IN_SEND)
    assert not has_more_fields(b"\x07" * 5, 10, NESTED_IN_SEND)
