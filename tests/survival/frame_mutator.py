"""Damage for frames: captured ones of RocketMQ (tests/data/wire), changed in ways that peers, bugs and attackers do.

Blind changes of bytes reach the frame decoder; changed fields reach the handlers behind it, so both are made. The same
random numbers make the same damage.
"""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Sequence

from tests.captures import CapturedFrame, capture_names, captured

LENGTHS = (0, 1, 3, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 16 << 20, (16 << 20) + 1, 1 << 24)
VALUES = (
    "", "0", "-1", "1", "2147483647", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808",
    "1e9", "NaN", "null", "true", "x", "\u0000", "\ud83d\ude00", "a" * 300, "%RETRY%", "%DLQ%x", "TBW102", "*",
    "SCHEDULE_TOPIC_XXXX", "../../etc/passwd", "1\u00012", "a\u0001b\u0002", "{", "[]", '{"a":' * 50, "10" * 40,
)  # fmt: skip
# Copied before use: a header that holds one of them is changed again.
JUNK: tuple[object, ...] = (None, True, -1, 1.5, [], {}, [[[[]]]], {"a": {"b": {}}}, 10**30, "\ud800")
CODES = (
    tuple(range(60)) + tuple(range(100, 130)) + (200, 206, 207, 300, 310, 320, 323, 901, 903, 904, 1001, 3014)
)
DEEP = (b"[" * 20_000, b'{"a":' * 20_000, b"\xff" * 500, b'{"code":1e400}', b"{" + b'"k":"v",' * 20_000)


class FrameMutator:
    """Makes one damaged frame after the other from the requests or the replies of the captures."""

    def __init__(self, rng: random.Random, *, replies: bool = False) -> None:
        self.rng = rng
        frames = [frame for name in capture_names() for frame in captured(name) if frame.is_reply is replies]
        self.frames: Sequence[CapturedFrame] = frames
        self.by_code: dict[int, list[CapturedFrame]] = {}
        for frame in frames:
            if frame.request_code is not None:
                self.by_code.setdefault(frame.request_code, []).append(frame)

    def next(self) -> bytes:
        """A frame, most often damaged. At most as long as the longest captured one and a little more."""
        # By code first: captures hold thousands of sends and pulls, and one or two of most other requests.
        frames = self.by_code[self.rng.choice(list(self.by_code))]
        return self.damage(self.rng.choice(frames).data)

    def next_reply(self, code: int, opaque: int) -> bytes:
        """A reply to the request of this code and id, damaged elsewhere most often. `replies` was given."""
        captured_frame = self.rng.choice(self.by_code.get(code) or self.frames)
        return self.damage(_with_opaque(captured_frame.data, opaque))

    def damage(self, data: bytes) -> bytes:
        kind = self.rng.random()
        if kind < 0.05:
            return data
        if kind < 0.75:
            return self._fields(data)
        if kind < 0.95:
            return self._blind(data)
        return self._made_up()

    def _fields(self, data: bytes) -> bytes:
        """Change header fields of a JSON frame, or its body, and keep the lengths right."""
        rng = self.rng
        header_size = int.from_bytes(data[5:8], "big")
        header_bytes, body = data[8 : 8 + header_size], data[8 + header_size :]
        if data[4] != 0:
            return self._blind(data)
        header = json.loads(header_bytes)
        for _ in range(rng.choice((1, 1, 2, 4))):
            self._one_field(header)
        if rng.random() < 0.4:
            body = (
                self._bytes(body) if rng.random() < 0.7 else rng.choice((b"", b"{}", b"[]", b"null", *DEEP))
            )
        return frame(json.dumps(header).encode("utf-8", "surrogatepass"), body)

    def _one_field(self, header: dict[str, object]) -> None:
        rng = self.rng
        ext = header.get("extFields")
        kind = rng.random()
        if kind < 0.55 and isinstance(ext, dict) and ext:
            name = rng.choice(list(ext))
            if rng.random() < 0.25:
                del ext[name]
            else:
                ext[name] = rng.choice(VALUES) if rng.random() < 0.9 else copy.deepcopy(rng.choice(JUNK))
        elif kind < 0.65 and isinstance(ext, dict):
            ext[rng.choice(VALUES)] = rng.choice(VALUES)
        elif kind < 0.80:
            header["code"] = rng.choice(CODES)
        elif kind < 0.90:
            header[rng.choice(list(header))] = copy.deepcopy(rng.choice(JUNK))
        else:
            header["flag"] = rng.choice((0, 1, 2, 3, -1, 255))

    def _blind(self, data: bytes) -> bytes:
        if self.rng.random() < 0.3:
            return struct.pack(">I", self.rng.choice(LENGTHS)) + data[4:]
        damaged = self._bytes(data)
        if self.rng.random() < 0.6:  # past the length check
            return struct.pack(">I", max(0, len(damaged) - 4)) + damaged[4:]
        return damaged

    def _bytes(self, data: bytes) -> bytes:
        rng = self.rng
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(damaged) + 1)
            kind = rng.randrange(5)
            if kind == 0 and at < len(damaged):
                damaged[at] ^= 1 << rng.randrange(8)
            elif kind == 1 and at < len(damaged):
                damaged[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x7B))
            elif kind == 2:
                del damaged[at : at + rng.choice((1, 4, 50, 5000))]
            elif kind == 3:
                damaged[at:at] = rng.randbytes(rng.choice((1, 4, 40)))
            else:
                damaged[at : at + 4] = struct.pack(">I", rng.choice(LENGTHS))
        return bytes(damaged)

    def _made_up(self) -> bytes:
        rng = self.rng
        kind = rng.randrange(4)
        if kind == 0:
            return rng.randbytes(rng.choice((1, 7, 8, 64, 2000)))
        if kind == 1:
            return frame(rng.choice(DEEP), b"")
        if kind == 2:
            return frame(rng.randbytes(30), b"", serialize_type=rng.choice((0, 1, 2, 7, 255)))
        fields = {f"k{number}": "v" * rng.choice((1, 100)) for number in range(rng.choice((10, 1000)))}
        header = {
            "code": rng.choice(CODES),
            "flag": 0,
            "language": "JAVA",
            "opaque": 1,
            "version": 479,
            "extFields": fields,
        }
        return frame(json.dumps(header).encode(), b"")


def _with_opaque(data: bytes, opaque: int) -> bytes:
    size = int.from_bytes(data[5:8], "big")
    if data[4] != 0:  # code int16, language 1, version int16, opaque int32
        return data[:13] + struct.pack(">i", opaque) + data[17:]
    header = json.loads(data[8 : 8 + size])
    header["opaque"] = opaque
    return frame(json.dumps(header).encode(), data[8 + size :])


def frame(header: bytes, body: bytes, serialize_type: int = 0) -> bytes:
    """int32 length | uint8 serialize_type | uint24 header_length | header | body."""
    word = serialize_type << 24 | (len(header) & 0xFFFFFF)
    return struct.pack(">II", 4 + len(header) + len(body), word) + header + body
