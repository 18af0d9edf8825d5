"""Runs of log bytes that go from files to a slave far behind: every byte in order, nothing between, and no file afterwards."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.replication.bulk_transfer import (
    BULK_FRAME_BYTES,
    BULK_LAG_BYTES,
    BULK_RUN_BYTES,
    BulkTransfer,
    FilePart,
    bulk_transfer,
)
from aerobee.broker.replication.log_sender import LogSender
from aerobee.clock import ManualClock
from aerobee.errors import StoreError
from aerobee.ha.stream.transfer_header import CLASSIC_HEAD, ClassicFrames
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.log.commit_log import CommitLog
from tests.fakes import FakeTransport
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="sendfile to a socket without blocking is Linux's"
)
FILE_BYTES = 8 << 20
LOG_BYTES = BULK_LAG_BYTES + BULK_RUN_BYTES + FILE_BYTES // 2


@dataclass
class _Link:
    """Both ends of a connection: the master's transport, and what the slave has of it."""

    transport: asyncio.Transport
    peer: socket.socket
    taken: bytearray

    async def read(self, size: int) -> None:
        """Until the slave has so many bytes."""
        while len(self.taken) < size:
            try:
                data = await asyncio.get_running_loop().sock_recv(self.peer, 1 << 20)
            except ConnectionResetError:
                data = b""
            assert data, "the connection is open"
            self.taken += data


@pytest.fixture
async def link() -> AsyncIterator[_Link]:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        own, _ = listener.accept()
    peer.setblocking(False)
    own.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=own)
    with peer:
        yield _Link(transport, peer, bytearray())
        transport.abort()
        await asyncio.sleep(0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(BULK_FRAME_BYTES) * 12)
    return path


def made(link: _Link) -> BulkTransfer:
    bulk = bulk_transfer(link.transport)
    assert bulk is not None
    return bulk


async def test_heads_and_file_bytes_arrive_in_order(link: _Link, file: Path) -> None:
    bulk = made(link)
    descriptor = os.open(file, os.O_RDONLY)
    data = os.pread(descriptor, 12 << 20, 0)
    parts: list[bytes | FilePart] = [
        b"first",
        FilePart(descriptor, 7, 6 << 20),
        b"second",
        FilePart(descriptor, 0, 5),
    ]
    sending = asyncio.create_task(bulk.send(parts))
    expected = b"first" + data[7 : 7 + (6 << 20)] + b"second" + data[:5]
    await link.read(len(expected))
    await sending
    assert link.taken == expected
    await asyncio.create_task(bulk.send([b"third"]))
    await link.read(len(expected) + 5)
    assert link.taken[len(expected) :] == b"third"
    bulk.close()
    os.close(descriptor)


async def test_a_file_that_ends_too_early_is_an_error(link: _Link, file: Path) -> None:
    bulk = made(link)
    descriptor = os.open(file, os.O_RDONLY)
    with pytest.raises(StoreError, match="a file of the log ends at 12582912, 1 more bytes"):
        await bulk.send([FilePart(descriptor, 12 << 20, 1)])
    bulk.close()
    os.close(descriptor)


async def test_a_file_system_without_sendfile_is_read(
    link: _Link, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a slave far behind would connect again and again, and never get a byte."""
    calls: list[int] = []

    def refused(out: int, descriptor: int, start: int, size: int) -> int:
        calls.append(start)
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "sendfile", refused)
    bulk = made(link)
    descriptor = os.open(file, os.O_RDONLY)
    data = os.pread(descriptor, 12 << 20, 0)
    sending = asyncio.create_task(bulk.send([b"first", FilePart(descriptor, 7, 6 << 20)]))
    await link.read(5 + (6 << 20))
    await sending
    assert link.taken == b"first" + data[7 : 7 + (6 << 20)]
    assert calls == [7], "it is tried once"
    with pytest.raises(StoreError, match="a file of the log ends at 12582912, 1 more bytes"):
        await bulk.send([FilePart(descriptor, 12 << 20, 1)])
    bulk.close()
    os.close(descriptor)


async def test_a_slave_that_does_not_read_is_given_up_at_once(link: _Link, file: Path) -> None:
    bulk = made(link)
    descriptor = os.open(file, os.O_RDONLY)
    sending = asyncio.create_task(bulk.send([FilePart(descriptor, 0, 12 << 20)] * 4))
    await wait_until(lambda: bulk._ready is not None)
    bulk.close()
    await sending
    os.close(descriptor)  # no thread uses it any more
    link.transport.abort()
    with pytest.raises(AssertionError, match="the connection is open"):
        await link.read(1 << 30)


async def test_only_a_plain_connection_is_sent_runs(link: _Link) -> None:
    assert bulk_transfer(FakeTransport()) is None, "a simulation has no socket"

    class Encrypted(FakeTransport):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return {"socket": link.transport.get_extra_info("socket"), "sslcontext": self}.get(name, default)

    assert bulk_transfer(Encrypted()) is None


class _Master:
    """A log of several files, and a sender of it."""

    def __init__(self, path: Path, link: _Link) -> None:
        config = StoreConfig(store_path_root_dir=str(path), mapped_file_size_commit_log=FILE_BYTES)
        Path(config.commit_log_dir).mkdir(parents=True)
        self.log = CommitLog(config, RealDisk())
        self.gone: list[str] = []
        block = os.urandom(1 << 20)
        while self.log.end < LOG_BYTES:
            size = min(len(block), FILE_BYTES - self.log.end % FILE_BYTES)
            self.log.write_raw(
                self.log.end, memoryview(block)[:size], fills_file=not (self.log.end + size) % FILE_BYTES
            )
            self.log.end += size
        self.sender = LogSender(
            log=self.log,
            transport=link.transport,
            bulk=bulk_transfer(link.transport),
            frame_head=lambda offset, size_max: (CLASSIC_HEAD.pack(offset, size_max), size_max),
            frame_bytes=lambda: 32_768,
            hot_bytes=lambda: 0,
            warm=self._warm,
            clock=ManualClock(),
            on_gone=self.gone.append,
            is_urgent=lambda: False,
            position=0,
        )

    async def _warm(self, ranges: object) -> None:
        """The files are in memory."""

    @property
    def bytes(self) -> bytes:
        return b"".join(bytes(each.file.buffer) for each in self.log.segments)[: self.log.end]


async def test_a_slave_far_behind_gets_the_log_in_large_frames(link: _Link, tmp_path: Path) -> None:
    master = _Master(tmp_path, link)
    master.sender.wake()
    assert master.sender.position == BULK_RUN_BYTES, "a run is under way"
    pinned = [each.pins for each in master.log.segments]
    assert pinned[0] == 1
    master.sender.write(
        CLASSIC_HEAD.pack(master.sender.position, 0)
    )  # a heartbeat, which waits for the run's end
    frames, sizes, log, heartbeats = ClassicFrames(), [], bytearray(), []
    while len(log) < master.log.end:
        data = await asyncio.get_running_loop().sock_recv(link.peer, 1 << 18)
        frames.feed(data)
        while (frame := frames.next_frame()) is not None:
            assert frame.offset == len(log)
            if not frame.body:
                heartbeats.append(frame.offset)
            sizes.append(len(frame.body) + frames.large.left)
            log += frame.body
        master.sender.resume()  # the transport of a test has no protocol that calls it
    assert log == master.bytes
    assert heartbeats == [BULK_RUN_BYTES]
    assert max(sizes) == BULK_FRAME_BYTES
    assert sizes[-1] <= 32_768, "a slave that is near gets frames of haTransferBatchSize"
    assert not master.gone
    assert not any(each.pins for each in master.log.segments)
    master.sender.close()
    master.log.close()


async def test_a_connection_that_ends_within_a_run_frees_its_files(link: _Link, tmp_path: Path) -> None:
    master = _Master(tmp_path, link)
    master.sender.wake()
    assert master.log.segments[0].pins == 1
    master.sender.close()
    await wait_until(lambda: not any(each.pins for each in master.log.segments))
    assert not master.gone
    master.log.close()


async def test_a_file_that_is_deleted_within_a_run_is_kept_until_the_run_ends(
    link: _Link, tmp_path: Path
) -> None:
    master = _Master(tmp_path, link)
    master.sender.wake()
    assert not master.sender.keeps_deleted_file
    deleted = master.log.segments[0]
    master.log.detach_first()
    assert master.sender.keeps_deleted_file
    master.sender.close()
    await wait_until(lambda: not master.sender.keeps_deleted_file)
    assert not deleted.pins
    master.log.close()
