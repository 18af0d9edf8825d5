"""Bursts of frames without sockets, and what they are given to: for fast_path.py and turns.py.

Imports nothing that older versions of Aerobee did not have, for turns.py runs it in their checkouts, too.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import encode_frame

TOPIC, GROUP = "bench-fast-path", "bench-fast-path-group"
PEER = ("127.0.0.1", 40_000)
STORED = 40_000  # messages that pulls find
BATCH_HEAD = struct.Struct(">iiiii")
STORE = {
    "mapped_file_size_commit_log": 1 << 30,
    "mapped_file_size_consume_queue": 60_000_000,  # not to be filled: over its end batches go to the handlers
    "commit_log_reserve_bytes": 8 << 20,
    "max_hash_slot_num": 5_000_000,
    "max_index_num": 20_000_000,
}


class NoTransport(asyncio.Transport):
    """Accepts all bytes of a write immediately."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return PEER if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def properties(number: int) -> str:
    return f"UNIQ_KEY\x017F000001{number:024X}\x02WAIT\x01true\x02"


def send(number: int, *, size: int = 128, batch: int = 1) -> bytes:
    """One SEND_MESSAGE_V2, or a batch."""
    body, code = bytes(size), RequestCode.SEND_MESSAGE_V2
    if batch > 1:
        code = RequestCode.SEND_BATCH_MESSAGE
        entries = []
        for each in range(batch):
            text = properties(number * batch + each).encode()
            head = BATCH_HEAD.pack(BATCH_HEAD.size + size + 2 + len(text), 0, 0, 0, size)
            entries.append(head + bytes(size) + struct.pack(">h", len(text)) + text)
        body = b"".join(entries)
    ext = {
        "a": "group", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0",
        "g": str(1_700_000_000_000 + number), "h": "0", "i": properties(number), "j": "0", "k": "false", "l": "0",
        "m": "true" if batch > 1 else "false", "n": "broker-a",
    }  # fmt: skip
    return encode_frame(RemotingCommand(code.value, ext, body, opaque=number))


def pull(number: int) -> bytes:
    ext = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": str(number % 4), "queueOffset": str(number // 4 * 32),
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000",
        "subscription": "*", "subVersion": "1", "expressionType": "TAG",
    }  # fmt: skip
    return encode_frame(RemotingCommand(RequestCode.PULL_MESSAGE.value, ext, opaque=number))


def bursts(shape: str) -> tuple[list[bytes], int]:
    """Bursts to be given one after the other, and the messages of each."""
    if shape == "pull-32":
        return [pull(number) for number in range(STORED // 4 // 32 * 4)], 32
    if shape == "batch-64":
        return [send(number, batch=64) for number in range(8)], 64
    size = 1024 if shape == "send-1k" else 128
    count = 1 if shape == "send-1" else 64
    return [b"".join(send(64 * burst + n, size=size) for n in range(count)) for burst in range(8)], count
