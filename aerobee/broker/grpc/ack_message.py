"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: a client acknowledges, postpones or discards
a received message.

A message that the broker renews (renewal_table.py) is found by its first receipt handle, which is the one that the client has.
Each of the three ends its renewal.

Source: AckMessageActivity, ChangeInvisibleDurationActivity, ForwardMessageToDLQActivity (RocketMQ 5.5.0). Difference: a receipt handle
that is none is answered with INVALID_RECEIPT_HANDLE, for clients repeat what is refused with another code for ever.
"""

from __future__ import annotations

import asyncio
import logging

from aerobee.broker.admission.ack import AckPolicy, Safety
from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.receipt_handle import CHANGED_MS_MAX, Receipt, check_in_time, parse_receipt
from aerobee.broker.grpc.refusal import RpcRefused, safety_status, status, status_of
from aerobee.broker.grpc.renewal_table import Renewed
from aerobee.broker.grpc.renewals import Renewals
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.grpc.times import duration_ms
from aerobee.broker.lite.lite_service import LiteService
from aerobee.broker.pop.ack_service import AckRequest, AckService, ChangeRequest, Written
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.send.send_back_service import SendBackRequest, SendBackService
from aerobee.broker.state.refusal import Refused
from aerobee.broker.state.unserved import UnservedKinds
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, RemoteError
from aerobee.grpc.proto import messages as pb
from aerobee.lite_topic import lite_queue, lite_topic_fault
from aerobee.message import Record, decode_record
from aerobee.property_names import LITE_TOPIC
from aerobee.remoting.body.pop_handle import topic_before_retry
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)

ACKS_MAX = 1_000  # of one AckMessage


class AckRpcs:
    """Serves the three RPCs."""

    def __init__(
        self,
        *,
        acks: AckService,
        send_backs: SendBackService,
        lite: LiteService,
        store: MessageStore,
        ack: AckPolicy,
        unserved: UnservedKinds,
        renewals: Renewals,
        access: RpcAccess,
        clock: Clock,
        broker_name: str,
    ) -> None:
        self._acks = acks
        self._send_backs = send_backs
        self._lite = lite
        self._store = store
        self._ack = ack
        self._unserved = unserved
        self._renewals = renewals
        self._access = access
        self._clock = clock
        self._broker_name = broker_name

    async def acknowledge(self, context: RpcContext, request: pb.AckMessageRequest) -> pb.AckMessageResponse:
        """The group has consumed the messages. Each has an entry in the answer, in their order. Raises RpcRefused, RemoteError."""
        topic, group = self._begin(context, request.topic, request.group, RequestCode.ACK_MESSAGE)
        if not request.entries:
            raise RpcRefused(pb.BAD_REQUEST, "the request names no message")
        if len(request.entries) > ACKS_MAX:
            text = f"the request has {len(request.entries)} entries, at most {ACKS_MAX} are allowed"
            raise RpcRefused(pb.BAD_REQUEST, text)
        await self._when_served()
        writes = False
        found: list[pb.Status | None] = []  # None: as what is written
        for entry in request.entries:
            try:
                is_written = self._acknowledge(topic, group, entry.receipt_handle, entry.lite_topic)
                writes = writes or is_written
                found.append(None if is_written else status())
            except (RpcRefused, AerobeeError) as error:
                found.append(status_of(error))
        written = await self._written(context) if writes else status()
        entries = [
            pb.AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=each or written
            )
            for entry, each in zip(request.entries, found, strict=True)
        ]
        codes = {entry.status.code for entry in entries}
        whole = entries[0].status if len(codes) == 1 else status(pb.MULTIPLE_RESULTS, "multiple results")
        return pb.AckMessageResponse(status=whole, entries=entries)

    def _acknowledge(self, topic: str, group: str, text: str, lite_topic: str) -> bool:
        receipt, renewed = self._receipt(group, text)
        topic = self._stored_topic(topic, group, lite_topic, receipt)
        check_in_time(receipt.handle, self._clock.now_ms())
        handle = receipt.handle
        is_written = self._acks.acknowledge(
            AckRequest(group, topic, handle.queue_id, handle.queue_offset, handle)
        )
        if renewed is not None:
            self._renewals.table.remove(renewed)
        return is_written

    async def change(
        self, context: RpcContext, request: pb.ChangeInvisibleDurationRequest
    ) -> pb.ChangeInvisibleDurationResponse:
        """Have a message come back at another time. The answer has a handle that can be used, also when it is refused."""
        try:
            found, text = await self._change(context, request)
        except (RpcRefused, AerobeeError) as error:
            found, text = status_of(error), request.receipt_handle
        return pb.ChangeInvisibleDurationResponse(status=found, receipt_handle=text)

    async def _change(
        self, context: RpcContext, request: pb.ChangeInvisibleDurationRequest
    ) -> tuple[pb.Status, str]:
        topic, group = self._begin(
            context, request.topic, request.group, RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        )
        invisible_ms = duration_ms(request.invisible_duration)
        if invisible_ms < 0:
            raise RpcRefused(pb.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small. min is 0")
        if invisible_ms > CHANGED_MS_MAX:
            raise RpcRefused(
                pb.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {CHANGED_MS_MAX}"
            )
        await self._when_served()
        receipt, renewed = self._receipt(group, request.receipt_handle)
        topic = self._stored_topic(topic, group, request.lite_topic, receipt)
        handle = receipt.handle
        check_in_time(handle, self._clock.now_ms())
        asked = ChangeRequest(
            group, topic, handle.queue_id, handle.queue_offset, handle, invisible_ms, suspend=request.suspend
        )
        changed, end = self._acks.change_invisible(asked, context.peer.address)
        if renewed is not None:
            self._renewals.table.remove(renewed)
        text = str(Receipt(changed, receipt.physical_offset))
        return (await self._safe(context, end) if end else status()), text

    async def forward(
        self, context: RpcContext, request: pb.ForwardMessageToDeadLetterQueueRequest
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """Store the message as a dead letter of the group, then acknowledge it. OK says that the dead letter is stored: a message whose
        receipt handle is no longer good may come back all the same, as at RocketMQ's proxy. Raises RpcRefused, AerobeeError."""
        topic, group = self._begin(context, request.topic, request.group, RequestCode.ACK_MESSAGE)
        await self._when_served()
        receipt, renewed = self._receipt(group, request.receipt_handle)
        if receipt.physical_offset is None:
            raise RpcRefused(pb.INVALID_RECEIPT_HANDLE, "commit log offset is empty")

        def may_consume(record: Record) -> bool:
            return topic_before_retry(record.topic, group) == topic

        result = self._send_backs.send_back(
            SendBackRequest(
                group=group,
                physical_offset=receipt.physical_offset,
                delay_level=-1,
                origin_id=request.message_id,
                tries=str(request.delivery_attempt) if request.delivery_attempt > 0 else "",
            ),
            may_consume,
        )
        found = status() if result is None else await self._safe(context, result.end)
        if found.code == pb.OK:
            handle = receipt.handle
            stored = self._stored_topic(topic, group, request.lite_topic, receipt)
            try:
                self._acks.acknowledge(
                    AckRequest(group, stored, handle.queue_id, handle.queue_offset, handle)
                )
            except (Refused, RemoteError) as error:
                # The dead letter is stored. A client repeats what is not OK every second for ever, and each time would store another.
                log.info("dead letter %s of %s was not acknowledged: %s", receipt, group, error)
            if renewed is not None:
                self._renewals.table.remove(renewed)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=found)

    # --- shared by the RPCs

    def _begin(
        self, context: RpcContext, topic: pb.Resource, group: pb.Resource, code: RequestCode
    ) -> tuple[str, str]:
        """(topic, group), checked. Raises RpcRefused."""
        topic_text, group_text = topic_name(topic), group_name(group)
        asked = RemotingCommand(code, {"topic": topic_text, "consumerGroup": group_text})
        self._access.check(context.peer, context.metadata, asked)
        self._renewals.seen(context.client)
        return topic_text, group_text

    async def _when_served(self) -> None:
        if self._unserved.has(Pop.name):
            await self._unserved.when_served(Pop.name)

    def _receipt(self, group: str, text: str) -> tuple[Receipt, Renewed | None]:
        """The receipt in force of a client's receipt handle. Raises RpcRefused."""
        renewed = self._renewals.table.find(group, text)
        if renewed is not None:
            return renewed.receipt, renewed
        return parse_receipt(text, broker_name=self._broker_name), None

    def _stored_topic(self, topic: str, group: str, lite_topic: str, receipt: Receipt) -> str:
        """Where a receipt is valid: of a lite group the LMQ of the message's lite topic. Not every client names the lite topic in every
        request (Java 5.2.0): then its record does. Raises RpcRefused.
        """
        if self._lite.group(group) is None:
            return topic
        if not lite_topic and receipt.physical_offset is not None:
            data = self._store.named_record(receipt.physical_offset)
            record = None if data is None else decode_record(data, check_crc=False)
            if record is not None and record.topic == topic:
                lite_topic = record.properties.get(LITE_TOPIC, "")
        if lite_topic_fault(lite_topic):
            raise RpcRefused(pb.INVALID_RECEIPT_HANDLE, "the receipt handle is of no lite topic")
        return lite_queue(topic, lite_topic)

    async def _written(self, context: RpcContext) -> pb.Status:
        """Receives the outcome of the acknowledgements of this event loop iteration."""
        future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()

        def written(found: Written) -> None:
            if not future.done():
                future.set_result(found)

        self._acks.when_written(written)
        end, error = await future
        if error is not None:
            return status_of(error)
        return await self._safe(context, end) if end else status()

    async def _safe(self, context: RpcContext, end: int) -> pb.Status:
        """Wait until the log is safe up to `end`, and say how safe it is."""
        future: asyncio.Future[pb.Status] = asyncio.get_running_loop().create_future()

        def release(safety: Safety, text: str) -> None:
            if not future.done():
                future.set_result(safety_status(safety, text))

        self._ack.when_safe(context.peer, end, release)
        return await future
