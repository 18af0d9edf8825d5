"""Sends long runs of the log to a slave far behind: the kernel takes the bytes from the files (sendfile), in a thread.

The event loop plans a run; a thread sends what the socket accepts, and waits there for bytes that are on the disk only;
the event loop waits until the socket accepts more. So neither Python nor the event loop touches a log byte, and a
producer waits for none. Linux only, and only on a plain TCP connection: TLS encrypts in Python.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections import deque
from typing import NamedTuple

from aerobee.errors import StoreError
from aerobee.shared_task import to_its_end

BULK_LAG_BYTES = 8 << 20  # a slave further behind is sent runs
BULK_RUN_BYTES = 8 << 20  # of one run
# Frames of a run. A slave of RocketMQ accepts 4 MiB, one of Aerobee 16; their heads cost next to nothing.
BULK_FRAME_BYTES = 1 << 20
# What sendfile says of a file system or a sandbox without it: as asyncio's.
_NO_SENDFILE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_COPY_BYTES = 256 << 10  # read and sent at a time where there is no sendfile
_POSSIBLE = sys.platform == "linux" and hasattr(os, "sendfile")


class FilePart(NamedTuple):
    """Bytes of one open file, which stays open until the run is sent."""

    descriptor: int
    start: int
    size: int


class BulkTransfer:
    """The runs of one connection, one at a time. Has its own descriptor of the socket, which close() gives back."""

    def __init__(self, link: socket.socket) -> None:
        self._socket = link
        self._parts: deque[bytes | FilePart] = deque()
        self._is_sending = False  # a thread uses the descriptor
        self._ready: asyncio.Future[None] | None = None  # the event loop watches it
        self._is_closed = False
        self._has_sendfile = True

    async def send(self, parts: list[bytes | FilePart]) -> None:
        """Send one run: heads of frames and the bytes behind them. No code may write to the connection meanwhile.

        When it returns or raises, no thread uses the files any more. Raises OSError when the connection is broken,
        StoreError when a file ends before its part.
        """
        self._parts.extend(parts)
        while not await self._sent_in_thread():
            await self._writable()

    def close(self) -> None:
        """Send nothing more; a send() under way returns. The descriptor is closed when the thread has ended."""
        self._is_closed = True
        self._stop_waiting()
        if self._is_sending:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # the slave notices it before the thread has ended
        else:
            self._socket.close()

    async def _sent_in_thread(self) -> bool:
        if self._is_closed:
            return True
        self._is_sending = True
        try:
            return await to_its_end(asyncio.create_task(asyncio.to_thread(self._send_some), name="ha-bulk"))
        finally:
            self._is_sending = False
            if self._is_closed:
                self._socket.close()

    def _send_some(self) -> bool:
        """Send what the socket accepts; whether nothing is left to send."""
        while self._parts and not self._is_closed:
            if not self._send_part(self._parts[0]):
                return False
        return True

    def _send_part(self, part: bytes | FilePart) -> bool:
        """Whether the socket took any of it."""
        try:
            if isinstance(part, bytes):
                sent = self._socket.send(part, socket.MSG_MORE)
                rest: bytes | FilePart | None = part[sent:] or None
            else:
                descriptor, start, size = part
                sent = self._send_of_file(descriptor, start, size)
                if not sent:
                    raise StoreError(f"a file of the log ends at {start}, {size} more bytes were to be sent")
                rest = FilePart(descriptor, start + sent, size - sent) if sent < size else None
        except BlockingIOError:
            return False
        if rest is None:
            self._parts.popleft()
        else:
            self._parts[0] = rest
        return True

    def _send_of_file(self, descriptor: int, start: int, size: int) -> int:
        """As os.sendfile: where there is none the bytes pass through this thread."""
        if self._has_sendfile:
            try:
                return os.sendfile(self._socket.fileno(), descriptor, start, size)
            except OSError as error:
                if error.errno not in _NO_SENDFILE:
                    raise
                self._has_sendfile = False
        data = os.pread(descriptor, min(size, _COPY_BYTES), start)
        return self._socket.send(data) if data else 0

    async def _writable(self) -> None:
        """Return when the socket accepts bytes again."""
        if self._is_closed:
            return
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        loop.add_writer(self._socket.fileno(), self._stop_waiting)
        try:
            await self._ready
        finally:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        ready, self._ready = self._ready, None
        if ready is None:
            return
        # Before the descriptor is closed: its number may be another connection's the moment after.
        asyncio.get_running_loop().remove_writer(self._socket.fileno())
        if not ready.done():
            ready.set_result(None)


def bulk_transfer(transport: asyncio.WriteTransport) -> BulkTransfer | None:
    """For a plain TCP connection on Linux; else None."""
    if not _POSSIBLE or transport.get_extra_info("sslcontext") is not None:
        return None
    link = transport.get_extra_info("socket")
    if link is None:
        return None  # in a simulation
    try:
        link = link.dup()
    except OSError:
        return None  # this process has no descriptor left
    # From now on the transport reports when its last buffered byte has left: a run begins behind it.
    transport.set_write_buffer_limits(0)
    return BulkTransfer(link)
