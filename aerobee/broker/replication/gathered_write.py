"""A write of several buffers without joining them: the kernel gathers them, also from mapped files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

PARTS_MAX = 512  # the kernel accepts 1024 in one call


def write_parts(transport: asyncio.WriteTransport, parts: Sequence[bytes | memoryview]) -> None:
    """As transport.write(b"".join(parts)): bytes that a plain socket accepts immediately are not copied, the rest goes
    to the transport.

    After an error the transport fails in the same way and reports it.
    """
    taken = _take(transport, parts)
    if not taken:
        transport.write(b"".join(parts))
        return
    for number, part in enumerate(parts):
        if taken < len(part):
            transport.write(b"".join((memoryview(part)[taken:], *parts[number + 1 :])))
            return
        taken -= len(part)


def _take(transport: asyncio.WriteTransport, parts: Sequence[bytes | memoryview]) -> int:
    """Number of bytes that the kernel accepted; 0 when they cannot be written directly."""
    if len(parts) > PARTS_MAX or transport.is_closing() or transport.get_extra_info("sslcontext") is not None:
        return 0
    socket = transport.get_extra_info("socket")
    if socket is None or transport.get_write_buffer_size():
        return 0  # in a simulation; or earlier bytes are waiting
    try:
        return os.writev(socket.fileno(), parts)
    except OSError:
        return 0
