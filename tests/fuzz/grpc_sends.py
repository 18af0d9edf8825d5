"""Requests of SendMessage for the fast path and the services: ordinary ones, odd ones, damaged ones, and how they are framed.

tests/integration/grpc/test_native_sends.py gives each to both, and compares what they answer and store.
"""

from __future__ import annotations

import random
import struct

from aerobee.grpc.frame_scanner import DATA, HEADERS
from aerobee.grpc.message_reader import frame_message
from aerobee.grpc.proto import messages as pb

TOPICS = (
    "plain",
    "plain",
    "plain",
    "plain",
    "fifo",
    "read-only",
    "missing",
    "%RETRY%group",
    "TBW102",
    "rmq_sys_x",
    "a b",
    "",
)
TEXTS = (
    "a",
    "red",
    "x" * 40,
    "grün",
    "",
    " ",
    "\u00a0",
    "a|b",
    "a\tb",
    "a\x01b",
    "\x85",
    "0",
    "x" * 9_000,
    "\U0001f41d",
)
NAMES = (
    "colour",
    "size",
    "KEYS",
    "PGROUP",
    "DELAY",
    "__SHARDINGKEY",
    "TIMER_DELIVER_MS",
    "CLUSTER",
    "INNER_NUM",
    "",
    "größe",
)
CLIENT_IDS = ("client-1", "client-1", "client-1", "", " ", "ä", "c" * 255, "c" * 256, " padded ")
END_STREAM, END_HEADERS = 1, 4


class Requests:
    """Makes requests from random numbers."""

    def __init__(self, pick: random.Random, *, hurt: float = 0.25) -> None:
        """`hurt`: the share of damaged requests."""
        self.pick = pick
        self._hurt = hurt
        self._number = 0

    def odd(self, probability: float) -> bool:
        return self.pick.random() < probability

    def request(self) -> bytes:
        """The bytes of a request; most are ordinary."""
        count = self.pick.choice((0, 2, 3)) if self.odd(0.05) else 1
        data = bytes(
            pb.SendMessageRequest(messages=[self.message() for _ in range(count)]).SerializeToString()
        )
        return self.damaged(data) if self.odd(self._hurt) else data

    def message(self) -> pb.Message:
        """A message with one or two odd things, or none."""
        pick, self._number = self.pick, self._number + 1
        system = pb.SystemProperties(
            message_id=f"01{self._number:032X}",
            message_type=pb.NORMAL,
            body_encoding=pb.IDENTITY,
            born_host="host",
            queue_id=1,
        )
        system.born_timestamp.seconds, system.born_timestamp.nanos = 1_700_000_000 + self._number, 123_456_789
        made = pb.Message(
            topic=pb.Resource(name="plain"), system_properties=system, body=b"b" * pick.randrange(1, 200)
        )
        for _ in range(pick.choice((0, 0, 1, 1, 2, 3))):
            pick.choice((self.text, self.text, self.number, self.kind, self.target))(made)
        return made

    def text(self, made: pb.Message) -> None:
        """Set a text."""
        pick, system = self.pick, made.system_properties
        value = pick.choice(TEXTS)
        which = pick.randrange(8)
        if which == 0:
            system.tag = value
        elif which == 1:
            system.keys.extend(pick.sample(TEXTS, pick.randrange(1, 4)))
        elif which == 2:
            system.message_id = pick.choice((value, "a-b", ""))
        elif which == 3:
            system.born_host = value
        elif which == 4:
            system.trace_context = value
        elif which == 5:
            for number in range(pick.choice((1, 2, 15, 16, 17, 130))):
                made.user_properties[f"p{number}"] = value
        else:
            made.user_properties[pick.choice(NAMES)] = value

    def number(self, made: pb.Message) -> None:
        """Set a number or a time."""
        pick, system = self.pick, made.system_properties
        value = pick.choice((0, 1, -1, 7, 999_999_999, 1_000_000_000, 2**31 - 1, -(2**31)))
        large = pick.choice((value, 253_402_300_799, 253_402_300_800, 1_700_000_000_000, 2**62, -(2**63)))
        which = pick.randrange(6)
        if which == 0:
            system.born_timestamp.seconds = large
        elif which == 1:
            system.born_timestamp.nanos = value
        elif which == 2:
            system.ClearField("born_timestamp")
        elif which == 3:
            system.queue_id = value
        elif which == 4:
            system.priority = value
        else:
            system.queue_offset = large

    def kind(self, made: pb.Message) -> None:
        """Make it a message of another kind, or say so."""
        pick, system = self.pick, made.system_properties
        which = pick.randrange(5)
        if which == 0:
            system.message_type = pick.randrange(8)
        elif which == 1:
            system.body_encoding = pick.randrange(4)
        elif which == 2:
            system.message_group = pick.choice(TEXTS)
        elif which == 3:
            system.body_digest.CopyFrom(pb.Digest(type=pick.randrange(5), checksum=pick.choice(TEXTS)))
        else:
            system.delivery_timestamp.seconds = pick.choice((0, 1_700_000_000))

    def target(self, made: pb.Message) -> None:
        """Set topic, namespace or body."""
        pick = self.pick
        which = pick.randrange(3)
        if which == 0:
            made.topic.name = pick.choice(TOPICS)
        elif which == 1:
            made.topic.resource_namespace = pick.choice(TEXTS)
        else:
            made.body = bytes(pick.choice((0, 1, 4_096, 4_097, 20_000)))

    def damaged(self, data: bytes) -> bytes:
        """The same with bytes that are changed, lost or added, or with a field that is not known."""
        pick = self.pick
        which = pick.randrange(8)
        at = pick.randrange(len(data) + 1)
        if which == 5:
            return self.encoded_otherwise(data)
        if which == 6:  # protobuf merges both
            return data + bytes(pb.SendMessageRequest(messages=[self.message()]).SerializeToString())
        if which == 7:
            return self.twice(data)
        if which == 0:
            return data[:at]
        if which == 1:
            return data[:at] + bytes((pick.randrange(256),)) + data[at + 1 :]
        if which == 2:
            return data[:at] + data[min(len(data), at + pick.randrange(1, 4)) :]
        if which == 3:
            return data[:at] + bytes(pick.randrange(256) for _ in range(pick.randrange(1, 4))) + data[at:]
        return data + pick.choice(
            (b"\x10\x01", b"\x1a\x00", b"\x0a\x00", b"\x08\x01", b"\x0d\x00\x00\x00\x00")
        )

    def encoded_otherwise(self, data: bytes) -> bytes:
        """The same with a number that has more bytes than it needs, or another type of a field."""
        pick = self.pick
        at = pick.randrange(len(data)) if data else 0
        if pick.random() < 0.5:
            return (
                data[:at] + bytes((data[at] | 0x80,)) + b"\x80" * pick.randrange(10) + b"\0" + data[at + 1 :]
                if data
                else b""
            )
        return data[:at] + bytes((data[at] ^ pick.randrange(1, 8),)) + data[at + 1 :] if data else b""

    def twice(self, data: bytes) -> bytes:
        """The message with two of its parts, each of which is whole: protobuf merges them or takes the last."""
        pick = self.pick
        message, other = self.message(), self.message()
        parts = [
            bytes(pb.Message(system_properties=other.system_properties).SerializeToString()),
            bytes(pb.Message(topic=other.topic).SerializeToString()),
            bytes(pb.Message(body=other.body).SerializeToString()),
            bytes(pb.Message(user_properties=dict(other.user_properties)).SerializeToString()),
        ]
        whole = bytes(message.SerializeToString()) + pick.choice(parts)
        request = bytearray(b"\x0a")
        size = len(whole)
        while size >= 0x80:
            request.append(size & 0x7F | 0x80)
            size >>= 7
        request.append(size)
        return bytes(request) + whole

    def client_id(self) -> str:
        return self.pick.choice(CLIENT_IDS) if self.odd(0.1) else "client-1"

    def pieces(self, stream_id: int, block: bytes, request: bytes) -> list[bytes]:
        """The frames of a call, each list element in a separate write."""
        pick = self.pick
        framed = frame_message(request)
        if self.odd(0.05):
            framed = bytes((pick.choice((1, 2)),)) + framed[1:]
        elif self.odd(0.03):
            framed += pick.choice((b"\0", framed))
        cut = pick.randrange(len(framed) + 1) if self.odd(0.1) else len(framed)
        parts = [part for part in (framed[:cut], framed[cut:]) if part]
        ends_apart = self.odd(0.05)
        frames = [frame(HEADERS, END_HEADERS, stream_id, block)]
        for number, part in enumerate(parts):
            is_last = number == len(parts) - 1 and not ends_apart
            for begin in range(0, len(part), 16_384):
                more = begin + 16_384 < len(part)
                flags = END_STREAM if is_last and not more else 0
                frames.append(frame(DATA, flags, stream_id, part[begin : begin + 16_384]))
        if ends_apart or not parts:
            frames.append(frame(DATA, END_STREAM, stream_id, b""))
        return frames if self.odd(0.2) else [b"".join(frames)]


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream_id) + payload
