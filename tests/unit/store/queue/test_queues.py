"""Consume queues on a simulated disk."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee.errors import StoreFull
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import MappedFile, RealDisk
from aerobee.store.index.key_index import KeyIndex
from aerobee.store.queue.consume_queue import ENTRY, FILLER, ConsumeQueue
from aerobee.store.queue.queue_files import FilePool
from aerobee.store.upkeep.queue_flush import QueueFlusher

FILE_BYTES = 200  # ten entries


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1))


def new_queue(disk: SimulatedDisk, pool: FilePool | None = None, number: int = 0) -> ConsumeQueue:
    directory = f"/store/consumequeue/T/{number}"
    return ConsumeQueue("T", number, directory, FILE_BYTES, pool or FilePool(disk))


def fill(queue: ConsumeQueue, count: int) -> None:
    for _ in range(count):
        if queue.max_offset >= queue.room:
            queue.make_room()
        queue.append_entry(queue.max_offset * 100, 100, 7)


def test_entries_come_back_over_files_ends_and_after_a_restart(disk: SimulatedDisk) -> None:
    fill(new_queue(disk), 25)
    queue = new_queue(disk)
    queue.load()
    assert queue.max_offset == 25
    assert queue.file_count == 3
    assert queue.entries(8, 4) == [(at * 100, 100, 7) for at in range(8, 12)]
    assert queue.entry(25) is None
    assert queue.max_physical_offset == 2500


@pytest.mark.parametrize("disk_of", ["simulated", "real"])
def test_a_busy_queue_keeps_its_entries_while_its_file_is_made_ready_ahead_also_after_a_restart(
    disk_of: str, disk: SimulatedDisk, tmp_path: Path
) -> None:
    directory, lives, count = tmp_path / "consumequeue" / "T" / "0", 3, 12_345
    for life in range(1, lives + 1):
        pool = FilePool(disk if disk_of == "simulated" else RealDisk())
        queue = ConsumeQueue("T", 0, str(directory), 20 * 30_000, pool)
        queue.load()
        assert queue.max_offset == (life - 1) * count
        fill(queue, count)
        assert queue.entries(0, 30_000) == [(at * 100, 100, 7) for at in range(min(30_000, life * count))]
        pool.close()


def test_a_full_last_file_is_no_reason_to_look_further(disk: SimulatedDisk) -> None:
    fill(new_queue(disk), 20)
    queue = new_queue(disk)
    queue.load()
    assert queue.max_offset == 20


def test_a_queue_that_begins_late_starts_with_fillers(disk: SimulatedDisk) -> None:
    queue = new_queue(disk)
    queue.start_at(23)
    fill(queue, 2)
    assert disk.content("/store/consumequeue/T/0/00000000000000000400")[:60] == FILLER * 3
    assert queue.entry(22) is None
    assert queue.entry(23) == (2300, 100, 7)


def test_cutting_removes_files_and_clears_entries(disk: SimulatedDisk) -> None:
    queue = new_queue(disk)
    fill(queue, 25)
    assert queue.cut_records_from(1250) == 12
    assert queue.max_offset == 13
    assert queue.file_count == 2
    assert not any(disk.content("/store/consumequeue/T/0/00000000000000000200")[60:])
    fill(queue, 1)
    assert queue.entry(13) == (1300, 100, 7)


def test_files_below_the_log_go_and_the_first_offset_moves(disk: SimulatedDisk) -> None:
    queue = new_queue(disk)
    fill(queue, 25)
    assert queue.delete_before(1250) == 1
    assert queue.min_offset == 13
    assert queue.entry(5) is None
    assert queue.read_entries(5, 3) == b""


def test_no_space_is_store_full_and_changes_nothing(disk: SimulatedDisk) -> None:
    queue = new_queue(disk)
    fill(queue, 10)
    disk.total_bytes = disk.used_bytes
    with pytest.raises(StoreFull, match="no disk space for the queue"):
        queue.make_room()
    assert queue.max_offset == 10
    disk.total_bytes += 10_000
    fill(queue, 1)
    assert queue.entry(10) == (1000, 100, 7)


def test_a_missing_file_between_others_is_a_fault_and_what_is_before_it_stays(disk: SimulatedDisk) -> None:
    fill(new_queue(disk), 30)
    disk.remove("/store/consumequeue/T/0/00000000000000000200")
    queue = new_queue(disk)
    queue.load()
    assert "00000000000000000400 is missing" in queue.fault
    assert queue.max_offset == 10


def test_many_queues_share_a_few_open_files(disk: SimulatedDisk) -> None:
    pool = FilePool(disk, 16)
    queues = [new_queue(disk, pool, number) for number in range(300)]
    for _ in range(3):
        for queue in queues:
            fill(queue, 4)
            for file in pool.take_dirty():
                pool.unpin([file])
            pool.unsynced_queues.clear()
            queue.unsynced_from = -1
    assert pool.open_count <= 17
    assert all(queue.max_offset == 12 for queue in queues)
    assert all(queue.entry(at) == (at * 100, 100, 7) for queue in queues for at in range(12))


def test_an_entry_is_20_bytes_big_endian() -> None:
    assert ENTRY.pack(1, 2, -1).hex() == "0000000000000001" + "00000002" + "ffffffffffffffff"


def test_a_directory_that_is_deleted_while_its_round_is_synced_stops_nothing(tmp_path: Path) -> None:
    class Deletes(RealDisk):
        """The topic is deleted by the loop's thread just when the other thread has looked."""

        def is_dir(self, path: str) -> bool:
            found = super().is_dir(path)
            if found and path.endswith("/T"):
                os.rmdir(path)
            return found

    pool = FilePool(Deletes())
    gone, kept = tmp_path / "consumequeue" / "T", tmp_path / "consumequeue" / "U"
    for directory in (gone, kept):
        directory.mkdir(parents=True)
        pool.unsynced_dirs.add(str(directory))
    flusher = QueueFlusher(
        pool, KeyIndex(StoreConfig(store_path_root_dir=str(tmp_path)), pool.disk), pool.disk
    )
    flusher.sync_all()
    assert not gone.exists()
    assert kept.is_dir()
    assert not pool.unsynced_dirs


def test_a_file_that_is_deleted_while_its_round_is_synced_stops_nothing(tmp_path: Path) -> None:
    class Deletes(RealDisk):
        deletes: Callable[[], None] | None = None

        def open_mapped(self, path: str) -> MappedFile:
            """The queue is deleted by the loop's thread just when the other thread has looked."""
            if self.deletes is not None:
                self.deletes()
            return super().open_mapped(path)

    disk = Deletes()
    pool = FilePool(disk)
    queue = ConsumeQueue("T", 0, str(tmp_path / "consumequeue" / "T" / "0"), FILE_BYTES, pool)
    fill(queue, 3)
    pool.close()  # as when more files are open than may be: closed while it is dirty
    [file] = pool.take_dirty()
    disk.deletes = lambda: pool.remove(file)
    pool.sync_file(file)
    pool.unpin([file])
    assert not Path(file.path).exists()
    file.removed = False
    disk.deletes = None
    with pytest.raises(FileNotFoundError):  # this broker did not delete it
        pool.sync_file(file)
