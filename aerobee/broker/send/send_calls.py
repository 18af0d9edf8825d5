"""SEND_MESSAGE 10 and 310, SEND_BATCH_MESSAGE 320 by remoting: decodes requests, and encodes outcomes of SendService.

Serves every send that the fast path does not take, and the first one to a new topic when new_topics.py has made it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.send.new_topics import NewTopics
from aerobee.broker.send.send_header import SendHeader, parse_send_header, takes_turns
from aerobee.broker.send.send_service import SendOutcome, SendService
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.refusal import store_refusal
from aerobee.errors import AerobeeError, RemoteError, StoreError
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.protocol import BATCH_OFFSETS_FIELD, EPOCH_FIELD, LEVEL_FIELD, LOG_OFFSET_FIELD

Rewrite = Callable[[RemotingCommand], RemotingCommand]


class SendCalls:
    """Handlers of the send family. Plain calls, except sends to new topics; AckPolicy decides when a reply is sent.

    A refusal is raised as a RemoteError, whose reply names the broker's region as every reply to a send does.
    """

    def __init__(
        self,
        *,
        service: SendService,
        new_topics: NewTopics,
        live: LiveConfig,
        identity: BrokerIdentity,
        ack: AckPolicy,
        epoch: Callable[[], int] = int,
    ) -> None:
        """`epoch` is that of this broker's mastership."""
        self._service = service
        self._new_topics = new_topics
        self._live = live
        self._ack = ack
        self._epoch = epoch
        self._store_host_hex = identity.store_host.hex().upper()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
        }

    def send(
        self, peer: Peer, request: RemotingCommand, rewrite: Rewrite | None = None
    ) -> Reply | Coroutine[Any, Any, Reply]:
        """Serve one send request of any form. `rewrite` changes the reply to a stored message before it is sent.

        Raises RemoteError for a refused message, MalformedFrame for invalid fields.
        """
        try:
            header = parse_send_header(request)
        except RemoteError as error:
            raise self._refusal(error) from error
        if self._service.needs_topic(header):
            return self._new_topics.make(header, partial(self._serve, peer, request, header, rewrite))
        return self._serve(peer, request, header, rewrite)

    def _serve(
        self,
        peer: Peer,
        request: RemotingCommand,
        header: SendHeader,
        rewrite: Rewrite | None,
        unmade: AerobeeError | None = None,
    ) -> Reply | Coroutine[Any, Any, Reply]:
        """Store it and answer. `unmade`: why its topic could not be made."""
        try:
            if unmade is not None:
                self._service.refused()
                raise unmade
            if header.batch and takes_turns(request.body):
                return self._serve_in_turns(peer, request, header, rewrite)
            outcome = self._service.store(header, request.body, peer)
        except AerobeeError as error:
            raise self._refusal(error) from error
        return self._answer(peer, request, outcome, rewrite)

    async def _serve_in_turns(
        self, peer: Peer, request: RemotingCommand, header: SendHeader, rewrite: Rewrite | None
    ) -> Reply:
        """As _serve(), of a large batch."""
        try:
            outcome = await self._service.store_in_turns(header, request.body, peer)
        except AerobeeError as error:
            raise self._refusal(error) from error
        return self._answer(peer, request, outcome, rewrite)

    def _answer(
        self, peer: Peer, request: RemotingCommand, outcome: SendOutcome, rewrite: Rewrite | None
    ) -> Reply:
        if request.is_oneway:
            return None
        reply = request.reply(ext=self._fields(outcome))
        if rewrite is not None:
            reply = rewrite(reply)
        return self._ack.answer(
            peer,
            reply,
            outcome.append.end,
            request_code=request.code,
            wants_to_wait=outcome.wants_to_wait,
            level=outcome.level,
        )

    def _refusal(self, error: AerobeeError) -> RemoteError:
        """The exception for `error`, the reason why the message is not stored."""
        if isinstance(error, StoreError):
            error = store_refusal(error)
        code, remark = int(ResponseCode.INVALID_PARAMETER), str(error)  # of a topic that cannot be made
        if isinstance(error, RemoteError):
            code, remark = error.code, error.remark
        return RemoteError(code, remark, ext=self._trace_fields())

    def _fields(self, outcome: SendOutcome) -> dict[str, str]:
        append = outcome.append
        ext = self._trace_fields()
        ext["msgId"] = ",".join([f"{self._store_host_hex}{offset:016X}" for offset in append.record_offsets])
        ext["queueId"] = str(outcome.queue_id)
        ext["queueOffset"] = str(append.queue_offset)
        if outcome.gaps:
            ext[BATCH_OFFSETS_FIELD] = ",".join([f"{index}:{offset}" for index, offset in outcome.gaps])
        if outcome.unique_key:
            ext["transactionId"] = outcome.unique_key
        if outcome.recall_handle:
            ext["recallHandle"] = outcome.recall_handle
        if outcome.is_inner_batch:
            ext["batchUniqId"] = outcome.unique_key
        if outcome.is_repeated:
            ext["duplicate"] = "true"
        if outcome.level is not None:
            # Besides RocketMQ's fields, which is all that other clients read.
            ext[LEVEL_FIELD] = outcome.level.name
            ext[EPOCH_FIELD] = str(self._epoch())
            ext[LOG_OFFSET_FIELD] = str(append.end)
        return ext

    def _trace_fields(self) -> dict[str, str]:
        config = self._live.value
        return {"MSG_REGION": config.region_id, "TRACE_ON": boolean_text(config.trace_on)}
