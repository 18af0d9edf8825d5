"""The handshake of controller mode's HA stream, and both directions of such a stream as frames. Core.

Source AutoSwitchHAClient, AutoSwitchHAConnection of RocketMQ, big-endian:

    slave -> master   state 4 (HANDSHAKE) | from the last file only 2 | async learner 2 | broker id 8        16 bytes
    master -> slave   state 4 | body size 4 | log's end 8 | last epoch 4, then entries: epoch 4 | start 8    20 bytes + 12 each

A slave may send its handshake again before the answer came. After it transfer_header.py's frames follow.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from aerobee.errors import MalformedFrame
from aerobee.ha.stream.epoch_file import EpochEntry, check_entries
from aerobee.ha.stream.transfer_header import (
    BODY_BYTES_MAX,
    LARGE_BYTES,
    STATE_REPORT,
    TRANSFER_HEAD,
    HaState,
    LargeBody,
    StateReport,
    TransferFrame,
    check_offset,
    check_size,
    decode_transfer_head,
    state_of,
)

REQUEST = struct.Struct(">ihhq")
REPLY_HEAD = struct.Struct(">iiqi")
ENTRY = struct.Struct(">iq")
ENTRIES_MAX = 1_000  # buffer size of RocketMQ
_STATE = struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """A slave's identity and options."""

    broker_id: int
    is_sync_from_last_file: bool = False
    is_async_learner: bool = False

    def encode(self) -> bytes:
        return REQUEST.pack(
            HaState.HANDSHAKE, self.is_sync_from_last_file, self.is_async_learner, self.broker_id
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeReply:
    """The master's epochs and its log's end, from which a slave determines where the two logs diverge."""

    max_offset: int
    entries: tuple[EpochEntry, ...]

    def encode(self) -> bytes:
        last_epoch = self.entries[-1].epoch if self.entries else -1
        head = REPLY_HEAD.pack(HaState.HANDSHAKE, ENTRY.size * len(self.entries), self.max_offset, last_epoch)
        return head + b"".join(ENTRY.pack(each.epoch, each.start_offset) for each in self.entries)


class _Stream:
    """Buffer of received bytes that are not a whole frame yet."""

    def __init__(self, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._body_bytes_max = body_bytes_max
        self._data = bytearray()

    def feed(self, data: bytes | memoryview) -> None:
        self._data += data

    def _state(self) -> HaState | None:
        return state_of(_STATE.unpack_from(self._data)[0]) if len(self._data) >= _STATE.size else None

    def _take(self, count: int) -> bytes | None:
        if len(self._data) < count:
            return None
        taken = bytes(self._data[:count])
        del self._data[:count]
        return taken


class SlaveStream(_Stream):
    """Decoder of the frames that a slave sends. Not usable after a WireError."""

    def next_frame(self) -> Handshake | StateReport | None:
        """The next whole frame, or None. Raises MalformedFrame."""
        state = self._state()
        if state is None:
            return None
        if state is not HaState.HANDSHAKE:
            data = self._take(STATE_REPORT.size)
            if data is None:
                return None
            return StateReport(check_offset(STATE_REPORT.unpack(data)[1], "a slave's offset"), state)
        data = self._take(REQUEST.size)
        if data is None:
            return None
        _, from_last_file, is_learner, broker_id = REQUEST.unpack(data)
        if from_last_file not in (0, 1) or is_learner not in (0, 1) or broker_id < 0:
            raise MalformedFrame(
                f"a handshake says ({from_last_file}, {is_learner}, {broker_id}), expected two flags and a broker id"
            )
        return Handshake(
            broker_id=broker_id,
            is_sync_from_last_file=bool(from_last_file),
            is_async_learner=bool(is_learner),
        )


class MasterStream(_Stream):
    """Decoder of the frames that a master sends. Not usable after a WireError."""

    def __init__(self, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        super().__init__(body_bytes_max=body_bytes_max)
        self.large = LargeBody()
        self._large_frame: TransferFrame | None = None  # without its body

    def next_frame(self) -> HandshakeReply | TransferFrame | None:
        """The next whole frame or the next piece of a large one, or None. Raises FrameTooLarge, MalformedFrame."""
        if self.large.left:
            return self._piece()
        state = self._state()
        if state is None:
            return None
        if state is HaState.HANDSHAKE:
            return self._handshake_reply()
        head = decode_transfer_head(self._data, self._body_bytes_max)
        if head is None:
            return None
        frame, size = head
        if size >= LARGE_BYTES:
            del self._data[: TRANSFER_HEAD.size]
            self._large_frame = frame
            self.large.begin(frame.offset, size)
            return self._piece()
        data = self._take(TRANSFER_HEAD.size + size)
        return None if data is None else replace(frame, body=data[TRANSFER_HEAD.size :])

    def _piece(self) -> TransferFrame | None:
        if not self._data:
            return None
        assert self._large_frame is not None
        offset, size = self.large.piece(len(self._data))
        body = self._take(size)
        assert body is not None
        return replace(self._large_frame, offset=offset, body=body)

    def _handshake_reply(self) -> HandshakeReply | None:
        if len(self._data) < REPLY_HEAD.size:
            return None
        _, size, max_offset, last_epoch = REPLY_HEAD.unpack_from(self._data)
        check_size(size, ENTRY.size * ENTRIES_MAX)
        if size % ENTRY.size:
            raise MalformedFrame(f"{size} bytes of epochs are no whole number of entries of {ENTRY.size}")
        check_offset(max_offset, "the end of the master's log")
        data = self._take(REPLY_HEAD.size + size)
        if data is None:
            return None
        entries = tuple(
            EpochEntry(epoch, start) for epoch, start in ENTRY.iter_unpack(data[REPLY_HEAD.size :])
        )
        check_entries(entries)
        if entries and entries[-1].epoch != last_epoch:
            raise MalformedFrame(f"the last epoch is {entries[-1].epoch}, and the head says {last_epoch}")
        return HandshakeReply(max_offset=max_offset, entries=entries)
