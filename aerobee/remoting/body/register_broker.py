"""The body of REGISTER_BROKER, both forms. Core. Source: RegisterBrokerBody.

Plain form: JSON

    {"filterServerList": [...], "topicConfigSerializeWrapper": {"dataVersion": {...}, "topicConfigTable": {...}}}

Compressed form: one zlib stream, integers big-endian, of

    int32 length | DataVersion JSON
    int32 count  | count x (int32 length | "name readQueues writeQueues perm filterType attributesJson")
    int32 length | filter server list, a JSON array
    int32 count  | count x (int32 length | queue-mapping JSON)      senders from version 413 on

A 5.x broker with `compressedRegister=true` compresses its body but sends `compressed=false` in the header. A
zlib stream begins with 0x78, which no JSON does, so the first byte takes precedence over the header.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from aerobee.errors import MalformedFrame
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.topic_config import (
    MULTI_TAG,
    SINGLE_TAG,
    TopicConfig,
    TopicConfigSerializeWrapper,
)

ZLIB_FIRST_BYTE = 0x78
# Four times the frame limit: a table of 200,000 topics inflates to less than half of this.
INFLATED_BYTES_MAX = 64 * 1024 * 1024
# Maximum length of a name: longer than %RETRY%, a group, a separator and a topic together.
TOPIC_NAME_LENGTH_MAX = 512
QUEUE_MAPPING_VERSION_MIN = 413
# Bytes of queue mappings, whose maps have bare keys: some 10,000 static topics.
DIALECT_BYTES_MAX = 4 * 1024 * 1024
QUEUE_COUNT_MAX = (1 << 31) - 1


class LongRegistration(MalformedFrame):
    """A registration that takes more work than the caller allows."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one registration: decompressed bytes, and bytes that are not standard JSON."""

    bytes_max: int = INFLATED_BYTES_MAX
    dialect_bytes_max: int = DIALECT_BYTES_MAX


BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody:
    """A broker's registration of its topics. An absent body is the default: no topics, version zero."""

    topic_configs: TopicConfigSerializeWrapper = field(default_factory=TopicConfigSerializeWrapper)
    filter_servers: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # reasons for topics of the body that are not in the table

    def encode(self) -> bytes:
        """The plain form."""
        return fastjson.dumps(
            {
                "filterServerList": list(self.filter_servers),
                "topicConfigSerializeWrapper": self.topic_configs.to_dict(),
            }
        )

    def encode_compressed(self) -> bytes:
        """The compressed form, with the tail of queue mappings."""
        configs = self.topic_configs
        lines = [_topic_line(config) for config in configs.topic_config_table.values()]
        mappings = configs.topic_queue_mapping_info_map or {}
        parts = [
            _block(configs.data_version.encode()),
            struct.pack(">i", len(lines)),
            *(_block(line) for line in lines),
            _block(fastjson.dumps(list(self.filter_servers))),
            struct.pack(">i", len(mappings)),
            *(_block(fastjson.dumps(mapping)) for mapping in mappings.values()),
        ]
        return zlib.compress(b"".join(parts), 9)

    @classmethod
    def decode(
        cls, body: bytes, *, compressed: bool, sender_version: int, bounds: Bounds = BOUNDS
    ) -> RegisterBrokerBody:
        """Decode either form. Raises LongRegistration beyond `bounds`, else MalformedFrame, which names what is wrong and where.

        A malformed topic is omitted, see `left_out`; the other topics of the broker are kept.
        """
        if not body:
            return cls()
        if compressed or body[0] == ZLIB_FIRST_BYTE:
            return _decode_compressed(body, sender_version, bounds)
        if len(body) > bounds.bytes_max:
            raise LongRegistration(
                f"the registration body has {len(body)} bytes, at most {bounds.bytes_max} are read"
            )
        fields = _Dialect(bounds).object(body, "RegisterBrokerBody")
        left_out: list[str] = []
        wrapper = TopicConfigSerializeWrapper.from_dict(
            json_fields.mapping(fields, "topicConfigSerializeWrapper"), check=check_topic, left_out=left_out
        )
        return cls(wrapper, json_fields.texts(fields, "filterServerList"), tuple(left_out))


def body_crc32(body: bytes) -> int:
    """The checksum that the request's header carries: CRC-32 without its sign bit."""
    return zlib.crc32(body) & 0x7FFFFFFF


def check_topic_name(name: str) -> str:
    """Return the name when it can be a key of a nameserver's table. Raises MalformedFrame.

    Accepts more characters than brokers do, because system names use them ("%RETRY%group+topic").
    """
    if not 0 < len(name) <= TOPIC_NAME_LENGTH_MAX:
        raise MalformedFrame(
            f"topic name {name[:60]!r} has {len(name)} characters, allowed are 1 to {TOPIC_NAME_LENGTH_MAX}"
        )
    if not name.isprintable() or " " in name:
        raise MalformedFrame(
            f"topic name {name[:60]!r} holds a blank or a control character; allowed are letters, digits, _, -, % and |"
        )
    return name


def check_topic(config: TopicConfig) -> None:
    """Raise MalformedFrame unless a NameServer accepts this topic."""
    check_topic_name(config.topic_name)
    for count in (config.read_queue_nums, config.write_queue_nums):
        if not 0 <= count <= QUEUE_COUNT_MAX:
            raise MalformedFrame(
                f"topic {config.topic_name[:60]!r} has {count} queues, which is not possible"
            )


def _decode_compressed(body: bytes, sender_version: int, bounds: Bounds) -> RegisterBrokerBody:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, bounds.bytes_max)
    except zlib.error as error:
        raise MalformedFrame(f"the registration body is not a zlib stream: {error}") from error
    if not inflater.eof and inflater.unconsumed_tail:
        raise LongRegistration(
            f"the compressed registration body inflates to more than {bounds.bytes_max} bytes"
        )
    if not inflater.eof:
        raise MalformedFrame("the compressed registration body is cut off")
    dialect = _Dialect(bounds)
    reader = _BlockReader(data)
    version = DataVersion.decode(reader.block("the data version"))
    table: dict[str, TopicConfig] = {}
    left_out: list[str] = []
    for _ in range(reader.count("topics")):
        block = reader.block("a topic")
        try:
            config = _read_topic_line(block, dialect)
        except LongRegistration:
            raise
        except MalformedFrame as error:
            left_out.append(str(error))
            continue
        table[config.topic_name] = config
    servers = dialect.value(reader.block("the filter server list"))
    mappings: dict[str, Any] = {}
    if sender_version >= QUEUE_MAPPING_VERSION_MIN and reader.has_more:
        for _ in range(reader.count("queue mappings")):
            mapping = dialect.object(reader.block("a queue mapping"), "TopicQueueMappingInfo")
            mappings[json_fields.text(mapping, "topic")] = mapping
    return RegisterBrokerBody(
        TopicConfigSerializeWrapper(table, version, topic_queue_mapping_info_map=mappings),
        json_fields.texts({"filterServerList": servers}, "filterServerList"),
        tuple(left_out),
    )


class _Dialect:
    """Total bytes in one registration that are not standard JSON, which Python code parses."""

    def __init__(self, bounds: Bounds) -> None:
        self._left = self._bytes_max = bounds.dialect_bytes_max

    def value(self, data: bytes) -> Any:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            self._left -= len(data)
        if self._left < 0:
            raise LongRegistration(
                f"the registration body has more than {self._bytes_max} bytes that are not standard JSON"
            )
        return fastjson.loads(data, self._bytes_max)

    def object(self, data: bytes, what: str) -> dict[str, Any]:
        value = self.value(data)
        if not isinstance(value, dict):
            raise MalformedFrame(f"{what} is not a JSON object: {data[:80]!r}")
        return value


class _BlockReader:
    """Length-prefixed blocks; each length is checked against the remaining bytes first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def count(self, what: str) -> int:
        count = self._int32(f"the number of {what}")
        left = len(self._data) - self._at
        if not 0 <= count <= left // 4:  # each entry is at least its length word
            raise MalformedFrame(
                f"the registration body announces {count} {what}, {left} bytes are left for them"
            )
        return count

    def block(self, what: str) -> bytes:
        length = self._int32(f"the length of {what}")
        left = len(self._data) - self._at
        if not 0 <= length <= left:
            raise MalformedFrame(
                f"the registration body announces {length} bytes for {what} at byte {self._at}, {left} are left"
            )
        self._at += length
        return self._data[self._at - length : self._at]

    def _int32(self, what: str) -> int:
        if len(self._data) - self._at < 4:
            raise MalformedFrame(f"the registration body ends before {what}")
        (value,) = struct.unpack_from(">i", self._data, self._at)
        self._at += 4
        return int(value)


def _block(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _topic_line(config: TopicConfig) -> bytes:
    attributes = fastjson.dumps(dict(config.attributes)).decode()
    return (
        f"{config.topic_name} {config.read_queue_nums} {config.write_queue_nums} {config.perm} "
        f"{config.topic_filter_type} {attributes}"
    ).encode()


def _read_topic_line(block: bytes, dialect: _Dialect) -> TopicConfig:
    """`name read write perm filterType [attributes]`, one blank between."""
    try:
        parts = block.decode("utf-8").split(" ", 5)
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"topic line {block[:80]!r} of the registration body is not UTF-8") from error
    if len(parts) < 5:
        raise MalformedFrame(f"topic line {block[:80]!r} of the registration body has fewer than 5 parts")
    attributes: Mapping[str, Any] = {}
    if len(parts) == 6 and parts[5]:
        attributes = dialect.object(parts[5].encode(), f"the attributes of topic {parts[0][:60]!r}")
    config = TopicConfig(
        check_topic_name(parts[0]),
        json_fields.as_integer(parts[1], f"the read queue count of {parts[0]!r}"),
        json_fields.as_integer(parts[2], f"the write queue count of {parts[0]!r}"),
        json_fields.as_integer(parts[3], f"the permission of {parts[0]!r}"),
        parts[4] if parts[4] == MULTI_TAG else SINGLE_TAG,
        attributes=json_fields.text_map({"attributes": attributes}, "attributes"),
    )
    check_topic(config)
    return config
