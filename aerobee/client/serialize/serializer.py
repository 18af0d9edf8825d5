"""What a serializer and a deserializer are, and how the client calls them. Core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from aerobee.errors import BodyUnreadable, UsageError

REASON_CHARS_MAX = 500  # of the error of a deserializer, in the reason of a dead letter
EXTRAS = {"msgspec": "msgspec", "pydantic": "pydantic", "fastavro": "avro", "google.protobuf": "protobuf"}


@dataclass(frozen=True, slots=True)
class Serialized:
    """A value as a message carries it."""

    body: bytes
    """The body of the message."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties that belong to the value, such as the attributes of a CloudEvent."""


@runtime_checkable
class Serializer(Protocol):
    """Makes bodies of values."""

    def serialize(self, value: Any) -> Serialized:
        """The value as body and properties. May raise anything; the client raises UsageError from it."""
        ...


@runtime_checkable
class Deserializer(Protocol):
    """Makes values of bodies."""

    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> Any:
        """The value of a message. May raise anything: the message then goes to the dead letters."""
        ...


def check_serializer(value: object, kind: type, what: str) -> None:
    """Raise UsageError unless the value is None or has the method of `kind`."""
    if value is not None and (isinstance(value, type) or not isinstance(value, kind)):
        method = "serialize(value)" if kind is Serializer else "deserialize(body, properties)"
        raise UsageError(f"{what} is {value!r}: it must be an object with {method}, such as Json()")


def serialized(serializer: Serializer | None, value: Any) -> Serialized:
    """The value by this serializer. Raises UsageError for a value that it does not take."""
    if serializer is None:
        raise UsageError("this producer has no serializer: write Producer(…, serializer=Json())")
    try:
        found = serializer.serialize(value)
    except UsageError:
        raise
    except Exception as error:  # of the serializer's library, which has its own types
        name = type(serializer).__name__
        raise UsageError(f"{name} cannot serialize a {type(value).__name__}: {error}") from error
    if not isinstance(found, Serialized) or not isinstance(found.body, bytes):
        raise UsageError(f"{type(serializer).__name__}.serialize returned {found!r}: it returns a Serialized")
    return found


def deserialized(deserializer: Deserializer, body: bytes, properties: Mapping[str, str]) -> Any:
    """The value of a body by this deserializer. Raises BodyUnreadable with the reason."""
    try:
        return deserializer.deserialize(body, properties)
    except Exception as error:  # as above; the body is a peer's and may be anything
        text = " ".join(str(error).split())[:REASON_CHARS_MAX]
        raise BodyUnreadable(f"{type(deserializer).__name__} cannot read the body: {text}") from error


def package(name: str) -> Any:
    """A package of an extra. Raises UsageError with the command that installs it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(
            f"package {name} is missing: pip install 'aerobee[{EXTRAS[name.partition('._')[0]]}]'"
        ) from error
