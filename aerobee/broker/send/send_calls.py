"""SEND_MESSAGE 10 and 310, SEND_BATCH_MESSAGE 320 by remoting: requests in, outcomes of SendService out.

Serves every send that the fast path does not take. The first send to a topic that it makes waits until the topic is
durable, in turn with others to the same topic: an acknowledged message is never in a topic that a crash forgets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aerobee.broker.ack import AckPolicy
from aerobee.broker.config import LiveConfig
from aerobee.broker.identity import BrokerIdentity
from aerobee.broker.refusal import store_refusal
from aerobee.broker.send.message_writer import MessageLog
from aerobee.broker.send.send_header import SendHeader, parse_send_header
from aerobee.broker.send.send_service import SendOutcome, SendService
from aerobee.broker.topic_table import TopicTable
from aerobee.errors import AerobeeError, RemoteError, StoreError
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.remoting.peer import Handler, Peer, Reply

# Sends that wait for topics that are being made, of all connections: each is some 3 KB, and they are all served in one turn when
# the file is written. RocketMQ's thread pool for sends holds 10,000 requests (sendThreadPoolQueueCapacity).
WAITING_SENDS_MAX = 2_000


class SendCalls:
    """Handlers of the send family. Plain calls but for new topics; AckPolicy says when a reply may leave."""

    def __init__(
        self,
        *,
        service: SendService,
        topics: TopicTable,
        store: MessageLog,
        live: LiveConfig,
        identity: BrokerIdentity,
        ack: AckPolicy,
    ) -> None:
        self._service = service
        self._topics = topics
        self._store = store
        self._live = live
        self._ack = ack
        self._waiting_count = 0  # sends whose topic is being made
        self._store_host_hex = identity.store_host.hex().upper()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
        }

    def send(
        self,
        peer: Peer,
        request: RemotingCommand,
        rewrite: Callable[[RemotingCommand], RemotingCommand] | None = None,
    ) -> Reply | Coroutine[Any, Any, Reply]:
        """Serve one send request of any form. `rewrite` changes the reply of what was stored before it can leave."""
        try:
            header = parse_send_header(request)
        except RemoteError as error:
            return self._refusal(request, error)
        missing = self._service.topic_to_make(header)
        if missing is None:
            return self._serve(peer, request, header, rewrite)
        if self._waiting_count >= WAITING_SENDS_MAX:
            busy = (
                f"[OVERLOAD] {self._waiting_count} sends wait for topics that are being made: try again later"
            )
            return self._unmade(request, RemoteError(ResponseCode.SYSTEM_BUSY, busy))
        waiting = _Waiting()
        self._waiting_count += 1

        def serve(error: AerobeeError | None) -> None:
            self._waiting_count -= 1
            # Here, not in a task that is woken later: a send that comes next finds the topic and must not overtake.
            waiting.end(
                lambda: (
                    self._serve(peer, request, header, rewrite)
                    if error is None
                    else self._unmade(request, error)
                )
            )

        self._topics.create_then(missing, serve)
        return waiting.reply() if waiting.done.is_set() else waiting.when_done()

    def _serve(
        self,
        peer: Peer,
        request: RemotingCommand,
        header: SendHeader,
        rewrite: Callable[[RemotingCommand], RemotingCommand] | None,
    ) -> Reply:
        try:
            outcome = self._service.store(header, request.body, peer)
        except (RemoteError, StoreError) as error:
            return self._refusal(request, error)
        if request.is_oneway:
            return None
        reply = request.reply(ext=self._fields(outcome))
        if rewrite is not None:
            reply = rewrite(reply)
        return self._ack.answer(peer, reply, outcome.append.end, wants_to_wait=outcome.wants_to_wait)

    def _unmade(self, request: RemotingCommand, error: AerobeeError) -> RemotingCommand:
        """The reply when the topic could not be made."""
        self._service.refused()
        if not isinstance(error, (RemoteError, StoreError)):
            error = RemoteError(ResponseCode.INVALID_PARAMETER, str(error))
        return self._refusal(request, error)

    def _refusal(self, request: RemotingCommand, error: RemoteError | StoreError) -> RemotingCommand:
        refusal = store_refusal(error) if isinstance(error, StoreError) else error
        return request.reply(refusal.code, remark=refusal.remark, ext=self._trace_fields())

    def _fields(self, outcome: SendOutcome) -> dict[str, str]:
        append = outcome.append
        ext = self._trace_fields()
        ext["msgId"] = ",".join(f"{self._store_host_hex}{offset:016X}" for offset in append.record_offsets)
        ext["queueId"] = str(outcome.queue_id)
        ext["queueOffset"] = str(append.queue_offset)
        if outcome.unique_key:
            ext["transactionId"] = outcome.unique_key
        if outcome.recall_handle:
            ext["recallHandle"] = outcome.recall_handle
        if outcome.is_inner_batch:
            ext["batchUniqId"] = outcome.unique_key
        if outcome.is_repeated:
            ext["duplicate"] = "true"
        return ext

    def _trace_fields(self) -> dict[str, str]:
        config = self._live.value
        return {"MSG_REGION": config.region_id, "TRACE_ON": boolean_text(config.trace_on)}


class _Waiting:
    """A send that waits for its topic."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self._reply: Reply = None
        self._failure: Exception | None = None

    def end(self, serve: Callable[[], Reply]) -> None:
        """Serve it now; whatever comes of it is its own, not that of others who wait."""
        try:
            self._reply = serve()
        except Exception as error:
            self._failure = error
        self.done.set()

    def reply(self) -> Reply:
        """What came of it. Raises what serving raised."""
        if self._failure is not None:
            raise self._failure
        return self._reply

    async def when_done(self) -> Reply:
        await self.done.wait()
        return self.reply()
