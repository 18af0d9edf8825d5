"""Stored messages as gRPC clients get them."""

from __future__ import annotations

import zlib

from aerobee.broker.grpc.message_form import DELIVERED_BYTES_MAX, delivered_message
from aerobee.grpc.proto import messages as pb
from aerobee.message import COMPRESSED, COMPRESSION_ZLIB, Record


def record(body: bytes, sys_flag: int = 0, **properties: str) -> Record:
    return Record(
        topic="orders", queue_id=3, queue_offset=7, physical_offset=100, body=body, properties=properties,
        sys_flag=sys_flag, born_timestamp=1_500, born_host=("10.0.0.1", 5_000), store_timestamp=2_500,
        store_host=("::1", 10_911), reconsume_times=2,
    )  # fmt: skip


def test_system_properties_are_whole() -> None:
    found = delivered_message(
        record(b"hello", UNIQ_KEY="id-1", TAGS="A", KEYS="k1 k2", colour="red"), topic="orders"
    )
    system = found.system_properties
    assert (system.message_id, system.tag, list(system.keys)) == ("id-1", "A", ["k1", "k2"])
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 7, 3)
    assert (system.born_host, system.store_host) == ("10.0.0.1", "[::1]:10911")
    assert (system.born_timestamp.seconds, system.born_timestamp.nanos) == (1, 500_000_000)
    assert (system.body_encoding, system.message_type) == (pb.IDENTITY, pb.NORMAL)
    assert (system.body_digest.type, system.body_digest.checksum) == (
        pb.MD5,
        "5D41402ABC4B2A76B9719D911017C592",
    )
    assert found.user_properties == {"colour": "red"}


def test_a_compressed_body_is_delivered_plain_within_its_bound() -> None:
    packed = zlib.compress(bytes(1_000))
    assert delivered_message(record(packed, COMPRESSED | COMPRESSION_ZLIB), topic="t").body == bytes(1_000)
    bomb = zlib.compress(bytes(DELIVERED_BYTES_MAX + 1))
    assert delivered_message(record(bomb, COMPRESSED | COMPRESSION_ZLIB), topic="t").body == bomb


def test_a_damaged_body_is_delivered_as_it_is_stored() -> None:
    assert delivered_message(record(b"no zlib", COMPRESSED), topic="t").body == b"no zlib"


def test_times_that_no_calendar_has_are_left_within_range() -> None:
    found = delivered_message(record(b"x", TIMER_OUT_MS=str(10**18)), topic="t")
    assert found.system_properties.message_type == pb.DELAY
    assert found.system_properties.delivery_timestamp.seconds == 253_402_300_799
