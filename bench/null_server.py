"""The minimum: a server on Aerobee's event loop that answers each frame without looking into it.

Every request is answered with one fixed send reply that repeats its opaque. What Aerobee costs above this server is
Aerobee's own work; what this server costs is the event loop, the sockets and cutting frames.

    python bench/null_server.py PORT
"""

from __future__ import annotations

import asyncio
import struct
import sys
from typing import cast

REPLY_HEAD = (
    b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"7F00000100002A9F0000000000000000",'
    b'"queueId":"0","queueOffset":"0","transactionId":"7F000001000000000000000000000000"},"flag":1,"language":"PYTHON",'
    b'"opaque":'
)
REPLY_TAIL = b',"serializeTypeCurrentRPC":"JSON","version":513}'
WORDS = struct.Struct(">II")


class NullConnection(asyncio.Protocol):
    """Cuts frames by their length word and answers each."""

    def __init__(self) -> None:
        self._tail = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transport is an asyncio.Transport by inheritance: uvloop's is not.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        data = self._tail + data
        at, size, replies = 0, len(data), []
        while size - at >= 8:
            length = int.from_bytes(data[at : at + 4], "big")
            if at + 4 + length > size:
                break
            opaque_at = data.find(b'"opaque":', at + 8) + 9
            end = opaque_at
            while data[end] in b"-0123456789":
                end += 1
            header = REPLY_HEAD + data[opaque_at:end] + REPLY_TAIL
            replies.append(WORDS.pack(4 + len(header), len(header)) + header)
            at += 4 + length
        self._tail = data[at:]
        if replies and self._transport is not None:
            self._transport.write(b"".join(replies))


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(NullConnection, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(serve(int(sys.argv[1])))
    except ImportError:
        asyncio.run(serve(int(sys.argv[1])))
    except KeyboardInterrupt:
        sys.exit(0)
