"""Serializers: each value comes back; what cannot be read or written is refused with the reason."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest
from google.protobuf import struct_pb2

from aerobee.client import Producer
from aerobee.client.serialize import (
    Avro,
    CloudEvent,
    CloudEvents,
    Json,
    Msgspec,
    Protobuf,
    Pydantic,
    Serialized,
)
from aerobee.client.serialize.cloud_events import NO_DATA
from aerobee.client.serialize.serializer import deserialized, serialized
from aerobee.errors import BodyUnreadable, UsageError


class Struct(msgspec.Struct):
    number: int
    total: float


class Model(pydantic.BaseModel):
    number: int
    total: float


@dataclass
class Plain:
    number: int
    total: float


SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "number", "type": "int"}, {"name": "total", "type": "double"}],
}
WIDER = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "note", "type": "string", "default": "-"}]}
ORDER = {"number": 7, "total": 1.5}


def struct(value: dict[str, Any]) -> struct_pb2.Struct:
    message = struct_pb2.Struct()
    message.update(value)
    return message


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (Json(), ORDER),
        (Msgspec(Struct), Struct(7, 1.5)),
        (Msgspec(Struct, form="msgpack"), Struct(7, 1.5)),
        (Msgspec(Plain), Plain(7, 1.5)),
        (Pydantic(Model), Model(number=7, total=1.5)),
        (Pydantic(list[int]), [1, 2]),
        (Avro(SCHEMA), ORDER),
        (Protobuf(struct_pb2.Struct), struct(ORDER)),
    ],
)
def test_a_value_comes_back_and_other_bytes_do_not(serializer: Any, value: Any) -> None:
    sent = serialized(serializer, value)
    assert deserialized(serializer, sent.body, sent.properties) == value
    for wrong in (b"\xff\x01", sent.body[:-1]):
        with pytest.raises(BodyUnreadable, match=f"{type(serializer).__name__} cannot read the body: ."):
            deserialized(serializer, wrong, {})


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (Json(), object()),
        (Msgspec(Struct), object()),
        (Pydantic(Model), {"number": "seven"}),
        (Avro(SCHEMA), {"number": "seven"}),
        (Protobuf(struct_pb2.Struct), {"number": 7}),
        (CloudEvents(), ORDER),
    ],
)
def test_a_value_that_cannot_be_written_is_refused(serializer: Any, value: Any) -> None:
    with pytest.raises(UsageError, match=r"serialize"):
        serialized(serializer, value)


def test_avro_resolves_the_schema_of_the_writer() -> None:
    body = Avro(SCHEMA).serialize(ORDER).body
    assert Avro(WIDER, written_by=SCHEMA).deserialize(body, {}) == {**ORDER, "note": "-"}
    with pytest.raises(BodyUnreadable, match=r"has \d+ bytes? after the datum"):
        deserialized(Avro(SCHEMA), Avro(WIDER).serialize({**ORDER, "note": "x"}).body, {})


EVENTS = [
    CloudEvent(type="order.paid", source="/shop", data=ORDER, subject="o-7", extensions={"tenant": "eu"}),
    CloudEvent(type="order.paid", source="/shop", id="1", time=None, datacontenttype=""),
    CloudEvent(type="t", source="s", data=[1, "é"], time=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
]


@pytest.mark.parametrize("form", ["binary", "structured"])
@pytest.mark.parametrize("event", EVENTS)
def test_a_cloud_event_comes_back_in_either_form(form: Any, event: CloudEvent) -> None:
    sent = CloudEvents(form=form).serialize(event)
    assert all(sent.properties.values())
    assert sent.body  # RocketMQ's brokers refuse an empty one
    for reader in ("binary", "structured"):
        assert CloudEvents(form=reader).deserialize(sent.body, sent.properties) == event  # type: ignore[arg-type]


def test_a_cloud_event_is_as_the_java_sdk_writes_it() -> None:
    event = CloudEvent(type="order.paid", source="/shop", id="1", data=ORDER, time=None)
    sent = CloudEvents().serialize(event)
    assert sent.body == b'{"number":7,"total":1.5}'
    assert sent.properties == {
        "CE_specversion": "1.0",
        "CE_id": "1",
        "CE_source": "/shop",
        "CE_type": "order.paid",
        "CE_contenttype": "application/json",
    }
    empty = CloudEvents().serialize(CloudEvent(type="t", source="s"))
    assert empty.body == NO_DATA == b"\0"


@pytest.mark.parametrize(
    ("body", "properties", "words"),
    [
        (b"{}", {}, "specversion is None"),
        (b"{}", {"CE_specversion": "1.0", "CE_id": "1", "CE_type": "t"}, "without source"),
        (b"[]", {"CE_contenttype": "application/cloudevents+json; charset=UTF-8"}, "is a JSON object"),
        (b"{", {"CE_contenttype": "application/cloudevents+json"}, "."),
        (b'{"specversion":"1.0","data_base64":"*"}', {"CE_contenttype": "application/cloudevents+json"}, "."),
    ],
)
def test_what_is_no_cloud_event_is_refused(body: bytes, properties: dict[str, str], words: str) -> None:
    with pytest.raises(BodyUnreadable, match=words):
        deserialized(CloudEvents(), body, properties)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CloudEvent(type="", source="s"),
        lambda: CloudEvent(type="t", source="s", time=datetime(2026, 1, 1)),
        lambda: CloudEvent(type="t", source="s", extensions={"Tenant": "x"}),
        lambda: CloudEvent(type="t", source="s", extensions={"id": "x"}),
        lambda: CloudEvents(form="text"),  # type: ignore[arg-type]
        lambda: CloudEvents(orders),  # type: ignore[arg-type]
        lambda: Msgspec(Struct, form="xml"),  # type: ignore[arg-type]
        lambda: Avro({"type": "recrod"}),
        lambda: Protobuf(dict),
        lambda: Producer("127.0.0.1:1", serializer=Json),  # type: ignore[arg-type]
        lambda: Producer("127.0.0.1:1", serializer=orders),  # type: ignore[arg-type]
        lambda: Producer("127.0.0.1:1").message("t", {}),
    ],
)
def test_wrong_use_is_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


def orders(value: object) -> bytes:
    return b""


def test_random_bytes_only_raise_body_unreadable() -> None:
    rng, longest = random.Random(1), 0
    readers = [Json(), Msgspec(Struct), Msgspec(Struct, form="msgpack"), Pydantic(Model), Avro(SCHEMA)]
    readers += [Protobuf(struct_pb2.Struct), CloudEvents(), CloudEvents(form="structured")]  # type: ignore[list-item]
    for _ in range(300):
        body = rng.randbytes(rng.randrange(40))
        for reader in readers:
            for properties in ({}, {"CE_contenttype": "application/cloudevents+json"}):
                try:
                    deserialized(reader, body, properties)
                except BodyUnreadable as error:
                    longest = max(longest, len(str(error)))
    assert 0 < longest < 1_000


def test_a_producer_makes_messages_with_the_properties_of_the_value() -> None:
    producer = Producer("127.0.0.1:1", serializer=CloudEvents())
    event = CloudEvent(type="t", source="s", data=1)
    message = producer.message("orders", event, tag="new", keys=("o-1",), properties={"region": "EU"})
    assert (message.body, message.tag, message.keys) == (b"1", "new", ("o-1",))
    assert (message.properties["CE_type"], message.properties["region"]) == ("t", "EU")
    assert Serialized(b"x").properties == {}
