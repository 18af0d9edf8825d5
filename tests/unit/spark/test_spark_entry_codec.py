"""Rows that native code lays out: the bytes that the reference implementation makes of each, and which rows it is left."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from aerobee.client.base.unique_id import UniqueIds
from aerobee.client.session.codec import native_codec
from aerobee.client.session.send_header import encode_batch_entry
from aerobee.errors import ConfigError
from aerobee.spark.entry_codec import BatchLayout, LaidOutBatch, OtherRows, TopicRows
from aerobee.spark.sink_rows import SinkError, outgoing_row

NOW_MS = 1_764_000_000_000
MESSAGE_BYTES_MAX = 1000


@dataclass
class Kind:
    """A pyarrow type, as far as it is looked at."""

    name: str
    key_type: str = "string"
    item_type: str = "string"

    def __str__(self) -> str:
        return self.name


@dataclass
class Column:
    """A pyarrow array of these values, of which the first `offset` are cut off."""

    type: Any
    parts: list[bytes | None]
    offset: int
    null_count: int
    keys: Any = None
    items: Any = None

    def buffers(self) -> list[Any]:
        return list(self.parts)


def bits(values: Sequence[Any]) -> bytes:
    made = bytearray((len(values) + 7) // 8)
    for row, value in enumerate(values):
        made[row >> 3] |= (value is not None) << (row & 7)
    return bytes(made)


def ends(sizes: Sequence[int]) -> bytes:
    at = [0]
    for size in sizes:
        at.append(at[-1] + size)
    return struct.pack(f"<{len(at)}i", *at)


def texts(values: Sequence[bytes | str | None], kind: str, offset: int = 0) -> Column:
    data = [b"" if value is None else value.encode() if isinstance(value, str) else value for value in values]
    missing = sum(value is None for value in values[offset:])
    return Column(
        Kind(kind), [bits(values), ends([len(each) for each in data]), b"".join(data)], offset, missing
    )


def maps(values: Sequence[Sequence[tuple[str, str | None]] | None], offset: int = 0) -> Column:
    pairs = [pair for value in values for pair in value or ()]
    missing = sum(value is None for value in values[offset:])
    column = Column(
        Kind("map<string, string>"),
        [bits(values), ends([len(value or ()) for value in values])],
        offset,
        missing,
    )
    column.keys, column.items = (
        texts([name for name, _ in pairs], "string"),
        texts([text for _, text in pairs], "string"),
    )
    return column


@dataclass
class Batch:
    """A pyarrow record batch."""

    columns: dict[str, Column]
    num_rows: int
    schema: Any = field(init=False)

    def __post_init__(self) -> None:
        self.schema = self
        self.names = list(self.columns)

    def column(self, name: str) -> Column:
        return self.columns[name]


def batch_of(rows: Sequence[dict[str, Any]], offset: int = 0, value_kind: str = "binary") -> Batch:
    """Rows as a batch that is the end of a longer one, `offset` rows of which lie before."""
    kinds = {"value": value_kind, "key": "string", "tags": "string", "message_group": "string"}
    before = [{"value": b"before", "key": "before", "tags": None, "properties": [("b", "before")]}] * offset
    columns = {}
    for name in rows[0]:
        values = [row.get(name) for row in [*before, *rows]]
        columns[name] = maps(values, offset) if name == "properties" else texts(values, kinds[name], offset)
    return Batch(columns, len(rows))


def layout_of(rows_max: int = 1000, bytes_max: int = 100_000, ids: object = None) -> BatchLayout:
    try:
        codec = native_codec()
    except ConfigError as error:
        pytest.skip(str(error))
    ids = ids or codec.ids(new_ids())
    return BatchLayout(
        ids, lambda: NOW_MS, rows_max=rows_max, bytes_max=bytes_max, body_bytes_max=MESSAGE_BYTES_MAX
    )


def new_ids() -> UniqueIds:
    return UniqueIds(ip="127.0.0.1", process_id=7, salt=8, counter=65_530)


def lay_out(rows: Sequence[dict[str, Any]], offset: int = 0, **limits: int) -> list[LaidOutBatch | OtherRows]:
    part = TopicRows("orders", batch_of(rows, offset), range(100, 100 + len(rows)))
    layout = layout_of(**limits)
    assert layout.takes(part)
    return list(layout.lay_out(part))


def entries_in(body: bytes) -> list[bytes]:
    cut = []
    while body:
        size = int.from_bytes(body[:4], "big")
        cut.append(body[:size])
        body = body[size:]
    return cut


def definition(row: dict[str, Any], entry: bytes) -> bytes:
    """What is sent for a row by the reference implementation, with the id that the entry has."""
    at = entry.index(b"UNIQ_KEY\x01") + 9
    return encode_batch_entry(outgoing_row(0, row, topic="orders").message, entry[at : at + 32].decode())


def random_row(chance: random.Random) -> dict[str, Any]:
    text = ["a", "B-7", "größe", "k2", "x" * 40, "", None]
    odd = ["two words", "tab\t", "\x01", "\u3000", "\x7f", "\x02end"]
    return {
        "value": chance.choice(
            [b"v", b"body" * 20, bytes(range(256)), b"\x00"] * 6 + [None, b"", b"x" * 1001]
        ),
        "key": chance.choice(text * 8 + odd),
        "tags": chance.choice(text * 8 + odd),
        "properties": chance.choice(
            [None, [], [("p", "1")], [("p", "1"), ("q", "ü z")]] * 8
            + [
                [("KEYS", "k")],
                [("DEDUP_KEY", "d")],
                [("n", None)],
                [("", "x")],
                [("p", "a"), ("p", "b")],
                [("p", "\x01")],
            ]
        ),
    }


@pytest.mark.parametrize("seed", range(30))
def test_what_is_laid_out_is_what_the_definition_sends(seed: int) -> None:
    """Each row is laid out as the reference implementation would, or left to it; none is left out or comes twice."""
    chance = random.Random(seed)
    rows = [random_row(chance) for _ in range(chance.randrange(2, 500))]
    ids = set()
    laid_out: list[int] = []
    row = 0
    pending: list[int] = []
    for part in lay_out(
        rows, chance.randrange(20), rows_max=chance.choice([1, 7, 1000]), bytes_max=chance.choice([300, 5000])
    ):
        if isinstance(part, OtherRows):
            pending.extend(range(row, part.begin))
            assert row <= part.begin < part.end <= len(rows)
            row = part.end
            continue
        entries = entries_in(part.body)
        assert len(entries) == part.row_count
        pending.extend(range(row, part.last - 100 + 1))
        row = max(row, part.last - 100 + 1)
        assert part.topic == "orders"
        assert part.first <= part.last
        for number, entry in zip(pending, entries, strict=True):
            assert part.first <= 100 + number <= part.last
            assert entry == definition(rows[number], entry)
            ids.add(entry[entry.index(b"UNIQ_KEY\x01") :][9:41])
        laid_out.extend(pending)
        pending = []
    assert row == len(rows)
    assert not pending
    assert len(ids) == len(laid_out) == len(set(laid_out)), "an id a message"


@pytest.mark.parametrize(
    "odd",
    [
        {"value": None},
        {"value": b""},
        {"value": b"x" * (MESSAGE_BYTES_MAX + 1)},
        {"key": "two words"},
        {"key": "größe"},
        {"tags": "a\x01b"},
        {"tags": "x" * 32_768},
        {"properties": [("WAIT", "true")]},
        {"properties": [("DEDUP_KEY", "d")]},
        {"properties": [("p", None)]},
        {"properties": [("", "x")]},
        {"properties": [("p", "")]},
        {"properties": [("p", "1"), ("p", "2")]},
        {"properties": [("p", "x" * 32_000), ("q", "x" * 800)]},
        {"properties": [(f"p{number}", "1") for number in range(65)]},
    ],
)
def test_an_ineligible_row_is_left_with_its_position(odd: dict[str, Any]) -> None:
    plain = {"value": b"v", "key": "k", "tags": "t", "properties": [("p", "1")]}
    first, *rest = lay_out([plain, plain, plain | odd, *[plain] * 100])
    assert first == OtherRows(2, 66)
    (batch,) = rest
    assert isinstance(batch, LaidOutBatch)
    assert (batch.first, batch.last, batch.row_count) == (100, 202, 39)


def test_a_batch_has_so_many_rows_and_bytes() -> None:
    by_rows = lay_out([{"value": b"v"}] * 10, rows_max=4)
    assert [(each.first, each.last, each.row_count) for each in by_rows] == [
        (100, 103, 4),
        (104, 107, 4),
        (108, 109, 2),
    ]
    by_bytes = lay_out([{"value": b"v" * 500}] * 5, bytes_max=1200)
    assert [each.row_count for each in by_bytes] == [2, 2, 1]
    assert all(len(each.body) <= 1200 for each in by_bytes)
    assert [each.row_count for each in lay_out([{"value": b"v" * 900}] * 2, bytes_max=100)] == [1, 1]


def test_what_is_never_laid_out() -> None:
    layout, rows = layout_of(), [{"value": b"v", "message_group": None}] * 2
    plain = batch_of(rows)
    assert layout.takes(TopicRows("orders", plain, range(2)))
    for topic in ("", "%RETRY%group", "SCHEDULE_TOPIC_XXXX", "no such/topic", "x" * 300):
        assert not layout.takes(TopicRows(topic, plain, range(2))), topic
    sharded = batch_of([rows[0], {"value": b"v", "message_group": "s"}])
    assert not layout.takes(TopicRows("orders", sharded, range(2)))
    assert not layout.takes(TopicRows("orders", batch_of(rows[:1]), range(1)))
    assert not layout.takes(TopicRows("orders", batch_of(rows, value_kind="large_binary"), range(2)))
    assert not layout_of(ids=new_ids()).takes(TopicRows("orders", plain, range(2))), "ids of the Python codec"


def test_columns_that_lie_are_refused_before_a_byte_is_read() -> None:
    for column in (
        Column(Kind("binary"), [None, ends([5]), b"four"], 0, 0),
        Column(Kind("binary"), [None, struct.pack("<2i", 3, 1), b"four"], 0, 0),
        Column(Kind("binary"), [None, struct.pack("<2i", -5, 1), b"four"], 0, 0),
        Column(Kind("binary"), [None, ends([4]), b"four"], 1, 0),
        Column(Kind("binary"), [None, ends([4]), b"four"], -1, 0),
        Column(Kind("binary"), [b"", ends([4]), b"four"], 0, 1),
        Column(Kind("binary"), [None, ends([4]), b"four"], 2**62, 0),
    ):
        layout = layout_of()
        with pytest.raises(BufferError, match="beyond its column"):
            list(layout.lay_out(TopicRows("orders", Batch({"value": column}, 1), range(1))))


def test_the_definition_says_what_is_wrong_with_a_row() -> None:
    with pytest.raises(SinkError, match="row 3 of the task, for topic orders: its value is null"):
        outgoing_row(3, {"value": None}, topic="orders")
