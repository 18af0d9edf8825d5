"""POP_MESSAGE 200050 and PEEK_MESSAGE 200052 (PopMessageProcessor, PeekMessageProcessor).

A pop that finds nothing waits for pollTime from its bornTime on and is answered POLLING_TIMEOUT (210) then. A bornTime that is
missing or 0 means now, and a client's clock may be wrong (request_age.py). With sync flush the answer waits until its
check points are on the disk: what is handed out is never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.fastpath.pop import found_reply
from aerobee.broker.fastpath.request import UNREADABLE, FallBackToHandler, born_time, number
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.pop.checks import PopChecks
from aerobee.broker.pop.engine import INIT_FROM_MIN, ColdData, PopEngine, PopStore, PopWant, Taken
from aerobee.broker.pop.pending_pops import PendingPop, PendingPops, queues_of
from aerobee.broker.pop.request_age import RequestAge
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.broker.state.refusal import store_refusal
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, RemoteError, StoreError
from aerobee.remoting.body.pop_handle import message_offset_info, start_offset_info
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import encode_frame
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.protocol import ANY_QUEUE, HOLD_MS_MAX, INVISIBLE_MS_MAX, POP_COUNT_MAX
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.stored_message import GetResult

PLANS_MAX = 1_024
# What tells pops apart, besides their born time.
_FIELDS = (
    "consumerGroup", "topic", "queueId", "maxMsgNums", "invisibleTime",
    "initMode", "expType", "exp", "order", "attemptId",
)  # fmt: skip
_NEEDED = itemgetter(*_FIELDS[:5])
_ONLY_TEXT = frozenset((str,))
LATE_MS = (
    500  # a request whose time was up so long ago is not served: its client no longer waits for the answer
)


class ColdReader(PopStore, Protocol):
    """What pops need of the store."""

    config: StoreConfig

    def is_cold(self, topic: str, queue_id: int, offset: int) -> bool: ...

    async def get_messages_cold(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        tag_codes: frozenset[int] | None = None,
        accept: Callable[[bytes], bool] | None = None,
    ) -> GetResult: ...


class _Plan(NamedTuple):
    """A kind of pop after its checks: everything but the moment and the queues' turn."""

    want: PopWant  # made complete for each pop
    turns: int  # queues to begin with; 0: the request names one queue
    config: BrokerConfig
    prioritized: SubscriptionGroupConfig | None  # whose pops of this topic may go by priority


class PopCalls:
    """Handlers of both. A pop of hot data is a plain function; one of cold data a coroutine."""

    def __init__(
        self,
        *,
        engine: PopEngine,
        store: ColdReader,
        checks: PopChecks,
        waiting: PendingPops,
        stats: BrokerStats,
        ack: AckPolicy,
        live: LiveConfig,
        clock: Clock,
        pick: Callable[[int], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        when_free: Callable[[str, str, int], None],
    ) -> None:
        """`when_free(topic, group, time ms)` has a waiting ordered pop served when its blocked queue is free."""
        self._engine = engine
        self._store = store
        self._checks = checks
        self._waiting = waiting
        self._stats = stats
        self._ack = ack
        self._live = live
        self._clock = clock
        self._pick = pick
        self._spawn = spawn
        self._when_free = when_free
        self._ages = RequestAge()
        self._plans: dict[tuple[str | None, ...], _Plan] = {}
        self._may_hold = True  # false while the broker stops: nothing waits any more

    def hold_no_more(self) -> None:
        """The broker stops: calls that find nothing are answered immediately."""
        self._may_hold = False

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.POP_MESSAGE: self.pop, RequestCode.PEEK_MESSAGE: self.peek}

    def pop(self, peer: Peer, request: RemotingCommand) -> Reply | Coroutine[Any, Any, Reply]:
        """Serve a pop that just came in."""
        try:
            want = self._want(peer, request)
            now_ms, poll_ms = self._clock.now_ms(), request.integer("pollTime")
            born_ms = request.integer("bornTime", 0)
            age_ms = self._ages.age_ms(peer, born_ms, now_ms, late_ms=poll_ms + LATE_MS)
            if age_ms > poll_ms + LATE_MS:
                return request.reply(
                    ResponseCode.POLLING_TIMEOUT,
                    remark=f"the pop was under way for {age_ms} ms, its pollTime is {poll_ms} ms",
                    ext=self._fields(Taken(self._clock.now_ms(), -1), want),
                )
        except RemoteError as error:
            return request.reply(error.code, remark=error.remark, ext={})
        until_ms = now_ms + min(poll_ms - age_ms, HOLD_MS_MAX)
        if want.ordered and self._cold_reads(want):
            return self._pop_cold(peer, request, want, until_ms, self._access_version())
        try:
            return self._answer(peer, request, want, until_ms=until_ms, is_cold=self._is_cold(want))
        except ColdData:
            return self._pop_cold(peer, request, want, until_ms, self._access_version())

    def _access_version(self) -> int:
        access = self._waiting.access
        return 0 if access is None else access.seen

    def pop_fast(self, peer: Peer, opaque: int, fields: dict[str, Any]) -> bytes:
        """pop() in no order of hot messages, by the fields of its request (PopHooks.pop).

        Most pops are like one before them, so what their texts say is checked once, until a setting changes.
        """
        field = fields.get
        try:
            key = (
                *_NEEDED(fields),
                field("initMode"),
                field("expType"),
                field("exp"),
                field("order"),
                field("attemptId"),
            )
            plan = self._plans.get(key) or self._find_plan(key)
            born_ms, poll_ms = born_time(fields["bornTime"]), number(fields["pollTime"])
        except UNREADABLE as error:
            raise FallBackToHandler from error
        now_ms, late_ms = self._clock.now_ms(), poll_ms + LATE_MS
        age_ms = self._ages.age_ms(peer, born_ms, now_ms, late_ms=late_ms)
        if age_ms > late_ms:
            raise FallBackToHandler
        want = self._in_turn(plan, peer)
        try:
            taken = self._engine.take(want, now_ms, self._store.is_cold)
        except (ColdData, StoreError) as error:
            raise FallBackToHandler from error  # nothing is handed out
        if not taken.count:
            return self._nothing_fast(
                peer, opaque, fields, want, taken, now_ms + min(poll_ms - age_ms, HOLD_MS_MAX)
            )
        self._count(want, taken)
        shares = taken.shares
        reply = found_reply(
            opaque,
            f'"popTime":"{taken.pop_time}","invisibleTime":"{want.invisible_ms}","reviveQid":"{taken.revive_queue_id}","restNum":"{taken.rest}",'
            f'"startOffsetInfo":"{start_offset_info(shares)}","msgOffsetInfo":"{message_offset_info(shares)}"',
            taken.bodies[0] if len(taken.bodies) == 1 else b"".join(taken.bodies),
        )
        if taken.end and self._ack.holds:
            self._ack.hold(peer, taken.end, reply)
            return b""
        return reply

    def _find_plan(self, key: tuple[str | None, ...]) -> _Plan:
        """Check what all pops with these texts have in common. Raises FallBackToHandler, or one of UNREADABLE."""
        ext = {name: value for name, value in zip(_FIELDS, key, strict=True) if value is not None}
        if not _ONLY_TEXT.issuperset(map(type, ext.values())):
            raise FallBackToHandler
        try:
            plan = self._make_plan(RemotingCommand(RequestCode.POP_MESSAGE, ext))
        except RemoteError as error:
            raise FallBackToHandler from error
        if plan.want.ordered:
            raise FallBackToHandler
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
        self._plans[key] = plan
        return plan

    def forget_plans(self) -> None:
        """Topics, groups, settings or the broker's role have changed: check everything again."""
        self._plans.clear()

    def _nothing_fast(
        self, peer: Peer, opaque: int, fields: dict[str, Any], want: PopWant, taken: Taken, until_ms: int
    ) -> bytes:
        """The answer to a pop that found nothing; b"" when it waits. Raises FallBackToHandler, and nothing is counted then."""
        if not _ONLY_TEXT.issuperset(map(type, fields.values())):
            raise FallBackToHandler
        request = RemotingCommand(RequestCode.POP_MESSAGE, fields, opaque=opaque)
        reply = self._empty(peer, request, want, taken, until_ms)
        return b"" if reply is None else encode_frame(reply)

    def resume(self, call: PendingPop, timed_out: bool) -> None:
        """Serve a pop that waited: now when its time is up, else it may wait on."""
        peer, request = call.peer, call.request
        try:
            want = self._want(peer, request)
            if want.ordered and self._cold_reads(want):
                raise ColdData
            until_ms = 0 if timed_out else call.until_ms
            reply = self._answer(peer, request, want, until_ms=until_ms, is_cold=self._is_cold(want))
        except ColdData:
            self._spawn(self._resume_cold(peer, request, want, call.version))
            return
        except AerobeeError as error:
            reply = _error_reply(request, error)
        if reply is not None:
            peer.send(reply)

    def peek(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Show what a pop would hand out, without handing it out."""
        try:
            want = self._want(peer, request, with_times=False)
        except RemoteError as error:
            return request.reply(error.code, remark=error.remark, ext={})
        bodies: list[bytes] = []
        count = rest = 0
        for topic, queue_id, _ in self._engine.sources(want):
            offset = self._engine.position(want, topic, queue_id, keep=False)
            if count >= want.count_max or self._store.max_offset(topic, queue_id) <= offset:
                continue
            result = self._store.get_messages(topic, queue_id, offset, count_max=want.count_max - count)
            count += result.count
            rest += max(0, result.max_offset - result.next_offset)
            bodies.append(result.body)
        ext = {
            "popTime": str(self._clock.now_ms()),
            "invisibleTime": "0",
            "reviveQid": "0",
            "restNum": str(rest),
        }
        if count:
            return request.reply(ext=ext, remark="FOUND", body=b"".join(bodies))
        return request.reply(ResponseCode.PULL_NOT_FOUND, ext=ext, remark="NO_MESSAGE_IN_QUEUE")

    # --- steps

    def _want(self, peer: Peer, request: RemotingCommand, *, with_times: bool = True) -> PopWant:
        """What a request asks for, after all checks. Raises RemoteError."""
        return self._in_turn(self._make_plan(request, with_times=with_times), peer)

    def _make_plan(self, request: RemotingCommand, *, with_times: bool = True) -> _Plan:
        """Check everything that a request says. Raises RemoteError."""
        topic_name, group_name = request.text("topic"), request.text("consumerGroup")
        queue_id, count_max = request.integer("queueId"), request.integer("maxMsgNums")
        grant = self._checks.grant(group_name, topic_name, queue_id)
        topic = grant.topic
        if not 0 < count_max <= POP_COUNT_MAX:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{self._live.value.broker_name}] pop message's num is {count_max}: 1 to {POP_COUNT_MAX} are "
                "possible (maxMsgNums)",
            )
        invisible_ms = request.integer("invisibleTime") if with_times else 0
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise RemoteError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime is {invisible_ms} ms: 0 to {INVISIBLE_MS_MAX} are possible",
            )
        tag_codes, accept = self._checks.filter(topic_name, request.field("expType"), request.field("exp"))
        ordered = request.boolean("order", False)
        config = self._live.value
        want = PopWant(
            topic=topic_name,
            group=group_name,
            queue_id=max(ANY_QUEUE, queue_id),
            queue_count=topic.read_queue_nums,
            count_max=count_max,
            invisible_ms=invisible_ms,
            init_mode=request.integer("initMode", INIT_FROM_MIN),
            young_from_zero=config.init_pop_offset_by_check_msg_in_mem,
            ordered=ordered,
            attempt_id=request.text("attemptId", ""),
            tag_codes=tag_codes,
            accept=accept,
            retries=() if ordered else self._checks.with_queues(grant.retries),
        )
        return _Plan(
            want,
            0 if queue_id >= 0 else max(1, topic.read_queue_nums),
            config,
            grant.group if grant.has_priorities and not ordered else None,
        )

    def _in_turn(self, plan: _Plan, peer: Peer) -> PopWant:
        """The plan's pop, for this peer and moment: with which queue it begins, whether it looks for retries first."""
        want, config, pick = plan.want, plan.config, self._pick
        by_priority = plan.prioritized is not None and self._heeds_priority(plan.prioritized)
        if want.retries:
            retry_percent = (
                config.pop_from_retry_probability_for_priority
                if by_priority
                else config.pop_from_retry_probability
            )
            want.retry_first = pick(100) < retry_percent
        want.highest_first = by_priority and config.priority_order_asc
        want.start = pick(plan.turns) if plan.turns and not by_priority else 0
        want.consumer = peer.address
        return want

    def _heeds_priority(self, group: SubscriptionGroupConfig) -> bool:
        """Whether a pop of a PRIORITY topic takes higher priorities first: in priority.factor of 100 cases."""
        factor = group.attributes.get("priority.factor", "100")
        return self._pick(100) < (int(factor) if factor.isdigit() else 100)

    def _answer(
        self,
        peer: Peer,
        request: RemotingCommand,
        want: PopWant,
        *,
        until_ms: int,
        is_cold: Callable[[str, int, int], bool] | None = None,
    ) -> RemotingCommand | None:
        """Serve the pop, or let it wait until `until_ms` (0: not at all). Raises ColdData when `is_cold` says so."""
        now_ms = self._clock.now_ms()
        try:
            taken = self._engine.take(want, now_ms, is_cold)
        except StoreError as error:
            refusal = store_refusal(error)
            return request.reply(refusal.code, remark=refusal.remark, ext={})
        if not taken.count:
            return self._empty(peer, request, want, taken, until_ms)
        self._count(want, taken)
        reply = request.reply(remark="FOUND", ext=self._fields(taken, want), body=b"".join(taken.bodies))
        return self._ack.answer(peer, reply, taken.end, request_code=request.code) if taken.end else reply

    def _count(self, want: PopWant, taken: Taken) -> None:
        """Count what was taken, and wake who waits for the rest."""
        for topic, share, size in zip(taken.topics, taken.shares, taken.sizes, strict=True):
            self._stats.group_get(want.group, topic, len(share.offsets), size)
        if taken.rest and self._waiting.count:
            self._waiting.wake(want.topic, want.group)  # there is more than this one could take

    def _empty(
        self, peer: Peer, request: RemotingCommand, want: PopWant, taken: Taken, until_ms: int
    ) -> RemotingCommand | None:
        """Let a pop that found nothing wait until `until_ms` (0: not at all), or say so."""
        self._stats.get_miss()
        if until_ms > taken.pop_time and self._may_hold and not request.is_oneway:
            return self._wait(peer, request, want, taken, until_ms)
        return self._nothing(request, want, taken)

    def _wait(
        self,
        peer: Peer,
        request: RemotingCommand,
        want: PopWant,
        taken: Taken,
        until_ms: int,
    ) -> RemotingCommand | None:
        call = PendingPop(
            peer, request, want.topic, want.group, want.queue_id, want.tag_codes, until_ms, self.resume
        )
        if taken.blocked_until:
            self._when_free(want.topic, want.group, taken.blocked_until)
        if self._waiting.hold(call, (until_ms - taken.pop_time) / 1000, queues_of(want)):
            return None
        return request.reply(
            ResponseCode.POLLING_FULL,
            remark="too many pops wait already: ask again later",
            ext=self._fields(taken, want),
        )

    def _nothing(self, request: RemotingCommand, want: PopWant, taken: Taken) -> RemotingCommand:
        return request.reply(
            ResponseCode.POLLING_TIMEOUT, remark=taken.status.name, ext=self._fields(taken, want)
        )

    def _fields(self, taken: Taken, want: PopWant) -> dict[str, str]:
        fields = {
            "popTime": str(taken.pop_time),
            "invisibleTime": str(want.invisible_ms),
            "reviveQid": str(taken.revive_queue_id),
            "restNum": str(taken.rest),
            "startOffsetInfo": start_offset_info(taken.shares),
            "msgOffsetInfo": message_offset_info(taken.shares),
        }
        if want.ordered:
            fields["orderCountInfo"] = ";".join(taken.order_counts)
        return fields

    # --- cold data

    def _is_cold(self, want: PopWant) -> Callable[[str, int, int], bool] | None:
        """Asked while messages are taken; what an ordered pop reads is looked at before, for taking holds its block."""
        return None if want.ordered else self._store.is_cold

    def _cold_reads(self, want: PopWant) -> list[tuple[str, int, int]]:
        """Where this pop would wait for the disk, looked at as far as it will probably read."""
        store, found = self._store, []
        left = want.count_max
        for topic, queue_id, _ in self._engine.sources(want):
            offset = self._engine.position(want, topic, queue_id)
            waiting = store.max_offset(topic, queue_id) - offset
            if waiting > 0:
                if store.is_cold(topic, queue_id, offset):
                    found.append((topic, queue_id, offset))
                left -= waiting
                if left <= 0:
                    break
        return found

    async def _warm(self, want: PopWant) -> None:
        """Bring into memory what this pop reads; the pop itself then runs in one step."""
        for topic, queue_id, offset in self._cold_reads(want):
            await self._store.get_messages_cold(
                topic,
                queue_id,
                offset,
                count_max=want.count_max,
                tag_codes=want.tag_codes,
                accept=want.accept,
            )

    async def _pop_cold(
        self, peer: Peer, request: RemotingCommand, want: PopWant, until_ms: int, version: int
    ) -> Reply:
        await self._warm(want)
        self._look_again(peer, request, version)
        return self._answer(peer, request, want, until_ms=until_ms)

    def _look_again(self, peer: Peer, request: RemotingCommand, version: int) -> None:
        """Users or permissions may have changed since a pop was let in. Raises RemoteError."""
        if self._waiting.access is not None:
            self._waiting.access.require(peer, request, version)

    async def _resume_cold(self, peer: Peer, request: RemotingCommand, want: PopWant, version: int) -> None:
        try:
            await self._warm(want)
            self._look_again(peer, request, version)
            reply = self._answer(peer, request, want, until_ms=0)
        except AerobeeError as error:
            reply = _error_reply(request, error)
        if reply is not None and peer.is_open:
            peer.send(reply)


def _error_reply(request: RemotingCommand, error: AerobeeError) -> RemotingCommand:
    code = error.code if isinstance(error, RemoteError) else int(ResponseCode.SYSTEM_ERROR)
    remark = error.remark if isinstance(error, RemoteError) else str(error)
    return request.reply(code, remark=remark, ext={})
