"""A write of several pieces without joining them: the system gathers them from where they lie, also from mapped files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

PARTS_MAX = 512  # the system takes 1024 in one call


def write_parts(transport: asyncio.WriteTransport, parts: Sequence[bytes | memoryview]) -> None:
    """As transport.write(b"".join(parts)): what a plain socket takes immediately is not copied before, the rest is the transport's.

    What fails here fails there once more, and is the transport's to tell.
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
    """How many bytes the system took; 0 where they cannot be given to it directly."""
    if len(parts) > PARTS_MAX or transport.is_closing() or transport.get_extra_info("sslcontext") is not None:
        return 0
    socket = transport.get_extra_info("socket")
    if socket is None or transport.get_write_buffer_size():
        return 0  # of a simulation; or others wait before these
    try:
        return os.writev(socket.fileno(), parts)
    except OSError:
        return 0
