"""Rows of real record batches that native code lays out, and batches that are cut by topic."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee.client.base.unique_id import UniqueIds
from aerobee.client.session.codec import native_codec
from aerobee.client.session.send_header import encode_batch_entry
from aerobee.errors import ConfigError
from aerobee.spark.entry_codec import BatchLayout, LaidOutBatch, TopicRows
from aerobee.spark.sink_rows import outgoing_row


@pytest.fixture
def layout() -> BatchLayout:
    try:
        ids = native_codec().ids(UniqueIds(ip="127.0.0.1", process_id=7, salt=8))
    except ConfigError as error:
        pytest.skip(str(error))
    return BatchLayout(
        ids, lambda: 1_764_000_000_000, rows_max=1000, bytes_max=1_000_000, body_bytes_max=1000
    )


def batch_of(count: int) -> Any:
    import pyarrow as pa

    kinds = {
        "value": pa.binary(),
        "key": pa.string(),
        "tags": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()),
    }
    columns: dict[str, list[Any]] = {
        "value": [b"v%d" % row for row in range(count)],
        "key": [f"k{row}" if row % 3 else None for row in range(count)],
        "tags": ["größe" if row % 5 else "" for row in range(count)],
        "properties": [
            [(f"p{n}", str(row)) for n in range(row % 4)] if row % 7 else None for row in range(count)
        ],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[name], kinds[name]) for name in kinds], names=list(kinds)
    )


def entries_in(body: bytes) -> list[bytes]:
    cut = []
    while body:
        size = int.from_bytes(body[:4], "big")
        cut.append(body[:size])
        body = body[size:]
    return cut


@pytest.mark.parametrize(("begin", "count"), [(0, 100), (1, 99), (37, 40), (98, 2), (50, 0)])
def test_a_slice_is_laid_out_as_its_rows_are(layout: BatchLayout, begin: int, count: int):
    batch = batch_of(100).slice(begin, count)
    part = TopicRows("orders", batch, range(count))
    assert layout.takes(part)
    found = list(layout.lay_out(part))
    if not count:
        assert not found
        return
    (made,) = found
    assert isinstance(made, LaidOutBatch)
    for row, entry in zip(batch.to_pylist(), entries_in(made.body), strict=True):
        at = entry.index(b"UNIQ_KEY\x01") + 9
        message = outgoing_row(0, row, topic="orders").message
        assert entry == encode_batch_entry(message, entry[at : at + 32].decode())


def test_a_batch_is_cut_by_topic():
    import pyarrow as pa

    from aerobee.spark.sink import TOPICS_MAX, by_topic

    def cut(topics: list[str | None], topic: str = "") -> list[tuple[str, list[int], list[int]]]:
        batch = pa.RecordBatch.from_pydict(
            {"topic": pa.array(topics, pa.string()), "n": list(range(len(topics)))}
        )
        return [
            (part.topic, part.batch.column("n").to_pylist(), list(part.numbers))
            for part in by_topic(batch, 10, topic)
        ]

    assert cut(["a", "a"]) == [("a", [0, 1], [10, 11])]
    assert cut(["a", "b", "a"]) == [("a", [0, 2], [10, 12]), ("b", [1], [11])]
    assert cut(["a", None]) == [("", [0, 1], [10, 11])], (
        "the reference implementation says which row has none"
    )
    assert cut(["a", None], "own") == [("own", [0, 1], [10, 11])]
    many = [str(number) for number in range(TOPICS_MAX + 1)]
    assert [topic for topic, _, _ in cut(many)] == [""]
    assert [topic for topic, _, _ in cut(many[:-1])] == many[:-1]
