"""Rows that are laid out already, at real brokers: stored, tried again, named when they fail; and how much of them waits."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from aerobee.client.session.send_header import encode_batch_entry
from aerobee.message import Message
from aerobee.spark import row_sender
from aerobee.spark.cluster_view import ClusterView
from aerobee.spark.entry_codec import BatchLayout, LaidOutBatch
from aerobee.spark.options import parse_source_options
from aerobee.spark.range_reader import ReadPlan, read_range
from aerobee.spark.ranges import QueueRange
from aerobee.spark.row_sender import RowSender, SinkError
from aerobee.spark.sink_options import parse_sink_options
from aerobee.spark.sink_rows import OutgoingRow
from aerobee.testing.threaded_cluster import ThreadedCluster


@pytest.fixture
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster() as own:
        own.create_topic("orders", 2)
        yield own


def sender_of(cluster: ThreadedCluster, **options: str) -> RowSender:
    return RowSender(parse_sink_options({"nameservers": cluster.nameserver_address, **options}))


def batch_of(
    sender: RowSender, first: int, count: int, body: bytes = b"row %d", topic: str = "orders"
) -> LaidOutBatch:
    ids, now_ms = sender._producer.unique_ids, sender._producer.now_ms()
    entries = [
        encode_batch_entry(
            Message(topic, body % number if b"%d" in body else body, tag="T"), ids.next_id(now_ms)
        )
        for number in range(first, first + count)
    ]
    return LaidOutBatch(topic, first, first + count - 1, count, b"".join(entries))


def bodies_in(cluster: ThreadedCluster) -> list[bytes]:
    """Of all queues of the topic."""
    options = parse_source_options(
        {"nameservers": cluster.nameserver_address, "subscribe": "orders"}, streaming=False
    )
    with ClusterView(options) as view:
        bounds = view.queue_bounds(None)
    found: list[bytes] = []
    for queue, has in bounds.items():
        for batch in read_range(ReadPlan(options, ("value",)), QueueRange(queue, has.begin, has.end)):
            offsets, data, _ = batch.columns["value"]
            ends = struct.unpack(f"<{batch.count + 1}i", offsets)
            found.extend(data[begin:end] for begin, end in itertools.pairwise(ends))
    return found


async def test_a_batch_is_stored_whole(cluster: ThreadedCluster):
    async with sender_of(cluster) as sender:
        for first in range(0, 300, 100):
            await sender.add_laid_out(batch_of(sender, first, 100))
        sent = await sender.finish()
    assert sent.row_count == 300
    assert sorted(await asyncio.to_thread(bodies_in, cluster)) == sorted(
        b"row %d" % number for number in range(300)
    )


async def test_rows_are_tried_for_so_long_and_then_named(cluster: ThreadedCluster):
    """Its broker is away, and comes back within one of the two times."""
    async with sender_of(cluster, sendTimeout="1s") as sender:
        cluster.stop_broker(0)
        await sender.add_laid_out(batch_of(sender, 7, 5))
        with pytest.raises(SinkError, match="row 7 to 11 of the task, for topic orders"):
            await sender.finish()
    async with sender_of(cluster, sendTimeout="60s") as sender:
        await sender.add_laid_out(batch_of(sender, 0, 5))
        await asyncio.to_thread(cluster.start_broker, 0)
        assert (await sender.finish()).row_count == 5


async def test_so_many_bytes_wait_for_an_answer(cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(row_sender, "WAITING_BYTES_MAX", 100_000)
    async with sender_of(cluster) as sender:
        most = 0
        for number in range(40):
            await sender.add_laid_out(batch_of(sender, number, 1, b"x" * 30_000))
            most = max(most, sender._waiting_bytes)
        assert (await sender.finish()).row_count == 40
        assert sender._waiting_bytes == 0
    assert 100_000 <= most < 140_000


async def test_the_largest_row_that_a_broker_takes_travels_alone(cluster: ThreadedCluster):
    """With the head of a batch's entry it would be larger than maxMessageSize: it is neither laid out nor batched with others."""
    made: list[int] = []
    layout = row_sender.BatchLayout

    def noted(*arguments: Any, body_bytes_max: int, **rest: Any) -> BatchLayout:
        made.append(body_bytes_max)
        return layout(*arguments, body_bytes_max=body_bytes_max, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_sender, "BatchLayout", noted)
        async with sender_of(cluster) as sender:
            bodies = [b"small", b"x" * (4 << 20), b"small"]
            await sender.add(
                OutgoingRow(number, Message("orders", body), "", "") for number, body in enumerate(bodies)
            )
            assert (await sender.finish()).row_count == 3
    assert made == [row_sender.BATCH_BYTES_MAX]
