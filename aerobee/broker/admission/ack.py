"""Decides when an append is acknowledged, and with which code; no other module does.

With asynchronous flush and without replication an append is acknowledged when it is stored. Otherwise the reply is
deferred until the record is on disk (SYNC_FLUSH), and until enough replicas have it, if a ReplicationWatermark is set.
A sender that does not wait (property WAIT=false) is answered immediately, but never by a master whose lease has
expired. A deferred reply is sent exactly once: with the first negative verdict, or unchanged after all positive ones.
If only this broker is known to have the record, all positive verdicts do not suffice: after the last one, from disk or
replicas, the broker checks again that it is still master for that time.

    10 FLUSH_DISK_TIMEOUT      stored; not on the disk within syncFlushTimeout
    11 SLAVE_NOT_AVAILABLE     stored; too few replicas follow the master
    12 FLUSH_SLAVE_TIMEOUT     stored and on disk; the replicas did not confirm in time
     1 SYSTEM_ERROR            a sync failed: the state of the record is unknown. Not 14, which states that it was not stored

Follows CommitLog.handleDiskFlushAndHA and SendMessageProcessor.handlePutMessageResult.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import NamedTuple, Protocol

from aerobee.broker.state.ack_level import AckLevel
from aerobee.caller import Caller
from aerobee.clock import Clock, Timer
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.peer import Peer, Reply
from aerobee.remoting.request_stats import Answers, RequestStats

TIMEOUT_REMARK = "the message is stored, but was not synced to the disk within syncFlushTimeout"
FAILED_REMARK = (
    "a sync to the disk failed, so it is not known whether the message survives a power loss; the broker takes no "
    "messages until it is restarted"
)
REPLICAS_LATE_REMARK = "the message is stored, but not enough replicas confirmed it in time"
LEASE_OVER_REMARK = "the message is stored, but the lease of this master ended meanwhile: another broker may be master and not have it"
NO_REPLICAS_REMARK = "the message is stored, but there are not enough replicas that follow this broker"


class Replicated(Enum):
    """Verdict of the replicas on a record."""

    ENOUGH = auto()  # enough replicas have it, whichever becomes the next master
    HERE = auto()  # this broker has it, which suffices while it is master
    TOO_LATE = auto()  # the replicas did not confirm in time
    TOO_FEW = auto()  # too few replicas are connected


class Safety(Enum):
    """Durability of an append at the moment of its reply."""

    SAFE = auto()
    FLUSH_TIMEOUT = auto()  # stored; not on the disk in time
    NO_REPLICAS = auto()  # stored; too few replicas follow
    REPLICAS_TIMEOUT = (
        auto()
    )  # stored; too few replicas confirmed it in time, or this broker may be master no longer
    SYNC_FAILED = auto()  # nothing is known of it


_SAFETY = {
    0: Safety.SAFE,
    ResponseCode.FLUSH_DISK_TIMEOUT: Safety.FLUSH_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Safety.NO_REPLICAS,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Safety.REPLICAS_TIMEOUT,
    ResponseCode.SYSTEM_ERROR: Safety.SYNC_FAILED,
}
Answer = Callable[[int, str, bool], None]
Release = Callable[[Safety, str], None]  # the durability, and the reason in words when it is not SAFE


class DurabilityWait(Protocol):
    """The methods of the store that AckPolicy uses."""

    @property
    def holds_answers(self) -> bool: ...  # waits for the disk

    def wait_durable(self, offset: int, callback: Callable[[bool], None]) -> None: ...
    def wait_flushed(self, offset: int, callback: Callable[[bool], None]) -> None: ...


class ReplicationWatermark(Protocol):
    """Offset up to which enough replicas have the log. It reports verdicts in the order of offsets, each exactly once,
    as soon as it is known."""

    def when(self, offset: int, callback: Callable[[Replicated], None]) -> None: ...


class _Held:
    """A deferred reply. `answer` (code, remark, whether the reply keeps its fields) sends it, and is None once the
    reply was sent.
    """

    __slots__ = ("answer", "answers", "due", "is_on_disk", "may_answer", "missing", "peer", "since")

    def __init__(
        self,
        peer: Caller,
        answer: Answer,
        since: float,
        due: float,
        missing: int,
        answers: Answers,
    ) -> None:
        self.may_answer: Callable[[], bool] | None = None  # checked after the last verdict
        self.peer = peer
        self.answer: Answer | None = answer
        self.since, self.due = since, due
        self.answers = answers
        self.missing = missing  # number of outstanding verdicts
        self.is_on_disk = False


class Shortage(NamedTuple):
    """Reply to a message that the broker refuses to store."""

    code: ResponseCode
    remark: str


def too_few(what: str) -> Shortage:
    """Too few replicas are in sync (IN_SYNC_REPLICAS_NOT_ENOUGH): a producer tries another broker, as with RocketMQ."""
    return Shortage(ResponseCode.SYSTEM_ERROR, f"in-sync replicas not enough: {what}")


# 14 states that nothing was stored: a producer waits for the new master.
LEASE_IS_OVER = Shortage(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "service not available now. the lease of this master has expired: the controllers may have made another broker master",
)


class AckPolicy:
    """Sends the replies to appends at the right time. Belongs to the event loop.

    Bounded by the sends in flight: there is no separate bound on the deferred replies of a connection.
    """

    def __init__(
        self,
        *,
        store: DurabilityWait,
        clock: Clock,
        timeout_ms: int,
        requests: RequestStats | None = None,
    ) -> None:
        """`requests` records the duration until the reply."""
        self._requests = requests or RequestStats()
        self._store = store
        self._clock = clock
        self._timeout_s = timeout_ms / 1000
        self._replication: ReplicationWatermark | None = None
        self._copies: ReplicationWatermark | None = None
        self._may_answer: Callable[[], bool] | None = None
        self._shortage: Callable[[], Shortage | None] | None = None
        # Whether `shortage` must be called. A plain attribute, because each burst reads it.
        self.may_lack_replicas = False
        self._waiting: deque[_Held] = deque()  # ordered by deadline, because all have the same time-out
        self._timer: Timer | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def holds(self) -> bool:
        """Whether replies to appends are deferred at present."""
        return self._replication is not None or self._store.holds_answers

    @property
    def guards_answers(self) -> bool:
        """Whether each reply requires a check that this broker may still send it, because it is master under a lease."""
        return self._may_answer is not None

    def set_replication(
        self, watermark: ReplicationWatermark | None, may_answer: Callable[[], bool] | None = None
    ) -> None:
        """From now on wait for these replicas, too; None: for none. Already deferred replies are not affected.

        `may_answer` is checked before a positive reply to a message that only this broker is known to have: whether it
        is surely still the master that stored the message. Otherwise the reply states that the replicas may not have
        it.
        """
        self._replication, self._may_answer = watermark, may_answer
        for listener in self._listeners:
            listener()

    @property
    def shortage(self) -> Shortage | None:
        """Why messages must not be stored; None when they may."""
        return None if self._shortage is None else self._shortage()

    def set_copies(self, watermark: ReplicationWatermark | None) -> None:
        """Offset up to which at least two copies have the log, for messages that request it; None: no replica is
        connected."""
        self._copies = watermark

    def refuse_on(self, shortage: Callable[[], Shortage | None] | None) -> None:
        """Check this before clients' messages are stored; None: no check."""
        self._shortage = shortage
        self.may_lack_replicas = shortage is not None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Register a callback for changes of `holds`."""
        self._listeners.append(callback)

    @property
    def waiting_count(self) -> int:
        """Number of deferred replies."""
        return sum(
            sum(count for _, count in held.answers) for held in self._waiting if held.answer is not None
        )

    def answer(
        self,
        peer: Peer,
        reply: RemotingCommand,
        end_offset: int,
        *,
        request_code: int,
        wants_to_wait: bool = True,
        level: AckLevel | None = None,
    ) -> Reply:
        """The reply to an append that ends at `end_offset`, if it may be sent now; None when it is deferred.

        `wants_to_wait`: the message's WAIT property. `level`: the ack level of the message or its topic, which
        overrides the settings.
        """
        if level is not None and wants_to_wait and (level.is_flushed or level.is_replicated):
            written = partial(_write_frames, peer, encode_frame(reply))
            self._hold_for(level, peer, end_offset, written, ((request_code, 1),))
            return None
        if level is not None or not (wants_to_wait and self.holds):
            if self._may_answer is not None and not self._may_answer():
                reply.code, reply.remark = int(ResponseCode.FLUSH_SLAVE_TIMEOUT), LEASE_OVER_REMARK
            return reply
        self.hold(peer, end_offset, encode_frame(reply), ((request_code, 1),))
        return None

    def when_safe(
        self,
        caller: Caller,
        end_offset: int,
        release: Release,
        *,
        wants_to_wait: bool = True,
        level: AckLevel | None = None,
    ) -> None:
        """answer() for callers of any protocol: call `release` once, now or later, with the durability of the append
        that ends at `end_offset`. It is not called after the caller has disconnected.
        """

        def answer(code: int, remark: str, keep_ext: bool) -> None:
            release(_SAFETY[code], remark)

        if level is not None and wants_to_wait and (level.is_flushed or level.is_replicated):
            self._hold_for(level, caller, end_offset, answer, ())
        elif level is None and wants_to_wait and self.holds:
            self._hold(caller, end_offset, answer, (), self._clock.monotonic())
        elif self._may_answer is not None and not self._may_answer():
            release(Safety.REPLICAS_TIMEOUT, LEASE_OVER_REMARK)
        else:
            release(Safety.SAFE, "")

    def hold(
        self,
        peer: Peer,
        end_offset: int,
        frames: bytes,
        answers: Answers = (),
        since: float | None = None,
    ) -> None:
        """Write `frames` (whole encoded replies) to the peer once the log is acknowledged up to `end_offset`. `answers`
        are the counted replies to requests that arrived at `since`; None: now."""
        now = self._clock.monotonic() if since is None else since
        self._hold(peer, end_offset, partial(_write_frames, peer, frames), answers, now)

    def hold_for(self, peer: Peer, end_offset: int, frames: bytes, answers: Answers, level: AckLevel) -> None:
        """As hold(), until the log has this ack level, which waits, up to `end_offset`, whatever the settings are."""
        self._hold_for(level, peer, end_offset, partial(_write_frames, peer, frames), answers)

    def _hold(self, peer: Caller, end_offset: int, answer: Answer, answers: Answers, since: float) -> None:
        replication, due = self._replication, self._clock.monotonic() + self._timeout_s
        missing = 1 if replication is None else 2
        held = _Held(peer, answer, since, due, missing, answers)
        self._waiting.append(held)
        if self._timer is None:
            self._timer = self._clock.call_later(self._timeout_s, self._expire)
        self._store.wait_durable(end_offset, lambda ok: self._on_disk(held, ok))
        if replication is not None:
            may_answer = self._may_answer
            replication.when(end_offset, lambda verdict: self._on_replicas(held, verdict, may_answer))

    def _hold_for(
        self, level: AckLevel, peer: Caller, end_offset: int, answer: Answer, answers: Answers
    ) -> None:
        """As hold(), until the ack level is reached, independent of the settings."""
        now = self._clock.monotonic()
        # A master with a lease replies under that lease: its group's verdict is needed even when no copies
        # are required.
        group = self._replication if self._may_answer is not None and not level.is_replicated else None
        missing = level.is_flushed + level.is_replicated + (group is not None)
        held = _Held(peer, answer, now, now + self._timeout_s, missing, answers)
        held.is_on_disk = not level.is_flushed
        self._waiting.append(held)
        if self._timer is None:
            self._timer = self._clock.call_later(self._timeout_s, self._expire)
        if level.is_flushed:
            self._store.wait_flushed(end_offset, lambda ok: self._on_disk(held, ok))
        if group is not None:
            may_answer = self._may_answer
            group.when(end_offset, lambda verdict: self._on_replicas(held, verdict, may_answer))
        if level.is_replicated and self._copies is None:
            self._on_replicas(held, Replicated.TOO_FEW)
        elif level.is_replicated and self._copies is not None:
            self._copies.when(end_offset, lambda verdict: self._on_replicas(held, verdict))

    def _on_disk(self, held: _Held, ok: bool) -> None:
        held.is_on_disk = ok
        if not ok:
            self._release(held, ResponseCode.SYSTEM_ERROR, FAILED_REMARK, keep_ext=False)
        else:
            self._arrived(held)

    def _on_replicas(
        self, held: _Held, verdict: Replicated, may_answer: Callable[[], bool] | None = None
    ) -> None:
        if verdict is Replicated.TOO_LATE:
            self._release(held, ResponseCode.FLUSH_SLAVE_TIMEOUT, REPLICAS_LATE_REMARK)
        elif verdict is Replicated.TOO_FEW:
            self._release(held, ResponseCode.SLAVE_NOT_AVAILABLE, NO_REPLICAS_REMARK)
        else:
            if verdict is Replicated.HERE:
                held.may_answer = may_answer
            self._arrived(held)

    def _arrived(self, held: _Held) -> None:
        held.missing -= 1
        if held.missing:
            return
        if held.may_answer is None or held.may_answer():
            self._release(held)
        else:
            self._release(held, ResponseCode.FLUSH_SLAVE_TIMEOUT, LEASE_OVER_REMARK)

    def _release(self, held: _Held, code: int = 0, remark: str = "", *, keep_ext: bool = True) -> None:
        self._write(held, code, remark, keep_ext=keep_ext)
        waiting = self._waiting
        while waiting and waiting[0].answer is None:
            waiting.popleft()
        if not waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self, held: _Held, code: int, remark: str, *, keep_ext: bool = True) -> None:
        """Send a deferred reply unless it was sent."""
        answer, held.answer = held.answer, None
        if answer is not None and held.peer.is_open:
            answer(int(code), remark, keep_ext)
            if held.answers:
                self._requests.add_answers(held.answers, code, self._clock.monotonic() - held.since)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        waiting = self._waiting
        while waiting and (waiting[0].answer is None or waiting[0].due <= now):
            held = waiting.popleft()
            if held.is_on_disk:
                self._write(held, ResponseCode.FLUSH_SLAVE_TIMEOUT, REPLICAS_LATE_REMARK)
            else:
                self._write(held, ResponseCode.FLUSH_DISK_TIMEOUT, TIMEOUT_REMARK)
        if waiting:
            self._timer = self._clock.call_later(max(0.0, waiting[0].due - now), self._expire)


def _write_frames(peer: Peer, frames: bytes, code: int, remark: str, keep_ext: bool) -> None:
    peer.write(recode(frames, code, remark, keep_ext=keep_ext) if code else frames)


def recode(frames: bytes, code: int, remark: str, *, keep_ext: bool = True) -> bytes:
    """Return the same replies with another code and remark. `frames` are whole frames that this broker encoded."""
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
