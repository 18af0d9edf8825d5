"""CloudEvents 1.0 as messages, in binary or structured form.

Names as in the RocketMQ binding of CloudEvents' Java SDK (RocketmqConstants), so both read each other's events. Binary: the
body is the data, one zero byte without data; each attribute is a property `CE_NAME`, the content type of the data
`CE_contenttype`. Structured: the body is the JSON form of the whole event, and `CE_contenttype` is
application/cloudevents+json. A reader takes both, by the content type.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from aerobee.client.serialize.json_serializer import Json
from aerobee.client.serialize.serializer import Deserializer, Serialized, Serializer
from aerobee.errors import UsageError

PREFIX = "CE_"
CONTENT_TYPE = "CE_contenttype"
NO_DATA = b"\0"  # RocketMQ's brokers refuse an empty body
STRUCTURED = "application/cloudevents+json"
SPEC_VERSION = "1.0"
REQUIRED = ("id", "source", "type")
_NOT_EXTENSIONS = frozenset({*REQUIRED, "specversion", "subject", "time", "datacontenttype", "dataschema"})
Form = Literal["binary", "structured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEvent:
    """One event: its context attributes and its data."""

    type: str
    """What happened, for example "com.example.order.paid"."""
    source: str
    """URI reference of the context in which it happened."""
    data: Any = None
    """Content of the event, as the serializer of the data takes it."""
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """Id of the event; `source` and `id` together are unique."""
    time: datetime | None = field(default_factory=lambda: datetime.now(UTC))
    """Time of the occurrence, with a time zone."""
    subject: str = ""
    """Subject of the event in the context of `source`. Empty: none."""
    datacontenttype: str = "application/json"
    """Content type of the data."""
    dataschema: str = ""
    """URI of the schema of the data. Empty: none."""
    extensions: Mapping[str, str] = field(default_factory=dict)
    """Extension attributes: names of lower-case letters and digits."""

    def __post_init__(self) -> None:
        for name in REQUIRED:
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise UsageError(f"{name} is {getattr(self, name)!r}: a CloudEvent needs it, as text")
        if self.time is not None and self.time.tzinfo is None:
            raise UsageError(f"time is {self.time.isoformat()}: it needs a time zone")
        for name in self.extensions:
            if not (name.isascii() and name.isalnum() and name == name.lower()) or name in _NOT_EXTENSIONS:
                raise UsageError(
                    f"extension {name!r}: its name is lower-case letters and digits, and no attribute's"
                )

    def attributes(self) -> dict[str, str]:
        """All context attributes that have a value, as text."""
        found = {
            "specversion": SPEC_VERSION,
            "id": self.id,
            "source": self.source,
            "type": self.type,
            "time": "" if self.time is None else self.time.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "subject": self.subject,
            "datacontenttype": self.datacontenttype,
            "dataschema": self.dataschema,
            **self.extensions,
        }
        return {name: text for name, text in found.items() if text}


class CloudEvents:
    """CloudEvent objects as messages. `data`: serializer and deserializer of their data, JSON by default. `form`: of the
    messages that are sent; both are read.
    """

    def __init__(self, data: Serializer | None = None, *, form: Form = "binary") -> None:
        if form not in ("binary", "structured"):
            raise UsageError(f"form is {form!r}: it must be binary or structured")
        chosen = Json() if data is None else data
        if not isinstance(chosen, Serializer) or not isinstance(chosen, Deserializer):
            raise UsageError(
                f"data is {data!r}: it must be an object with serialize and deserialize, such as Json()"
            )
        self._data: Any = chosen
        self._form = form

    def serialize(self, value: Any) -> Serialized:
        """A CloudEvent as a message. Raises UsageError for another value."""
        if not isinstance(value, CloudEvent):
            raise UsageError(f"CloudEvents serializes CloudEvent objects, this is {type(value).__name__}")
        body = b"" if value.data is None else self._data.serialize(value.data).body
        attributes = value.attributes()
        if self._form == "binary":
            content_type = attributes.pop("datacontenttype", "")
            properties = {PREFIX + name: text for name, text in attributes.items()}
            return Serialized(
                body or NO_DATA, properties | ({CONTENT_TYPE: content_type} if content_type else {})
            )
        document: dict[str, Any] = dict(attributes)
        if value.data is not None:
            if _is_json(value.datacontenttype):
                document["data"] = orjson.Fragment(body)
            else:
                document["data_base64"] = base64.b64encode(body).decode()
        return Serialized(orjson.dumps(document), {CONTENT_TYPE: STRUCTURED})

    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> CloudEvent:
        """The event of a message of either form. Raises ValueError for what is no CloudEvent."""
        if properties.get(CONTENT_TYPE, "").partition(";")[0].strip().lower() == STRUCTURED:
            return self._structured(body)
        attributes = {
            name[len(PREFIX) :]: text
            for name, text in properties.items()
            if name.startswith(PREFIX) and name != CONTENT_TYPE
        }
        content_type = properties.get(CONTENT_TYPE, "")
        if content_type:
            attributes["datacontenttype"] = content_type
        return self._event(
            attributes, self._data.deserialize(body, properties) if body not in (b"", NO_DATA) else None
        )

    def _structured(self, body: bytes) -> CloudEvent:
        document = orjson.loads(body)
        if not isinstance(document, dict):
            raise ValueError("a structured CloudEvent is a JSON object")
        data, coded = document.pop("data", None), document.pop("data_base64", None)
        if coded is not None:
            data = self._data.deserialize(base64.b64decode(coded, validate=True), {})
        elif data is not None:
            data = self._data.deserialize(orjson.dumps(data), {})
        return self._event({name: _text(value) for name, value in document.items()}, data)

    def _event(self, attributes: dict[str, str], data: Any) -> CloudEvent:
        if attributes.get("specversion") != SPEC_VERSION:
            raise ValueError(
                f"no CloudEvent {SPEC_VERSION}: specversion is {attributes.get('specversion')!r}"
            )
        for name in REQUIRED:
            if not attributes.get(name):
                raise ValueError(f"a CloudEvent without {name}")
        time = attributes.get("time", "")
        return CloudEvent(
            id=attributes["id"],
            source=attributes["source"],
            type=attributes["type"],
            data=data,
            time=datetime.fromisoformat(time) if time else None,
            subject=attributes.get("subject", ""),
            datacontenttype=attributes.get("datacontenttype", ""),
            dataschema=attributes.get("dataschema", ""),
            extensions={name: text for name, text in attributes.items() if name not in _NOT_EXTENSIONS},
        )


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return not kind or kind.endswith(("/json", "+json"))


def _text(value: Any) -> str:
    """An attribute of the JSON form as text: they are text, numbers or booleans."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
