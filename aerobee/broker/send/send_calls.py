"""SEND_MESSAGE 10 and 310, SEND_BATCH_MESSAGE 320 by remoting: requests in, outcomes of SendService out.

Serves every send that the lane does not take.
"""

from __future__ import annotations

from aerobee.broker.ack import AckPolicy
from aerobee.broker.config import LiveConfig
from aerobee.broker.identity import BrokerIdentity
from aerobee.broker.refusal import store_refusal
from aerobee.broker.send.message_writer import MessageLog
from aerobee.broker.send.send_header import parse_send_header
from aerobee.broker.send.send_service import SendOutcome, SendService
from aerobee.errors import RemoteError, StoreError
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.remoting.peer import Handler, Peer, Reply


class SendCalls:
    """Handlers of the send family. Plain functions; AckPolicy says when a reply may leave."""

    def __init__(
        self,
        *,
        service: SendService,
        store: MessageLog,
        live: LiveConfig,
        identity: BrokerIdentity,
        ack: AckPolicy,
    ) -> None:
        self._service = service
        self._store = store
        self._live = live
        self._ack = ack
        self._store_host_hex = identity.store_host.hex().upper()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
        }

    def send(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Serve one send request of any form."""
        try:
            outcome = self._service.store(parse_send_header(request), request.body, peer)
        except RemoteError as error:
            return request.reply(error.code, remark=error.remark, ext=self._trace_fields())
        except StoreError as error:
            refusal = store_refusal(error)
            return request.reply(refusal.code, remark=refusal.remark, ext=self._trace_fields())
        if request.is_oneway:
            return None
        reply = request.reply(ext=self._fields(outcome))
        return self._ack.answer(peer, reply, outcome.append.end, wants_to_wait=outcome.wants_to_wait)

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
