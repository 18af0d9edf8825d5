"""Descriptors of the process used up for a moment: the store continues with what it keeps back, and recovers."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.clock import SystemClock
from aerobee.errors import StoreFull
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.descriptors import SpareDescriptors
from aerobee.store.files.disk import RealDisk
from aerobee.store.files.json_file import save_config_file
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.system import raise_open_files_max

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
LIMIT = 512


@contextlib.contextmanager
def used_up() -> Iterator[None]:
    """No descriptor of this process is free."""
    taken: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(LIMIT, before[0]), before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def message(queue_id: int, body: bytes = b"x") -> StoredMessage:
    return StoredMessage(
        topic="T", queue_id=queue_id, body=body, properties=b"", born_timestamp=1, born_host=HOST
    )


def make_store(path: Path) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=str(path),
        mapped_file_size_commit_log=65_536,
        mapped_file_size_consume_queue=400,
        max_hash_slot_num=64,
        max_index_num=256,
        commit_log_reserve_bytes=65_536,
    )
    store = MessageStore(config, disk=RealDisk(), clock=SystemClock(), store_host=lambda: HOST)
    store.load()
    return store


async def test_new_log_files_queues_and_committed_offsets_are_written_while_none_is_free(
    tmp_path: Path,
) -> None:
    store = make_store(tmp_path)
    with used_up():
        with pytest.raises(OSError, match="Too many open files"):
            os.close(os.open(os.devnull, os.O_RDONLY))
        for number in range(8):
            store.append(message(number % 4, b"x" * 30_000))  # rolls the log over, makes queues
        store.flush_now()
        store.flush_queues_now()
        save_config_file(RealDisk(), str(tmp_path / "config" / "consumerOffset.json"), b"{}", json.loads)
    assert store.is_writable
    assert [store.max_offset("T", queue_id) for queue_id in range(4)] == [2, 2, 2, 2]
    await store.stop()


async def test_when_the_reserve_is_gone_too_a_send_is_refused_and_the_next_one_is_taken(
    tmp_path: Path,
) -> None:
    store = make_store(tmp_path)
    disk = RealDisk()
    with used_up():
        spares = disk._spares
        held, spares._held = spares._held, []
        count, spares.count = spares.count, 0
        try:
            with pytest.raises(StoreFull, match="Too many open files"):
                store.append(message(0))
        finally:
            spares._held, spares.count = held, count
    assert store.append(message(0)).queue_offset == 0
    await store.stop()


def test_the_reserve_is_filled_again_when_descriptors_come_back() -> None:
    spares = SpareDescriptors(8)
    with used_up():
        opened = [spares.opened(lambda: os.open(os.devnull, os.O_RDONLY)) for _ in range(3)]
        assert spares.held < 8
    for descriptor in opened:
        os.close(descriptor)
    os.close(spares.opened(lambda: os.open(os.devnull, os.O_RDONLY)))
    assert spares.held == 8
    spares.close()


def test_another_error_is_not_answered_with_the_reserve() -> None:
    spares = SpareDescriptors(8)
    with pytest.raises(OSError) as caught:
        spares.opened(lambda: os.open("/nowhere/at/all", os.O_RDONLY))
    assert caught.value.errno == errno.ENOENT
    assert spares.held == 8
    spares.close()


def test_the_soft_limit_of_open_files_becomes_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        assert raise_open_files_max() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
