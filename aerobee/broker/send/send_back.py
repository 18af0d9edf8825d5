"""CONSUMER_SEND_MSG_BACK 36 by remoting: decodes requests, and encodes outcomes of SendBackService."""

from __future__ import annotations

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.admission.record_access import RecordAccess
from aerobee.broker.send.send_back_service import SendBackRequest, SendBackService
from aerobee.broker.send.send_header import VERSION_WITH_MAX_RECONSUME
from aerobee.broker.state.refusal import Refused, remote_refusal
from aerobee.errors import StoreError
from aerobee.message import Record
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply


class SendBackCalls:
    """The handler of CONSUMER_SEND_MSG_BACK."""

    def __init__(self, *, service: SendBackService, ack: AckPolicy, records: RecordAccess) -> None:
        self._service = service
        self._ack = ack
        self._records = records

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, peer: Peer, request: RemotingCommand) -> Reply:
        """Store the record again. Replies 0 once it is stored (with sync flush: once it is durable)."""
        asked = parse_send_back(request)

        def may_consume(record: Record) -> bool:
            return self._records.may_consume(peer, request, record, asked.group)

        try:
            result = self._service.send_back(asked, may_consume)
        except (Refused, StoreError) as error:
            refusal = remote_refusal(error)
            return request.reply(refusal.code, remark=refusal.remark)
        reply = request.reply()
        if result is None or request.is_oneway:
            return reply
        return self._ack.answer(peer, reply, result.end, request_code=request.code)


def parse_send_back(request: RemotingCommand) -> SendBackRequest:
    """Read the fields of 36. Raises MalformedFrame for one that is missing or not a number."""
    tries_max = None
    if request.version >= VERSION_WITH_MAX_RECONSUME and request.field("maxReconsumeTimes"):
        tries_max = request.integer("maxReconsumeTimes")
    return SendBackRequest(
        group=request.text("group"),
        physical_offset=request.integer("offset"),
        delay_level=request.integer("delayLevel", 0),
        delay_ms=request.integer("delayMillis", -1),
        tries_max=tries_max,
        unit_mode=request.boolean("unitMode", False),
        origin_id=request.text("originMsgId", ""),
        last_error=request.field("lastError") or "",
        tries=request.field("deliveryTries") or "",
        death_reason=request.field("deadLetterReason") or "",
    )
