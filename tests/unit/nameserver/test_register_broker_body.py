"""The registration body: captured bytes both ways, then bytes that must be refused."""

from __future__ import annotations

import struct
import zlib

import pytest

from aerobee.errors import MalformedFrame
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.register_broker import Bounds, LongRegistration, RegisterBrokerBody, body_crc32
from aerobee.remoting.body.topic_config import TopicConfig, TopicConfigSerializeWrapper
from tests.unit.nameserver.capture import load


def registrations(name: str) -> list:
    return [frame for frame in load(name) if frame.code == 103 and not frame.reply]


def decode(body: bytes, *, compressed: bool = False, version: int = 513) -> RegisterBrokerBody:
    return RegisterBrokerBody.decode(body, compressed=compressed, sender_version=version)


@pytest.mark.parametrize("name", ["broker-register", "broker-acting-master", "broker-register-needless"])
def test_every_captured_plain_body_decodes_and_has_its_checksum(name: str) -> None:
    frames = registrations(name)
    assert frames
    for frame in frames:
        assert body_crc32(frame.body) == int(frame.ext["bodyCrc32"])
        body = decode(frame.body)
        assert body.topic_configs.topic_config_table
        again = decode(body.encode())
        assert again == body
        assert decode(body.encode_compressed(), compressed=True).topic_configs.data_version == (
            body.topic_configs.data_version
        )


def test_the_captured_compressed_body_decodes() -> None:
    (frame,) = registrations("broker-register-compressed")
    body = decode(frame.body, compressed=True)
    assert body.topic_configs.topic_config_table["TopicZ2"].write_queue_nums == 2
    assert body.topic_configs.topic_config_table["TopicZ2"].read_queue_nums == 4


def test_a_compressed_body_whose_header_denies_it_decodes_all_the_same() -> None:
    (frame,) = registrations("broker-register-compressed-broken")
    assert frame.ext["compressed"] == "false"
    assert decode(frame.body).topic_configs.topic_config_table


def test_the_compressed_form_keeps_attributes_and_filter_servers() -> None:
    table = {
        "T": TopicConfig("T", 3, 2, 6, attributes={"message.type": "FIFO", "a b": "c d"}),
        "U": TopicConfig("U"),
    }
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(table, DataVersion(1, 2, 3)), ("h:1",))
    again = decode(body.encode_compressed(), compressed=True)
    assert again.topic_configs.topic_config_table == table
    assert again.filter_servers == ("h:1",)
    assert again.topic_configs.data_version == DataVersion(1, 2, 3)


def test_an_absent_body_is_an_empty_table() -> None:
    assert decode(b"") == RegisterBrokerBody()


def block(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


VERSION = block(b'{"counter":1,"stateVersion":0,"timestamp":1}')


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        (b"", "ends before"),
        (struct.pack(">i", 1 << 30), "announces"),
        (struct.pack(">i", -1), "announces"),
        (VERSION + struct.pack(">i", 0x7FFFFFFF), "topics"),
        (VERSION + struct.pack(">i", -5), "topics"),
        (VERSION + struct.pack(">i", 1) + struct.pack(">i", 99) + b"T 1 1", "announces 99 bytes"),
        (VERSION + struct.pack(">i", 0) + block(b"{}"), "filterServerList"),
        (block(b"[]") + struct.pack(">i", 0), "DataVersion"),
    ],
)
def test_lying_compressed_bodies_are_refused(plain: bytes, reason: str) -> None:
    with pytest.raises(MalformedFrame, match=reason):
        decode(zlib.compress(plain), compressed=True)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"T 1 1", "fewer than 5"),
        (b"T x 1 6 SINGLE_TAG", "read queue count"),
        (b"T -1 1 6 SINGLE_TAG", "queues"),
        (b" 1 1 6 SINGLE_TAG", "0 characters"),
        (b"T\t 1 1 6 SINGLE_TAG", "control character"),
        (b"\xff 1 1 6 SINGLE_TAG", "UTF-8"),
    ],
)
def test_a_line_that_is_no_topic_is_left_out_alone(line: bytes, reason: str) -> None:
    plain = VERSION + struct.pack(">i", 2) + block(line) + block(b"Good 1 1 6 SINGLE_TAG") + block(b"[]")
    body = decode(zlib.compress(plain), compressed=True)
    assert set(body.topic_configs.topic_config_table) == {"Good"}
    assert len(body.left_out) == 1
    assert reason in body.left_out[0]


@pytest.mark.parametrize(
    "body", [b"[]", b'{"topicConfigSerializeWrapper":[]}', b"\x78\x9cnot zlib", b"{", b"nonsense"]
)
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode(body)


def test_a_body_that_is_cut_off_is_refused() -> None:
    whole = zlib.compress(VERSION + struct.pack(">i", 0) + block(b"[]"))
    with pytest.raises(MalformedFrame, match="cut off"):
        decode(whole[:-3], compressed=True)


def test_a_body_that_inflates_without_end_is_refused() -> None:
    with pytest.raises(LongRegistration, match="inflates to more than 10000"):
        RegisterBrokerBody.decode(
            zlib.compress(bytes(20_000)), compressed=True, sender_version=513, bounds=Bounds(10_000)
        )


@pytest.mark.parametrize("part", ["attributes", "mappings"])
def test_what_is_not_standard_json_is_bounded_for_all_parts_together(part: str) -> None:
    """A small stream inflates to as many parts as its sender likes, and each would be read in Python."""
    count, size = 50, 30_000
    text = b'{topic:"t","x":"' + b"x" * (size - 18) + b'"}'
    lines = [block(b"T%d 1 1 6 SINGLE_TAG " % n + text) for n in range(count)] if part == "attributes" else []
    mappings = [block(text)] * count if part == "mappings" else []
    tail = [block(b"[]"), struct.pack(">i", len(mappings)), *mappings]
    plain = b"".join([VERSION, struct.pack(">i", len(lines)), *lines, *tail])
    bounds = Bounds(dialect_bytes_max=count * size // 2)
    with pytest.raises(LongRegistration, match="not standard JSON"):
        RegisterBrokerBody.decode(zlib.compress(plain), compressed=True, sender_version=513, bounds=bounds)
