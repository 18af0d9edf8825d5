"""What the checkpoint promises to RocketMQ, which may open the directory after a kill -9.

RocketMQ then deletes each index file that ends behind the checkpoint's index time and indexes again only from the log
file that holds the checkpoint's queue bound: nothing may lie between the two.
"""

from __future__ import annotations

from pathlib import Path

from aerobee.store.files.checkpoint import decode_checkpoint
from tests.integration.store_messages import message, new_store


async def test_the_queue_bound_of_a_running_store_does_not_pass_the_open_index_file(tmp_path: Path) -> None:
    store = new_store(tmp_path, max_index_num=50)
    store.load()
    for number in range(120):
        store.append(message(number))
    store.flush_now()
    store.flush_queues_now()
    checkpoint = decode_checkpoint((tmp_path / "checkpoint").read_bytes())
    *settled, open_file = [file for file in store.index.files if not file.is_empty]
    assert settled
    assert checkpoint.index_timestamp == settled[-1].end_timestamp
    assert checkpoint.queues_physical_offset == open_file.begin_physical_offset
    assert checkpoint.queues_timestamp <= open_file.begin_timestamp
    assert checkpoint.queues_flushed == store.log.end
    last = store.last_record_offset
    await store.stop()
    closed = decode_checkpoint((tmp_path / "checkpoint").read_bytes())
    assert closed.queues_physical_offset == last


async def test_an_index_file_that_is_full_but_not_synced_is_not_promised(tmp_path: Path) -> None:
    store = new_store(tmp_path, max_index_num=50)
    store.load()
    for number in range(40):
        store.append(message(number))
    store.flush_queues_now()
    for number in range(40, 120):
        store.append(message(number))
    assert store.index.open_file is store.index.files[0]
    assert store.index.settled_timestamp == 0
    await store.stop()
