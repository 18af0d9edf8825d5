"""The remoting protocol as a load needs it: frames, replies, records, one connection; made without any of the code under test."""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
import struct
import time
from collections.abc import Iterator

# Request codes, source RequestCode (RocketMQ).
PULL_MESSAGE = 11
UPDATE_AND_CREATE_TOPIC = 17
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
END_TRANSACTION = 37
GET_ROUTEINFO_BY_TOPIC = 105
GET_BROKER_CLUSTER_INFO = 106
SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320

STORED_CODES = (0, 10, 11, 12)  # success, and stored but not flushed or replicated in time
PULL_FOUND, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, PULL_OFFSET_MOVED = 0, 19, 20, 21
FLAG_ONEWAY = 2
SYS_PREPARED, SYS_COMMIT = 4, 8
PULL_SUSPEND, PULL_SUBSCRIPTION = 2, 4

CLIENT_VERSION = 479  # ordinal of 5.3.3 in MQVersion
OPAQUE_BASE = 1_000_000_000  # every opaque has ten digits, so a reply's can be cut out by width
RECV_BYTES = 512 * 1024
REPLY_TIMEOUT_S = 30.0  # silence after which outstanding requests count as lost

STAMP = struct.Struct(">IIQQ")  # run id, worker, sequence, due time in ns
WORDS = struct.Struct(">II")
RECORD_HEAD = struct.Struct(">IIIiiqqi")  # size magic crc queue flag queueOffset physical sysFlag
BATCH_HEAD = struct.Struct(">iiiii")  # size magic crc flag bodyLen
CODE_PATTERN = re.compile(rb'"code"\s*:\s*(-?\d+)')
OPAQUE_PATTERN = re.compile(rb'"opaque"\s*:\s*(-?\d+)')

# Stand-ins of the right width inside a template, replaced by format marks.
BORN_SAMPLE, UNIQ_SAMPLE, OPAQUE_SAMPLE = "4242424242424", "FEDCBA9876543210", 1_999_999_999


class LoadError(Exception):
    """The server answered wrongly, did not answer, or cannot be reached."""


def encode_frame(code: int, ext: dict[str, str], body: bytes = b"", *, opaque: int, flag: int = 0) -> bytes:
    """One request with a JSON header: int32 length | uint8 type 0, uint24 header length | ..."""
    header = json.dumps(
        {
            "code": code,
            "extFields": ext,
            "flag": flag,
            "language": "JAVA",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": CLIENT_VERSION,
        },
        separators=(",", ":"),
    ).encode()
    return WORDS.pack(4 + len(header) + len(body), len(header)) + header + body


def reply_code(kind: int, header: bytes) -> int:
    if kind == 1:
        return int(struct.unpack_from(">h", header)[0])
    if header.startswith(b'{"code":0,'):
        return 0
    found = CODE_PATTERN.search(header)
    if found is None:
        raise LoadError(f"reply without a code: {header[:200]!r}")
    return int(found[1])


def reply_opaque(kind: int, header: bytes) -> int:
    if kind == 1:
        return int(struct.unpack_from(">i", header, 5)[0])
    at = header.rfind(b'"opaque":') + 9
    digits = header[at : at + 10]
    if digits.isdigit():
        return int(digits)
    found = OPAQUE_PATTERN.search(header)  # blanks after the colon, or not ours
    if found is None:
        raise LoadError(f"reply without an opaque: {header[:200]!r}")
    return int(found[1])


def reply_fields(kind: int, header: bytes) -> tuple[dict[str, str], str]:
    """extFields and remark of a reply in either header form."""
    if kind == 0:
        parsed = json.loads(header)
        return parsed.get("extFields") or {}, parsed.get("remark") or ""
    (remark_size,) = struct.unpack_from(">i", header, 13)
    remark = header[17 : 17 + remark_size].decode()
    at = 17 + remark_size
    (ext_size,) = struct.unpack_from(">i", header, at)
    at += 4
    end, ext = at + ext_size, {}
    while at < end:
        (size,) = struct.unpack_from(">h", header, at)
        key = header[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (size,) = struct.unpack_from(">i", header, at)
        ext[key] = header[at + 4 : at + 4 + size].decode()
        at += 4 + size
    return ext, remark


class Link:
    """One non-blocking connection that returns whole frames as (header kind, header, body)."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.sent: dict[int, int] = {}  # opaque -> time it was sent or due, ns
        self.unwritten = bytearray()
        self._tail = b""

    def close(self) -> None:
        self.sock.close()

    def write(self, data: bytes) -> None:
        if self.unwritten:
            self.unwritten += data
            return
        try:
            count = self.sock.send(data)
        except BlockingIOError:
            count = 0
        if count < len(data):
            self.unwritten += memoryview(data)[count:]

    def flush(self) -> None:
        try:
            del self.unwritten[: self.sock.send(self.unwritten)]
        except BlockingIOError:
            pass

    def read(self) -> list[tuple[int, bytes, bytes]]:
        try:
            data = self.sock.recv(RECV_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("the server closed the connection")
        if self._tail:
            data = self._tail + data
        frames, at, size = [], 0, len(data)
        while size - at >= 8:
            length, word = WORDS.unpack_from(data, at)
            end = at + 4 + length
            if end > size:
                break
            body_at = at + 8 + (word & 0xFFFFFF)
            frames.append((word >> 24, data[at + 8 : body_at], data[body_at:end]))
            at = end
        self._tail = data[at:]
        return frames

    def call(
        self, code: int, ext: dict[str, str], body: bytes = b"", *, expect: tuple[int, ...] = (0,)
    ) -> tuple[int, dict[str, str], bytes]:
        """One request and its reply, for set-up work."""
        opaque = OPAQUE_BASE + random.randrange(900_000_000)
        self.sock.settimeout(15)
        try:
            self.sock.sendall(encode_frame(code, ext, body, opaque=opaque))
            while True:
                for kind, header, reply_body in self.read():
                    if reply_opaque(kind, header) != opaque:
                        continue
                    got = reply_code(kind, header)
                    fields, remark = reply_fields(kind, header)
                    if got not in expect:
                        raise LoadError(f"request {code} {ext}: code {got} {remark}")
                    return got, fields, reply_body
        finally:
            self.sock.setblocking(False)


def parse_records(body: bytes) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield (queue id, queue offset, crc, body start, body size, record end) of each record.

    Raises LoadError for a record that does not fit. Layout: remoting notes, section 14.1.
    """
    at, size = 0, len(body)
    while at < size:
        total, _magic, crc, queue, _flag, offset, _physical, sys_flag = RECORD_HEAD.unpack_from(body, at)
        # born time 8, born host 8 or 20, store time 8, store host 8 or 20, reconsume 4, prepared 8
        body_at = at + 40 + 8 + (20 if sys_flag & 16 else 8) + 8 + (20 if sys_flag & 32 else 8) + 12
        (body_size,) = struct.unpack_from(">i", body, body_at)
        if total < 91 or at + total > size or body_at + 4 + body_size > at + total:
            raise LoadError(f"bad record in queue {queue} at offset {offset}: size {total}")
        yield queue, offset, crc, body_at + 4, body_size, at + total
        at += total


# --- messages from a template


class MessageFactory:
    """Make request frames of one worker out of one bytes template per queue."""

    def __init__(self, options: argparse.Namespace, worker: int, *, code_flag: int = 0) -> None:
        self.options, self.worker = options, worker
        self.batch = max(1, options.batch)
        filler = "".join(random.Random(worker).choices("abcdefghijklmnopqrstuvwxyz012345", k=options.size))
        self._filler = filler.encode()[STAMP.size :]
        self._uniq = f"{options.run_id:08X}{worker:08X}{UNIQ_SAMPLE}"
        props = f"UNIQ_KEY\x01{self._uniq}\x02WAIT\x01true\x02"
        if options.tags:
            props += f"TAGS\x01{options.tags}\x02"
        if options.keys:
            props += f"KEYS\x01k{UNIQ_SAMPLE}\x02"
        if options.delay_level:
            props += f"DELAY\x01{options.delay_level}\x02"
        if options.mode == "txn":
            props += f"TRAN_MSG\x01true\x02PGROUP\x01{options.group}\x02"
        self._props = props
        self._entry = self._batch_entry_template()
        self._templates = [self._template(queue, code_flag) for queue in range(options.queues)]

    def _batch_entry_template(self) -> bytes:
        props = self._props.encode()
        size = BATCH_HEAD.size + self.options.size + 2 + len(props)
        head = BATCH_HEAD.pack(size, 0, 0, 0, self.options.size)
        tail = self._filler + struct.pack(">h", len(props)) + props
        return escape(head) + b"%b" + escape(tail).replace(UNIQ_SAMPLE.encode(), b"%016X")

    def _template(self, queue: int, flag: int) -> bytes:
        options = self.options
        ext = {
            "a": options.group, "b": options.topic, "c": "TBW102", "d": "4", "e": str(queue),
            "f": str(SYS_PREPARED if options.mode == "txn" else 0), "g": BORN_SAMPLE, "h": "0",
            "i": self._props, "j": "0", "k": "false", "l": "0",
            "m": "true" if self.batch > 1 else "false", "n": options.broker_name,
        }  # fmt: skip
        if self.batch > 1:
            ext["i"] = f"UNIQ_KEY\x01{self._uniq}\x02WAIT\x01true\x02"
            body_size = self.batch * len(self._entry % ((b"\0" * STAMP.size, 0, 0)[: self._entry_samples()]))
            code = SEND_BATCH_MESSAGE
        else:
            body_size, code = options.size, SEND_MESSAGE_V2
        frame = encode_frame(code, ext, b"\0" * body_size, opaque=OPAQUE_SAMPLE, flag=flag)
        head = escape(frame[: len(frame) - body_size])
        head = head.replace(BORN_SAMPLE.encode(), b"%d").replace(str(OPAQUE_SAMPLE).encode(), b"%d")
        head = head.replace(UNIQ_SAMPLE.encode(), b"%016X")
        return head if self.batch > 1 else head + b"%b" + escape(self._filler)

    def _entry_samples(self) -> int:
        return 2 + (1 if self.options.keys else 0)

    def make(self, first: int, count: int, due_ns: int) -> bytes:
        """Frames of `count` requests whose request numbers start at `first`, back to back."""
        born = time.time_ns() // 1_000_000
        templates, run_id, worker = self._templates, self.options.run_id, self.worker
        queues, pack, keys = len(templates), STAMP.pack, self.options.keys
        if self.batch == 1 and not keys:
            return b"".join([
                templates[n % queues] % (born, n, OPAQUE_BASE + n, pack(run_id, worker, n, due_ns))
                for n in range(first, first + count)
            ])  # fmt: skip
        frames = []
        for n in range(first, first + count):
            head = templates[n % queues]
            if self.batch == 1:
                frames.append(head % (born, n, n, OPAQUE_BASE + n, pack(run_id, worker, n, due_ns)))
                continue
            frames.append(head % (born, n, OPAQUE_BASE + n))
            for m in range(n * self.batch, (n + 1) * self.batch):
                stamp = pack(run_id, worker, m, due_ns)
                frames.append(self._entry % ((stamp, m, m) if keys else (stamp, m)))
        return b"".join(frames)


def escape(raw: bytes) -> bytes:
    return raw.replace(b"%", b"%%")


def parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
