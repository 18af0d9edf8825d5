"""PULL_MESSAGE 11 and LITE_PULL_MESSAGE 361 by remoting: requests in, outcomes of PullService out.

The reply's four offsets are in every reply of code 0, 19, 20 and 21: clients fail without them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from aerobee.broker.pull.pending_pulls import PendingPull, PendingPulls
from aerobee.broker.pull.pull_service import (
    Pull,
    PullOutcome,
    PullRefused,
    PullRequest,
    PullService,
)
from aerobee.errors import AerobeeError, RemoteError
from aerobee.remoting.body.subscription import TYPE_TAG
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame, encode_frame
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.protocol import PULL_COMMIT_OFFSET, PULL_COUNT_MAX, PULL_SUBSCRIPTION, PULL_SUSPEND

# sysFlag bits of a pull (PullSysFlag)
CLASS_FILTER = 8

# Converts the reply of a pull, for a queue with other ids and offsets at the client.
Rewrite = Callable[[RemotingCommand], RemotingCommand]


def parse_pull(request: RemotingCommand) -> PullRequest:
    """Read the fields of a pull. Raises MalformedFrame for one that is missing or not a number."""
    flags = request.integer("sysFlag", 0)
    suspends = flags & PULL_SUSPEND and not request.is_oneway
    return PullRequest(
        group=request.text("consumerGroup"),
        topic=request.text("topic"),
        queue_id=request.integer("queueId"),
        offset=request.integer("queueOffset"),
        count_max=min(max(1, request.integer("maxMsgNums")), PULL_COUNT_MAX),
        expression=request.text("subscription", "") if flags & PULL_SUBSCRIPTION else None,
        expression_type=request.field("expressionType") or TYPE_TAG,
        subscription_version=request.integer("subVersion", 0),
        commit_offset=request.integer("commitOffset") if flags & PULL_COMMIT_OFFSET else None,
        hold_ms=request.integer("suspendTimeoutMillis", 0) if suspends else None,
        is_lite=request.code == RequestCode.LITE_PULL_MESSAGE,
    )


class PullCalls:
    """Handlers of both pull requests. A hot pull is a plain function; a cold one a coroutine."""

    def __init__(
        self,
        *,
        service: PullService,
        pending_pulls: PendingPulls,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`spawn` makes a task that ends with the broker, for a pending pull whose data is cold."""
        self._service = service
        self._pending_pulls = pending_pulls
        self._spawn = spawn

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(
        self,
        peer: Peer,
        request: RemotingCommand,
        rewrite: Rewrite | None = None,
        signed: RemotingCommand | None = None,
    ) -> Reply | Coroutine[Any, Any, Reply]:
        """Serve a new pull: it may wait, and it commits the offset in its header. `signed`: the original request, if
        `request` differs from it."""
        try:
            pull = self._service.check(peer, parse_pull(request))
        except PullRefused as refusal:
            ext = {"forbiddenType": str(refusal.forbidden_type)} if refusal.forbidden_type else {}
            return request.reply(refusal.code, remark=refusal.remark, ext=ext)
        if self._service.is_cold(pull):
            access = self._pending_pulls.access
            return self._pull_cold(pull, request, rewrite, signed, 0 if access is None else access.seen)
        return self._answer(pull, request, self._service.read(pull, may_hold=True), rewrite, signed)

    async def _pull_cold(
        self,
        pull: Pull,
        request: RemotingCommand,
        rewrite: Rewrite | None,
        signed: RemotingCommand | None,
        version: int,
    ) -> Reply:
        outcome = await self._service.read_cold(pull, may_hold=True)
        if self._pending_pulls.access is not None:
            self._pending_pulls.access.require(pull.peer, signed or request, version)
        return self._answer(pull, request, outcome, rewrite, signed)

    def resume(self, held: PendingPull, rewrite: Rewrite | None = None) -> None:
        """Serve a pending pull; it is answered now in any case."""
        request = decode_frame(held.frame)
        try:
            pull = self._service.check(held.peer, parse_pull(request))
            if self._service.is_cold(pull):
                self._spawn(self._resume_cold(held, pull, request, rewrite))
                return
            reply = self._answer(pull, request, self._service.read(pull, may_hold=False), rewrite)
        except AerobeeError as error:
            code = error.code if isinstance(error, RemoteError) else int(ResponseCode.SYSTEM_ERROR)
            reply = request.reply(code, remark=str(error), ext={})
        if reply is not None:
            held.peer.send(reply)
            self._pending_pulls.answered(held, reply.code)

    async def _resume_cold(
        self, held: PendingPull, pull: Pull, request: RemotingCommand, rewrite: Rewrite | None
    ) -> None:
        try:
            outcome = await self._service.read_cold(pull, may_hold=False)
            if self._pending_pulls.access is not None:
                self._pending_pulls.access.require(pull.peer, held.asked(), held.version)
            reply = self._answer(pull, request, outcome, rewrite)
        except RemoteError as error:
            reply = request.reply(error.code, remark=error.remark, ext={})
        except AerobeeError as error:
            reply = request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error), ext={})
        if reply is not None and pull.peer.is_open:
            pull.peer.send(reply)
            self._pending_pulls.answered(held, reply.code)

    def _answer(
        self,
        pull: Pull,
        request: RemotingCommand,
        outcome: PullOutcome,
        rewrite: Rewrite | None,
        signed: RemotingCommand | None = None,
    ) -> Reply:
        """The reply, or None when the pull is pending from now on."""
        if outcome.hold_ms is not None:
            asked = pull.request
            held = PendingPull(
                pull.peer,
                encode_frame(request),
                asked.group,
                asked.topic,
                asked.queue_id,
                asked.offset,
                pull.tag_codes,
                pull.accept,
                self.resume if rewrite is None else partial(self.resume, rewrite=rewrite),
                request.code,
                signed,
            )
            self._pending_pulls.hold(held, outcome.hold_ms / 1000)
            return None
        ext = {
            "suggestWhichBrokerId": str(outcome.suggested_broker_id),
            "nextBeginOffset": str(outcome.next_offset),
            "minOffset": str(outcome.min_offset),
            "maxOffset": str(outcome.max_offset),
            "topicSysFlag": str(pull.topic.topic_sys_flag),
            "groupSysFlag": str(pull.group.group_sys_flag),
        }
        reply = request.reply(outcome.code, remark=outcome.remark, ext=ext, body=outcome.body)
        return reply if rewrite is None else rewrite(reply)
