"""NOTIFICATION 200054 (is there anything to pop? waits for it) and POLLING_INFO 200055 (how many wait).

Source: NotificationProcessor, PollingInfoProcessor (RocketMQ). A proxy asks these on behalf of its clients. The
wait counts from the arrival at the broker: bornTime, which some leave out and which a wrong clock makes useless, is not read.
An ordered group whose queues are all held by other attempts has nothing to pop until one of them is free.
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.pop.checks import PopChecks
from aerobee.broker.pop.engine import PopEngine, PopWant
from aerobee.broker.pop.pending_pops import PendingPop, PendingPops, queues_of
from aerobee.clock import Clock
from aerobee.errors import RemoteError
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.protocol import HOLD_MS_MAX


class NotificationCalls:
    """Handlers of both."""

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
        """`pops` are the pops that wait, `waiting` holds the notifications: these take nothing, so one message wakes
        one of each. `when_free(topic, group, time ms)` wakes them when an ordered group's queue is free."""
        self._engine = engine
        self._checks = checks
        self._pops = pops
        self._waiting = waiting
        self._clock = clock
        self._when_free = when_free
        self._may_hold = True

    def hold_no_more(self) -> None:
        """The broker stops: calls that find nothing are answered immediately."""
        self._may_hold = False

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.NOTIFICATION: self.notification, RequestCode.POLLING_INFO: self.polling_info}

    def notification(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Answer hasMsg immediately when there is a message, else when one comes or pollTime has passed."""
        try:
            want = self._want(request)
        except RemoteError as error:
            return request.reply(error.code, remark=error.remark, ext={})
        until_ms = self._clock.now_ms() + min(request.integer("pollTime"), HOLD_MS_MAX)
        return self._answer(peer, request, want, until_ms)

    def resume(self, call: PendingPop, timed_out: bool) -> None:
        """A message came or the wait ended. The message may lie behind a lock: then the call waits on."""
        try:
            want = self._want(call.request)
            reply = self._answer(call.peer, call.request, want, 0 if timed_out else call.until_ms)
        except RemoteError as error:
            reply = call.request.reply(error.code, remark=error.remark, ext={})
        if reply is not None:
            call.peer.send(reply)

    def _answer(
        self, peer: Peer, request: RemotingCommand, want: PopWant, until_ms: int
    ) -> RemotingCommand | None:
        """Answer, or let the call wait until `until_ms` (0: not at all)."""
        now_ms = self._clock.now_ms()
        if self._engine.has_messages(want, now_ms):
            return self._reply(request, has_message=True)
        if until_ms <= now_ms or not self._may_hold or request.is_oneway:
            return self._reply(request, has_message=False)
        free_ms = self._engine.free_at(want, now_ms)
        if free_ms:
            self._when_free(want.topic, want.group, free_ms)
        call = PendingPop(peer, request, want.topic, want.group, want.queue_id, None, until_ms, self.resume)
        if self._waiting.hold(call, (until_ms - now_ms) / 1000, queues_of(want)):
            return None
        return self._reply(request, has_message=False, polling_full=True)

    def polling_info(self, peer: Peer, request: RemotingCommand) -> Reply:
        """How many pops of the group wait at the topic, or at one of its queues."""
        topic, group = request.text("topic"), request.text("consumerGroup")
        queue_id = request.integer("queueId", -1)
        try:
            self._checks.may_consume(group, topic, queue_id)
        except RemoteError as error:
            return request.reply(error.code, remark=error.remark, ext={})
        return request.reply(ext={"pollingNum": str(self._pops.waiting(topic, group, queue_id))})

    def _want(self, request: RemotingCommand) -> PopWant:
        topic_name, group = request.text("topic"), request.text("consumerGroup")
        queue_id = request.integer("queueId")
        _, topic = self._checks.may_consume(group, topic_name, queue_id)
        ordered = request.boolean("order", False)
        return PopWant(
            topic=topic_name,
            group=group,
            queue_id=max(-1, queue_id),
            queue_count=topic.read_queue_nums,
            count_max=1,
            invisible_ms=0,
            ordered=ordered,
            attempt_id=request.text("attemptId", ""),
            retries=() if ordered else self._checks.with_queues(self._checks.retry_topics(group, topic_name)),
        )

    def _reply(
        self, request: RemotingCommand, *, has_message: bool, polling_full: bool = False
    ) -> RemotingCommand:
        return request.reply(
            ext={"hasMsg": boolean_text(has_message), "pollingFull": boolean_text(polling_full)}
        )
