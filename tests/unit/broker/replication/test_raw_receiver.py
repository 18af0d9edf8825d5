"""A master's bytes, in reads of any size and through either way in, become the same log and queues."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.broker.replication.raw_receiver import SPACE_BYTES, RawReceiver
from aerobee.clock import SystemClock
from aerobee.errors import StoreFull
from aerobee.message import pack_host
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk, RealMappedFile
from aerobee.store.log.commit_log import THROUGH_FILE_BYTES
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore

FILE_BYTES = 4 << 20
HOST = pack_host("127.0.0.1", 1)
SIZES = (1, 100, THROUGH_FILE_BYTES - 200, THROUGH_FILE_BYTES, 300_000, 1 << 20, 2 << 20)


def opened(path: Path) -> MessageStore:
    config = StoreConfig(store_path_root_dir=str(path), mapped_file_size_commit_log=FILE_BYTES)
    store = MessageStore(config, disk=RealDisk(), clock=SystemClock(), store_host=lambda: HOST)
    store.load()
    return store


def record(body: bytes) -> StoredMessage:
    return StoredMessage(topic="t", queue_id=0, body=body, properties=b"", born_timestamp=1, born_host=HOST)


def log_of(store: MessageStore) -> bytes:
    return b"".join(bytes(each.file.buffer) for each in store.log.segments)[: store.log.end]


def queues_of(store: MessageStore) -> dict[tuple[str, int], list[object]]:
    return {
        key: [queue.entry(offset) for offset in range(queue.max_offset)]
        for key, queue in store.queues.items()
        if queue.max_offset
    }


def receiver_of(store: MessageStore, backend: str) -> RawReceiver:
    make = choose_backend(backend).make_raw_appender
    if backend == "native" and make is None:
        pytest.skip("no native backend is built")
    return RawReceiver(store, native=make(store) if make is not None else None)


async def masters(path: Path, rng: random.Random) -> MessageStore:
    """A log of several files, with records of every size."""
    store = opened(path)
    for number in range(40):
        body = rng.randbytes(SIZES[number % len(SIZES)])
        store.append(
            StoredMessage(
                topic="t",
                queue_id=number % 3,
                body=body,
                properties=b"KEYS\x01k",
                born_timestamp=1,
                born_host=HOST,
            )
        )
    return store


@pytest.mark.parametrize("backend", ["native", "python"])
@pytest.mark.parametrize("read_bytes", [100_000, 1 << 20, 5 << 20])
async def test_a_log_is_the_same_however_it_arrives(tmp_path: Path, backend: str, read_bytes: int) -> None:
    rng = random.Random(read_bytes)
    master = await masters(tmp_path / "master", rng)
    log = log_of(master)
    assert len(master.log.segments) > 2
    slave = opened(tmp_path / "slave")
    receiver = receiver_of(slave, backend)
    at = 0
    while at < len(log):
        size = min(rng.randint(1, read_bytes), len(log) - at)
        if rng.random() < 0.5:
            receiver.take(at, memoryview(log)[at : at + size])
        else:
            space = receiver.space(size)
            size = min(size, len(space))
            assert size <= SPACE_BYTES
            space[:size] = log[at : at + size]
            receiver.grew(size)
        at += size
        assert receiver.received == at
        assert slave.log.end <= at
    assert log_of(slave) == log
    assert queues_of(slave) == queues_of(master)
    await slave.abandon()
    again = opened(tmp_path / "slave")
    assert log_of(again) == log, "recovery finds what was written through the file"
    assert queues_of(again) == queues_of(master)
    small = record(b"x")
    again.append(small)  # behind it, through the mapping
    master.append(small)
    assert len(log_of(again)) == len(log_of(master))
    for store in (master, again):
        await store.stop()


@pytest.mark.parametrize("backend", ["native", "python"])
async def test_a_large_run_that_finds_no_space_changes_nothing(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = await masters(tmp_path / "master", random.Random(1))
    log = log_of(master)
    slave = opened(tmp_path / "slave")
    receiver = receiver_of(slave, backend)
    receiver.take(0, log[:1000])
    before = log_of(slave), queues_of(slave)
    with monkeypatch.context() as patch:

        def full(file: RealMappedFile, start: int, data: memoryview) -> None:
            raise OSError(28, "No space left on device", file.path)

        patch.setattr(RealMappedFile, "write", full)
        with pytest.raises(StoreFull, match="no disk space for the commit log file"):
            receiver.take(1000, log[1000 : 1 << 20])
    assert (log_of(slave), queues_of(slave)) == before
    receiver = receiver_of(slave, backend)
    receiver.take(slave.log.end, log[slave.log.end :])
    assert (log_of(slave), queues_of(slave)) == (log, queues_of(master))
    for store in (master, slave):
        await store.stop()


@pytest.mark.parametrize("backend", ["native", "python"])
@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("record_count", [0, 1, 10])
async def test_what_a_failed_write_left_is_not_recovered_behind_another_masters_records(
    tmp_path: Path, backend: str, is_reopened: bool, record_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both masters' records have the same sizes, so that one's continue where the other's end. One is written through the
    mapping, ten through the file, and 0 stands for a slave that becomes a master itself."""
    former, master = opened(tmp_path / "former"), opened(tmp_path / "master")
    for store, text in ((former, b"f"), (master, b"m")):
        for _ in range(30):
            store.append(record(text * 10_000))
    size, theirs = former.log.end // 30, log_of(former)
    slave = opened(tmp_path / "slave")
    receiver_of(slave, backend).take(0, theirs[:size])
    if is_reopened:
        await slave.stop()
        slave = opened(tmp_path / "slave")
    write = RealMappedFile.write
    with monkeypatch.context() as patch:

        def ends_early(file: RealMappedFile, start: int, data: memoryview) -> None:
            write(file, start, data[: len(data) // 2])
            raise OSError(28, "No space left on device", file.path)

        patch.setattr(RealMappedFile, "write", ends_early)
        with pytest.raises(StoreFull, match="no disk space for the commit log file"):
            receiver_of(slave, backend).take(size, theirs[size:])
    assert slave.log.end == size
    if record_count:
        end = size * (1 + record_count)
        receiver_of(slave, backend).take(size, log_of(master)[size:end])
    else:
        end = size * 2
        slave.append(record(b"m" * 10_000))
    assert slave.log.end == end
    kept = log_of(slave)
    await slave.abandon()
    again = opened(tmp_path / "slave")
    assert again.log.end == end, "the former master's records are not there"
    assert log_of(again) == kept
    for store in (former, master, again):
        await store.stop()
