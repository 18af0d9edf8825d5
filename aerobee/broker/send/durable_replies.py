"""Replies that wait until their messages are on the disk (SYNC_FLUSH).

A sender that asked for durability gets its reply when the store's flushed watermark has passed its record. The
replies of one burst wait together, as one piece of encoded frames. After `syncFlushTimeout` they leave with code 10
(stored, not known to be durable); when the sync failed they leave with code 14, for nothing is known about the
records then. Each piece leaves exactly once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from aerobee.clock import Clock, Timer
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.peer import Peer

TIMEOUT_REMARK = "the message is stored, but was not synced to the disk within syncFlushTimeout"
FAILED_REMARK = (
    "a sync to the disk failed, so it is not known whether the message survives a power loss; the broker takes no "
    "messages until it is restarted"
)


class DurabilityWait(Protocol):
    """What is needed of the store."""

    def wait_durable(self, offset: int, callback: Callable[[bool], None]) -> None: ...


class _Held:
    __slots__ = ("due", "frames", "peer")

    def __init__(self, peer: Peer, frames: bytes, due: float) -> None:
        self.peer = peer
        self.frames: bytes | None = frames
        self.due = due


class DurableReplies:
    """Holds encoded replies until the log is durable up to an offset. Belongs to the event loop.

    Bounded by what senders have in flight: a connection's replies are counted by nobody else while they wait.
    """

    def __init__(self, *, store: DurabilityWait, clock: Clock, timeout_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._timeout_s = timeout_ms / 1000
        self._waiting: deque[_Held] = deque()  # by deadline, as the time-out is the same for all
        self._timer: Timer | None = None

    def hold(self, peer: Peer, end_offset: int, frames: bytes) -> None:
        """Write `frames` (whole encoded replies) to the connection once the log is durable up to `end_offset`."""
        held = _Held(peer, frames, self._clock.monotonic() + self._timeout_s)
        self._waiting.append(held)
        if self._timer is None:
            self._timer = self._clock.call_later(self._timeout_s, self._expire)
        self._store.wait_durable(end_offset, lambda ok: self._release(held, ok))

    def _release(self, held: _Held, ok: bool) -> None:
        if held.frames is None:
            return
        frames, held.frames = held.frames, None
        if not ok:
            frames = recode(frames, ResponseCode.SERVICE_NOT_AVAILABLE, FAILED_REMARK, keep_ext=False)
        if held.peer.is_open:
            held.peer.write(frames)
        waiting = self._waiting
        while waiting and waiting[0].frames is None:
            waiting.popleft()
        if not waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        waiting = self._waiting
        while waiting and (waiting[0].frames is None or waiting[0].due <= now):
            held = waiting.popleft()
            frames, held.frames = held.frames, None
            if frames is not None and held.peer.is_open:
                held.peer.write(recode(frames, ResponseCode.FLUSH_DISK_TIMEOUT, TIMEOUT_REMARK))
        if waiting:
            self._timer = self._clock.call_later(max(0.0, waiting[0].due - now), self._expire)


def recode(frames: bytes, code: int, remark: str, *, keep_ext: bool = True) -> bytes:
    """Return the same replies with another code and remark. `frames` are whole frames that we encoded."""
    parts: list[bytes] = []
    at = 0
    while at < len(frames):
        end = at + 4 + int.from_bytes(frames[at : at + 4], "big")
        reply = decode_frame(frames[at:end])
        reply.code = int(code)
        reply.remark = remark
        if not keep_ext and reply.ext is not None:
            reply.ext = {key: reply.ext[key] for key in ("MSG_REGION", "TRACE_ON") if key in reply.ext}
        parts.append(encode_frame(reply))
        at = end
    return b"".join(parts)
