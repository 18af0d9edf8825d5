"""POP_MESSAGE 200050 and PEEK_MESSAGE 200052 by remoting: decodes requests, and encodes outcomes of PopService.

A pop that finds nothing is answered POLLING_TIMEOUT (210), one that is withdrawn (withdrawals.py) as well. With sync flush the answer waits
until its check points are on the disk: what is handed out is never lost.
"""

from __future__ import annotations

from collections.abc import Coroutine
from operator import itemgetter
from typing import Any

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.fastpath.pop import found_reply
from aerobee.broker.fastpath.request import UNREADABLE, FallBackToHandler, born_time, number
from aerobee.broker.pop.engine import INIT_FROM_MIN, ColdData, PopEngine, PopWant, Taken
from aerobee.broker.pop.pop_service import (
    LATE_MS,
    PopCall,
    PopOutcome,
    PopPlan,
    PopRequest,
    PopService,
    PopStatus,
)
from aerobee.broker.pop.withdrawals import WithdrawablePop, Withdrawals
from aerobee.broker.state.refusal import Refused, remote_refusal
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, RemoteError, StoreError
from aerobee.remoting.body.pop_handle import message_offset_info, start_offset_info
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import encode_frame
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.protocol import HOLD_MS_MAX
from aerobee.store.message_store import MessageStore

PLANS_MAX = 1_024
# Parameters of a pop, other than its born time.
_FIELDS = (
    "consumerGroup", "topic", "queueId", "maxMsgNums", "invisibleTime",
    "initMode", "expType", "exp", "order", "attemptId",
)  # fmt: skip
_NEEDED = itemgetter(*_FIELDS[:5])
_ONLY_TEXT = frozenset((str,))
_CODES = {
    PopStatus.FOUND: ResponseCode.SUCCESS,
    PopStatus.NOTHING: ResponseCode.POLLING_TIMEOUT,
    PopStatus.TOO_LATE: ResponseCode.POLLING_TIMEOUT,
    PopStatus.TOO_MANY_WAIT: ResponseCode.POLLING_FULL,
}


def parse_pop(request: RemotingCommand, *, with_times: bool = True) -> PopRequest:
    """Read the fields that tell pops apart; poll and born times are read apart. Raises MalformedFrame."""
    return PopRequest(
        topic=request.text("topic"),
        group=request.text("consumerGroup"),
        queue_id=request.integer("queueId"),
        count_max=request.integer("maxMsgNums"),
        invisible_ms=request.integer("invisibleTime") if with_times else 0,
        may_wait=not request.is_oneway,
        init_mode=request.integer("initMode", INIT_FROM_MIN),
        expression_type=request.field("expType"),
        expression=request.field("exp"),
        ordered=request.boolean("order", False),
        attempt_id=request.text("attemptId", ""),
    )


class PopCalls:
    """Handlers of both requests, and the fast path hook for ordinary pops."""

    def __init__(
        self, *, service: PopService, engine: PopEngine, store: MessageStore, ack: AckPolicy, clock: Clock
    ) -> None:
        self._service = service
        self._engine = engine
        self._store = store
        self._ack = ack
        self._clock = clock
        # With the engine's native form of the plan, None where there is none.
        self._plans: dict[tuple[str | None, ...], tuple[PopPlan, Any]] = {}
        self.withdrawals = Withdrawals()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.POP_MESSAGE: self.pop,
            RequestCode.PEEK_MESSAGE: self.peek,
            RequestCode.AEROBEE_WITHDRAW_POP: self.withdrawals.withdraw,
        }

    def pop(self, peer: Peer, request: RemotingCommand) -> Reply | Coroutine[Any, Any, Reply]:
        """Serve a new pop."""
        asked = parse_pop(request)
        asked.poll_ms, asked.born_ms = request.integer("pollTime"), request.integer("bornTime", 0)
        call = _Call(peer, request, self)
        try:
            outcome = self._service.pop(asked, call)
        except (Refused, RemoteError, StoreError) as error:
            return _refusal(request, error)
        if isinstance(outcome, Coroutine):
            return self._pop_cold(call, outcome)
        if outcome is None:
            self.withdrawals.note_pending(call)
        return self._reply(peer, request, outcome)

    async def _pop_cold(self, call: _Call, pop: Coroutine[Any, Any, PopOutcome | None]) -> Reply:
        try:
            outcome = await pop
        except (Refused, RemoteError, StoreError) as error:
            return _refusal(call.request, error)
        if outcome is None:
            self.withdrawals.note_pending(call)
        return self._reply(call.caller, call.request, outcome)

    def drop(self, call: PopCall) -> bool:
        """As PopService.drop()."""
        return self._service.drop(call)

    def deliver(self, peer: Peer, request: RemotingCommand, outcome: PopOutcome) -> None:
        """Answer a pop that has waited."""
        reply = self._reply(peer, request, outcome)
        if reply is not None and peer.is_open:
            peer.send(reply)

    def _reply(self, peer: Peer, request: RemotingCommand, outcome: PopOutcome | None) -> Reply:
        """The answer, or None when it leaves later."""
        if outcome is None:
            return None
        taken, want = outcome.taken, outcome.want
        ext = {
            "popTime": str(taken.pop_time),
            "invisibleTime": str(want.invisible_ms),
            "reviveQid": str(taken.revive_queue_id),
            "restNum": str(taken.rest),
            "startOffsetInfo": start_offset_info(taken.shares),
            "msgOffsetInfo": message_offset_info(taken.shares),
        }
        if want.ordered:
            ext["orderCountInfo"] = order_count_info(taken)
        if outcome.status is not PopStatus.FOUND:
            return request.reply(_CODES[outcome.status], remark=outcome.text, ext=ext)
        reply = request.reply(remark="FOUND", ext=ext, body=b"".join(taken.bodies))
        return self._ack.answer(peer, reply, taken.end, request_code=request.code) if taken.end else reply

    def peek(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Return the messages of a pop without delivering them."""
        asked = parse_pop(request, with_times=False)
        try:
            found = self._service.peek(asked, peer)
        except (Refused, RemoteError) as error:
            return _refusal(request, error)
        ext = {
            "popTime": str(found.time_ms),
            "invisibleTime": "0",
            "reviveQid": "0",
            "restNum": str(found.rest),
        }
        if found.message_count:
            return request.reply(ext=ext, remark="FOUND", body=found.body)
        return request.reply(ResponseCode.PULL_NOT_FOUND, ext=ext, remark="NO_MESSAGE_IN_QUEUE")

    # --- ordinary pops

    def pop_fast(self, peer: Peer, opaque: int, fields: dict[str, Any]) -> bytes:
        """Unordered pop() of hot messages, by the fields of its request (PopHooks.pop).

        Most pops repeat the fields of an earlier one, so they are checked once until a setting changes.
        """
        field, service = fields.get, self._service
        try:
            key = (
                *_NEEDED(fields),
                field("initMode"),
                field("expType"),
                field("exp"),
                field("order"),
                field("attemptId"),
            )
            plan, native = self._plans.get(key) or self._find_plan(key)
            born_ms, poll_ms = born_time(fields["bornTime"]), number(fields["pollTime"])
        except UNREADABLE as error:
            raise FallBackToHandler from error
        now_ms = self._clock.now_ms()
        age_ms = service.age_ms(peer, born_ms, now_ms, poll_ms)
        if age_ms > poll_ms + LATE_MS:
            raise FallBackToHandler
        want = service.in_turn(plan, peer)
        try:
            found = None if native is None else self._engine.take_natively(native, want, now_ms, opaque)
            if found is None:
                taken = self._engine.take(want, now_ms, self._store.is_cold)
        except (ColdData, StoreError) as error:
            raise FallBackToHandler from error  # nothing is handed out
        if found is not None:
            reply, native_shares, _, end, _, rest = found
            service.count_natively(want, native_shares, rest)
        elif not taken.count:
            until_ms = now_ms + min(poll_ms - age_ms, HOLD_MS_MAX)
            return self._nothing_fast(peer, opaque, fields, plan.asked, want, taken, until_ms)
        else:
            service.count(want, taken)
            shares, end = taken.shares, taken.end
            reply = found_reply(
                opaque,
                f'"popTime":"{taken.pop_time}","invisibleTime":"{want.invisible_ms}","reviveQid":"{taken.revive_queue_id}","restNum":"{taken.rest}",'
                f'"startOffsetInfo":"{start_offset_info(shares)}","msgOffsetInfo":"{message_offset_info(shares)}"',
                taken.bodies[0] if len(taken.bodies) == 1 else b"".join(taken.bodies),
            )
        if end and self._ack.holds:
            self._ack.hold(peer, end, reply)
            return b""
        return reply

    def _find_plan(self, key: tuple[str | None, ...]) -> tuple[PopPlan, Any]:
        """Check the common fields of all pops with these texts. Raises FallBackToHandler, or one of UNREADABLE."""
        ext = {name: value for name, value in zip(_FIELDS, key, strict=True) if value is not None}
        if not _ONLY_TEXT.issuperset(map(type, ext.values())):
            raise FallBackToHandler
        try:
            plan = self._service.plan(parse_pop(RemotingCommand(RequestCode.POP_MESSAGE, ext)))
        except (Refused, RemoteError) as error:
            raise FallBackToHandler from error
        if plan.want.ordered:
            raise FallBackToHandler
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
        known = self._plans[key] = (plan, self._engine.plan_natively(plan.want))
        return known

    def forget_plans(self) -> None:
        """Topics, groups, settings or the broker's role have changed: check everything again."""
        self._plans.clear()

    def _nothing_fast(
        self,
        peer: Peer,
        opaque: int,
        fields: dict[str, Any],
        asked: PopRequest,
        want: PopWant,
        taken: Taken,
        until_ms: int,
    ) -> bytes:
        """The reply to a pop without messages; b"" when it waits. Raises FallBackToHandler, and counts nothing then."""
        if not _ONLY_TEXT.issuperset(map(type, fields.values())):
            raise FallBackToHandler
        request = RemotingCommand(RequestCode.POP_MESSAGE, fields, opaque=opaque)
        call = _Call(peer, request, self)
        outcome = self._service.nothing(asked, call, want, taken, until_ms)
        if outcome is None:
            self.withdrawals.note_pending(call)
        reply = self._reply(peer, request, outcome)
        return b"" if reply is None else encode_frame(reply)


def order_count_info(taken: Taken) -> str:
    """How often each message of an ordered pop was consumed before: `r qo<queue id>%<offset> times;...`."""
    found: list[str] = []
    for share, consumed in zip(taken.shares, taken.consumed, strict=True):
        found += [f"{share.retry} qo{share.queue_id}%{offset} {times}" for offset, times in consumed.items()]
        # For clients that support only one count per queue: the smallest of the block.
        least = min(consumed.values()) if len(consumed) == len(share.offsets) else 0
        found.append(f"{share.retry} {share.queue_id} {least}")
    return ";".join(found)


class _Call(WithdrawablePop):
    """One POP_MESSAGE request while PopService serves it."""

    __slots__ = ("_calls",)

    def __init__(self, peer: Peer, request: RemotingCommand, calls: PopCalls) -> None:
        super().__init__(peer, request, calls.withdrawals)
        self._calls = calls

    def drop(self) -> bool:
        """As WithdrawablePop."""
        return self._calls.drop(self)

    def deliver(self, outcome: PopOutcome) -> None:
        """As PopCall."""
        self._withdrawals.ended(self)
        self._calls.deliver(self.caller, self.request, outcome)


def _refusal(request: RemotingCommand, error: AerobeeError) -> RemotingCommand:
    refusal = remote_refusal(error)
    return request.reply(refusal.code, remark=refusal.remark, ext=refusal.ext or {})
