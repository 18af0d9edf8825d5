"""Waits until a group has a message to pop, without popping it; independent of the protocol (NotificationProcessor).

An ordered group whose queues are all held by other attempts has nothing to pop until one of them is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from aerobee.broker.pop.checks import PopChecks
from aerobee.broker.pop.engine import PopEngine, PopWant
from aerobee.broker.pop.pending_pops import HeldCall, PendingPop, PendingPops, queues_of
from aerobee.clock import Clock
from aerobee.errors import AerobeeError
from aerobee.remoting.protocol import ANY_QUEUE, HOLD_MS_MAX


@dataclass(slots=True, kw_only=True)
class NotificationRequest:
    """One request. `poll_ms`: maximum wait since its arrival. `may_wait` False: answer immediately, because no client
    waits.
    """

    group: str
    topic: str
    queue_id: int
    poll_ms: int
    ordered: bool = False
    attempt_id: str = ""
    may_wait: bool = True


class Notice(NamedTuple):
    """Result of notify(). `is_full`: there is no message, and the call cannot wait, because the bound on pending calls
    is reached.
    """

    has_message: bool
    is_full: bool = False


class NotificationCall(HeldCall, Protocol):
    """One call of notify()."""

    def deliver(self, notice: Notice) -> None:
        """Take the outcome of a call that has waited. Called once at most, and not after refuse()."""
        ...


class NotificationService:
    """Serves notifications. Belongs to the event loop."""

    def __init__(
        self,
        *,
        engine: PopEngine,
        checks: PopChecks,
        pops: PendingPops,
        waiting: PendingPops,
        clock: Clock,
        when_free: Callable[[str, str, int], None],
    ) -> None:
        """`pops` contains the pending pops, `waiting` the pending notifications: these take no message, so one message
        wakes one of each. `when_free(topic, group, time ms)` wakes them when an ordered group's queue is free."""
        self._engine = engine
        self._checks = checks
        self._pops = pops
        self._waiting = waiting
        self._clock = clock
        self._when_free = when_free
        self._resume_pending = self._resume  # one object for all that wait
        self._may_hold = True

    def hold_no_more(self) -> None:
        """The broker stops: calls without a message are answered immediately."""
        self._may_hold = False

    def notify(self, asked: NotificationRequest, call: NotificationCall) -> Notice | None:
        """A notice immediately when there is a message, else None: `call` gets it when one comes or the wait ends.

        Raises Refused, RemoteError at a bound.
        """
        until_ms = self._clock.now_ms() + min(asked.poll_ms, HOLD_MS_MAX)
        return self._serve(asked, call, self._want(asked), until_ms)

    def drop(self, call: NotificationCall) -> None:
        """The caller no longer waits for a call of notify()."""
        self._waiting.drop(call)

    def waiting_pops(self, group: str, topic: str, queue_id: int = ANY_QUEUE) -> int:
        """Number of the group's pending pops for the topic, or for one of its queues. Raises Refused, RemoteError at a
        bound."""
        self._checks.may_consume(group, topic, queue_id)
        return self._pops.waiting(topic, group, queue_id)

    def _resume(self, pending: PendingPop[NotificationRequest, NotificationCall], timed_out: bool) -> None:
        """A message arrived or the wait ended. If the message's queue is blocked, the call continues to wait."""
        asked, call = pending.asked, pending.call
        try:
            notice = self._serve(asked, call, self._want(asked), 0 if timed_out else pending.until_ms)
        except AerobeeError as error:
            call.refuse(error)
            return
        if notice is not None:
            call.deliver(notice)

    def _serve(
        self, asked: NotificationRequest, call: NotificationCall, want: PopWant, until_ms: int
    ) -> Notice | None:
        """Answer, or let the call wait until `until_ms` (0: not at all)."""
        now_ms = self._clock.now_ms()
        if self._engine.has_messages(want, now_ms):
            return Notice(has_message=True)
        if until_ms <= now_ms or not self._may_hold or not asked.may_wait:
            return Notice(has_message=False)
        free_ms = self._engine.free_at(want, now_ms)
        if free_ms:
            self._when_free(want.topic, want.group, free_ms)
        pending = PendingPop(
            call, asked, want.topic, want.group, want.queue_id, None, until_ms, self._resume_pending
        )
        if self._waiting.hold(pending, (until_ms - now_ms) / 1000, queues_of(want)):
            return None
        return Notice(has_message=False, is_full=True)

    def _want(self, asked: NotificationRequest) -> PopWant:
        _, topic = self._checks.may_consume(asked.group, asked.topic, asked.queue_id)
        retries = () if asked.ordered else self._checks.retry_topics(asked.group, asked.topic)
        return PopWant(
            topic=asked.topic,
            group=asked.group,
            queue_id=max(ANY_QUEUE, asked.queue_id),
            queue_count=topic.read_queue_nums,
            count_max=1,
            invisible_ms=0,
            ordered=asked.ordered,
            attempt_id=asked.attempt_id,
            retries=self._checks.with_queues(retries),
        )
