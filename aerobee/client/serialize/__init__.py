"""Serializers: values of a program as message bodies, and back.

A serializer is any object with `serialize(value)`, a deserializer any object with `deserialize(body, properties)`; most here
are both. `Producer(…, serializer=…)` makes messages of values with `producer.message(topic, value)`, and
`PushConsumer(…, deserializer=…)` gives handlers `message.value`. A body that cannot be read goes to the dead letters.

    Json            json_serializer.py   orjson
    Msgspec         msgspec_types.py     extra msgspec: structs and other types, as JSON or MessagePack
    Pydantic        pydantic_models.py   extra pydantic
    Avro            avro.py              extra avro: fastavro, one schema or one for each side
    Protobuf        protobuf.py          extra protobuf
    CloudEvents     cloud_events.py      binary or structured form, around any of the others
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee.client.serialize.avro import Avro
    from aerobee.client.serialize.cloud_events import CloudEvent, CloudEvents
    from aerobee.client.serialize.json_serializer import Json
    from aerobee.client.serialize.msgspec_types import Msgspec
    from aerobee.client.serialize.protobuf import Protobuf
    from aerobee.client.serialize.pydantic_models import Pydantic
    from aerobee.client.serialize.serializer import Deserializer, Serialized, Serializer

_HOME = {
    "Avro": "avro",
    "CloudEvent": "cloud_events",
    "CloudEvents": "cloud_events",
    "Deserializer": "serializer",
    "Json": "json_serializer",
    "Msgspec": "msgspec_types",
    "Protobuf": "protobuf",
    "Pydantic": "pydantic_models",
    "Serialized": "serializer",
    "Serializer": "serializer",
}

__all__ = [
    "Avro",
    "CloudEvent",
    "CloudEvents",
    "Deserializer",
    "Json",
    "Msgspec",
    "Protobuf",
    "Pydantic",
    "Serialized",
    "Serializer",
]


def __getattr__(name: str) -> Any:
    """Import a name at its first use: most programs need one serializer, and some load large packages."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
