"""Entries that wait in memory before they are written to the index: the files are the same as without waiting."""

from __future__ import annotations

import random

import pytest

from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.index.key_index import DEFERRED_ENTRIES, KeyIndex

BEGIN_MS = 1_700_000_000_123


def new_index(disk: SimulatedDisk, entry_count_max: int = 5_000) -> KeyIndex:
    config = StoreConfig(store_path_root_dir="/store", max_hash_slot_num=31, max_index_num=entry_count_max)
    return KeyIndex(config, disk)


def contents(index: KeyIndex) -> list[tuple[object, ...]]:
    return [
        (
            file.path, bytes(file.file.peek(0, file.file.size)), file.count, file.used_slots, file.begin_timestamp,
            file.end_timestamp, file.begin_physical_offset, file.end_physical_offset, file.dirty_from,
        )
        for file in index.files
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_entries_that_waited_leave_the_same_files(seed: int) -> None:
    rng = random.Random(seed)
    at_once, deferred = new_index(SimulatedDisk(rng), 300), new_index(SimulatedDisk(rng), 300)
    now_ms, offset = BEGIN_MS, 1_000
    for _ in range(600):
        entries = []
        for _ in range(rng.randint(1, 5)):
            entries.append((rng.randrange(1 << 31), offset))
            offset += rng.randrange(200)
        for index in (at_once, deferred):
            if not index.has_room(len(entries)):
                index.make_room(len(entries), now_ms)
        at_once.put_run(entries, now_ms)
        deferred.put_run_deferred(list(entries), now_ms)
        if rng.random() < 0.05:
            assert contents(deferred) == contents(at_once)
        now_ms += rng.choice((0, 0, 0, 1, 1, 300, 999, 1_000, 1_001))
    assert len(at_once.files) > 3
    assert contents(deferred) == contents(at_once)


def test_whoever_looks_finds_what_waits() -> None:
    index = new_index(SimulatedDisk(random.Random(1)))
    index.make_room(3, BEGIN_MS)
    index.put_run_deferred([(7, 100)], BEGIN_MS)
    index.put_run_deferred([(8, 200)], BEGIN_MS + 5)
    assert index.last_physical_offset == 200
    index.put_run_deferred([(9, 300)], BEGIN_MS + 6)
    assert index.unsynced_from() == 100
    assert index.last_timestamp == BEGIN_MS + 6


def test_no_more_than_a_bounded_number_waits() -> None:
    disk = SimulatedDisk(random.Random(1))
    index = new_index(disk)
    index.make_room(2 * DEFERRED_ENTRIES, BEGIN_MS)
    file = index.files[-1]
    index.put_run_deferred([(1, 0)], BEGIN_MS)
    index.put_run_deferred([(2, 1)], BEGIN_MS + 1)  # the file has begun: its seconds can be counted
    assert file.count == 2
    for number in range(2, DEFERRED_ENTRIES):
        index.put_run_deferred([(number, number)], BEGIN_MS + 1)
    assert file.count == 2
    index.put_run_deferred([(5, DEFERRED_ENTRIES), (6, DEFERRED_ENTRIES)], BEGIN_MS + 1)
    assert file.count >= 1 + DEFERRED_ENTRIES


def test_an_index_that_is_off_keeps_nothing() -> None:
    config = StoreConfig(store_path_root_dir="/store", message_index_enable=False)
    index = KeyIndex(config, SimulatedDisk(random.Random(1)))
    index.put_run_deferred([(1, 1)], BEGIN_MS)
    assert index.files == []
