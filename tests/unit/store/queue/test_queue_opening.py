"""What opening a consume queue reads, and the end that it finds."""

import random

import pytest

from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.queue.consume_queue import ENTRY_BYTES, ConsumeQueue
from aerobee.store.queue.queue_files import FilePool, QueueFile
from tests.unit.store.queue.test_queues import fill

ENTRIES_PER_FILE = 1_000
PAGE = 256


class CountedPool(FilePool):
    """Counts the reads of its files."""

    peek_count = 0

    def peek(self, file: QueueFile, start: int, end: int) -> bytes:
        self.peek_count += 1
        return super().peek(file, start, end)


def opened(disk: SimulatedDisk) -> tuple[ConsumeQueue, CountedPool]:
    pool = CountedPool(disk)
    queue = ConsumeQueue("T", 0, "/store/consumequeue/T/0", ENTRY_BYTES * ENTRIES_PER_FILE, pool)
    queue.load()
    return queue, pool


def written(count: int) -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(1))
    queue, _ = opened(disk)
    fill(queue, count)
    return disk


COUNTS = [0, 1, 2, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 600, 999, 1_000, 1_001, 1_500, 2_000]


@pytest.mark.parametrize("count", COUNTS)
def test_opening_finds_the_end_wherever_it_lies(count: int) -> None:
    queue, _ = opened(written(count))
    assert queue.max_offset == count
    last = queue.last_entry()
    assert last == (((count - 1) * 100, 100, 7) if count else None) == queue.entry(count - 1)


@pytest.mark.parametrize("count", COUNTS[1:])
@pytest.mark.parametrize("kept", [0, 1, PAGE - 1, PAGE, PAGE + 1, 600, 999, 1_000, 1_200])
def test_a_cut_ends_at_the_bound_wherever_it_lies(count: int, kept: int) -> None:
    queue, _ = opened(written(count))
    assert queue.cut_records_from(kept * 100, lambda _: None) == max(0, count - kept)
    assert queue.max_offset == min(count, kept)
    assert queue.last_entry() == queue.entry(queue.max_offset - 1)
    fill(queue, 1)
    assert queue.last_entry() == queue.entry(queue.max_offset - 1) is not None


@pytest.mark.parametrize("count", [1, 100, PAGE - 1])
def test_recovery_of_a_small_queue_reads_few_pages(count: int) -> None:
    """10,000 queues are what a start waits for: each read of a page counts."""
    queue, pool = opened(written(count))
    assert pool.peek_count <= 2
    assert queue.last_entry() is not None
    queue.cut_records_from(1 << 40, lambda _: None)
    assert queue.first_bad_file(1 << 40) is None
    queue.delete_before(0)
    assert queue.min_offset == 0
    # Of the open: the page with the end, and the entry behind it. Of the cut: the first entry, the page, the entry behind it, the zeros.
    assert pool.peek_count <= 6


def test_a_rewritten_entry_is_not_remembered() -> None:
    queue, _ = opened(written(5))
    queue.rewrite_entry(4, 4_000, 100, 7)
    assert queue.last_entry() == (4_000, 100, 7)
