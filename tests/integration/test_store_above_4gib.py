"""A store with RocketMQ's own file sizes and offsets beyond 32 bits, at its first start here: log, queues, index, and after it.

The records are those that a real RocketMQ 5.5.0 wrote, moved to where they would lie in an old cluster: log files of 1 GiB from
3 GiB on, each with some records and a blank for the rest, queues that begin at message 4,320,000,000, an index of 420 MB. All
files are sparse: they take some hundred KiB.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from aerobee.clock import SystemClock
from aerobee.message import MAGIC_BLANK, decode_record, decode_records, encode_properties
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.index.index_file import key_hash
from aerobee.store.log.stored_message import GetStatus, StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.store.verify.checker import verify
from tests.integration.store_archive import Archive, read_queue

GIB = 1 << 30
FIRST_FILE = 3 * GIB  # older ones went by retention
FILE_COUNT = 4
QUEUE_FILE_BYTES, ENTRY = 6_000_000, struct.Struct(">qiq")
FIRST_QUEUE_OFFSET = QUEUE_FILE_BYTES // ENTRY.size * 14_400
SLOTS, INDEX_ENTRIES = 5_000_000, 20_000_000
HOST = b"\x7f\x00\x00\x02\x00\x00\x51\xaf"
Key = tuple[str, int]


class Moved(NamedTuple):
    """A record at its new offset."""

    key: Key
    queue_offset: int
    physical_offset: int
    data: bytes


class Old:
    """The directory, and what is in it. `config` has RocketMQ's sizes."""

    def __init__(self, directory: Path) -> None:
        archive = Archive("clean-shutdown", directory / "source")
        self.root = directory / "store"
        self.config = StoreConfig(store_path_root_dir=str(self.root))
        self.records = self._move(archive)
        self.queues: dict[Key, list[int]] = {}
        for record in self.records:
            self.queues.setdefault(record.key, []).append(record.physical_offset)
        self._write_log()
        self._write_queues(archive)
        self._write_index()
        newest = decode_record(self.records[-1].data).store_timestamp
        (self.root / "checkpoint").write_bytes(struct.pack(">qqq", newest, newest, newest).ljust(4096, b"\0"))

    def open(self) -> MessageStore:
        store = MessageStore(self.config, disk=RealDisk(), clock=SystemClock(), store_host=lambda: HOST)
        self.report = store.load()
        return store

    def _move(self, archive: Archive) -> list[Moved]:
        """An equal share of the records in each file."""
        old_files = {int(path.name): path.read_bytes() for path in (archive.root / "commitlog").iterdir()}
        of_queues = sorted(
            (entry[0], entry[1], (topic, queue_id), number)
            for topic, queue_id, entries, is_batch in archive.queues()
            if not is_batch
            for number, entry in enumerate(entries)
        )
        share = -(-len(of_queues) // FILE_COUNT)
        moved, at = [], FIRST_FILE
        for count, (physical, size, key, number) in enumerate(of_queues):
            if count and count % share == 0:
                at = FIRST_FILE + count // share * GIB
            base = max(each for each in old_files if each <= physical)
            data = bytearray(old_files[base][physical - base : physical - base + size])
            data[20:36] = struct.pack(">qq", FIRST_QUEUE_OFFSET + number, at)
            moved.append(Moved(key, FIRST_QUEUE_OFFSET + number, at, bytes(data)))
            at += size
        return moved

    def _write_log(self) -> None:
        directory = self.root / "commitlog"
        directory.mkdir(parents=True)
        for base in range(FIRST_FILE, FIRST_FILE + FILE_COUNT * GIB, GIB):
            inside = [each for each in self.records if base <= each.physical_offset < base + GIB]
            with (directory / f"{base:020d}").open("wb") as file:
                for record in inside:
                    file.seek(record.physical_offset - base)
                    file.write(record.data)
                if base + GIB < FIRST_FILE + FILE_COUNT * GIB:
                    file.write(struct.pack(">ii", GIB - file.tell(), MAGIC_BLANK - (1 << 32)))
                file.truncate(GIB)

    def _write_queues(self, archive: Archive) -> None:
        tags = {
            (topic, queue_id): [entry[2] for entry in entries]
            for topic, queue_id, entries, _ in archive.queues()
        }
        for (topic, queue_id), offsets in self.queues.items():
            directory = self.root / "consumequeue" / topic / str(queue_id)
            directory.mkdir(parents=True)
            sizes = {each.physical_offset: len(each.data) for each in self.records}
            with (directory / f"{FIRST_QUEUE_OFFSET * ENTRY.size:020d}").open("wb") as file:
                for offset, tag in zip(offsets, tags[topic, queue_id], strict=True):
                    file.write(ENTRY.pack(offset, sizes[offset], tag))
                file.truncate(QUEUE_FILE_BYTES)

    def _write_index(self) -> None:
        self.keys: dict[str, tuple[str, int]] = {}  # key: its topic, the physical offset of its newest record
        directory = self.root / "index"
        directory.mkdir()
        newest: dict[int, int] = {}
        first, last = decode_record(self.records[0].data), decode_record(self.records[-1].data)
        with (directory / "20240101000000000").open("wb") as file:
            count = 1
            for record in self.records:
                decoded = decode_record(record.data)
                for key in [decoded.properties.get("UNIQ_KEY"), *decoded.properties.get("KEYS", "").split()]:
                    if not key:
                        continue
                    hashed = key_hash(f"{decoded.topic}#{key}")
                    slot = hashed % SLOTS
                    seconds = (decoded.store_timestamp - first.store_timestamp) // 1000
                    file.seek(40 + SLOTS * 4 + count * 20)
                    file.write(
                        struct.pack(">iqii", hashed, record.physical_offset, seconds, newest.get(slot, 0))
                    )
                    file.seek(40 + slot * 4)
                    file.write(struct.pack(">i", count))
                    newest[slot] = count
                    self.keys[key] = decoded.topic, record.physical_offset
                    count += 1
            offsets = self.records[0].physical_offset, self.records[-1].physical_offset
            file.seek(0)
            file.write(
                struct.pack(
                    ">qqqqii", first.store_timestamp, last.store_timestamp, *offsets, len(newest), count
                )
            )
            file.truncate(40 + SLOTS * 4 + INDEX_ENTRIES * 20)


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Old]:
    yield Old(tmp_path)
    shutil.rmtree(tmp_path / "store")  # seven sparse GiB that no other test copies


def check(old: Old, store: MessageStore) -> None:
    assert old.records[-1].physical_offset > 6 * GIB
    for (topic, queue_id), offsets in old.queues.items():
        assert store.min_offset(topic, queue_id) == FIRST_QUEUE_OFFSET
        assert read_queue(store, topic, queue_id)[: len(offsets)] == offsets
    for record in old.records:
        assert store.read_record(record.physical_offset) == record.data


@pytest.mark.parametrize("was_killed", [False, True], ids=["stopped", "killed"])
async def test_the_first_start_serves_the_store_and_appends(old: Old, was_killed: bool) -> None:
    if was_killed:
        (old.root / "abort").touch()
    store = old.open()
    assert old.report.was_clean is not was_killed
    assert old.report.bytes_cut == 0
    await store.start()
    check(old, store)
    assert len(old.keys) > 10
    for key, (topic, offset) in old.keys.items():
        found = decode_records(store.query(topic, key, count_max=32).body)
        assert offset in [each.physical_offset for each in found], key
    (topic, queue_id), offsets = next(iter(old.queues.items()))
    properties = encode_properties({"UNIQ_KEY": "NEW", "TAGS": "more"}).encode()
    message = StoredMessage(
        topic=topic, queue_id=queue_id, body=b"new", properties=properties, born_host=HOST
    )
    appended = store.append(message)
    assert appended.queue_offset == FIRST_QUEUE_OFFSET + len(offsets)
    assert appended.physical_offset >= old.records[-1].physical_offset + len(old.records[-1].data)
    await store.stop()

    store = old.open()
    assert old.report.was_clean
    check(old, store)
    assert read_queue(store, topic, queue_id)[-1] == appended.physical_offset
    assert store.query(topic, "NEW", count_max=8).count == 1
    result = store.get_messages(topic, queue_id, FIRST_QUEUE_OFFSET - 1, count_max=1)
    assert result.status is GetStatus.OFFSET_TOO_SMALL
    await store.stop()


async def test_queues_and_index_that_are_gone_are_built_again_with_their_offsets(old: Old) -> None:
    shutil.rmtree(old.root / "consumequeue")
    shutil.rmtree(old.root / "index")
    (old.root / "abort").touch()
    store = old.open()
    assert any("the key index" in note and "built again" in note for note in old.report.notes)
    await store.start()
    check(old, store)
    key, (topic, offset) = next(iter(old.keys.items()))
    found = decode_records(store.query(topic, key, count_max=32).body)
    assert offset in [each.physical_offset for each in found]
    await store.stop()
    report = verify(old.config)
    assert report.is_whole
    assert report.records == len(old.records)
