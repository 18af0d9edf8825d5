"""OwnRecords writes what append_batch would, and tells who reads."""

from __future__ import annotations

import random

import pytest

from aerobee.clock import ManualClock
from aerobee.errors import StoreError
from aerobee.message import decode_records, tags_code
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.append.own_records import OwnRecords
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from tests.simulation.store_world import InlineExecutor

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
TOPIC = "rmq_sys_wheel_timer"
RECORDS = [(b"body %d" % n, b"TAGS\x01ck\x02", tags_code("ck")) for n in range(60)]


def open_store(flush: str = "ASYNC_FLUSH") -> MessageStore:
    config = StoreConfig(
        store_path_root_dir="/store",
        mapped_file_size_commit_log=4_096,
        mapped_file_size_consume_queue=400,
        message_index_enable=False,
        commit_log_reserve_bytes=1_024,
        flush_disk_type=flush,
    )
    store = MessageStore(
        config,
        disk=SimulatedDisk(random.Random(1)),
        clock=ManualClock(1_000),
        executor=InlineExecutor(),
        store_host=lambda: HOST,
    )
    store.load()
    return store


def messages(records: list[tuple[bytes, bytes, int]]) -> list[StoredMessage]:
    return [
        StoredMessage(
            topic=TOPIC, queue_id=0, body=body, properties=text, born_host=HOST, born_timestamp=7,
            tags_code=code, index_keys=(),
        )
        for body, text, code in records
    ]  # fmt: skip


def own_records(store: MessageStore, waiting: set[tuple[str, int]], told: list[int]) -> OwnRecords:
    return OwnRecords(
        store,
        topic=TOPIC,
        queue_id=0,
        host=HOST,
        waiting=waiting,
        on_written=lambda: told.append(store.log.end),
    )


@pytest.mark.parametrize("waiting", [set(), {(TOPIC, 0)}])
def test_log_and_queue_hold_what_append_batch_writes(waiting: set[tuple[str, int]]) -> None:
    plain, quick = open_store(), open_store()
    told: list[int] = []
    own = own_records(quick, waiting, told)
    assert own.append(7, RECORDS[:1]) is None  # the queue is new
    assert quick.log.end == 0
    arrived: list[tuple[str, int, int, int]] = []
    quick.on_arrival(lambda *what: arrived.append(what))
    at = 0
    for count in (1, 1, 3, 7, 2, 12, 1, 9, 14):  # over the ends of queue and log files
        part = RECORDS[at : at + count]
        expected = plain.append_batch(messages(part))
        done = own.append(7, part) if at else (quick.append_batch(messages(part)).record_offsets, 0)
        assert done is not None
        if at:
            assert (tuple(done[0]), done[1]) == (expected.record_offsets, expected.end)
        at += count
    assert quick.log.end == plain.log.end
    for store in (plain, quick):
        assert store.max_offset(TOPIC, 0) == at
    for offset in range(at):
        mine, theirs = quick.queues[(TOPIC, 0)].entry(offset), plain.queues[(TOPIC, 0)].entry(offset)
        assert mine == theirs
        assert mine is not None
        assert quick.log.read(mine[0], mine[1]) == plain.log.read(mine[0], mine[1])
    assert (quick.last_record_offset, quick.last_store_timestamp) == (
        plain.last_record_offset,
        plain.last_store_timestamp,
    )
    result = quick.get_messages(TOPIC, 0, 0, count_max=4)
    assert [record.body for record in decode_records(result.body)] == [body for body, _, _ in RECORDS[:4]]
    if waiting:
        assert [what[2] for what in arrived] == list(range(1, at + 1))
    else:
        assert told  # else what goes over a file's end is announced one by one


def test_with_sync_flush_records_are_readable_when_they_are_durable() -> None:
    store = open_store("SYNC_FLUSH")
    own = own_records(store, set(), [])
    store.append_batch(messages(RECORDS[:1]))
    own.append(7, RECORDS[1:5])
    assert store.max_offset(TOPIC, 0) == 0
    store.flush_now()
    assert store.max_offset(TOPIC, 0) == 5


def test_a_store_that_refuses_is_left_as_it_is() -> None:
    store = open_store()
    own = own_records(store, set(), [])
    store.append_batch(messages(RECORDS[:1]))
    end = store.log.end
    store.writability.close("the disk failed")
    with pytest.raises(StoreError, match="the disk failed"):
        own.append(7, RECORDS)
    assert store.log.end == end
    assert store.queues[(TOPIC, 0)].max_offset == 1
