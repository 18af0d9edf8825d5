"""Both backends that lay rows out: the same buffers for the same answers, and what they hold."""

from __future__ import annotations

import itertools
import random
import struct
import zlib

import pytest

from aerobee.errors import AerobeeError, ConfigError, MessageDamaged
from aerobee.message import MessageQueue, encode_properties, encode_record, pack_host
from aerobee.spark.row_codec import choose_rows
from aerobee.spark.rows import LAID_OUT, LaidOut

QUEUE = MessageQueue("orders", "broker-a", 1)
V4, V6 = pack_host("10.0.0.1", 10911), pack_host("fe80::1", 10911)
INNER_BATCH = 0xC0


def record(offset: int, body: bytes = b"body", properties: bytes = b"", **changes) -> bytes:
    fields = {
        "topic": b"orders",
        "queue_id": 1,
        "queue_offset": offset,
        "physical_offset": 1000 + offset,
        "body": body,
        "properties": properties,
        "born_timestamp": 1_700_000_000_000 + offset,
        "born_host": V4,
        "store_timestamp": 1_700_000_000_001 + offset,
        "store_host": V4,
        "reconsume_times": offset % 3,
        **changes,
    }
    return encode_record(**fields)


@pytest.fixture(params=["python", "native"])
def backend(request: pytest.FixtureRequest) -> str:
    try:
        choose_rows(QUEUE, LAID_OUT, frozenset(), request.param)
    except ConfigError as error:
        pytest.skip(str(error))
    return request.param


def texts(column) -> list[bytes | None]:
    offsets, data, validity = column
    ends = struct.unpack(f"<{len(offsets) // 4}i", offsets)
    return [
        data[begin:end] if validity is None or validity[row >> 3] >> (row & 7) & 1 else None
        for row, (begin, end) in enumerate(itertools.pairwise(ends))
    ]


def test_a_message_becomes_cells(backend: str):
    rows = choose_rows(QUEUE, LAID_OUT, frozenset(), backend)
    properties = encode_properties({"KEYS": "k1 k2", "UNIQ_KEY": "U1", "TAGS": "A", "n": "1"}).encode()
    rows.take(record(0, properties=properties) + record(1, b""), 0, 10)
    assert (rows.count, rows.size_bytes > 4) == (2, True)
    made = rows.finish()
    columns = made.columns
    assert texts(columns["value"]) == [b"body", b""]
    assert texts(columns["key"]) == [b"k1 k2", None]
    assert texts(columns["tags"]) == [b"A", None]
    assert texts(columns["msg_id"]) == [b"U1", b"0A00000100002A9F00000000000003E9"]
    assert struct.unpack("<2q", columns["queue_offset"]) == (0, 1)
    assert struct.unpack("<2q", columns["born_ts"]) == (1_700_000_000_000_000, 1_700_000_000_001_000)
    assert struct.unpack("<2q", columns["store_ts"]) == (1_700_000_000_001_000, 1_700_000_000_002_000)
    assert struct.unpack("<2i", columns["reconsume_times"]) == (0, 1)
    offsets, names, values = columns["properties"]
    assert struct.unpack("<3i", offsets) == (0, 4, 4)
    assert dict(zip(texts(names), texts(values), strict=True))[b"n"] == b"1"
    assert rows.finish() == LaidOut(0, rows.finish().columns)


def test_rows_outside_of_the_range_or_without_the_tag_are_left_out(backend: str):
    rows = choose_rows(QUEUE, ("queue_offset",), frozenset({"A"}), backend)
    tagged = [
        record(n, properties=b"TAGS\x01%s\x02" % tag) for n, tag in enumerate([b"A", b"A", b"B", b"A", b"A"])
    ]
    rows.take(b"".join(tagged), 11, 14, 10)
    made = rows.finish()
    assert list(made.columns) == ["queue_offset"]
    assert struct.unpack("<2q", made.columns["queue_offset"]) == (11, 13)


def test_a_damaged_body_is_refused_not_read(backend: str):
    rows = choose_rows(QUEUE, LAID_OUT, frozenset(), backend)
    damaged = bytearray(record(0, b"body"))
    damaged[88] ^= 1
    with pytest.raises(MessageDamaged, match="does not match its CRC"):
        rows.take(record(5) + bytes(damaged), 0, 10)


def _odd_record(chosen: random.Random, offset: int) -> bytes:
    body = chosen.randbytes(chosen.choice([0, 1, 7, 300]))
    names = ["KEYS", "TAGS", "UNIQ_KEY", "n", "ä", "n"]
    pairs = [
        chosen.choice(names).encode()
        + chosen.choice([b"\x01", b"\x01", b""])
        + chosen.choice([b"v", b"", "ö€".encode(), b"\xff", b"a\x01b"])
        for _ in range(chosen.randint(0, 5))
    ]
    properties = b"\x02".join(pairs)
    changes: dict = {}
    kind = chosen.randrange(9)
    if kind == 0:
        changes = {"sys_flag": 0x301}
        body = zlib.compress(body)
    elif kind == 1:
        changes = {"born_host": V6}
    elif kind == 2:
        changes = {"topic": b"others"}
    elif kind == 3:
        changes = {"born_timestamp": chosen.choice([0, -1, 2**62])}
    elif kind == 4:
        entry = struct.pack(">iiiii", 22 + len(body), 0, 0, 0, len(body)) + body + b"\0\0"
        changes, body = {"sys_flag": INNER_BATCH}, entry * 2
    made = bytearray(record(offset, body, properties, **changes))
    if chosen.random() < 0.02:
        made[chosen.randrange(len(made))] ^= 1 << chosen.randrange(8)
    return bytes(made)


def _outcome(backend: str, queue: MessageQueue, columns, tags, answers) -> object:
    rows = choose_rows(queue, columns, tags, backend)
    try:
        for data in answers:
            rows.take(data, 2, 40, 1)
    except AerobeeError as error:
        return type(error)
    counted = rows.count, rows.size_bytes
    return counted, rows.finish()


@pytest.mark.parametrize("seed", range(300))
def test_backends_lay_out_the_same_buffers(seed: int):
    try:
        choose_rows(QUEUE, LAID_OUT, frozenset(), "native")
    except ConfigError as error:
        pytest.skip(str(error))
    chosen = random.Random(seed)
    queue = chosen.choice([QUEUE, QUEUE, QUEUE, MessageQueue("%RETRY%g", "broker-a", 0)])
    columns = [name for name in LAID_OUT if chosen.random() < 0.8]
    tags = chosen.choice([frozenset(), frozenset(), frozenset({"v", "ö€"})])
    answers = [
        b"".join(_odd_record(chosen, number * 20 + each) for each in range(20))[
            : chosen.choice([None, None, None, 500])
        ]
        for number in range(2)
    ]
    assert _outcome("native", queue, columns, tags, answers) == _outcome(
        "python", queue, columns, tags, answers
    )
