"""Lines of a file, a pipe or a terminal as bytes, read so that Ctrl-C never waits for input.

A line keeps every byte except its line feed. The last line needs no line feed; an empty rest after the last line feed is
not a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from aerobee.errors import UsageError
from aerobee.ops.terminal.failure import LocalRefused
from aerobee.words import plural

STDIN = 0  # the descriptor: sys.stdin may be any object in a program that calls the command
READ_BYTES = 1 << 16
LINE_BYTES_MAX = 64 * 1024 * 1024  # bounds the memory for input without line feeds


# Windows translates line ends unless told otherwise.
_BINARY: int = getattr(os, "O_BINARY", 0)


def open_lines(path: Path) -> int:
    """Open a file for reading and return its descriptor. Raises LocalRefused, or UsageError for a directory."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _BINARY)
    except OSError as error:
        raise LocalRefused(
            f"{path} cannot be read ({error.strerror}); check the path given with --file"
        ) from error
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"{path} is a directory: --file takes a file")
    return descriptor


async def read_lines(descriptor: int) -> AsyncIterator[bytes]:
    """Yield the lines. Raises UsageError for a line of more than 64 MiB."""
    rest = b""
    while chunk := await _read(descriptor):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > LINE_BYTES_MAX:
            raise UsageError(
                f"a line is longer than {LINE_BYTES_MAX >> 20} MiB; check that the input is not a binary file"
            )
    if rest:
        yield rest


async def read_all(descriptor: int, limit: int) -> bytes:
    """Read to the end. Raises UsageError above `limit` bytes."""
    data = bytearray()
    while chunk := await _read(descriptor):
        data += chunk
        if len(data) > limit:
            raise UsageError(
                f"the input is larger than {plural(limit, 'byte')}, the maximum size of one message; "
                "without --whole each line becomes a message"
            )
    return bytes(data)


async def _read(descriptor: int) -> bytes:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        # A regular file is always readable and epoll refuses it.
        return os.read(descriptor, READ_BYTES)
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not readable.done():
            readable.set_result(None)

    try:
        loop.add_reader(descriptor, wake)
    except (PermissionError, OSError):
        return os.read(descriptor, READ_BYTES)  # /dev/null and similar files, which epoll refuses
    except NotImplementedError:  # the event loop of Windows watches only sockets
        return await _read_in_thread(descriptor)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, READ_BYTES)


async def _read_in_thread(descriptor: int) -> bytes:
    """Read in a daemon thread, so that the process can end during the read."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def deliver(data: bytes, error: OSError | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(data)
        else:
            done.set_exception(error)

    def read() -> None:
        data, failure = b"", None
        try:
            data = os.read(descriptor, READ_BYTES)
        except OSError as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(deliver, data, failure)

    threading.Thread(target=read, name="aerobee-stdin", daemon=True).start()
    return await done
