"""Frames of the HA streams of both modes: a slave's reports, and a master's transfers. Core.

Classic (source DefaultHAClient, DefaultHAConnection of RocketMQ), big-endian:

    slave -> master   offset 8                       its log's end: the first asks to begin there, later ones confirm
    master -> slave   offset 8 | size 4 | body       log bytes, cut anywhere; size 0 is a heartbeat

Controller mode (AutoSwitchHAClient, AutoSwitchHAConnection); the handshake before it is in handshake.py:

    slave -> master   state 4 | offset 8
    master -> slave   state 4 | size 4 | offset 8 | epoch 4 | epoch start 8 | confirm offset 8 | body

A frame of controller mode never crosses the end of an epoch; its confirm offset is the one from before its bytes.
Sizes and offsets are checked before anything is kept. A body of LARGE_BYTES and more is returned in pieces, as frames of
the same epoch, and its rest may be read past the decoder: so a decoder holds less than LARGE_BYTES of a frame.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from aerobee.errors import FrameTooLarge, MalformedFrame

BODY_BYTES_MAX = 16 << 20  # of one frame; RocketMQ sends 32 KiB (haTransferBatchSize)
LARGE_BYTES = 128 << 10  # of a body; a master sends such frames to a slave that is far behind
REPORT = struct.Struct(">q")
CLASSIC_HEAD = struct.Struct(">qi")
STATE_REPORT = struct.Struct(">iq")
TRANSFER_HEAD = struct.Struct(">iiqiqq")


class HaState(IntEnum):
    """The first word of each frame in controller mode. Source HAConnectionState."""

    READY = 0
    HANDSHAKE = 1
    TRANSFER = 2
    SUSPEND = 3
    SHUTDOWN = 4


@dataclass(frozen=True, slots=True)
class ClassicFrame:
    """Log bytes at the physical offset `offset`; a frame without bytes is a heartbeat."""

    offset: int
    body: bytes | memoryview

    def encode(self) -> bytes:
        return CLASSIC_HEAD.pack(self.offset, len(self.body)) + self.body


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFrame:
    """Log bytes of one epoch at the physical offset `offset`, and the confirm offset."""

    offset: int
    epoch: int
    epoch_start_offset: int
    confirm_offset: int
    body: bytes
    state: HaState = HaState.TRANSFER

    def encode(self) -> bytes:
        head = TRANSFER_HEAD.pack(
            self.state,
            len(self.body),
            self.offset,
            self.epoch,
            self.epoch_start_offset,
            self.confirm_offset,
        )
        return head + self.body


@dataclass(frozen=True, slots=True)
class StateReport:
    """A slave's report in controller mode: the end of its log."""

    offset: int
    state: HaState = HaState.TRANSFER

    def encode(self) -> bytes:
        return STATE_REPORT.pack(self.state, self.offset)


def encode_report(offset: int) -> bytes:
    """A slave's report in classic mode."""
    return REPORT.pack(offset)


def check_offset(offset: int, what: str) -> int:
    if offset < 0:
        raise MalformedFrame(f"{what} is {offset}, must be 0 or more")
    return offset


def check_size(size: int, bytes_max: int) -> int:
    """Raises FrameTooLarge as soon as the size is known; nothing was kept of the body."""
    if size < 0:
        raise MalformedFrame(f"the size of an HA frame is {size}, must be 0 or more")
    if size > bytes_max:
        raise FrameTooLarge(f"an HA frame announces {size} bytes, {bytes_max} are allowed")
    return size


def state_of(word: int) -> HaState:
    if not HaState.READY <= word <= HaState.SHUTDOWN:
        raise MalformedFrame(f"the state of an HA frame is {word}, must be 0 to 4")
    return HaState(word)


def decode_transfer_head(data: bytes | bytearray, bytes_max: int) -> tuple[TransferFrame, int] | None:
    """The frame at the start of `data`, without its body, and the body's size; None when the head is not whole."""
    if len(data) < TRANSFER_HEAD.size:
        return None
    state, size, offset, epoch, epoch_start, confirm = TRANSFER_HEAD.unpack_from(data)
    check_size(size, bytes_max)
    frame = TransferFrame(
        state=state_of(state),
        offset=check_offset(offset, "the offset of an HA frame"),
        epoch=epoch,
        epoch_start_offset=check_offset(epoch_start, "the start of an epoch"),
        confirm_offset=confirm,
        body=b"",
    )
    return frame, size


class Reports:
    """Decoder of a slave's classic reports. It returns only the newest report of a read, as RocketMQ's master does."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """Return the newest whole report, None without one. Raises MalformedFrame for a negative offset."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        if not whole:
            return None
        return check_offset(REPORT.unpack_from(data, whole - REPORT.size)[0], "a slave's offset")


class LargeBody:
    """The body of a large frame, of which pieces arrive: where the next one belongs, and how many bytes are missing."""

    __slots__ = ("is_begun", "left", "offset")

    def __init__(self) -> None:
        self.offset = 0
        self.left = 0
        self.is_begun = False  # a piece was returned, so that its receiver knows the frame

    def begin(self, offset: int, size: int) -> None:
        """The head of a large frame was read."""
        self.offset, self.left, self.is_begun = offset, size, False

    def piece(self, size_max: int) -> tuple[int, int]:
        """Offset and size of the next piece, which the decoder returns."""
        self.is_begun = True
        return self.offset, self.passed(min(self.left, size_max))

    def passed(self, count: int) -> int:
        """Count `count` further bytes of the body: returned as a piece, or read past the decoder. Returns `count`."""
        assert count <= self.left, "a body ends where its head says"
        self.offset += count
        self.left -= count
        return count


class ClassicFrames:
    """Decoder of a classic master's frames. Not usable after a WireError.

    The body of a frame that arrives in one read is a view of it: only a body that the read's end splits is copied, and
    the pieces of a large one are views, too. A view is valid until the next feed().
    """

    def __init__(self, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self.large = LargeBody()
        self._body_bytes_max = body_bytes_max
        self._begun = bytearray()  # of a frame that is not whole
        self._data: bytes | memoryview = b""  # the newest read, used up to _at
        self._at = 0

    def feed(self, data: bytes | memoryview) -> None:
        self._data = b"".join((self._data[self._at :], data)) if self._at < len(self._data) else data
        self._at = 0

    def next_frame(self) -> ClassicFrame | None:
        """The next whole frame or the next piece of a large one, or None. Raises FrameTooLarge, MalformedFrame."""
        if self.large.left:
            return self._piece()
        if self._begun:
            return self._finished()
        at, data = self._at + CLASSIC_HEAD.size, self._data
        if at <= len(data):
            offset, size = self._head(data, self._at)
            if at + size <= len(data):
                self._at = at + size
                return ClassicFrame(offset, memoryview(data)[at : at + size])
            if size >= LARGE_BYTES:
                self._at = at
                self.large.begin(offset, size)
                return self._piece()
        self._keep(len(data))
        return None

    def _piece(self) -> ClassicFrame | None:
        at, count = self._at, len(self._data) - self._at
        if not count:
            return None
        offset, size = self.large.piece(count)
        self._at = at + size
        return ClassicFrame(offset, memoryview(self._data)[at : at + size])

    def _finished(self) -> ClassicFrame | None:
        """The frame whose beginning came with reads before."""
        begun = self._begun
        self._keep(CLASSIC_HEAD.size - len(begun))
        if len(begun) < CLASSIC_HEAD.size:
            return None
        offset, size = self._head(begun, 0)
        if len(begun) == CLASSIC_HEAD.size and size >= LARGE_BYTES:
            self._begun = bytearray()
            self.large.begin(offset, size)
            return self._piece()
        self._keep(CLASSIC_HEAD.size + size - len(begun))
        if len(begun) < CLASSIC_HEAD.size + size:
            return None
        self._begun = bytearray()
        return ClassicFrame(offset, memoryview(begun)[CLASSIC_HEAD.size :])

    def _keep(self, count: int) -> None:
        """Take at most `count` bytes of the read for the incomplete frame."""
        if count > 0:
            self._begun += memoryview(self._data)[self._at : self._at + count]
            self._at = min(len(self._data), self._at + count)

    def _head(self, data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
        offset, size = CLASSIC_HEAD.unpack_from(data, at)
        check_size(size, self._body_bytes_max)
        return check_offset(offset, "the offset of an HA frame"), size
