"""Bodies of topics with a schema file, for the message browser: Avro, and Protocol Buffers.

orders=order.avsc                     a schema of Avro, as JSON; a body is one datum
payments=shop.desc#shop.Payment       a FileDescriptorSet of protoc (--include_imports), and the message of the body
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from aerobee.client.serialize.avro import Avro
from aerobee.client.serialize.serializer import package
from aerobee.errors import AerobeeError, ConfigError
from aerobee.message import check_topic_name

FILE_BYTES_MAX = 4 * 1024 * 1024
BODY_BYTES_MAX = 65_536  # larger ones are not decoded
RESPONSE_BYTES_MAX = (
    131_072  # bodies that are decoded for one response: a byte takes up to 3 µs, in the console's event loop
)
TEXT_CHARS_MAX = 262_144
Decode = Callable[[bytes], Any]


class BodySchemas:
    """Topic -> the decoder of its bodies."""

    def __init__(self, specs: Iterable[str] = ()) -> None:
        """Reads the files. Raises ConfigError."""
        self._decoders: dict[str, tuple[str, Decode]] = {}
        for spec in specs:
            topic, has_file, name = spec.partition("=")
            if not has_file or not topic or not name:
                raise ConfigError(f"--schema is {spec!r}: write TOPIC=FILE, or TOPIC=FILE#MESSAGE")
            try:
                check_topic_name(topic)
                self._decoders[topic] = _decoder(name)
            except (AerobeeError, OSError) as error:
                raise ConfigError(f"--schema {spec}: {error}") from error

    def for_response(self) -> ResponseBodies:
        """Decodes the bodies of one response."""
        return ResponseBodies(self._decoders)


class ResponseBodies:
    """Decodes bodies of up to RESPONSE_BYTES_MAX bytes together; producers choose how many a page has, and how costly they are."""

    def __init__(self, decoders: Mapping[str, tuple[str, Decode]]) -> None:
        self._decoders = decoders
        self._bytes_left = RESPONSE_BYTES_MAX

    def decoded(self, topic: str, body: bytes) -> dict[str, str] | None:
        """`format` and `text` of a body; the text says why a body cannot be read. None for a topic without a schema."""
        found = self._decoders.get(topic)
        if found is None:
            return None
        name, decode = found
        if len(body) > BODY_BYTES_MAX:
            return {"format": name, "text": f"the body is larger than the limit of {BODY_BYTES_MAX} bytes"}
        if len(body) > self._bytes_left:
            text = f"a page decodes bodies of up to {RESPONSE_BYTES_MAX} bytes together: open this message"
            return {"format": name, "text": text}
        self._bytes_left -= len(body)
        try:
            return {"format": name, "text": indented(decode(body))}
        except Exception as error:  # a producer wrote the body: the decoders raise whatever it provokes
            return {"format": name, "text": f"the schema does not fit this body: {error!r}"}


def indented(value: Any) -> str:
    """JSON of a value, cut to TEXT_CHARS_MAX characters: what lies behind takes no time. An indentation grows with the depth, so that a
    body of some kilobytes may have tens of megabytes of text."""
    pieces, left = [], TEXT_CHARS_MAX
    for piece in json.JSONEncoder(indent=2, default=_plain, ensure_ascii=False).iterencode(value):
        pieces.append(piece[:left])
        left -= len(piece)
        if left < 0:
            return "".join(pieces) + "…"
    return "".join(pieces)


def _decoder(name: str) -> tuple[str, Decode]:
    path, is_protobuf, kind = name.rpartition("#")
    if is_protobuf:
        return "Protobuf", _protobuf(_read(Path(path)), kind)
    return "Avro", _avro(_read(Path(name)))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return data


def _avro(data: bytes) -> Decode:
    try:
        schema = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"the schema is not JSON: {error}") from error
    avro = Avro(schema)

    return lambda body: avro.deserialize(body, {})


def _protobuf(data: bytes, kind: str) -> Decode:
    package("google.protobuf")
    descriptors, pools, texts, factory = (
        import_module(f"google.protobuf.{name}")
        for name in ("descriptor_pb2", "descriptor_pool", "json_format", "message_factory")
    )
    pool = pools.DescriptorPool()
    try:
        for file in descriptors.FileDescriptorSet.FromString(data).file:
            pool.AddSerializedFile(file.SerializeToString())
        message = factory.GetMessageClass(pool.FindMessageTypeByName(kind))
    except (
        Exception
    ) as error:  # of protobuf: DecodeError, TypeError for a missing import, KeyError for an unknown message
        raise ConfigError(f"no message {kind} in a file of descriptors: {error!r}") from error

    def decode(body: bytes) -> Any:
        return texts.MessageToDict(
            message.FromString(body), preserving_proto_field_name=True, descriptor_pool=pool
        )

    return decode


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
