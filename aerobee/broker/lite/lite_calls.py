"""LITE_SUBSCRIPTION_CTL 200071 and POP_LITE_MESSAGE 200070 by remoting: decodes requests, and encodes outcomes of LiteService.

RocketMQ's proxy and our own client send them. A popped message is acknowledged by ACK_MESSAGE with the field liteTopic. The reply has
the records as they lie in the log; a message's offset in its lite topic is in INNER_MULTI_QUEUE_OFFSET, and orderCountInfo has each
message's number of earlier deliveries: `0;0;1`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from aerobee.broker.lite.lite_service import LiteService, LiteSync, OffsetKind, OffsetOption, SyncAction
from aerobee.broker.membership.heartbeat import CLIENT_ID_CHARS_MAX
from aerobee.broker.pop.pop_service import PopOutcome, PopRequest, PopStatus
from aerobee.broker.pop.withdrawals import WithdrawablePop, Withdrawals
from aerobee.broker.state.refusal import Refused, remote_refusal
from aerobee.errors import AerobeeError, MalformedFrame, RemoteError, StoreError
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.protocol import ANY_QUEUE
from aerobee.remoting.wire_name import check_wire_name

SYNCS_MAX = 1_000  # of one request
SYNCS_AT_ONCE = 16  # then other requests are served
_CODES = {
    PopStatus.FOUND: ResponseCode.SUCCESS,
    PopStatus.NOTHING: ResponseCode.POLLING_TIMEOUT,
    PopStatus.TOO_LATE: ResponseCode.POLLING_TIMEOUT,
    PopStatus.TOO_MANY_WAIT: ResponseCode.POLLING_FULL,
}
_POLICIES = {0: OffsetKind.LAST, 1: OffsetKind.MIN, 2: OffsetKind.MAX}
_KINDS = {
    "OFFSET": OffsetKind.OFFSET,
    "TAIL_N": OffsetKind.TAIL_N,
    "TIMESTAMP": OffsetKind.TIMESTAMP,
}


class LiteCalls:
    """Handlers of both requests."""

    def __init__(self, service: LiteService, withdrawals: Withdrawals) -> None:
        """`withdrawals` are those of POP_MESSAGE, too."""
        self._service = service
        self._withdrawals = withdrawals

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.LITE_SUBSCRIPTION_CTL: self.synchronize,
            RequestCode.POP_LITE_MESSAGE: self.pop,
        }

    def synchronize(
        self, peer: Peer, request: RemotingCommand
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand]:
        """Change the lite topics of clients; those before a refused one are changed."""
        fields = fastjson.loads_object(
            request.body, "LiteSubscriptionCtlRequestBody", fastjson.REQUEST_DIALECT_BYTES_MAX
        )
        entries = json_fields.objects(fields, "subscriptionSet")
        if not 0 < len(entries) <= SYNCS_MAX:
            raise MalformedFrame(f"subscriptionSet has {len(entries)} entries, 1 to {SYNCS_MAX} are possible")
        syncs = [_sync(entry) for entry in entries]
        if len(syncs) > SYNCS_AT_ONCE:
            return self._synchronize_in_turns(peer, request, syncs)
        return self._synchronize(peer, request, syncs)

    def _synchronize(
        self, peer: Peer, request: RemotingCommand, syncs: Sequence[LiteSync]
    ) -> RemotingCommand:
        try:
            for sync in syncs:
                self._service.synchronize(sync, peer)
        except Refused as refused:
            return _refusal(request, refused)
        return request.reply()

    async def _synchronize_in_turns(
        self, peer: Peer, request: RemotingCommand, syncs: Sequence[LiteSync]
    ) -> RemotingCommand:
        """Other requests are served in between: a client of a wildcard group looks at every lite topic."""
        for start in range(0, len(syncs), SYNCS_AT_ONCE):
            reply = self._synchronize(peer, request, syncs[start : start + SYNCS_AT_ONCE])
            if reply.code != ResponseCode.SUCCESS:
                return reply
            await asyncio.sleep(0)
        return request.reply()

    def pop(self, peer: Peer, request: RemotingCommand) -> Reply | Coroutine[Any, Any, Reply]:
        """Deliver messages of the lite topics that a client subscribes."""
        asked = PopRequest(
            topic=request.text("topic"),
            group=request.text("consumerGroup"),
            queue_id=ANY_QUEUE,
            count_max=request.integer("maxMsgNum"),
            invisible_ms=request.integer("invisibleTime"),
            poll_ms=request.integer("pollTime"),
            born_ms=request.integer("bornTime", 0),
            may_wait=not request.is_oneway,
            ordered=True,
            attempt_id=request.text("attemptId", ""),
        )
        call = _Call(peer, request, self._withdrawals, self._service)
        try:
            outcome = self._service.pop(asked, request.text("clientId"), call)
        except (Refused, RemoteError, StoreError) as error:
            return _refusal(request, error)
        if isinstance(outcome, Coroutine):
            return self._pop_cold(call, outcome)
        return self._reply(call, outcome)

    async def _pop_cold(self, call: _Call, pop: Coroutine[Any, Any, PopOutcome | None]) -> Reply:
        try:
            outcome = await pop
        except (Refused, RemoteError, StoreError) as error:
            return _refusal(call.request, error)
        return self._reply(call, outcome)

    def _reply(self, call: _Call, outcome: PopOutcome | None) -> Reply:
        """The answer, or None when it leaves later."""
        if outcome is None:
            self._withdrawals.note_pending(call)
            return None
        return _reply(call.request, outcome)


class _Call(WithdrawablePop):
    """One POP_LITE_MESSAGE request while LiteService serves it."""

    __slots__ = ("_service",)

    def __init__(
        self, peer: Peer, request: RemotingCommand, withdrawals: Withdrawals, service: LiteService
    ) -> None:
        super().__init__(peer, request, withdrawals)
        self._service = service

    def drop(self) -> bool:
        """As WithdrawablePop."""
        return self._service.drop(self)

    def deliver(self, outcome: PopOutcome) -> None:
        """As PopCall."""
        self._withdrawals.ended(self)
        if self.caller.is_open:
            self.caller.send(_reply(self.request, outcome))


def _reply(request: RemotingCommand, outcome: PopOutcome) -> RemotingCommand:
    taken = outcome.taken
    ext = {
        "popTime": str(taken.pop_time),
        "invisibleTime": str(outcome.want.invisible_ms),
        "reviveQid": str(taken.revive_queue_id),
    }
    if outcome.status is not PopStatus.FOUND:
        return request.reply(_CODES[outcome.status], remark=outcome.text, ext=ext)
    counts = [
        str(consumed.get(offset, 0))
        for share, consumed in zip(taken.shares, taken.consumed, strict=True)
        for offset in share.offsets
    ]
    ext["orderCountInfo"] = ";".join(counts)
    return request.reply(remark=outcome.text, ext=ext, body=b"".join(taken.bodies))


def _sync(fields: json_fields.Fields) -> LiteSync:
    """One LiteSubscriptionDTO. Raises MalformedFrame."""
    name = json_fields.text(fields, "action")
    action = SyncAction.__members__.get(name)
    if action is None:
        raise MalformedFrame(f"action is {name[:80]!r}, must be one of {', '.join(SyncAction.__members__)}")
    return LiteSync(
        action=action,
        client_id=check_wire_name(json_fields.text(fields, "clientId"), "clientId", CLIENT_ID_CHARS_MAX),
        group=json_fields.text(fields, "group"),
        topic=json_fields.text(fields, "topic"),
        lite_topics=json_fields.texts(fields, "liteTopicSet"),
        offset=_offset(fields.get("offsetOption")),
    )


def _offset(value: object) -> OffsetOption | None:
    if value is None:
        return None
    fields = json_fields.as_object(value, "offsetOption")
    name, number = json_fields.text(fields, "type"), json_fields.integer(fields, "value", 0)
    kind = _POLICIES.get(number) if name == "POLICY" else _KINDS.get(name)
    if kind is None:
        raise MalformedFrame(f"offsetOption {name[:80]!r} {number} is not known")
    return OffsetOption(kind, number)


def _refusal(request: RemotingCommand, error: AerobeeError) -> RemotingCommand:
    refusal = remote_refusal(error)
    return request.reply(refusal.code, remark=refusal.remark, ext=refusal.ext or {})
