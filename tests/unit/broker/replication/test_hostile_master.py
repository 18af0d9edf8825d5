"""What a master sends, or whoever answers at its HA port, leaves a slave's store usable."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.broker.replication.raw_receiver import LOG_OFFSET_MAX, RawReceiver
from aerobee.clock import SystemClock
from aerobee.errors import RecordInvalid
from aerobee.message import encode_record, pack_host
from aerobee.store.append import raw_appender
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.message_store import MessageStore
from aerobee.store.queue import queue_table
from aerobee.store.queue.consume_queue import QUEUE_OFFSET_MAX

FILE_BYTES = 1 << 20
HOST = pack_host("127.0.0.1", 1)


def open_store(directory: Path) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=str(directory),
        mapped_file_size_commit_log=FILE_BYTES,
        mapped_file_size_consume_queue=2_000,
    )
    store = MessageStore(config, disk=RealDisk(), clock=SystemClock(), store_host=lambda: HOST)
    store.load()
    return store


def record(physical_offset: int, queue_offset: int, queue_id: int = 0) -> bytes:
    return encode_record(
        topic=b"t", queue_id=queue_id, queue_offset=queue_offset, physical_offset=physical_offset, body=b"x",
        properties=b"", born_host=HOST, store_host=HOST,
    )  # fmt: skip


@pytest.mark.parametrize("queue_offset", [QUEUE_OFFSET_MAX + 1, 1 << 62, (1 << 63) - 1, -1, -(1 << 63)])
async def test_a_record_far_behind_every_queue_is_refused(tmp_path: Path, queue_offset: int) -> None:
    store = open_store(tmp_path)
    receiver = RawReceiver(store)
    first = record(0, 0)
    with pytest.raises(RecordInvalid, match="a queue has at most"):
        receiver.take(0, first + record(len(first), queue_offset, 1))
    assert store.log.end == len(first)
    assert ("t", 1) not in store.queues
    await store.stop()
    again = open_store(tmp_path)
    assert (again.log.end, again.max_offset("t", 0)) == (len(first), 1)
    await again.stop()


async def test_a_queue_may_begin_where_its_offsets_end(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    RawReceiver(store).take(0, record(0, QUEUE_OFFSET_MAX))
    assert store.max_offset("t", 0) == QUEUE_OFFSET_MAX + 1
    await store.stop()
    again = open_store(tmp_path)
    assert again.max_offset("t", 0) == QUEUE_OFFSET_MAX + 1
    await again.stop()


async def test_a_log_that_has_such_a_record_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that was written before they were refused, whose queue files cannot be."""
    store = open_store(tmp_path)
    offset = 1 << 62
    first = record(0, 0)
    with monkeypatch.context() as patch:
        patch.setattr(raw_appender, "QUEUE_OFFSET_MAX", offset)
        patch.setattr(queue_table, "QUEUE_OFFSET_MAX", offset)
        RawReceiver(store).take(0, first + record(len(first), offset, 1))
    store.queues[("t", 1)].clear()  # type: ignore[attr-defined]
    await store.abandon()
    again = open_store(tmp_path)
    assert again.log.end == 2 * len(first)
    assert again.max_offset("t", 0) == 1
    assert again.max_offset("t", 1) == 0
    assert "served from no queue" in caplog.text
    await again.stop()


def test_an_empty_log_begins_where_offsets_have_room(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    receiver = RawReceiver(store)
    for offset in (LOG_OFFSET_MAX + 1, (1 << 63) - 1):
        with pytest.raises(RecordInvalid, match="no log begins at"):
            receiver.begin_at(offset)
    receiver.begin_at(FILE_BYTES)
    assert receiver.received == FILE_BYTES
