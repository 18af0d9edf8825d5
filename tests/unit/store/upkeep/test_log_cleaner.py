"""Retention on a simulated disk: what it waits for before files go."""

from __future__ import annotations

import asyncio
import errno
import random

from aerobee.clock import ManualClock
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.simulation.simulated_loop import InlineExecutor
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore

HOST = bytes(8)
FILE_BYTES = 65_536


class Broker:
    """A store without flushes by interval, on a disk that loses everything that was not synced."""

    def __init__(self, reserved_hours: int = 0) -> None:
        self._reserved_hours = reserved_hours
        self.clock = ManualClock()
        self.disk = SimulatedDisk(random.Random(1), now_ms=self.clock.now_ms, kept_parts=(0.0,))
        self.store = self.opened()

    def opened(self) -> MessageStore:
        config = StoreConfig(
            store_path_root_dir="/store",
            mapped_file_size_commit_log=FILE_BYTES,
            message_index_enable=False,
            commit_log_reserve_bytes=4_096,
            file_reserved_time=self._reserved_hours,
        )
        store = MessageStore(
            config, disk=self.disk, clock=self.clock, executor=InlineExecutor(), store_host=lambda: HOST
        )
        store.load()
        return store

    def append(self, body: bytes) -> int:
        """The physical offset behind the message."""
        message = StoredMessage(topic="T", queue_id=0, body=body, properties=b"", born_host=HOST)
        return self.store.append(message).end

    def fill_first_file(self) -> None:
        while self.append(b"x" * 500) < FILE_BYTES:
            pass
        self.store.flush_now()
        self.clock.advance(10)


def test_what_is_stored_again_outlives_the_file_of_the_first_copy() -> None:
    """The second copy is not flushed yet when retention deletes the first one, and the machine loses power then."""
    broker = Broker()
    broker.fill_first_file()
    end = broker.append(b"stored again")
    assert asyncio.run(broker.store.delete_expired()) >= 1
    broker.disk.power_loss()
    store = broker.opened()
    assert store.log.min_offset == FILE_BYTES
    assert store.log.end == end


async def test_no_file_goes_when_the_disk_does_not_sync() -> None:
    broker = Broker()
    await broker.store.start()
    broker.fill_first_file()
    broker.append(b"stored again")
    broker.disk.fail = lambda call, path: errno.EIO if call == "sync" else 0
    assert await broker.store.delete_expired() == 0
    assert broker.store.log.min_offset == 0


async def test_two_rounds_at_once_delete_expired_files_alone() -> None:
    broker = Broker(reserved_hours=1)
    await broker.store.start()
    broker.fill_first_file()
    broker.clock.advance(2 * 3_600)
    while broker.append(b"x" * 500) < 2 * FILE_BYTES:
        pass
    broker.store.flush_now()
    await asyncio.gather(broker.store.delete_expired(), broker.store.delete_expired())
    assert broker.store.log.min_offset == FILE_BYTES
    await broker.store.stop()
