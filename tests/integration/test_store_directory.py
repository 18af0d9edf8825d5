"""The store on a real disk: locks, directories that cannot be used, cold reads, retention, full disks."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee.clock import ManualClock
from aerobee.errors import RecordInvalid, StoreError, StoreFull, StoreLocked, StoreNotWritable
from aerobee.message import decode_records
from aerobee.store.files.disk import RealDisk, RealMappedFile
from aerobee.store.log.stored_message import GetStatus
from tests.integration.store_messages import message, new_store


async def test_a_second_opener_in_the_same_process_is_refused(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.load()
    with pytest.raises(StoreLocked, match="storePathRootDir"):
        new_store(tmp_path).load()
    await store.stop()
    again = new_store(tmp_path)
    again.load()
    await again.stop()


async def test_a_lock_that_java_would_take_excludes_us_and_ours_excludes_java(tmp_path: Path) -> None:
    # FileChannel.tryLock(0, 1, false) is a POSIX record lock on the first byte.
    take = "import fcntl,sys; f=open(sys.argv[1],'r+b'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
    store = new_store(tmp_path)
    store.load()
    assert (tmp_path / "lock").read_bytes() == b"lock"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", take, str(tmp_path / "lock"), stderr=subprocess.DEVNULL
    )
    assert await process.wait() != 0
    await store.stop()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        take + "; print('held', flush=True); sys.stdin.read()",
        str(tmp_path / "lock"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdout.readline()
    with pytest.raises(StoreLocked):
        new_store(tmp_path).load()
    process.stdin.close()
    await process.wait()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot be used"):
        new_store(tmp_path / "file" / "store").load()


async def test_prepared_and_rollback_records_take_no_queue_offset(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.load()
    assert store.append(message(1, sys_flag=0x4)).queue_offset == 0
    assert store.append(message(2, sys_flag=0xC)).queue_offset == 0
    assert store.append(message(3, sys_flag=0x8)).queue_offset == 0
    assert store.max_offset("T", 0) == 1
    assert store.query("T", "K1", count_max=8).count == 1
    assert store.query("T", "K2", count_max=8).count == 0
    await store.stop()


async def test_a_record_that_no_file_holds_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.load()
    for broken in (message(1, 70_000), message(1, topic="t" * 256), message(1, topic="")):
        with pytest.raises(RecordInvalid):
            store.append(broken)
    assert store.log.end == 0
    assert store.append(message(1, 65_536 - 8 - 91 - 1 - 12)).size == 65_528
    await store.stop()


async def test_a_slave_takes_no_messages(tmp_path: Path) -> None:
    store = new_store(tmp_path, broker_role="SLAVE")
    store.load()
    with pytest.raises(StoreNotWritable, match="slave"):
        store.append(message(1))
    await store.stop()


async def test_cold_data_is_read_by_the_executor_and_equal(tmp_path: Path) -> None:
    store = new_store(tmp_path, hot_read_bytes=0)
    store.load()
    await store.start()
    for number in range(200):
        store.append(message(number, 1000))
    hot = store.get_messages("T", 0, 5, count_max=32)
    cold = await store.get_messages_cold("T", 0, 5, count_max=32)
    assert cold == hot
    assert cold.count == 32
    assert (await store.query_cold("T", "K7", count_max=8)).count == 1
    assert await store.read_record_cold(0) == store.read_record(0)
    assert not store.is_cold("T", 0, 199)
    await store.stop()


async def test_a_read_crosses_the_end_of_a_queue_file(tmp_path: Path) -> None:
    store = new_store(tmp_path)  # 200 entries a file
    store.load()
    for number in range(300):
        store.append(message(number))
    found = store.get_messages("T", 0, 190, count_max=32)
    assert (found.count, found.next_offset) == (32, 222)
    assert [record.queue_offset for record in decode_records(found.body)] == list(range(190, 222))
    await store.stop()


async def test_a_message_that_was_young_is_asked_about_again_when_the_log_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path, hot_read_bytes=20_000, mapped_file_size_commit_log=1 << 20)
    store.load()
    for number in range(10):
        store.append(message(number, 1000))
    monkeypatch.setattr(RealMappedFile, "is_resident", lambda file, start, end: "commitlog" not in file.path)
    assert not store.is_cold("T", 0, 5)
    assert not store.is_cold("T", 0, 6), "it is younger"
    assert not store.is_cold("T", 0, 4), "it is older than the one that is known, and young all the same"
    for number in range(10, 40):
        store.append(message(number, 1000))
    assert store.is_cold("T", 0, 6)
    assert not store.is_cold("T", 0, 38)
    assert store.is_cold("T", 0, 6), "a young one behind it says nothing of it"
    await store.stop()


async def test_a_read_is_cold_when_any_of_its_records_is_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path, hot_read_bytes=0, mapped_file_size_commit_log=1 << 20)
    store.load()
    for number in range(60):
        store.append(message(number, 1000))
    missing = store.queues["T", 0].entry(25)[0]  # type: ignore[index]
    monkeypatch.setattr(
        RealMappedFile,
        "is_resident",
        lambda file, start, end: "commitlog" not in file.path or not start <= missing < end,
    )
    assert store.is_cold("T", 0, 5)  # one of 32 that one read returns
    assert not store.is_cold("T", 0, 26)
    await store.stop()


async def test_a_read_of_many_is_cold_when_any_of_them_is_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path, hot_read_bytes=0, mapped_file_size_commit_log=1 << 20)
    store.load()
    for number in range(2_500):
        store.append(message(number, 200))
    missing = store.queues["T", 0].entry(1_000)[0]  # type: ignore[index]
    monkeypatch.setattr(
        RealMappedFile,
        "is_resident",
        lambda file, start, end: "commitlog" not in file.path or not start <= missing < end,
    )
    for offset, count in ((0, 1_001), (1_000, 1), (0, 1_024), (690, 311)):
        assert store.is_cold("T", 0, offset, count_max=count), (offset, count)
    for offset, count in ((0, 1_000), (0, 32), (1_001, 1_024), (690, 310)):
        assert not store.is_cold("T", 0, offset, count_max=count), (offset, count)
    await store.stop()


async def test_a_setting_of_fewer_bounds_what_has_to_be_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(
        tmp_path,
        hot_read_bytes=0,
        mapped_file_size_commit_log=1 << 20,
        max_transfer_count_on_message_in_memory=100,
    )
    store.load()
    for number in range(600):
        store.append(message(number, 200))
    missing = store.queues["T", 0].entry(150)[0]  # type: ignore[index]
    monkeypatch.setattr(
        RealMappedFile,
        "is_resident",
        lambda file, start, end: "commitlog" not in file.path or not start <= missing < end,
    )
    assert not store.is_cold("T", 0, 50, count_max=1_024)
    assert store.is_cold("T", 0, 51, count_max=1_024)
    await store.stop()


async def test_all_that_one_read_takes_is_brought_into_memory_and_no_more_for_who_asks_for_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever file of the log it lies in."""
    store = new_store(tmp_path, hot_read_bytes=0, max_transfer_bytes_on_message_in_memory=1 << 20)
    store.load()
    await store.start()
    for number in range(1_500):
        store.append(message(number, 200))
    queue = store.queues["T", 0]
    read: set[tuple[str, int]] = set()
    given = RealMappedFile.read

    def note(file: RealMappedFile, start: int, end: int) -> None:
        read.update((file.path, at) for at in range(start, end))
        given(file, start, end)

    monkeypatch.setattr(RealMappedFile, "is_resident", lambda file, start, end: False)
    monkeypatch.setattr(RealMappedFile, "read", note)

    def are_warm(stop: int) -> bool:
        records = [queue.entry(number)[:2] for number in range(5, stop)]  # type: ignore[index]
        for at, size in records:
            segment = store.log.segment_at(at)
            assert segment is not None
            if any((segment.path, at - segment.base + n) not in read for n in (0, size - 1)):
                return False
        return True

    few = await store.get_messages_cold("T", 0, 5, count_max=32)
    assert few.count == 32
    assert are_warm(5 + 256)
    assert not are_warm(5 + 300)
    read.clear()
    many = await store.get_messages_cold("T", 0, 5, count_max=1_024)
    assert many.count == 1_024
    assert are_warm(5 + 1_024)
    await store.stop()


async def test_what_the_system_does_not_bring_in_time_is_read_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path, hot_read_bytes=0)
    store.load()
    await store.start()
    for number in range(200):
        store.append(message(number, 1000))
    hot = store.get_messages("T", 0, 5, count_max=32)
    read: list[int] = []
    given = RealMappedFile.read
    monkeypatch.setattr(RealMappedFile, "is_resident", lambda file, start, end: False)
    monkeypatch.setattr(
        RealMappedFile, "read", lambda file, start, end: read.append(end - start) or given(file, start, end)
    )
    assert await store.get_messages_cold("T", 0, 5, count_max=32) == hot
    assert sum(read) >= 32 * 1000
    await store.stop()


async def test_data_beyond_the_memory_share_is_given_in_small_portions_and_sent_to_the_slave(
    tmp_path: Path,
) -> None:
    store = new_store(tmp_path, memory_bytes=100_000)
    store.load()
    for number in range(200):
        store.append(message(number, 1000))
    old = store.get_messages("T", 0, 0, count_max=32)
    assert (old.count, old.suggest_slave) == (32, True)
    old = store.get_messages("T", 0, 0, count_max=1_024)
    assert (old.count, old.suggest_slave) == (65_536 // (len(old.body) // old.count), True)
    store.reconfigure(replace(store.config, max_transfer_count_on_message_in_disk=8))
    old = store.get_messages("T", 0, 0, count_max=32)
    assert (old.count, old.suggest_slave) == (8, True)
    hot = store.get_messages("T", 0, 180, count_max=32)
    assert (hot.count, hot.suggest_slave) == (20, False)
    await store.stop()


async def test_statuses_of_reads_outside_the_queue(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.load()
    assert store.get_messages("T", 0, 3, count_max=1).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    store.queue("T", 0)
    assert store.get_messages("T", 0, 3, count_max=1).status is GetStatus.NO_MESSAGE_IN_QUEUE
    store.append(message(1))
    assert store.get_messages("T", 0, 1, count_max=1).status is GetStatus.OFFSET_OVERFLOW_ONE
    badly = store.get_messages("T", 0, 9, count_max=1)
    assert (badly.status, badly.next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 1)
    refused = store.get_messages("T", 0, 0, count_max=1, tag_codes=frozenset({5}))
    assert (refused.status, refused.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 1)
    await store.stop()


async def test_expired_files_go_with_their_queue_and_index_files(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.load()
    await store.start()
    for number in range(1000):
        store.append(message(number, 500))
    store.flush_now()
    for segment in store.log.segments[:4]:
        os.utime(segment.path, (0, 0))
    assert await store.delete_expired() >= 4
    low = store.min_offset("T", 0)
    assert store.log.min_offset == 4 * 65_536
    assert store.get_messages("T", 0, 0, count_max=1).status is GetStatus.OFFSET_TOO_SMALL
    first = store.get_messages("T", 0, low, count_max=1)
    assert next(decode_records(first.body)).queue_offset == low
    assert len(list((tmp_path / "commitlog").iterdir())) <= len(store.log.segments) + 1
    await store.stop()
    store = new_store(tmp_path)
    store.load()
    assert store.min_offset("T", 0) == low
    assert store.max_offset("T", 0) == 1000
    await store.stop()


class FullDisk(RealDisk):
    used = 50

    def usage(self, path: str) -> tuple[int, int]:
        return self.used, 100


async def test_a_full_disk_refuses_messages_until_there_is_room_again(tmp_path: Path) -> None:
    disk, clock = FullDisk(), ManualClock()
    store = new_store(tmp_path, disk, clock)
    store.load()
    for used, is_taken in ((50, True), (91, False), (88, False), (85, True), (89, True)):
        disk.used = used
        await store.delete_expired(manual=False)
        if is_taken:
            store.append(message(1))
        else:
            with pytest.raises(StoreFull, match="diskSpaceWarningLevelRatio"):
                store.append(message(1))
    await store.stop()


async def test_a_topic_that_is_made_again_while_its_queues_go_keeps_the_new_ones(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.load()
    for queue_id in range(100):
        for number in range(3):
            store.append(message(number, queue_id=queue_id))
    deletion = asyncio.ensure_future(store.delete_topics({"T"}))
    await asyncio.sleep(0)
    gone = sum(not (tmp_path / "consumequeue" / "T" / str(number)).exists() for number in range(100))
    assert 0 < gone < 50  # others had their turn: the topic is not gone in one piece
    for queue_id in range(100):
        assert store.append(message(7, queue_id=queue_id)).queue_offset == 0
    assert await deletion == 100
    await store.stop()
    store = new_store(tmp_path)
    store.load()
    for queue_id in range(100):
        assert store.max_offset("T", queue_id) == 1
        found = store.get_messages("T", queue_id, 0, count_max=10)
        assert [record.queue_offset for record in decode_records(found.body)] == [0]
    await store.stop()


async def test_what_of_a_deleted_topic_is_left_at_a_stop_goes_then(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.load()
    for queue_id in range(100):
        store.append(message(1, queue_id=queue_id))
    deletion = asyncio.ensure_future(store.delete_topics({"T"}))
    await asyncio.sleep(0)
    deletion.cancel()
    await store.stop()
    store = new_store(tmp_path)
    assert store.load().notes == []
    assert not store.queues
    await store.stop()


async def test_a_deleted_topic_begins_at_zero_again_also_after_a_crash(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.load()
    for number in range(5):
        store.append(message(number))
    assert await store.delete_topics({"T"}) == 1
    assert not (tmp_path / "consumequeue" / "T").exists()
    for number in range(3):
        assert store.append(message(10 + number)).queue_offset == number
    await store.abandon()
    store = new_store(tmp_path)
    store.load()
    assert store.max_offset("T", 0) == 3
    result = store.get_messages("T", 0, 0, count_max=8)
    assert [record.body[:3] for record in decode_records(result.body)] == [b"10:", b"11:", b"12:"]
    await store.stop()


async def test_arrivals_are_announced_by_the_append_itself(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.load()
    seen: list[tuple[str, int, int, int]] = []
    store.on_arrival(lambda *arrival: seen.append(arrival))
    store.append(message(1))
    store.append_batch([message(2), message(3)])
    assert [arrival[2] for arrival in seen] == [1, 2, 3]
    await store.stop()


async def test_the_slots_of_the_key_index_are_mapped_in_once_there_are_keys(tmp_path: Path) -> None:
    store = new_store(tmp_path, flush_interval_consume_queue=5)
    store.load()
    await store.start()
    try:
        store.append(message(0))
        assert not store.index.files[-1].is_mapped_in
        for number in range(1, 300):
            store.append(message(number))
        async with asyncio.timeout(120):
            while not store.index.files[-1].is_mapped_in or store.index.files[-1].pins:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    finally:
        await store.stop()


@pytest.mark.parametrize(
    ("between", "asked_for", "file_bytes"),
    [
        (0, 40 * 1000, 16 << 20),
        (10_000, 40 * 11_000, 16 << 20),
        (100_000, 40 * 1000, 16 << 20),
        (0, 40 * 1000, 16_384),
    ],
    ids=["side by side", "others between, read too", "far between, each by itself", "in several files"],
)
async def test_what_lies_between_messages_is_read_too_unless_it_is_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: int, asked_for: int, file_bytes: int
) -> None:
    store = new_store(tmp_path, hot_read_bytes=0, mapped_file_size_commit_log=file_bytes)
    store.load()
    await store.start()
    for number in range(40):
        store.append(message(number, 1000))
        if between:
            store.append(message(number, between, "others"))
    hot = store.get_messages("T", 0, 0, count_max=32)
    wanted: list[int] = []
    arrived: set[tuple[int, int]] = set()

    def will_need(file: RealMappedFile, start: int, end: int) -> None:
        if "commitlog" in file.path:
            wanted.append(end - start)
        arrived.add((start, end))

    monkeypatch.setattr(RealMappedFile, "will_need", will_need)
    monkeypatch.setattr(RealMappedFile, "is_resident", lambda file, start, end: (start, end) in arrived)
    assert await store.get_messages_cold("T", 0, 0, count_max=32) == hot
    assert asked_for * 0.9 <= sum(wanted) <= asked_for * 1.5
    await store.stop()


def test_a_file_system_is_synced_by_one_of_its_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    code = 0

    class Libc:
        """syncfs() that notes the file of each call."""

        def syncfs(self, descriptor: int) -> int:
            found = os.fstat(descriptor)
            asked.append((found.st_dev, found.st_ino))
            ctypes.set_errno(code)
            return -1 if code else 0

    monkeypatch.setattr("aerobee.store.files.disk._libc", Libc())
    disk = RealDisk()
    disk.sync_all(str(tmp_path))
    found = tmp_path.stat()
    assert asked == [(found.st_dev, found.st_ino)]
    with pytest.raises(FileNotFoundError):
        disk.sync_all(str(tmp_path / "gone"))
    code = errno.EIO
    with pytest.raises(OSError, match="error") as failed:
        disk.sync_all(str(tmp_path))
    assert (failed.value.errno, failed.value.filename) == (errno.EIO, str(tmp_path))
    monkeypatch.undo()
    RealDisk().sync_all(str(tmp_path))  # the real one takes what it is given
