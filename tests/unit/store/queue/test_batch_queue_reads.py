"""Reads of a batch queue: the entry of an offset is found whatever the sizes of batches, and no entry is read in vain."""

from __future__ import annotations

import random

import pytest

from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.queue.batch_consume_queue import BATCH_ENTRY_BYTES, BatchConsumeQueue, BatchEntry
from aerobee.store.queue.queue_files import FilePool


def queue_of(sizes: list[int]) -> BatchConsumeQueue:
    disk = SimulatedDisk(random.Random(1))
    queue = BatchConsumeQueue("T", 0, "/store/q", BATCH_ENTRY_BYTES * 16, FilePool(disk))
    for number, size in enumerate(sizes):
        queue.append_batch_entry(BatchEntry(number * 100, 100, 0, 1, queue.max_offset, size))
    return queue


@pytest.mark.parametrize("seed", range(3))
def test_each_offset_of_a_batch_queue_has_its_entry(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.choice((1, 1, 2, 32, 500)) for _ in range(70)]
    queue = queue_of(sizes)
    if seed:  # the first records are deleted with their file
        queue.delete_before(2_000)
    expected = {
        offset: entry.physical_offset // 100
        for entry in queue.all_entries()
        for offset in range(entry.base_offset, entry.end_offset)
    }
    assert min(expected) == queue.min_offset
    assert {offset: queue.number_of(offset) for offset in expected} == expected
    assert queue.number_of(queue.max_offset) == -1


def test_a_batch_queue_reads_no_entry_that_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_of([32] * 64)
    read: list[int] = []
    unpack = BatchConsumeQueue._unpack

    def counted(self: BatchConsumeQueue, number: int) -> BatchEntry | None:
        read.append(number)
        return unpack(self, number)

    monkeypatch.setattr(BatchConsumeQueue, "_unpack", counted)
    first = next(queue.entries_from(32 * 40 + 5, 32))
    assert first.base_offset == 32 * 40
    assert set(read) == {40}
